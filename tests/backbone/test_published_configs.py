"""Models of the papers by configuration: what their config.json says, and that the sizes add up."""

import math

import pytest

from calibjax.backbone import config as configs
from calibjax.backbone.decoder import parameter_shapes

LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "rope_type": "llama3"}


def fields(kind, vocab, hidden, inner, layers, heads, kv_heads, positions, **more):
    """The fields of a config.json that matter, in the order in which model cards list them."""
    return {
        "model_type": kind,
        "vocab_size": vocab,
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "max_position_embeddings": positions,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
    } | more


def scaled(factor):
    return LLAMA3 | {"factor": factor, "original_max_position_embeddings": 8192}


# The published fields, and the number of parameters that the hub counts in the weights.
PUBLISHED = {
    "Llama-2-7b": (
        fields("llama", 32000, 4096, 11008, 32, 32, 32, 4096, rms_norm_eps=1e-5),
        6_738_415_616,
    ),
    "Llama-3.1-8B": (
        fields(
            *("llama", 128256, 4096, 14336, 32, 32, 8, 131072),
            **{"rms_norm_eps": 1e-5, "rope_theta": 5e5, "rope_scaling": scaled(8.0)},
        ),
        8_030_261_248,
    ),
    "Llama-3.2-1B": (
        fields(
            *("llama", 128256, 2048, 8192, 16, 32, 8, 131072),
            **{"rms_norm_eps": 1e-5, "rope_theta": 5e5, "rope_scaling": scaled(32.0)},
            **{"head_dim": 64, "tie_word_embeddings": True},
        ),
        1_235_814_400,
    ),
    "DeepSeek-R1-Distill-Llama-8B": (
        fields(
            *("llama", 128256, 4096, 14336, 32, 32, 8, 131072),
            **{"rms_norm_eps": 1e-5, "rope_theta": 5e5, "rope_scaling": scaled(8.0)},
            **{"attention_bias": False, "mlp_bias": False, "pretraining_tp": 1},
        ),
        8_030_261_248,
    ),
    "DeepSeek-R1-Distill-Qwen-7B": (
        fields(
            *("qwen2", 152064, 3584, 18944, 28, 28, 4, 131072),
            **{"rms_norm_eps": 1e-6, "rope_theta": 10000, "use_sliding_window": False},
            **{"sliding_window": 4096, "max_window_layers": 28, "use_mrope": False},
        ),
        7_615_616_512,
    ),
    "Qwen2.5-1.5B": (
        fields(
            *("qwen2", 151936, 1536, 8960, 28, 12, 2, 32768),
            **{"rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "use_sliding_window": False},
            **{"sliding_window": 32768, "tie_word_embeddings": True},
        ),
        1_543_714_304,
    ),
    "Mistral-7B-v0.1": (
        fields(
            *("mistral", 32000, 4096, 14336, 32, 32, 8, 32768),
            **{"rms_norm_eps": 1e-5, "rope_theta": 10000.0, "sliding_window": 4096},
        ),
        7_241_732_096,
    ),
    "phi-4": (
        fields(
            *("phi3", 100352, 5120, 17920, 40, 40, 10, 16384),
            **{"rms_norm_eps": 1e-5, "rope_theta": 250000, "rope_scaling": None},
            **{"sliding_window": None, "partial_rotary_factor": 1.0, "embd_pdrop": 0.0},
        ),
        14_659_507_200,
    ),
    "granite-3.1-2b": (
        fields(
            *("granite", 49155, 2048, 8192, 40, 32, 8, 131072),
            **{"rms_norm_eps": 1e-5, "rope_theta": 5000000.0, "tie_word_embeddings": True},
            **{"attention_multiplier": 0.015625, "embedding_multiplier": 12.0},
            **{"residual_multiplier": 0.22, "logits_scaling": 8.0},
        ),
        2_533_531_648,
    ),
    "SmolLM2-1.7B": (
        fields(
            *("llama", 49152, 2048, 8192, 24, 32, 32, 8192),
            **{"rms_norm_eps": 1e-5, "rope_theta": 130000, "tie_word_embeddings": True},
        ),
        1_711_376_384,
    ),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_parameters_are_as_many_as_the_weights_hold(name):
    published, count = PUBLISHED[name]
    shapes = parameter_shapes(configs.from_huggingface(published))
    assert sum(math.prod(shape) for shape in shapes.values()) == count


def test_only_the_first_mistral_slides():
    windows = {
        name: configs.from_huggingface(published).sliding_window
        for name, (published, _) in PUBLISHED.items()
    }
    assert {name for name, window in windows.items() if window} == {"Mistral-7B-v0.1"}
    assert windows["Mistral-7B-v0.1"] == 4096


def test_contexts_are_whole():
    for published, _ in PUBLISHED.values():
        found = configs.from_huggingface(published)
        assert found.max_positions == published["max_position_embeddings"]
