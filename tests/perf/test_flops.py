"""Formulas against XLA's own count on models without loops, and against counting by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calibjax.backbone import attention
from calibjax.backbone import decoder as passes
from calibjax.backbone import layers, lora, rope
from calibjax.backbone.config import DecoderConfig
from calibjax.data.batching import Group
from calibjax.perf import flops
from tests.tiny import tiny_config, tiny_decoder

# Wide enough that norms, softmax and rotations are a few percent of the products.
SHAPE = {"hidden_size": 256, "intermediate_size": 512, "num_layers": 5, "head_dim": 64}
TOKENS = 64


def unrolled(module, config, tokens_1T, adapter=None):
    """`features` of one row without a scan, block L-1 at the last token alone."""
    T = tokens_1T.shape[1]
    inverse = rope.inverse_frequencies(config.rotary_dim, config.rope_theta)
    tables = rope.tables(jnp.arange(T, dtype=jnp.int32)[None], inverse)

    def attend(q, k, v, mask):
        k, v = (attention.heads_first(x[:, None]) for x in (k, v))
        own = attention.KeyValues(k, v, mask)
        return attention.attend(q[:, None], own, scale=config.attention_scale)[:, 0]

    def causal(q, k, v):
        return attend(q, k, v, attention.causal_mask(T)), None

    x = passes.embed(module, tokens_1T)
    for number in range(config.num_layers - 1):
        block, pairs = jax.tree.map(lambda leaf: leaf[number], (module.blocks, adapter))
        adapted = None if pairs is None else lora.Layer(pairs, None)
        if number < config.num_layers - 2:
            x, _ = layers.run_block(block, config, x, tables, causal, adapted)
            continue
        _, k, v = layers.project_heads(block, config, x, tables, adapted)
        last = jax.tree.map(lambda t: t[:, -1:], tables)
        q, _, _ = layers.project_heads(block, config, x[:, -1:], last, adapted)
        mixed = attend(q, k, v, jnp.ones((1, 1, 1, T), bool))
        x = layers.finish_block(block, config, x[:, -1:], mixed, adapted)
    return x[:, -1]


def counted(function, *inputs):
    """XLA's count of the compiled program, in which what is not used is gone."""
    return jax.jit(function).lower(*inputs).compile().cost_analysis()["flops"]


def square(config):
    """What the formula says when all pairs are computed and masked, as XLA does here."""
    whole = config.num_layers - 2
    causal = flops.forward(config, 0, [TOKENS])
    missing = TOKENS * TOKENS - TOKENS * (TOKENS + 1) // 2
    return causal.linear, causal.attention + whole * missing * 4 * config.num_heads * 64


@pytest.fixture(scope="module")
def decoder():
    return tiny_decoder(**SHAPE)


TOKENS_1T = jnp.asarray(np.random.default_rng(0).integers(0, 259, (1, TOKENS)), jnp.int32)


def test_scoring_is_what_xla_counts(decoder):
    config = decoder.config

    def score(module):
        return unrolled(module, config, TOKENS_1T)

    features = decoder.features(TOKENS_1T, np.array([TOKENS]))
    np.testing.assert_allclose(jax.jit(score)(decoder.module), features, rtol=1e-4, atol=1e-4)
    ratio = counted(score, decoder.module) / sum(square(config))
    assert 1.0 <= ratio < 1.06


def test_training_is_what_xla_counts(decoder):
    config = decoder.config
    adapter = lora.Adapter(config, key=jax.random.key(0), rank=1, targets=".*")

    # The weights are an argument, or products with the constant embedding would be folded away.
    def loss(adapter, module):
        return jnp.sum(unrolled(module, config, TOKENS_1T, adapter) ** 2)

    linear, pairs = square(config)
    # Nothing below block 1 is trained, so its queries, keys and values pass no gradient on.
    sizes = lora.projection_sizes(config)
    first = sum(np.prod(sizes[name]) for name in ("q_proj", "k_proj", "v_proj"))
    expected = 2 * linear + 3 * pairs - 2 * first * TOKENS
    ratio = counted(jax.grad(loss), adapter, decoder.module) / expected
    # Rank 1 on all seven projections adds 2 %, softmax and norms go both ways.
    assert 1.0 <= ratio < 1.12


def test_long_sequences_cost_two_and_four_per_parameter_and_token():
    """N of Llama-3.1-8B without its last block, and the shares that engine figures quote."""
    config = DecoderConfig(
        vocab_size=128256,
        hidden_size=4096,
        intermediate_size=14336,
        num_layers=32,
        num_heads=32,
        num_kv_heads=8,
        head_dim=128,
    )
    N = flops.body_parameters(config)
    assert N == 31 * 218_103_808
    score, train = flops.forward(config, 0, [512]), flops.training(config, 0, [512])
    # The last block's queries, output and MLP at one token of 512: 3.1 % of N is not computed.
    assert score.linear / (2 * N * 512) == pytest.approx(1 - 0.0310, abs=5e-4)
    assert train.linear == 2 * score.linear and train.attention == 3 * score.attention
    # 2 T H h per token and block, 30 blocks whole.
    assert score.attention == pytest.approx(512 * 2 * 513 * 4096 * 30, rel=1e-3)


@pytest.mark.parametrize("window", [0, 3, 7, 100])
@pytest.mark.parametrize("before, length", [(0, 9), (5, 4), (6, 0), (2, 20)])
def test_pairs_are_those_that_the_mask_shows(window, before, length):
    queries = np.arange(before, before + length)
    keys = np.arange(before + length)
    distance = queries[:, None] - keys[None]
    shown = (distance >= 0) & (distance < (window or 10**6))
    assert flops._pairs(tiny_config(sliding_window=window), before, length) == shown.sum()


def test_a_shared_prefix_counts_once_and_padding_not_at_all():
    config = tiny_config()
    two = Group((1,) * 10, ((2,) * 5, (3,) * 7), ((0,), (1,)))
    groups = [two, Group((1,) * 4, ((2,),), ((2,),))]
    assert flops.useful_tokens(groups) == 27
    apart = sum(flops.forward(config, 0, [n]).total for n in (15, 17, 5))
    # Ten tokens through block 1 and through keys and values of block 2, and their 55 pairs once.
    sizes = lora.projection_sizes(config)
    key_values = sum(np.prod(sizes[name]) for name in ("k_proj", "v_proj"))
    block = sum(np.prod(size) for size in sizes.values())
    saved = 2 * 10 * (block + key_values) + 55 * 4 * config.num_heads * config.head_dim
    assert flops.of_groups(config, groups) == apart - saved
    linear, pairs = (
        sum(flops.forward(config, len(g.prefix), [len(s) for s in g.suffixes])[i] for g in groups)
        for i in (0, 1)
    )
    assert flops.of_groups(config, groups, train=True) == 2 * linear + 3 * pairs


def test_peaks_and_utilisation():
    assert flops.peak_flops("NVIDIA H100 80GB HBM3") == 989e12
    assert flops.peak_flops("TPU v5 lite") == 197e12 and flops.peak_flops("TPU v5p") == 459e12
    assert flops.peak_flops("cpu") is None
    assert flops.utilisation(989e12, 2.0, "NVIDIA H200", num_devices=2) == 0.25
    assert flops.utilisation(1.0, 1.0, "cpu") is None
