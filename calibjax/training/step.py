"""The training step: one jitted function, differentiated with respect to the trainables alone."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax.typing import ArrayLike

from calibjax.backbone.packed import packed_features
from calibjax.data.loader import Batch
from calibjax.forecaster.losses import Total, class_cross_entropy, soft_cross_entropy
from calibjax.forecaster.model import forecast_logits
from calibjax.forecaster.presets import Preset
from calibjax.training.state import TrainState, named_leaves

LossFn = Callable[[jax.Array, jax.Array, jax.Array], Total]


class StepMetrics(NamedTuple):
    """loss: mean over the rows, nats; weight: rows (or their class weight); ok: whether the update
    was applied; finite_leaves: bool [n], per trainable leaf in the order of `named_leaves`."""

    loss: jax.Array
    weight: jax.Array
    grad_norm: jax.Array
    ok: jax.Array
    finite_leaves: jax.Array
    skipped: jax.Array
    skipped_in_a_row: jax.Array


def make_loss(preset: Preset, class_weight_C: ArrayLike) -> LossFn:
    """(logits [..., C], label, mask) -> Total for the preset's number of outputs."""
    if preset.num_outputs <= 2:
        return soft_cross_entropy

    weight_C = jnp.asarray(class_weight_C, jnp.float32)

    def loss(logits: jax.Array, label: jax.Array, mask: jax.Array) -> Total:
        return class_cross_entropy(logits, label, mask, weight_C)

    return loss


def batch_logits(
    graphdef: nnx.GraphDef,
    params: nnx.State,
    constants: nnx.State,
    backbone: Any,
    batch: Batch,
    preset: Preset,
    dropout_key: jax.Array | None = None,
) -> jax.Array:
    """Logits [B, N, M, C] of a batch, from one pass of the decoder."""
    model = nnx.merge(graphdef, params, constants)
    features_BND = packed_features(
        backbone, batch.packed, adapter=model.adapter, dropout_key=dropout_key
    )
    return forecast_logits(model, features_BND, jnp.asarray(batch.temperature_BNM), preset)


def make_train_step(
    graphdef: nnx.GraphDef, preset: Preset, tx: optax.GradientTransformation, loss_fn: LossFn
) -> Callable[[TrainState, Any, Batch, jax.Array], tuple[TrainState, StepMetrics]]:
    """Jitted (state, backbone, batch, key) -> (state, metrics); compiled once per bucket.

    The state is donated, the backbone never. Micro-batches (`preset.accumulation`) add up sums of
    loss and weight, so that any split of a batch gives the same gradient.
    """

    def total_loss(params, constants, backbone, batch, key):
        dropout_key = key if preset.lora_dropout > 0 else None
        logits = batch_logits(graphdef, params, constants, backbone, batch, preset, dropout_key)
        total = loss_fn(logits, batch.label_BNM, batch.mask_BNM)
        return total.sum, total.weight

    def step(state: TrainState, backbone: Any, batch: Batch, key: jax.Array):
        key = jax.random.fold_in(key, state.step)
        grad_fn = jax.value_and_grad(total_loss, has_aux=True)

        def micro(micro_batch, index):
            micro_key = jax.random.fold_in(key, index)
            (total, weight), grads = grad_fn(
                state.params, state.constants, backbone, micro_batch, micro_key
            )
            return total, weight, grads

        total, weight, grads = _accumulate(micro, batch, preset.accumulation)
        grads = jax.tree.map(lambda g: g / jnp.maximum(weight, 1e-6), grads)
        return _apply(state, tx, grads, total / jnp.maximum(weight, 1e-6), weight)

    return jax.jit(step, donate_argnums=0)


def _accumulate(micro, batch: Batch, accumulation: int):
    if accumulation == 1:
        return micro(batch, 0)

    def split(x):
        return x.reshape(accumulation, x.shape[0] // accumulation, *x.shape[1:])

    def body(carry, inputs):
        return jax.tree.map(jnp.add, carry, micro(*inputs)), None

    parts = jax.tree.map(split, batch)
    shapes = jax.eval_shape(micro, jax.tree.map(lambda x: x[0], parts), 0)
    zeros = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
    indices = jnp.arange(accumulation, dtype=jnp.int32)
    return jax.lax.scan(body, zeros, (parts, indices))[0]


def _apply(state: TrainState, tx, grads, loss, weight) -> tuple[TrainState, StepMetrics]:
    """Update, or leave params and optimizer untouched where loss or gradient is not finite."""
    grad_norm = optax.global_norm(grads)
    ok = jnp.isfinite(loss) & jnp.isfinite(grad_norm)
    updates, opt_state = tx.update(grads, state.opt_state, state.params)
    params = optax.apply_updates(state.params, updates)

    def keep(new, old):
        return jax.tree.map(lambda a, b: jnp.where(ok, a, b), new, old)

    failed = 1 - ok.astype(jnp.int32)
    new_state = TrainState(
        params=keep(params, state.params),
        constants=state.constants,
        opt_state=keep(opt_state, state.opt_state),
        step=state.step + 1,
        skipped=state.skipped + failed,
        skipped_in_a_row=(state.skipped_in_a_row + 1) * failed,
    )
    finite = jnp.stack([jnp.isfinite(g).all() for g in named_leaves(grads).values()])
    metrics = StepMetrics(
        loss, weight, grad_norm, ok, finite, new_state.skipped, new_state.skipped_in_a_row
    )
    return new_state, metrics
