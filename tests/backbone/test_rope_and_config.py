"""What configurations say, and the rotary frequencies that follow."""

import numpy as np
import pytest

from calibjax.backbone import attention, config, rope
from calibjax.errors import InputError
from tests.backbone import checkpoints, numpy_reference

LLAMA32 = {
    "rope_type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def test_llama3_scaling_pair_by_pair():
    """Head size 64, base 5e5, factor 32: the values that Llama 3.2 must have."""
    divisors = rope.llama3_divisors(
        64, 5e5, factor=32.0, low_freq_factor=1.0, high_freq_factor=4.0, original_positions=8192
    )
    kept = 1.0 / divisors
    np.testing.assert_array_equal(kept[:15], 1.0)
    np.testing.assert_allclose(kept[15:18], [0.605573, 0.303743, 0.103448], atol=1e-6)
    np.testing.assert_allclose(kept[18:], 1 / 32)


@pytest.mark.parametrize("theta", [10000.0, 500000.0])
@pytest.mark.parametrize("scaling", [None, LLAMA32, checkpoints.LLAMA3_SCALING])
def test_frequencies_equal_the_definition(theta, scaling):
    fields = checkpoints.config(rope_theta=theta, rope_scaling=scaling, head_dim=64)
    parsed = config.from_huggingface(fields)
    ours = rope.inverse_frequencies(64, parsed.rope_theta, parsed.rope_divisors)
    expected = numpy_reference.frequencies(fields, 64)
    np.testing.assert_allclose(ours, expected, rtol=1e-7)


def test_old_and_new_rope_fields_say_the_same():
    old = checkpoints.config(rope_theta=500000.0, rope_scaling=LLAMA32)
    new = checkpoints.config(rope_parameters={**LLAMA32, "rope_theta": 500000.0})
    del new["rope_theta"]
    older = dict(old, rope_scaling={**LLAMA32, "type": "llama3"})
    del older["rope_scaling"]["rope_type"]
    parsed = config.from_huggingface(old)
    assert parsed == config.from_huggingface(new) == config.from_huggingface(older)
    assert parsed.rope_theta == 500000.0 and len(parsed.rope_divisors) == 4


def test_linear_scaling_divides_every_pair():
    fields = checkpoints.config(rope_scaling={"type": "linear", "factor": 4.0})
    assert config.from_huggingface(fields).rope_divisors == (4.0,) * 4


def test_defaults_of_the_families():
    llama = config.from_huggingface(checkpoints.config())
    assert (llama.qkv_bias, llama.output_bias, llama.mlp_bias) == (False, False, False)
    assert llama.head_dim == 8 and llama.attention_scale == 8**-0.5
    qwen2 = config.from_huggingface(checkpoints.config(model_type="qwen2"))
    assert (qwen2.qkv_bias, qwen2.output_bias) == (True, False)
    biased = config.from_huggingface(checkpoints.config(attention_bias=True))
    assert (biased.qkv_bias, biased.output_bias) == (True, True)
    fields = checkpoints.config()
    del fields["num_key_value_heads"]
    assert config.from_huggingface(fields).num_kv_heads == 4


@pytest.mark.parametrize(
    ("overrides", "window", "positions"),
    [
        ({"model_type": "mistral", "sliding_window": 128}, 128, 512),
        ({"model_type": "mistral", "sliding_window": None}, 0, 512),
        ({"model_type": "mistral", "max_position_embeddings": 32768}, 4096, 32768),
        ({"model_type": "phi3", "sliding_window": 512}, 0, 512),
        ({"model_type": "phi3"}, 0, 512),
        # Only some of its blocks slide, so that it is right up to the window.
        ({"model_type": "qwen2", "sliding_window": 128, "use_sliding_window": True}, 0, 128),
        ({"model_type": "qwen2", "sliding_window": 128, "use_sliding_window": False}, 0, 512),
        ({"model_type": "llama", "sliding_window": 128}, 0, 512),
    ],
)
def test_sliding_windows_as_the_families_mean_them(overrides, window, positions):
    parsed = config.from_huggingface(checkpoints.config(**overrides))
    assert (parsed.sliding_window, parsed.max_positions) == (window, positions)


def test_longrope_holds_up_to_the_original_context():
    parsed = config.from_huggingface(checkpoints.config(**checkpoints.FAMILIES["phi4_mini"]))
    assert (parsed.rotary_dim, parsed.head_dim, parsed.max_positions) == (12, 16, 1024)
    assert parsed.rope_divisors == (1.0, 1.0, 1.25, 2.0, 2.5, 3.0)
    # An eightfold context: sqrt(1 + ln 8 / ln 1024) = sqrt(1.3).
    assert parsed.rope_magnitude == pytest.approx(1.3**0.5)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"model_type": "lama"}, "config.json: model_type='lama': expected one of llama.*llama"),
        ({"model_type": None}, "model_type=None"),
        ({"hidden_act": "gelu"}, "hidden_act='gelu': expected 'silu'"),
        ({"hidden_size": "32"}, "hidden_size='32': expected a positive integer"),
        ({"hidden_size": True}, "hidden_size=True"),
        ({"num_hidden_layers": 0}, "num_hidden_layers=0"),
        ({"vocab_size": 2**40}, "vocab_size"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps=nan"),
        ({"num_key_value_heads": 3}, "num_kv_heads=3: expected a divisor of 4"),
        ({"head_dim": 7}, "head_dim=7: expected an even number"),
        ({"tie_word_embeddings": "no"}, "tie_word_embeddings='no': expected true or false"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "rope_type='yarn'"),
        ({"rope_scaling": "linear"}, "rope_scaling='linear': expected a JSON object"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "low_freq_factor=None"),
        ({"partial_rotary_factor": 0.4}, "partial_rotary_factor=0.4: expected an even part"),
        ({"partial_rotary_factor": 1.5}, "partial_rotary_factor=1.5"),
        ({"rope_scaling": {"type": "longrope", "short_factor": [1.0]}}, "4 positive numbers"),
    ],
)
def test_what_is_not_computed_here_is_refused_by_name(overrides, message):
    with pytest.raises(InputError, match=message):
        config.from_huggingface(checkpoints.config(**overrides))


def test_query_heads_share_kv_heads_in_neighbouring_groups():
    """Four query heads on two key-value heads read [0, 0, 1, 1], never [0, 1, 0, 1]."""
    k = np.zeros((1, 1, 2, 1, 4), np.float32)
    v = np.stack([np.full((1, 4), head, np.float32) for head in (0, 1)])[None, None]
    own = attention.KeyValues(k, v, np.ones((1, 1, 1, 1), bool))
    out = attention.attend(np.ones((1, 1, 1, 4, 4), np.float32), own, scale=1.0)
    np.testing.assert_array_equal(out[0, 0, 0, :, 0], [0, 0, 1, 1])
