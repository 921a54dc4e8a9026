"""Two-layer perceptron (32-32) on the same features: the comparison that RCS has to stand up to."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from calibjax.abstention.rcs import RCS
from calibjax.abstention.score_features import Features

HIDDEN = (32, 32)
NUM_SEEDS = 5
LEARNING_RATE, L2 = 1e-3, 1e-4
MAX_STEPS, PATIENCE, HELD_OUT = 2000, 50, 0.2


def mlp_scores(features: Features, success: np.ndarray, tune: np.ndarray, seed: int) -> np.ndarray:
    """P(full success) of every row, float64 [n]: the mean of five nets fitted on the tune rows.

    ReLU, Adam 1e-3 on the full batch, early stopping on a fifth of the tune rows (patience 50, at
    most 2000 steps), L2 1e-4. Features are standardised as for `RCS`, whose one-class and
    missing-value rules hold here too.
    """
    scaler = RCS.fit(features.take(tune), success[tune])
    z = scaler.standardise(features)
    x, y = z[tune].astype(np.float32), success[tune].astype(np.float32)
    n = len(x)
    # A power of two, so that data sets of like size share a program; fillers have weight 0.
    size = max(64, 1 << (n - 1).bit_length())
    x, y = np.pad(x, ((0, size - n), (0, 0))), np.pad(y, (0, size - n))
    held_out = np.stack([_slice(n, size, seed + number) for number in range(NUM_SEEDS)])
    fitted = np.stack([np.arange(size) < n] * NUM_SEEDS) & ~held_out
    if not held_out.any():
        held_out = fitted
    keys = jax.random.split(jax.random.key(seed), NUM_SEEDS)
    with jax.numpy_dtype_promotion("standard"):  # optax mixes its own dtypes
        nets = _train(keys, x, y, fitted.astype(np.float32), held_out.astype(np.float32))
        return np.asarray(_predict(nets, z.astype(np.float32)), np.float64)


def _slice(n: int, size: int, seed: int) -> np.ndarray:
    """A fifth of the first n rows, at least one unless that leaves none."""
    mask = np.zeros(size, bool)
    count = max(1, int(HELD_OUT * n)) if n > 1 else 0
    mask[np.random.default_rng(seed).permutation(n)[:count]] = True
    return mask


class _Layer(NamedTuple):
    kernel: jax.Array
    bias: jax.Array


Net = tuple[_Layer, ...]


class _State(NamedTuple):
    net: Net
    moments: Any
    best: Net
    best_loss: jax.Array
    since: jax.Array
    step: jax.Array


def _init(key: jax.Array, width: int) -> Net:
    sizes = (width, *HIDDEN, 1)
    keys = jax.random.split(key, len(sizes) - 1)
    return tuple(
        _Layer(jax.random.normal(k, (m, n)) * jnp.sqrt(2.0 / m), jnp.zeros((n,)))
        for k, m, n in zip(keys, sizes, sizes[1:])
    )


def _logits(net: Net, x: jax.Array) -> jax.Array:
    *hidden, last = net
    for layer in hidden:
        x = jax.nn.relu(x @ layer.kernel + layer.bias[None])
    return (x @ last.kernel + last.bias[None])[:, 0]


def _log_loss(net: Net, x: jax.Array, y: jax.Array, weight: jax.Array) -> jax.Array:
    logits = _logits(net, x)
    losses = jnp.logaddexp(0.0, logits) - y * logits
    return jnp.sum(weight * losses) / jnp.maximum(jnp.sum(weight), 1.0)


def _objective(net: Net, x: jax.Array, y: jax.Array, weight: jax.Array) -> jax.Array:
    penalty = sum(jnp.sum(layer.kernel**2) for layer in net)
    return _log_loss(net, x, y, weight) + 0.5 * L2 * penalty


@jax.jit
def _train(keys, x, y, fitted, held_out) -> Net:
    """The nets of all seeds at once, each as it was when its held-out loss was least."""
    adam = optax.adam(LEARNING_RATE)

    def train_one(key, fitted, held_out):
        net = _init(key, x.shape[1])
        start = _log_loss(net, x, y, held_out)
        zero = jnp.int32(0)

        def step(state: _State) -> _State:
            gradient = jax.grad(_objective)(state.net, x, y, fitted)
            updates, moments = adam.update(gradient, state.moments, state.net)
            net = optax.apply_updates(state.net, updates)
            loss = _log_loss(net, x, y, held_out)
            better = loss < state.best_loss
            best = jax.tree.map(lambda a, b: jnp.where(better, a, b), net, state.best)
            since = jnp.where(better, zero, state.since + 1)
            least = jnp.minimum(loss, state.best_loss)
            return _State(net, moments, best, least, since, state.step + 1)

        def goes_on(state: _State) -> jax.Array:
            return (state.step < MAX_STEPS) & (state.since < PATIENCE)

        first = _State(net, adam.init(net), net, start, zero, zero)
        return jax.lax.while_loop(goes_on, step, first).best

    return jax.vmap(train_one)(keys, fitted, held_out)


@jax.jit
def _predict(nets: Net, x: jax.Array) -> jax.Array:
    return jnp.mean(jax.nn.sigmoid(jax.vmap(lambda net: _logits(net, x))(nets)), axis=0)
