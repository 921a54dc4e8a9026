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


def test_a_sliding_window_limits_the_length_where_it_is_used():
    windowed = checkpoints.config(model_type="mistral", sliding_window=128)
    assert config.from_huggingface(windowed).max_positions == 128
    unused = checkpoints.config(model_type="qwen2", sliding_window=128, use_sliding_window=False)
    assert config.from_huggingface(unused).max_positions == 512


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
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor=0.5"),
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
