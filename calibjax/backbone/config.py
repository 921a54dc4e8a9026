"""Decoder architectures: what a Hugging Face config or GGUF metadata says, as one frozen record."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from calibjax.backbone import rope_fields
from calibjax.backbone.metadata import Fields
from calibjax.errors import closest, input_error

MODEL_TYPES = ("llama", "mistral", "qwen2", "granite", "phi3")
# GGUF files of the others are laid out differently: fused projections, two sets of frequencies.
GGUF_TYPES = ("llama", "mistral", "qwen2", "granite")


@dataclass(frozen=True)
class DecoderConfig:
    """Shape and constants of a pre-norm, rotary, gated decoder (the Llama family).

    sliding_window: tokens that a query sees, itself included (0: all before it). rotary_dim: how
    much of a head is rotated (0: all). rope_divisors: divide the rotary frequencies pair by pair
    (empty: no scaling). rope_magnitude: factor of cosine and sine. The multipliers are 1 (and
    attention_scale is head_dim ** -0.5) everywhere but in Granite.
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
    sliding_window: int = 0
    rope_theta: float = 10000.0
    rotary_dim: int = 0
    rope_divisors: tuple[float, ...] = ()
    rope_magnitude: float = 1.0
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
        if not self.rotary_dim:
            object.__setattr__(self, "rotary_dim", self.head_dim)
        for name in _SIZES:
            if getattr(self, name) < 1:
                raise input_error(name, getattr(self, name), "a positive integer")
        if self.num_heads % self.num_kv_heads:
            raise input_error("num_kv_heads", self.num_kv_heads, f"a divisor of {self.num_heads}")
        if self.head_dim % 2:
            raise input_error("head_dim", self.head_dim, "an even number (rotary pairs)")
        if self.rotary_dim % 2 or self.rotary_dim > self.head_dim:
            raise input_error("rotary_dim", self.rotary_dim, f"an even part of {self.head_dim}")
        if self.rope_divisors and len(self.rope_divisors) != self.rotary_dim // 2:
            expected = f"{self.rotary_dim // 2} values"
            raise input_error("rope_divisors", f"{len(self.rope_divisors)} values", expected)


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


def from_huggingface(fields: Mapping[str, Any], where: str = "config.json") -> DecoderConfig:
    """DecoderConfig of a `config.json`, with old (`rope_theta`) or 5.x (`rope_parameters`) fields.

    Raises InputError naming `where` and the field for what this port does not compute.
    """
    if not isinstance(fields, Mapping):
        raise input_error(where, type(fields).__name__, "a JSON object")
    reader = Fields(fields, where)
    model_type = _model_type(reader, "model_type", MODEL_TYPES)
    if reader.get("hidden_act", "silu") != "silu":
        raise reader.error("hidden_act", reader.get("hidden_act"), "'silu'")
    heads = reader.integer("num_attention_heads")
    hidden = reader.integer("hidden_size")
    head_dim = reader.integer("head_dim", max(hidden // heads, 1))
    positions = reader.integer("max_position_embeddings", 2048)
    scaling = rope_fields.scaling(reader, head_dim, positions)
    window, full_positions = _window(reader, model_type, scaling.max_positions)
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
        max_positions=full_positions,
        norm_eps=reader.number("rms_norm_eps", 1e-6),
        sliding_window=window,
        rope_theta=scaling.theta,
        rotary_dim=scaling.rotary_dim,
        rope_divisors=scaling.divisors,
        rope_magnitude=scaling.magnitude,
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
    reader = Fields(fields, where, places)
    arch = _model_type(reader, "general.architecture", GGUF_TYPES)
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


def _model_type(reader: Fields, name: str, allowed: Sequence[str]) -> str:
    value = reader.get(name)
    if value not in allowed:
        near = closest(str(value), allowed)
        fix = f"is it {near}?" if near else None
        if value in MODEL_TYPES:
            fix = "load the Hugging Face directory of the model instead"
        raise reader.error(name, value, "one of " + ", ".join(allowed), fix)
    return value


def _window(reader: Fields, model_type: str, positions: int) -> tuple[int, int]:
    """The sliding window (0: none), and the context up to which the model is computed exactly."""
    if model_type in ("mistral", "phi3"):
        # Null switches the window off; a Mistral that does not say has the first release's.
        silent = model_type == "mistral" and not reader.has("sliding_window")
        window = reader.integer("sliding_window", 4096 if silent else positions)
        return (0 if window >= positions else window), positions
    if model_type == "qwen2" and reader.flag("use_sliding_window", False):
        # Only some of Qwen2's blocks slide; up to the window none of them does.
        return 0, min(positions, reader.integer("sliding_window", positions))
    return 0, positions


def _granite(reader: Fields, model_type: str) -> dict[str, float]:
    if model_type != "granite":
        return {}
    return {
        "attention_scale": reader.number("attention_multiplier", 1.0),
        "embedding_multiplier": reader.number("embedding_multiplier", 1.0),
        "residual_multiplier": reader.number("residual_multiplier", 1.0),
        "logits_divisor": reader.number("logits_scaling", 1.0),
    }
