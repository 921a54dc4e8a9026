"""Heads that turn a feature vector h + W_p PE(t) into logits. All float32."""

import jax
import jax.numpy as jnp
from flax import nnx

from calibjax.errors import input_error

# Widths of the hidden layers by head kind.
HIDDEN = {"linear": (), "mlp": (256, 128, 64)}


class Head(nnx.Module):
    """Affine layers with ReLU between them; no hidden layer is the linear head.

    kernels: [in, out] each, Xavier normal. biases: zeros; `last_bias=False` leaves the last out, as
    the authors' code does.
    """

    def __init__(
        self, kind: str, num_features: int, num_outputs: int, *, last_bias: bool, key: jax.Array
    ):
        if kind not in HIDDEN:
            raise input_error("head", kind, " or ".join(HIDDEN))
        widths = (num_features, *HIDDEN[kind], num_outputs)
        shapes = list(zip(widths[:-1], widths[1:]))
        init = jax.nn.initializers.glorot_normal()
        keys = jax.random.split(key, len(shapes))
        self.kernels = nnx.List([nnx.Param(init(k, s)) for k, s in zip(keys, shapes)])
        num_biases = len(shapes) - (0 if last_bias else 1)
        self.biases = nnx.List([nnx.Param(jnp.zeros(s[1])) for s in shapes[:num_biases]])


def head_logits(head: Head, x: jax.Array) -> jax.Array:
    """Logits float32 [..., C] of features [..., D]."""
    x = x.astype(jnp.float32)
    last = len(head.kernels) - 1
    for index, kernel in enumerate(head.kernels):
        x = jnp.einsum("...i,io->...o", x, kernel[...], precision="highest")
        if index < len(head.biases):
            x = x + head.biases[index][...].reshape((1,) * (x.ndim - 1) + (-1,))
        x = x if index == last else jax.nn.relu(x)
    return x


def probability(logits: jax.Array) -> jax.Array:
    """P(the decision is right) in [0, 1], shape [...], of head logits [..., C].

    C = 1: sigmoid. C = 2: softmax, the class "right" in column 0. More: the classes stand for
    0, 1/(C-1), ..., 1 and the read-out is the expected value.
    """
    classes = logits.shape[-1]
    if classes == 1:
        return jax.nn.sigmoid(logits[..., 0])
    if classes == 2:
        return jax.nn.sigmoid(logits[..., 0] - logits[..., 1])
    value_C = jnp.arange(classes, dtype=jnp.float32) / (classes - 1)
    return jnp.einsum("...c,c->...", jax.nn.softmax(logits), value_C, precision="highest")
