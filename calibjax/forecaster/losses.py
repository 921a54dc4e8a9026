"""Losses of the forecaster, returned as (sum, weight) so that any batching gives the same mean."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from calibjax.forecaster.heads import probability

NUM_CLASSES = 11


class Total(NamedTuple):
    """A sum over rows and the weight to divide it by."""

    sum: jax.Array
    weight: jax.Array


def soft_log_loss(logits: jax.Array, label: jax.Array) -> jax.Array:
    """-b log f - (1 - b) log(1 - f) in nats per row, f the read-out of logits [..., C].

    label: b in [0, 1], [...]. Strictly proper: over many rows its minimum is at f = E[b], where the
    mean equals the entropy of b and not 0 (CalibRAG eq. 4).
    """
    if logits.shape[-1] > 2:
        f = jnp.clip(probability(logits), 1e-7, 1 - 1e-7)
        return -label * jnp.log(f) - (1 - label) * jnp.log1p(-f)
    z = logits[..., 0] if logits.shape[-1] == 1 else logits[..., 0] - logits[..., 1]
    return jax.nn.softplus(z) - label * z


def soft_cross_entropy(logits: jax.Array, label: jax.Array, mask: jax.Array) -> Total:
    """`soft_log_loss` over the rows where mask (bool [...]) holds."""
    loss = soft_log_loss(logits, label)
    return Total(jnp.sum(jnp.where(mask, loss, 0.0)), jnp.sum(mask.astype(jnp.float32)))


def class_cross_entropy(
    logits: jax.Array, label: jax.Array, mask: jax.Array, class_weight_C: jax.Array
) -> Total:
    """-log p of the class of b, in nats, each row weighted by its class (CalibRAG-multi)."""
    class_ = label_class(label)
    log_p = jnp.take_along_axis(jax.nn.log_softmax(logits), class_[..., None], axis=-1)[..., 0]
    weight = jnp.where(mask, class_weight_C[class_], 0.0)
    return Total(-jnp.sum(jnp.where(mask, weight * log_p, 0.0)), jnp.sum(weight))


def label_class(label: jax.Array) -> jax.Array:
    """round(10 b), half to even, for any number of draws: int32 in 0..10."""
    return jnp.rint((NUM_CLASSES - 1) * label).astype(jnp.int32)


def class_weights(labels: np.ndarray, *, balanced: bool) -> np.ndarray:
    """float32 [11]: ones, or n / (11 count) as in the authors' code.

    Balanced weights make rare classes count more, which gives up calibration: the minimiser is no
    longer the distribution of b. Classes without rows get weight 0.
    """
    if not balanced:
        return np.ones(NUM_CLASSES, np.float32)
    class_ = np.rint((NUM_CLASSES - 1) * np.asarray(labels, np.float32)).astype(np.int32)
    count = np.bincount(class_, minlength=NUM_CLASSES)
    weight = class_.size / (NUM_CLASSES * np.maximum(count, 1))
    return np.where(count > 0, weight, 0.0).astype(np.float32)


def entropy_floor(labels: np.ndarray) -> float:
    """Mean entropy of the soft labels in nats: the part of the loss that no forecaster removes."""
    b = np.asarray(labels, np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = np.where(b > 0, b * np.log(b), 0.0) + np.where(b < 1, (1 - b) * np.log1p(-b), 0.0)
    return float(-np.mean(terms))
