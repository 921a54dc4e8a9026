"""The BERT encoder: its parameters, and every pass over it as a pure function.

Blocks are stacked and run by one scan. Masks may have padding on either side: positions count real
tokens, and pooling looks at real tokens only.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import nnx

from calibjax.backbone.layers import Linear, project

Pooling = Literal["mean", "cls"]

# Vanishes in a float32 softmax and is finite, so that rows of padding stay finite.
_MASKED = -1e30

_ACTIVATIONS = {
    "gelu": lambda x: jax.nn.gelu(x, approximate=False),
    "gelu_new": lambda x: jax.nn.gelu(x, approximate=True),
    "gelu_pytorch_tanh": lambda x: jax.nn.gelu(x, approximate=True),
    "relu": jax.nn.relu,
}
ACTIVATIONS = tuple(_ACTIVATIONS)


@dataclass(frozen=True)
class BertConfig:
    """Shape and constants of a BERT encoder. `num_labels` is 0 without a classifier."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    max_positions: int = 512
    num_types: int = 2
    norm_eps: float = 1e-12
    activation: str = "gelu"
    num_labels: int = 0


class LayerNorm(nnx.Module):
    def __init__(self, arrays: Mapping[str, jax.Array], path: str) -> None:
        self.scale = nnx.Param(arrays[f"{path}.scale"])
        self.bias = nnx.Param(arrays[f"{path}.bias"])


class Block(nnx.Module):
    """The stack of all blocks: every leaf has a leading layer axis."""

    def __init__(self, arrays: Mapping[str, jax.Array], path: str) -> None:
        self.q_proj = Linear(arrays, f"{path}.q_proj")
        self.k_proj = Linear(arrays, f"{path}.k_proj")
        self.v_proj = Linear(arrays, f"{path}.v_proj")
        self.o_proj = Linear(arrays, f"{path}.o_proj")
        self.attention_norm = LayerNorm(arrays, f"{path}.attention_norm")
        self.up_proj = Linear(arrays, f"{path}.up_proj")
        self.down_proj = Linear(arrays, f"{path}.down_proj")
        self.output_norm = LayerNorm(arrays, f"{path}.output_norm")


class BertModule(nnx.Module):
    """Parameters of an encoder. `arrays` is keyed as `parameter_shapes(config)`."""

    def __init__(self, config: BertConfig, arrays: Mapping[str, jax.Array]) -> None:
        self.config = config
        self.word_embedding = nnx.Param(arrays["word_embedding"])
        self.position_embedding = nnx.Param(arrays["position_embedding"])
        self.type_embedding = nnx.Param(arrays["type_embedding"])
        self.embedding_norm = LayerNorm(arrays, "embedding_norm")
        self.blocks = Block(arrays, "blocks")
        classifies = config.num_labels > 0
        self.pooler = Linear(arrays, "pooler") if classifies else None
        self.classifier = Linear(arrays, "classifier") if classifies else None


def parameter_shapes(config: BertConfig) -> dict[str, tuple[int, ...]]:
    """Shape of every parameter by its path; projections are [in, out]."""
    D, F, L = config.hidden_size, config.intermediate_size, config.num_layers
    shapes: dict[str, tuple[int, ...]] = {
        "word_embedding": (config.vocab_size, D),
        "position_embedding": (config.max_positions, D),
        "type_embedding": (config.num_types, D),
        "embedding_norm.scale": (D,),
        "embedding_norm.bias": (D,),
    }
    sizes = {name: (D, D) for name in ("q_proj", "k_proj", "v_proj", "o_proj")}
    sizes |= {"up_proj": (D, F), "down_proj": (F, D)}
    for name, size in sizes.items():
        shapes[f"blocks.{name}.kernel"] = (L, *size)
        shapes[f"blocks.{name}.bias"] = (L, size[1])
    for name in ("attention_norm", "output_norm"):
        shapes[f"blocks.{name}.scale"] = shapes[f"blocks.{name}.bias"] = (L, D)
    if config.num_labels:
        shapes |= {"pooler.kernel": (D, D), "pooler.bias": (D,)}
        shapes |= {"classifier.kernel": (D, config.num_labels)}
        shapes |= {"classifier.bias": (config.num_labels,)}
    return shapes


def hidden_states(
    module: BertModule, tokens_BT: jax.Array, types_BT: jax.Array, mask_BT: jax.Array
) -> jax.Array:
    """Output of the last block, float32 [B, T, D]; values at padding are finite and meaningless."""
    config = module.config
    positions_BT = jnp.maximum(jnp.cumsum(mask_BT, axis=1, dtype=jnp.int32) - 1, 0)
    x_BTD = module.word_embedding[...][tokens_BT]
    x_BTD += module.position_embedding[...][positions_BT]
    x_BTD += module.type_embedding[...][types_BT]
    x_BTD = _layer_norm(module.embedding_norm, x_BTD, config.norm_eps)

    def step(x_BTD: jax.Array, block: Block) -> tuple[jax.Array, None]:
        return _run_block(block, config, x_BTD, mask_BT), None

    return jax.lax.scan(step, x_BTD, module.blocks)[0]


def embed(
    module: BertModule,
    tokens_BT: jax.Array,
    types_BT: jax.Array,
    mask_BT: jax.Array,
    *,
    pooling: Pooling,
    normalize: bool,
) -> jax.Array:
    """One vector a row, float32 [B, D], of length 1 if `normalize`."""
    x_BD = pool(hidden_states(module, tokens_BT, types_BT, mask_BT), mask_BT, pooling)
    if normalize:
        norm_B1 = jnp.linalg.norm(x_BD, axis=-1, keepdims=True)
        x_BD = x_BD / jnp.maximum(norm_B1, 1e-12)
    return x_BD


def pool(x_BTD: jax.Array, mask_BT: jax.Array, pooling: Pooling) -> jax.Array:
    """Mean over real tokens, or the first real token, whichever side the padding is on."""
    if pooling == "cls":
        first_B11 = jnp.argmax(mask_BT, axis=1)[:, None, None]
        return jnp.take_along_axis(x_BTD, first_B11, axis=1)[:, 0]
    weights_BT1 = mask_BT.astype(x_BTD.dtype)[..., None]
    # `where`, not a product: padding may hold anything, and 0 * inf is NaN.
    total_BD = jnp.sum(jnp.where(weights_BT1 > 0, x_BTD, 0.0), axis=1)
    return total_BD / jnp.maximum(jnp.sum(weights_BT1, axis=1), 1.0)


def classify(
    module: BertModule, tokens_BT: jax.Array, types_BT: jax.Array, mask_BT: jax.Array
) -> jax.Array:
    """Logits of the classifier on the pooled first token, float32 [B, num_labels]."""
    x_BD = pool(hidden_states(module, tokens_BT, types_BT, mask_BT), mask_BT, "cls")
    return _project(module.classifier, jnp.tanh(_project(module.pooler, x_BD)))


def _run_block(
    block: Block, config: BertConfig, x_BTD: jax.Array, mask_BT: jax.Array
) -> jax.Array:
    """Post-norm block: each residual sum is normalised."""
    B, T, D = x_BTD.shape
    heads = (B, T, config.num_heads, D // config.num_heads)
    q_BTHh = _project(block.q_proj, x_BTD).reshape(heads)
    k_BTHh = _project(block.k_proj, x_BTD).reshape(heads)
    v_BTHh = _project(block.v_proj, x_BTD).reshape(heads)
    # Scaling the queries touches T x h numbers, scaling the scores T x T.
    q_BTHh = q_BTHh * heads[-1] ** -0.5
    scores_BHTS = jnp.einsum("BTHh,BSHh->BHTS", q_BTHh, k_BTHh)
    probs_BHTS = jax.nn.softmax(jnp.where(mask_BT[:, None, None], scores_BHTS, _MASKED), axis=-1)
    mixed_BTD = jnp.einsum("BHTS,BSHh->BTHh", probs_BHTS, v_BTHh).reshape(B, T, D)
    x_BTD = x_BTD + _project(block.o_proj, mixed_BTD)
    x_BTD = _layer_norm(block.attention_norm, x_BTD, config.norm_eps)
    hidden_BTF = _ACTIVATIONS[config.activation](_project(block.up_proj, x_BTD))
    x_BTD = x_BTD + _project(block.down_proj, hidden_BTF)
    return _layer_norm(block.output_norm, x_BTD, config.norm_eps)


def _project(linear: Any, x: jax.Array) -> jax.Array:
    return project(linear, "", x, None)


def _layer_norm(norm: LayerNorm, x_BTD: jax.Array, eps: float) -> jax.Array:
    mean = jnp.mean(x_BTD, axis=-1, keepdims=True)
    variance = jnp.mean(jnp.square(x_BTD - mean), axis=-1, keepdims=True)
    normed = (x_BTD - mean) * jax.lax.rsqrt(variance + eps)
    return normed * norm.scale[...][None, None] + norm.bias[...][None, None]
