"""The training step: one jitted function, differentiated with respect to the trainables alone."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from calibjax.backbone.packed import packed_features
from calibjax.data.loader import Batch
from calibjax.forecaster.losses import Total, class_cross_entropy, soft_cross_entropy
from calibjax.forecaster.model import forecast_logits
from calibjax.forecaster.presets import Preset
from calibjax.training.optimizer import optimizer
from calibjax.training.sharding import Layout
from calibjax.training.state import TrainState
from calibjax.trees import named_leaves


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


def loss_total(
    logits: jax.Array, label: jax.Array, mask: jax.Array, class_weight_C: jax.Array
) -> Total:
    """Sum of losses and of weights for logits [..., C]; class weights matter for C = 11 only."""
    if logits.shape[-1] <= 2:
        return soft_cross_entropy(logits, label, mask)
    return class_cross_entropy(logits, label, mask, class_weight_C)


def batch_logits(
    graphdef: nnx.GraphDef,
    params: nnx.State,
    constants: nnx.State,
    backbone: Any,
    batch: Batch,
    preset: Preset,
    dropout_key: jax.Array | None = None,
    remat: str = "none",
) -> jax.Array:
    """Logits [B, N, M, C] of a batch, from one pass of the decoder."""
    model = nnx.merge(graphdef, params, constants)
    features_BND = packed_features(
        backbone, batch.packed, adapter=model.adapter, dropout_key=dropout_key, remat=remat
    )
    return forecast_logits(model, features_BND, jnp.asarray(batch.temperature_BNM), preset)


def jit_train_step(layout: Layout) -> jax.stages.Wrapped:
    """`train_step` compiled once per bucket of the batch, every array where `layout` says.

    The state is donated, the backbone never. What comes out lies as what went in, so the second
    step runs the program of the first.
    """
    return jax.jit(
        train_step,
        static_argnums=(0, 1, 2),
        donate_argnums=3,
        in_shardings=(layout.state, layout.backbone, layout.batch, layout.whole, layout.whole),
        out_shardings=(layout.state, layout.whole),
    )


def train_step(
    graphdef: nnx.GraphDef,
    preset: Preset,
    remat: str,
    state: TrainState,
    backbone: Any,
    batch: Batch,
    key: jax.Array,
    class_weight_C: jax.Array,
) -> tuple[TrainState, StepMetrics]:
    """One update. remat: what the backward pass recomputes (`backbone.remat.POLICIES`).

    Micro-batches (`preset.accumulation`) add up sums of loss and weight, so that any split of a
    batch gives the same gradient.
    """
    key = jax.random.fold_in(key, state.step)

    def total_loss(params: nnx.State, part: Batch, part_key: jax.Array) -> Any:
        dropout_key = part_key if preset.lora_dropout > 0 else None
        logits = batch_logits(
            graphdef, params, state.constants, backbone, part, preset, dropout_key, remat
        )
        total = loss_total(
            logits, jnp.asarray(part.label_BNM), jnp.asarray(part.mask_BNM), class_weight_C
        )
        return total.sum, total.weight

    def gradient(part: Batch, index: Any) -> Any:
        part_key = jax.random.fold_in(key, index)
        grad_fn = jax.value_and_grad(total_loss, has_aux=True)
        (total, weight), grads = grad_fn(state.params, part, part_key)
        return total, weight, grads

    total, weight, grads = _accumulate(gradient, batch, preset.accumulation)
    safe_weight = jnp.maximum(weight, 1e-6)
    grads = jax.tree.map(lambda g: g / safe_weight, grads)
    return _apply(state, optimizer(preset), grads, total / safe_weight, weight)


def _accumulate(gradient: Callable[[Batch, Any], Any], batch: Batch, accumulation: int) -> Any:
    """Sums of `gradient` over equal parts of the batch, one after the other."""
    if accumulation == 1:
        return gradient(batch, 0)

    def split(x: jax.Array) -> jax.Array:
        # Part i takes every accumulation-th row from row i, so that each device splits its own.
        parts = x.reshape(x.shape[0] // accumulation, accumulation, *x.shape[1:])
        return jnp.swapaxes(parts, 0, 1)

    def body(carry: Any, inputs: Any) -> Any:
        return jax.tree.map(jnp.add, carry, gradient(*inputs)), None

    parts = jax.tree.map(split, batch)
    shapes = jax.eval_shape(gradient, jax.tree.map(lambda x: x[0], parts), 0)
    zeros = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
    indices = jnp.arange(accumulation, dtype=jnp.int32)
    return jax.lax.scan(body, zeros, (parts, indices))[0]


def _apply(
    state: TrainState, tx: optax.GradientTransformation, grads: Any, loss: Any, weight: Any
) -> tuple[TrainState, StepMetrics]:
    """Update, or leave params and optimizer untouched where loss or gradient is not finite."""
    grad_norm = optax.tree.norm(grads)
    ok = jnp.isfinite(loss) & jnp.isfinite(grad_norm)
    updates, opt_state = tx.update(grads, state.opt_state, state.params)
    params = optax.apply_updates(state.params, updates)

    def keep(new: Any, old: Any) -> Any:
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
