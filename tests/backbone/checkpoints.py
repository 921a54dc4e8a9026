"""Small random checkpoints on disk: Hugging Face directories and GGUF files."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from tests.tiny import CHAT_TEMPLATE, byte_tokenizer

# What a test of an architecture changes in `config`; the numbers are small versions of published
# ones, the window and the original contexts short enough to be left behind.
FAMILIES: dict[str, dict[str, Any]] = {
    "mistral": {"model_type": "mistral", "sliding_window": 16},
    "granite": {
        "model_type": "granite",
        "attention_multiplier": 0.2,
        "embedding_multiplier": 3.0,
        "residual_multiplier": 0.5,
        "logits_scaling": 4.0,
    },
    "phi3": {"model_type": "phi3", "rope_theta": 250000.0, "pad_token_id": 0},
    "phi3_window": {"model_type": "phi3", "sliding_window": 20, "pad_token_id": 0},
    "phi4_mini": {
        "model_type": "phi3",
        "hidden_size": 64,
        "pad_token_id": 0,
        "tie_word_embeddings": True,
        "partial_rotary_factor": 0.75,
        "max_position_embeddings": 8192,
        "original_max_position_embeddings": 1024,
        "rope_scaling": {
            "type": "longrope",
            "short_factor": [1.0, 1.0, 1.25, 2.0, 2.5, 3.0],
            "long_factor": [1.0, 2.0, 4.0, 8.0, 16.0, 32.0],
        },
    },
}

LLAMA3_SCALING = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def config(**overrides: Any) -> dict[str, Any]:
    """A config.json: llama, three blocks, four query and two key-value heads, untied."""
    fields = dict(
        model_type="llama",
        vocab_size=259,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        rms_norm_eps=1e-5,
        rope_theta=10000.0,
        tie_word_embeddings=False,
    )
    return fields | overrides


def tensors(fields: Mapping[str, Any], seed: int = 0) -> dict[str, np.ndarray]:
    """float32 tensors by Hugging Face name; values large enough that attention is not uniform."""
    rng = np.random.default_rng(seed)
    result = {}
    for name, shape in _shapes(fields).items():
        noise = rng.standard_normal(shape)
        if name.endswith("norm.weight"):
            noise = 1.0 + 0.2 * noise
        elif len(shape) == 1:
            noise = 0.3 * noise
        else:
            noise = 1.5 * noise / np.sqrt(shape[1])
        result[name] = noise.astype(np.float32)
    return result


def _shapes(fields: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    D, F, V = (fields[f] for f in ("hidden_size", "intermediate_size", "vocab_size"))
    size = fields.get("head_dim") or D // fields["num_attention_heads"]
    H, G = fields["num_attention_heads"] * size, fields["num_key_value_heads"] * size
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (V, D)}
    shapes["model.norm.weight"] = (D,)
    if not fields["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (V, D)
    projections = {"q": (H, D), "k": (G, D), "v": (G, D), "o": (D, H)}
    fused = fields["model_type"] == "phi3"
    biased = {"q", "k", "v"} if fields["model_type"] == "qwen2" else set()
    biased |= set("qkvo") if fields.get("attention_bias") else set()
    for number in range(fields["num_hidden_layers"]):
        stem = f"model.layers.{number}."
        for norm in ("input_layernorm", "post_attention_layernorm"):
            shapes[f"{stem}{norm}.weight"] = (D,)
        shapes[f"{stem}mlp.down_proj.weight"] = (D, F)
        if fused:
            shapes[f"{stem}self_attn.qkv_proj.weight"] = (H + 2 * G, D)
            shapes[f"{stem}self_attn.o_proj.weight"] = (D, H)
            shapes[f"{stem}mlp.gate_up_proj.weight"] = (2 * F, D)
            continue
        for letter, shape in projections.items():
            shapes[f"{stem}self_attn.{letter}_proj.weight"] = shape
            if letter in biased:
                shapes[f"{stem}self_attn.{letter}_proj.bias"] = shape[:1]
        shapes[f"{stem}mlp.gate_proj.weight"] = shapes[f"{stem}mlp.up_proj.weight"] = (F, D)
    return shapes


def save(directory: Path, fields: Mapping[str, Any], named: Mapping[str, np.ndarray]) -> Path:
    """A Hugging Face directory with one weights file and the byte-level tokenizer."""
    directory.mkdir(parents=True, exist_ok=True)
    save_tokenizer(directory, fields)
    save_file(dict(named), directory / "model.safetensors")
    return directory


def save_sharded(
    directory: Path, fields: Mapping[str, Any], named: Mapping[str, np.ndarray], shards: int = 2
) -> Path:
    """The same, its tensors dealt out to several files listed by an index."""
    directory.mkdir(parents=True, exist_ok=True)
    save_tokenizer(directory, fields)
    index = {}
    for number in range(shards):
        file = f"model-{number + 1:05d}-of-{shards:05d}.safetensors"
        part = {name: named[name] for name in sorted(named)[number::shards]}
        save_file(part, directory / file)
        index |= dict.fromkeys(part, file)
    write_index(directory, index)
    return directory


def write_index(directory: Path, index: Mapping[str, str]) -> None:
    text = json.dumps({"metadata": {}, "weight_map": dict(index)})
    (directory / "model.safetensors.index.json").write_text(text)


def save_tokenizer(directory: Path, fields: Mapping[str, Any]) -> None:
    """config.json and the tokenizer's files."""
    (directory / "config.json").write_text(json.dumps(dict(fields)))
    byte_tokenizer().save(str(directory / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "chat_template": CHAT_TEMPLATE,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))


def save_gguf(
    path: Path,
    fields: Mapping[str, Any],
    named: Mapping[str, np.ndarray],
    *,
    kind: str = "F32",
    extra: Mapping[str, np.ndarray] | None = None,
) -> Path:
    """The same model as GGUF, q and k rows turned into pairs where the converter does so.

    kind: type of all matrices; the others stay F32. extra: further tensors by their GGUF name.
    """
    import gguf

    arch = fields["model_type"]
    writer = gguf.GGUFWriter(path, arch)
    writer.add_block_count(fields["num_hidden_layers"])
    writer.add_context_length(fields["max_position_embeddings"])
    writer.add_embedding_length(fields["hidden_size"])
    writer.add_feed_forward_length(fields["intermediate_size"])
    writer.add_head_count(fields["num_attention_heads"])
    writer.add_head_count_kv(fields["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(fields["rms_norm_eps"])
    writer.add_rope_freq_base(fields["rope_theta"])
    writer.add_vocab_size(fields["vocab_size"])
    if arch == "granite":
        writer.add_attention_scale(fields["attention_multiplier"])
        writer.add_embedding_scale(fields["embedding_multiplier"])
        writer.add_residual_scale(fields["residual_multiplier"])
        writer.add_logit_scale(fields["logits_scaling"])
    if fields.get("head_dim"):
        writer.add_key_length(fields["head_dim"])
        writer.add_value_length(fields["head_dim"])
        writer.add_rope_dimension_count(fields["head_dim"])
    _add_tokenizer(writer)
    for name, value in named.items():
        quantised = gguf.GGMLQuantizationType[kind] if value.ndim == 2 else None
        value = _paired_rows(fields, name, value)
        if quantised is None or kind == "F32":
            writer.add_tensor(gguf_name(name), value)
        else:
            writer.add_tensor(
                gguf_name(name), gguf.quantize(value, quantised), raw_dtype=quantised
            )
    for name, value in (extra or {}).items():
        writer.add_tensor(name, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_tokenizer(writer: Any) -> None:
    tokenizer = byte_tokenizer()
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    tokens = sorted(vocabulary, key=lambda token: vocabulary[token])
    # An array must not be empty, so one byte gives way to what the only merge makes.
    writer.add_token_list([*tokens[:-1], "ab"])
    writer.add_token_types([3] * 3 + [1] * (len(tokens) - 3))
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(0)
    writer.add_chat_template(CHAT_TEMPLATE)


_GGUF_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


def gguf_name(name: str) -> str:
    stem, leaf = name.rsplit(".", 1)
    if not stem.startswith("model.layers."):
        return f"{_GGUF_NAMES[stem]}.{leaf}"
    number, inner = stem.removeprefix("model.layers.").split(".", 1)
    return f"blk.{number}.{_GGUF_NAMES[inner]}.{leaf}"


def _paired_rows(fields: Mapping[str, Any], name: str, value: np.ndarray) -> np.ndarray:
    """What the llama converter does to q and k: rows i and i + h/2 of a head become neighbours."""
    projection = name.split(".")[-2]
    if fields["model_type"] not in ("llama", "granite") or projection not in ("q_proj", "k_proj"):
        return value
    field = "num_attention_heads" if projection == "q_proj" else "num_key_value_heads"
    size = len(value) // fields[field]
    order = [
        head * size + half * (size // 2) + pair
        for head in range(fields[field])
        for pair in range(size // 2)
        for half in (0, 1)
    ]
    return np.ascontiguousarray(value[order])
