"""What a Hugging Face config says about rotary positions, in its old and its 5.x spelling."""

import math
from collections.abc import Mapping
from typing import NamedTuple

from calibjax.backbone import rope
from calibjax.backbone.metadata import Fields


class RopeScaling(NamedTuple):
    """Fields of DecoderConfig; max_positions: up to where they hold."""

    theta: float
    rotary_dim: int
    divisors: tuple[float, ...]
    magnitude: float
    max_positions: int


def scaling(reader: Fields, head_dim: int, positions: int) -> RopeScaling:
    """Rotary constants, from `rope_parameters` or from `rope_theta` and `rope_scaling`."""
    name = "rope_parameters" if reader.get("rope_parameters") else "rope_scaling"
    fields = reader.get(name, {})
    if not isinstance(fields, Mapping):
        raise reader.error(name, fields, "a JSON object")
    inner = Fields(fields, f"{reader.where}: {name}")
    plain = RopeScaling(
        theta=inner.number("rope_theta", reader.get("rope_theta", 10000.0)),
        rotary_dim=_rotary_dim(reader, inner, head_dim),
        divisors=(),
        magnitude=1.0,
        max_positions=positions,
    )
    kind = inner.get("rope_type", inner.get("type", "default"))
    if kind == "default":
        return plain
    if kind == "linear":
        return plain._replace(divisors=(inner.number("factor"),) * (plain.rotary_dim // 2))
    if kind == "llama3":
        return _llama3(inner, plain)
    if kind == "longrope":
        return _longrope(reader, inner, plain)
    raise inner.error("rope_type", kind, "'default', 'linear', 'llama3' or 'longrope'")


def _rotary_dim(reader: Fields, inner: Fields, head_dim: int) -> int:
    name = "partial_rotary_factor"
    source = inner if inner.get(name) is not None else reader
    share = source.number(name, 1.0)
    if share == 1:
        return head_dim
    rotary = int(head_dim * share)
    if share > 1 or rotary < 2 or rotary % 2:
        raise source.error(name, share, f"an even part of the head size {head_dim}")
    return rotary


def _llama3(inner: Fields, plain: RopeScaling) -> RopeScaling:
    divisors = rope.llama3_divisors(
        plain.rotary_dim,
        plain.theta,
        factor=inner.number("factor"),
        low_freq_factor=inner.number("low_freq_factor"),
        high_freq_factor=inner.number("high_freq_factor"),
        original_positions=inner.integer("original_max_position_embeddings", plain.max_positions),
    )
    return plain._replace(divisors=tuple(float(d) for d in divisors))


def _longrope(reader: Fields, inner: Fields, plain: RopeScaling) -> RopeScaling:
    """Frequencies of texts up to the original context; longer ones would need others for all.

    Ding et al. 2024: the magnitude follows from how far the context was stretched.
    """
    name = "original_max_position_embeddings"
    original = inner.integer(name, reader.get(name, plain.max_positions))
    short = inner.get("short_factor")
    pairs = plain.rotary_dim // 2
    numbers = isinstance(short, list) and all(
        isinstance(d, int | float) and not isinstance(d, bool) and d > 0 for d in short
    )
    if not numbers or len(short) != pairs:
        raise inner.error("short_factor", short, f"{pairs} positive numbers")
    stretched = plain.max_positions / original
    magnitude = 1.0
    if stretched > 1:
        magnitude = inner.number(
            "attention_factor", math.sqrt(1 + math.log(stretched) / math.log(original))
        )
    return plain._replace(
        divisors=tuple(float(d) for d in short),
        magnitude=magnitude,
        max_positions=min(original, plain.max_positions),
    )
