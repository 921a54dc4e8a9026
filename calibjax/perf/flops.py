"""Floating-point operations of scoring and training, and the share of a device's peak they reach.

Counted is the least that has to be computed, never work that an implementation may skip: blocks
1..L-1 (the feature is read before block L), and of block L-1 only keys and values for every token,
the rest for the tokens whose feature is read. No logits, no embedding look-up, causal pairs alone,
a shared prefix once, no padding. A multiply-add is two operations. The adapter's own products
(under 1 %), norms, softmax and the head are left out, as model FLOPs usually are.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from calibjax.backbone.config import DecoderConfig
from calibjax.backbone.lora import projection_sizes
from calibjax.data.batching import Group

FLOPS_COUNTED = (
    "minimum: blocks 1..L-1; block L-1 beyond keys and values at last tokens only; causal pairs; "
    "shared prefix once; no padding, logits, LoRA or head"
)

# Dense bfloat16 peaks by what `device_kind` holds, the more special name first; NVIDIA publishes
# twice as much, with sparsity. A100 and H100/H200 SXM: data sheets; TPU: cloud.google.com/tpu/docs.
_PEAKS = {
    "A100": 312e12,
    "H100": 989e12,
    "H200": 989e12,
    "TPU v5 lite": 197e12,
    "TPU v5e": 197e12,
    "TPU v5": 459e12,
    "TPU v6": 918e12,
}


class Flops(NamedTuple):
    """Operations in products with weights, and in attention's two products."""

    linear: float
    attention: float

    @property
    def total(self) -> float:
        return self.linear + self.attention


def body_parameters(config: DecoderConfig) -> int:
    """N: the weights of the matrices of blocks 1..L-1."""
    return (config.num_layers - 1) * _block_parameters(config)


def forward(config: DecoderConfig, prefix: int, documents: Sequence[int]) -> Flops:
    """One scoring pass over a prefix and its documents, lengths in tokens.

    A plain sequence of T tokens is `forward(config, 0, [T])`: about 2 N T for long ones.
    """
    tokens = prefix + sum(documents)
    pairs = _pairs(config, 0, prefix) + sum(_pairs(config, prefix, d) for d in documents)
    last_pairs = sum(_window(config, prefix + d) for d in documents)
    block, sizes = _block_parameters(config), projection_sizes(config)
    key_values = sum(a * b for a, b in (sizes["k_proj"], sizes["v_proj"]))
    whole = config.num_layers - 2
    linear = 2 * (whole * block * tokens + key_values * tokens)
    linear += 2 * (block - key_values) * len(documents)
    per_pair = 4 * config.num_heads * config.head_dim
    return Flops(linear, per_pair * (whole * pairs + last_pairs))


def training(config: DecoderConfig, prefix: int, documents: Sequence[int]) -> Flops:
    """Forward and backward of a frozen decoder with an adapter: 4 N + 3 a where scoring is 2 N + a.

    The backward pass has the activations' gradients and no weights' gradients.
    """
    once = forward(config, prefix, documents)
    return Flops(2 * once.linear, 3 * once.attention)


def of_groups(config: DecoderConfig, groups: Iterable[Group], *, train: bool = False) -> float:
    """Operations of queries with their documents."""
    count = training if train else forward
    return sum(count(config, len(g.prefix), [len(s) for s in g.suffixes]).total for g in groups)


def useful_tokens(groups: Iterable[Group]) -> int:
    """Tokens without padding, a shared prefix once."""
    return sum(group.length for group in groups)


def peak_flops(device_kind: str) -> float | None:
    """Dense bfloat16 operations a second of one device (`jax.devices()[0].device_kind`)."""
    return next((peak for name, peak in _PEAKS.items() if name in device_kind), None)


def utilisation(
    flops: float, seconds: float, device_kind: str, *, num_devices: int = 1
) -> float | None:
    """MFU in [0, 1]: `flops` in `seconds` as a share of the peak; None for unknown devices."""
    peak = peak_flops(device_kind)
    return None if peak is None else flops / seconds / (peak * num_devices)


def _block_parameters(config: DecoderConfig) -> int:
    return sum(size_in * size_out for size_in, size_out in projection_sizes(config).values())


def _window(config: DecoderConfig, length: int) -> int:
    """Tokens that the last of `length` tokens sees."""
    return min(length, config.sliding_window or length)


def _pairs(config: DecoderConfig, before: int, length: int) -> int:
    """Pairs (query, visible key) of `length` tokens that follow `before` others."""
    window = config.sliding_window or before + length
    growing = min(length, max(0, window - before))
    # Positions before+1 .. before+growing see all there is, the others a full window.
    return growing * before + growing * (growing + 1) // 2 + (length - growing) * window
