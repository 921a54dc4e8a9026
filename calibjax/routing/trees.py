"""Gradient-boosted trees as arrays: what is stored, and scored inside `jax.jit`."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np


class Trees(NamedTuple):
    """An ensemble of T complete binary trees of depth D, and the score it starts from.

    feature int32 [T, 2^D - 1] and threshold float32 [T, 2^D - 1]: a row goes left at node i (to
    2i + 1) iff its feature <= threshold, else right. value [T, 2^D]: what each leaf adds.
    """

    start: Any
    feature: Any
    threshold: Any
    value: Any


def from_sklearn(model: Any, example: np.ndarray) -> Trees:
    """Trees of a fitted scikit-learn gradient boosting model with one output.

    example [1, d]: any row; the starting score is what the model gives it beyond the trees. The
    library compares float32 features with float64 thresholds; the largest float32 not above a
    threshold decides every float32 feature alike.
    """
    depth = model.max_depth
    parts = [_complete(one.tree_, depth) for one in model.estimators_[:, 0]]
    feature, threshold, value = (np.stack(part) for part in zip(*parts))
    trees = Trees(np.float64(0), feature, threshold, value * model.learning_rate)
    raw = getattr(model, "decision_function", model.predict)(example)
    return trees._replace(start=np.float64(raw[0] - score(trees, example)[0]))


def _complete(tree: Any, depth: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """One tree filled up to full depth: a leaf above the bottom sends every row left."""
    inner = 2**depth - 1
    feature = np.zeros(inner, np.int32)
    threshold = np.full(inner, np.inf, np.float32)
    value = np.zeros(inner + 1, np.float64)
    waiting = [(0, 0)]
    while waiting:
        place, node = waiting.pop()
        is_leaf = tree.children_left[node] < 0
        if place >= inner:
            value[place - inner] = tree.value[node, 0, 0]
        elif is_leaf:
            waiting.append((2 * place + 1, node))
        else:
            feature[place] = tree.feature[node]
            threshold[place] = float32_at_most(tree.threshold[node])
            waiting.append((2 * place + 1, tree.children_left[node]))
            waiting.append((2 * place + 2, tree.children_right[node]))
    return feature, threshold, value


def float32_at_most(value: float) -> np.float32:
    """The largest float32 that is not above a float64."""
    rounded = np.float32(value)
    return rounded if float(rounded) <= value else np.nextafter(rounded, np.float32(-np.inf))


def score(trees: Trees, features: Any) -> np.ndarray:
    """Scores [n] of features [n, d], in float64 whatever the JAX default is."""
    with jax.enable_x64(True):
        features = jnp.asarray(np.asarray(features, np.float32))
        return np.asarray(apply(jax.tree.map(jnp.asarray, trees), features))


@jax.jit
def apply(trees: Trees, features_ND: jax.Array) -> jax.Array:
    """Scores [n] in the dtype of the leaf values; pure, for use inside other programs.

    Trees are added one by one, so rows that fall into the same leaves get the same score, to the
    last bit.
    """
    inner = trees.feature.shape[1]
    depth = (inner + 1).bit_length() - 1
    row_N = jnp.arange(features_ND.shape[0], dtype=jnp.int32)

    def add(total_N, tree):
        feature, threshold, value = tree
        node_N = jnp.zeros_like(row_N)
        for _ in range(depth):
            right_N = features_ND[row_N, feature[node_N]] > threshold[node_N]
            node_N = 2 * node_N + 1 + right_N.astype(jnp.int32)
        return total_N + value[node_N - inner], None

    start_N = jnp.full(features_ND.shape[0], trees.start, trees.value.dtype)
    total_N, _ = jax.lax.scan(add, start_N, (trees.feature, trees.threshold, trees.value))
    return total_N
