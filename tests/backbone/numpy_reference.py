"""The decoder once more, in float64 NumPy, one head and one token at a time where it matters.

Written from the published definitions (Touvron et al. 2023; Su et al. 2021; Llama 3.1 frequency
scaling; Ainslie et al. 2023 for grouped queries), on the tensors as checkpoints name them, so that
it shares neither code nor layout with the package.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

Tensors = Mapping[str, np.ndarray]


def features(config: Mapping[str, Any], tensors: Tensors, tokens: list[int]) -> np.ndarray:
    """Residual stream after block L-1 at the last token, [D]."""
    return _residual(config, tensors, tokens, config["num_hidden_layers"] - 1)[-1]


def logits(config: Mapping[str, Any], tensors: Tensors, tokens: list[int]) -> np.ndarray:
    """Logits of the next token at every position, [T, V]."""
    x = _residual(config, tensors, tokens, config["num_hidden_layers"])
    x = _norm(x, tensors["model.norm.weight"], config["rms_norm_eps"])
    tied = config.get("tie_word_embeddings", False)
    head = tensors["model.embed_tokens.weight" if tied else "lm_head.weight"]
    return x @ head.astype(np.float64).T / config.get("logits_scaling", 1.0)


def _residual(
    config: Mapping[str, Any], tensors: Tensors, tokens: list[int], blocks: int
) -> np.ndarray:
    x = tensors["model.embed_tokens.weight"].astype(np.float64)[tokens]
    x = x * config.get("embedding_multiplier", 1.0)
    branch = config.get("residual_multiplier", 1.0)
    for number in range(blocks):
        stem = f"model.layers.{number}."
        block = {k.removeprefix(stem): v for k, v in tensors.items() if k.startswith(stem)}
        eps = config["rms_norm_eps"]
        x = x + branch * _attention(config, block, _norm(x, block["input_layernorm.weight"], eps))
        x = x + branch * _mlp(block, _norm(x, block["post_attention_layernorm.weight"], eps))
    return x


def _norm(x: np.ndarray, scale: np.ndarray, eps: float) -> np.ndarray:
    return scale.astype(np.float64) * x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + eps)


def _linear(block: Tensors, name: str, x: np.ndarray) -> np.ndarray:
    y = x @ block[f"{name}.weight"].astype(np.float64).T
    return y + block[f"{name}.bias"] if f"{name}.bias" in block else y


def _mlp(block: Tensors, x: np.ndarray) -> np.ndarray:
    if "mlp.gate_up_proj.weight" in block:
        gate, up = np.split(_linear(block, "mlp.gate_up_proj", x), 2, axis=-1)
    else:
        gate, up = _linear(block, "mlp.gate_proj", x), _linear(block, "mlp.up_proj", x)
    return _linear(block, "mlp.down_proj", gate / (1.0 + np.exp(-gate)) * up)


def _attention(config: Mapping[str, Any], block: Tensors, x: np.ndarray) -> np.ndarray:
    T, D = x.shape
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    size = config.get("head_dim") or D // heads
    if "self_attn.qkv_proj.weight" in block:
        whole = _linear(block, "self_attn.qkv_proj", x).reshape(T, heads + 2 * kv_heads, size)
        q, k, v = np.split(whole, [heads, heads + kv_heads], axis=1)
    else:
        q = _linear(block, "self_attn.q_proj", x).reshape(T, heads, size)
        k = _linear(block, "self_attn.k_proj", x).reshape(T, kv_heads, size)
        v = _linear(block, "self_attn.v_proj", x).reshape(T, kv_heads, size)
    scale = config.get("attention_multiplier", 1 / np.sqrt(size))
    window = config.get("sliding_window") or T
    rotary = int(size * config.get("partial_rotary_factor", 1.0))
    frequency, stretch = frequencies(config, rotary), magnitude(config)
    for x_turned in (q, k):
        for t in range(T):
            x_turned[t, :, :rotary] = stretch * _turn(x_turned[t, :, :rotary], t * frequency)
    out = np.zeros((T, heads, size))
    for head in range(heads):
        # Neighbouring query heads share a key-value head.
        shared = head // (heads // kv_heads)
        for t in range(T):
            first = max(0, t + 1 - window)
            scores = k[first : t + 1, shared] @ q[t, head] * scale
            weights = np.exp(scores - scores.max())
            out[t, head] = weights / weights.sum() @ v[first : t + 1, shared]
    return _linear(block, "self_attn.o_proj", out.reshape(T, heads * size))


def _turn(vectors: np.ndarray, angles: np.ndarray) -> np.ndarray:
    """Element i and i + size/2 of every head as one complex number, turned by its angle."""
    half = vectors.shape[-1] // 2
    turned = (vectors[:, :half] + 1j * vectors[:, half:]) * np.exp(1j * angles)
    return np.concatenate([turned.real, turned.imag], axis=-1)


def frequencies(config: Mapping[str, Any], size: int) -> np.ndarray:
    """Radians per token of every pair, from old or new fields."""
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    theta = rope.get("rope_theta") or config.get("rope_theta", 10000.0)
    plain = [theta ** (-2 * i / size) for i in range(size // 2)]
    if "short_factor" in rope:
        return np.array(plain) / rope["short_factor"]
    if rope.get("rope_type", rope.get("type", "default")) != "llama3":
        return np.array(plain)
    return np.array([_llama3(rope, frequency) for frequency in plain])


def magnitude(config: Mapping[str, Any]) -> float:
    """Factor of cosine and sine in LongRoPE (Ding et al. 2024), 1 elsewhere."""
    if "short_factor" not in (config.get("rope_scaling") or {}):
        return 1.0
    original = config["original_max_position_embeddings"]
    stretched = config["max_position_embeddings"] / original
    return float(np.sqrt(1 + np.log(stretched) / np.log(original)))


def _llama3(rope: Mapping[str, Any], frequency: float) -> float:
    context = rope["original_max_position_embeddings"]
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    wavelength = 2 * np.pi / frequency
    if wavelength < context / high:
        return frequency
    if wavelength > context / low:
        return frequency / rope["factor"]
    smooth = (context / wavelength - low) / (high - low)
    return (1 - smooth) * frequency / rope["factor"] + smooth * frequency
