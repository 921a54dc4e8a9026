"""A decoder of a few thousand random weights with a byte-level tokenizer, for fast tests."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from calibjax.backbone.config import DecoderConfig
from calibjax.backbone.decoder import DecoderModule, parameter_shapes
from calibjax.backbone.load import Decoder
from calibjax.backbone.tokenizer import Tokenizer

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content']"
    " + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


def tiny_config(**overrides: Any) -> DecoderConfig:
    """Three blocks, grouped queries, tied embeddings; 259 ids = 3 special tokens + 256 bytes."""
    fields: dict[str, Any] = dict(
        vocab_size=len(SPECIAL_TOKENS) + 256,
        hidden_size=32,
        intermediate_size=64,
        num_layers=3,
        num_heads=4,
        num_kv_heads=2,
        head_dim=8,
        max_positions=4096,
        tie_embeddings=True,
    )
    return DecoderConfig(**(fields | overrides))


def random_arrays(config: DecoderConfig, seed: int = 0) -> dict[str, np.ndarray]:
    """float32 weights by path, scaled so that activations keep their size through the blocks."""
    rng = np.random.default_rng(seed)
    arrays = {}
    for path, shape in parameter_shapes(config).items():
        if path.endswith(".scale"):
            values = 1.0 + 0.1 * rng.standard_normal(shape)
        elif path.endswith(".bias"):
            values = 0.2 * rng.standard_normal(shape)
        else:
            fan_in = shape[-1] if path == "embedding" else shape[-2]
            values = rng.standard_normal(shape) / np.sqrt(fan_in)
        arrays[path] = values.astype(np.float32)
    return arrays


def tiny_decoder(seed: int = 0, *, dtype: Any = "float32", **overrides: Any) -> Decoder:
    """Decoder with seeded random weights; `overrides` are fields of DecoderConfig."""
    config = tiny_config(**overrides)
    arrays = {path: jnp.asarray(v, dtype) for path, v in random_arrays(config, seed).items()}
    return Decoder(DecoderModule(config, arrays), config, tiny_tokenizer(), "tiny", f"tiny{seed}")


def byte_tokenizer() -> Any:
    """`tokenizers` byte-level BPE without merges: one token a byte."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: i for i, token in enumerate([*SPECIAL_TOKENS, *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(t, special=True) for t in SPECIAL_TOKENS])
    return tokenizer


def tiny_tokenizer() -> Tokenizer:
    return Tokenizer.from_tokenizers(
        byte_tokenizer(),
        CHAT_TEMPLATE,
        specials={"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"},
        name="tiny",
        trusted=True,
    )
