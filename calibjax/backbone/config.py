"""Decoder architectures: what a Hugging Face config or GGUF metadata says, as one frozen record."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from calibjax.backbone import rope
from calibjax.errors import closest, input_error

MODEL_TYPES = ("llama", "mistral", "qwen2", "granite")


@dataclass(frozen=True)
class DecoderConfig:
    """Shape and constants of a pre-norm, rotary, gated decoder (the Llama family).

    `rope_divisors` divide the rotary frequencies pair by pair (empty: no scaling). The multipliers
    are 1 (and `attention_scale` head_dim ** -0.5) everywhere but in Granite.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    model_type: str = "llama"
    max_positions: int = 2048
    norm_eps: float = 1e-6
    rope_theta: float = 10000.0
    rope_divisors: tuple[float, ...] = ()
    tie_embeddings: bool = False
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    attention_scale: float = 0.0
    embedding_multiplier: float = 1.0
    residual_multiplier: float = 1.0
    logits_divisor: float = 1.0

    def __post_init__(self) -> None:
        if not self.attention_scale:
            object.__setattr__(self, "attention_scale", self.head_dim**-0.5)
        for name in _SIZES:
            if getattr(self, name) < 1:
                raise input_error(name, getattr(self, name), "a positive integer")
        if self.num_heads % self.num_kv_heads:
            raise input_error("num_kv_heads", self.num_kv_heads, f"a divisor of {self.num_heads}")
        if self.head_dim % 2:
            raise input_error("head_dim", self.head_dim, "an even number (rotary pairs)")
        if self.rope_divisors and len(self.rope_divisors) != self.head_dim // 2:
            raise input_error(
                "rope_divisors", f"{len(self.rope_divisors)} values", f"{self.head_dim // 2} values"
            )


_SIZES = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_layers",
    "num_heads",
    "num_kv_heads",
    "head_dim",
    "max_positions",
)


class _Fields:
    """Typed look-ups in one metadata mapping; errors name the file, the field and its place."""

    def __init__(
        self, fields: Mapping[str, Any], where: str, places: Mapping[str, int] | None = None
    ) -> None:
        self._fields = fields
        self._where = where
        self._places = places or {}

    def get(self, name: str, default: Any = None) -> Any:
        value = self._fields.get(name)
        return default if value is None else value

    def integer(self, name: str, default: int | None = None) -> int:
        value = self.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 2**31:
            raise self.error(name, value, "a positive integer")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        value = self.get(name, default)
        plain = isinstance(value, int | float) and not isinstance(value, bool)
        if not plain or not math.isfinite(value) or value <= 0:
            raise self.error(name, value, "a positive number")
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        value = self.get(name, default)
        if not isinstance(value, bool):
            raise self.error(name, value, "true or false")
        return value

    def error(self, name: str, value: object, expected: str, fix: str | None = None) -> ValueError:
        place = f" at byte {self._places[name]}" if name in self._places else ""
        return input_error(f"{self._where}: {name}{place}", repr(value)[:80], expected, fix)


def from_huggingface(fields: Mapping[str, Any], where: str = "config.json") -> DecoderConfig:
    """DecoderConfig of a `config.json`, with old (`rope_theta`) or 5.x (`rope_parameters`) fields.

    Raises InputError naming `where` and the field for what this port does not compute.
    """
    if not isinstance(fields, Mapping):
        raise input_error(where, type(fields).__name__, "a JSON object")
    reader = _Fields(fields, where)
    model_type = _model_type(reader, "model_type")
    if reader.get("hidden_act", "silu") != "silu":
        raise reader.error("hidden_act", reader.get("hidden_act"), "'silu'")
    heads = reader.integer("num_attention_heads")
    hidden = reader.integer("hidden_size")
    head_dim = reader.integer("head_dim", max(hidden // heads, 1))
    positions = reader.integer("max_position_embeddings", 2048)
    theta, divisors = _huggingface_rope(reader, head_dim, positions)
    # Qwen2 always has biases on q, k and v and never says so; elsewhere one flag covers q, k, v, o.
    bias = model_type != "qwen2" and reader.flag("attention_bias", False)
    return DecoderConfig(
        model_type=model_type,
        vocab_size=reader.integer("vocab_size"),
        hidden_size=hidden,
        intermediate_size=reader.integer("intermediate_size"),
        num_layers=reader.integer("num_hidden_layers"),
        num_heads=heads,
        num_kv_heads=reader.integer("num_key_value_heads", heads),
        head_dim=head_dim,
        max_positions=min(positions, _window(reader, model_type, positions)),
        norm_eps=reader.number("rms_norm_eps", 1e-6),
        rope_theta=theta,
        rope_divisors=divisors,
        tie_embeddings=reader.flag("tie_word_embeddings", False),
        qkv_bias=bias or model_type == "qwen2",
        output_bias=bias,
        mlp_bias=reader.flag("mlp_bias", False),
        **_granite(reader, model_type),
    )


def from_gguf(
    fields: Mapping[str, Any],
    *,
    tied: bool,
    rope_divisors: Sequence[float] = (),
    biased: frozenset[str] = frozenset(),
    where: str = "GGUF",
    places: Mapping[str, int] | None = None,
) -> DecoderConfig:
    """DecoderConfig of GGUF metadata.

    What GGUF says through its tensors comes as arguments: `tied` (no output tensor),
    `rope_divisors` (the rope_freqs tensor), `biased` (projections that have a bias). `places` are
    the byte offsets of the keys, for error messages.
    """
    reader = _Fields(fields, where, places)
    arch = _model_type(reader, "general.architecture")
    heads = reader.integer(f"{arch}.attention.head_count")
    hidden = reader.integer(f"{arch}.embedding_length")
    head_dim = reader.integer(f"{arch}.attention.key_length", max(hidden // heads, 1))
    rotary = reader.integer(f"{arch}.rope.dimension_count", head_dim)
    if rotary != head_dim:
        raise reader.error(f"{arch}.rope.dimension_count", rotary, f"{head_dim} (the head size)")
    scaling = reader.get(f"{arch}.rope.scaling.type", "none")
    if scaling not in ("none", "linear"):
        raise reader.error(f"{arch}.rope.scaling.type", scaling, "'none' or 'linear'")
    if scaling == "linear" and not rope_divisors:
        rope_divisors = (reader.number(f"{arch}.rope.scaling.factor"),) * (head_dim // 2)
    tokens = reader.get("tokenizer.ggml.tokens", ())
    return DecoderConfig(
        model_type=arch,
        vocab_size=reader.integer(f"{arch}.vocab_size", len(tokens)),
        hidden_size=hidden,
        intermediate_size=reader.integer(f"{arch}.feed_forward_length"),
        num_layers=reader.integer(f"{arch}.block_count"),
        num_heads=heads,
        num_kv_heads=reader.integer(f"{arch}.attention.head_count_kv", heads),
        head_dim=head_dim,
        max_positions=reader.integer(f"{arch}.context_length", 2048),
        norm_eps=reader.number(f"{arch}.attention.layer_norm_rms_epsilon", 1e-6),
        rope_theta=reader.number(f"{arch}.rope.freq_base", 10000.0),
        rope_divisors=tuple(float(d) for d in rope_divisors),
        tie_embeddings=tied,
        qkv_bias="q_proj" in biased,
        output_bias="o_proj" in biased,
        mlp_bias="gate_proj" in biased,
        attention_scale=reader.get(f"{arch}.attention.scale", 0.0),
        embedding_multiplier=reader.number(f"{arch}.embedding_scale", 1.0),
        residual_multiplier=reader.number(f"{arch}.residual_scale", 1.0),
        logits_divisor=reader.number(f"{arch}.logit_scale", 1.0),
    )


def _model_type(reader: _Fields, name: str) -> str:
    value = reader.get(name)
    if value not in MODEL_TYPES:
        near = closest(str(value), MODEL_TYPES)
        raise reader.error(
            name, value, "one of " + ", ".join(MODEL_TYPES), f"is it {near}?" if near else None
        )
    return value


def _window(reader: _Fields, model_type: str, positions: int) -> int:
    """Tokens up to which sliding-window attention equals full attention (what is computed here)."""
    used = model_type == "mistral" or reader.flag("use_sliding_window", False)
    return reader.integer("sliding_window", positions) if used else positions


def _granite(reader: _Fields, model_type: str) -> dict[str, float]:
    if model_type != "granite":
        return {}
    return {
        "attention_scale": reader.number("attention_multiplier", 1.0),
        "embedding_multiplier": reader.number("embedding_multiplier", 1.0),
        "residual_multiplier": reader.number("residual_multiplier", 1.0),
        "logits_divisor": reader.number("logits_scaling", 1.0),
    }


def _huggingface_rope(
    reader: _Fields, head_dim: int, positions: int
) -> tuple[float, tuple[float, ...]]:
    """Rotary base and per-pair divisors, from `rope_parameters` or `rope_theta`/`rope_scaling`."""
    name = "rope_parameters" if reader.get("rope_parameters") else "rope_scaling"
    scaling = reader.get(name, {})
    if not isinstance(scaling, Mapping):
        raise reader.error(name, scaling, "a JSON object")
    inner = _Fields(scaling, f"{reader._where}: {name}")
    theta = inner.number("rope_theta", reader.get("rope_theta", 10000.0))
    partial = inner.get("partial_rotary_factor", reader.get("partial_rotary_factor", 1.0))
    if partial != 1.0:
        raise reader.error("partial_rotary_factor", partial, "1.0")
    kind = inner.get("rope_type", inner.get("type", "default"))
    if kind == "default":
        return theta, ()
    if kind == "linear":
        return theta, (inner.number("factor"),) * (head_dim // 2)
    if kind == "llama3":
        divisors = rope.llama3_divisors(
            head_dim,
            theta,
            factor=inner.number("factor"),
            low_freq_factor=inner.number("low_freq_factor"),
            high_freq_factor=inner.number("high_freq_factor"),
            original_positions=inner.integer("original_max_position_embeddings", positions),
        )
        return theta, tuple(float(d) for d in divisors)
    raise inner.error("rope_type", kind, "'default', 'linear' or 'llama3'")
