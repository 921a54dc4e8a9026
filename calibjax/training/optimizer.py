"""AdamW with warm-up, decay to zero and clipping, as the presets describe it."""

import jax
import jax.numpy as jnp
import numpy as np
import optax

from calibjax.errors import input_error
from calibjax.forecaster.presets import Preset

SCHEDULES = ("linear", "cosine")


def learning_rate_schedule(
    schedule: str, *, peak: float, steps: int, warmup_steps: int
) -> optax.Schedule:
    """Step -> learning rate: from 0 up to `peak` in `warmup_steps`, then down to 0 at `steps`."""
    if not 0 <= warmup_steps < steps:
        expected = f"an integer from 0 to steps - 1 = {steps - 1}"
        fix = "warm up for less, or train longer"
        raise input_error("warmup_steps", warmup_steps, expected, fix)
    if schedule not in SCHEDULES:
        raise input_error("schedule", schedule, " or ".join(SCHEDULES))
    rest = steps - warmup_steps
    if schedule == "linear":
        decay = optax.linear_schedule(peak, 0.0, rest)
    else:
        decay = optax.cosine_decay_schedule(peak, rest)
    warmup = optax.linear_schedule(0.0, peak, max(warmup_steps, 1))
    return optax.join_schedules([warmup, decay], [warmup_steps])


def schedule_of(preset: Preset) -> optax.Schedule:
    """The learning rate of joint training."""
    return learning_rate_schedule(
        preset.schedule,
        peak=preset.learning_rate,
        steps=preset.steps,
        warmup_steps=preset.warmup_steps,
    )


def learning_rates(preset: Preset) -> np.ndarray:
    """Learning rate of every update, float32 [steps + 1], on the host: reading it costs no sync."""
    steps = jnp.arange(preset.steps + 1, dtype=jnp.int32)
    with jax.numpy_dtype_promotion("standard"):
        return np.asarray(jax.jit(jax.vmap(schedule_of(preset)))(steps))


def optimizer(preset: Preset) -> optax.GradientTransformation:
    """The optimizer of joint training."""
    schedule = schedule_of(preset)
    return adamw(schedule, weight_decay=preset.weight_decay, clip_norm=preset.clip_norm)


def adamw(
    schedule: optax.ScalarOrSchedule, *, weight_decay: float, clip_norm: float
) -> optax.GradientTransformation:
    """Clip by global norm, then AdamW (betas 0.9, 0.999, eps 1e-8); biases do not decay."""
    inner = optax.chain(
        optax.clip_by_global_norm(clip_norm),
        optax.adamw(schedule, weight_decay=weight_decay, mask=_decayed),
    )

    def update(updates, state, params=None):
        # optax adds Python floats and int32 counts to float32 arrays by itself.
        with jax.numpy_dtype_promotion("standard"):
            return inner.update(updates, state, params)

    return optax.GradientTransformation(inner.init, update)


def _decayed(params):
    return jax.tree.map(lambda leaf: leaf.ndim > 1, params)
