"""Full-batch training of W_p and head on cached features of the frozen decoder: a few seconds.

A head that starts near its optimum lets joint training begin where the loss is already low.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from calibjax.forecaster.losses import soft_log_loss
from calibjax.forecaster.model import ForecastModel, forecast_logits, split_model
from calibjax.forecaster.presets import Preset
from calibjax.training.optimizer import adamw
from calibjax.training.step import loss_total


class Rows(NamedTuple):
    """features float32 [N, D], temperature float32 [N], label float32 [N]."""

    features: Any
    temperature: Any
    label: Any


def fit_head(
    model: ForecastModel,
    preset: Preset,
    train: Rows,
    validation: Rows | None,
    *,
    class_weight_C: jax.Array,
) -> ForecastModel:
    """The model with W_p and head trained on all rows at once, its adapter as it was.

    Keeps the step with the lowest validation loss (training loss without validation rows).
    """
    adapter, model.adapter = model.adapter, None
    graphdef, params, constants = split_model(model)
    best = _run(graphdef, preset, params, constants, train, validation or train, class_weight_C)
    model = nnx.merge(graphdef, best, constants)
    model.adapter = adapter
    return model


def readout_loss(model: ForecastModel, preset: Preset, rows: Rows) -> jax.Array:
    """Mean soft log loss of the model's read-out over rows, nats."""
    logits = forecast_logits(model, rows.features, rows.temperature[:, None], preset)[:, 0]
    return jnp.mean(soft_log_loss(logits, rows.label))


@partial(jax.jit, static_argnums=(0, 1))
def _run(graphdef, preset, params, constants, train, validation, class_weight_C):
    steps = preset.head_warmup_steps
    schedule = optax.cosine_decay_schedule(preset.head_learning_rate, steps)
    tx = adamw(schedule, weight_decay=preset.head_weight_decay, clip_norm=preset.clip_norm)
    everything = jnp.ones(train.label.shape, bool)

    def loss(params, rows):
        model = nnx.merge(graphdef, params, constants)
        logits = forecast_logits(model, rows.features, rows.temperature[:, None], preset)[:, 0]
        total = loss_total(logits, rows.label, everything, class_weight_C)
        return total.sum / total.weight

    def body(carry, _):
        params, opt_state, best, best_loss = carry
        model = nnx.merge(graphdef, params, constants)
        validation_loss = readout_loss(model, preset, validation)
        better = validation_loss < best_loss
        best = jax.tree.map(lambda a, b: jnp.where(better, a, b), params, best)
        grads = jax.grad(loss)(params, train)
        updates, opt_state = tx.update(grads, opt_state, params)
        params = optax.apply_updates(params, updates)
        return (params, opt_state, best, jnp.minimum(best_loss, validation_loss)), None

    start = (params, tx.init(params), params, jnp.asarray(jnp.inf, jnp.float32))
    (_, _, best, _), _ = jax.lax.scan(body, start, length=steps + 1)
    return best
