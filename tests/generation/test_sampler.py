"""The sampler against step-by-step logits; its samples depend on the prompt alone."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calibjax.backbone import lora
from calibjax.errors import InputError
from calibjax.generation import Sampler, decoding, readout
from tests.tiny import tiny_decoder

# Four prompts of one length bucket, so that the tests share their compiled programs.
PROMPTS = ["hello", "what is this? " * 2, "<|im_end|> stays text", [70, 71, 2, 72] * 10]


@pytest.fixture(scope="module")
def decoder():
    return tiny_decoder()


@pytest.fixture(scope="module")
def sampler(decoder):
    return Sampler(decoder)


def _sampled(sampler, prompts, **options):
    options = dict(max_new_tokens=6, temperature=1.5, num_samples=3, seed=7) | options
    return sampler.generate(prompts, return_details=True, **options)


def _tokens(results):
    return [[sample.token_ids for sample in samples] for samples in results]


def _next_log_probs(decoder, ids) -> np.ndarray:
    padded = np.zeros((1, 96), np.int32)
    padded[0, : len(ids)] = ids
    logits = decoder.next_token_logits(padded, np.asarray([len(ids)]))
    return np.asarray(jax.nn.log_softmax(logits[0]), np.float64)


def test_greedy_tokens_are_the_argmax_step_by_step(decoder, sampler):
    results = sampler.generate(PROMPTS, max_new_tokens=5, return_details=True)
    for prompt, (sample,) in zip(PROMPTS, results):
        ids = decoder.tokenizer.encode_prompt(prompt)
        for token in sample.token_ids:
            assert token == _next_log_probs(decoder, ids).argmax()
            ids = ids + [token]
        assert sample.text == decoder.tokenizer.decode(sample.token_ids)


def test_log_probs_and_entropies_are_those_of_the_whole_sequence(decoder, sampler):
    """With shared prefill and truncated sampling, against one pass per token without a cache."""
    results = _sampled(sampler, PROMPTS, top_k=20, top_p=0.9)
    for prompt, samples in zip(PROMPTS, results):
        for sample in samples[:2]:
            ids = decoder.tokenizer.encode_prompt(prompt)
            for token, log_prob, entropy in zip(
                sample.token_ids, sample.log_probs, sample.entropies
            ):
                expected = _next_log_probs(decoder, ids)
                # float32 through three blocks, twice: 1e-4 nats is ten times what is seen.
                assert log_prob == pytest.approx(expected[token], abs=1e-4)
                assert entropy == pytest.approx(-(np.exp(expected) * expected).sum(), abs=1e-4)
                ids = ids + [token]


def test_samples_do_not_depend_on_batch_order_or_neighbours(sampler):
    together = _tokens(_sampled(sampler, PROMPTS))
    assert _tokens(_sampled(sampler, PROMPTS[::-1]))[::-1] == together
    alone = [_tokens(_sampled(sampler, [prompt]))[0] for prompt in PROMPTS]
    assert alone == together
    noise = [PROMPTS[1], "other " * 5, [9] * 50, "x"]
    assert _tokens(_sampled(sampler, noise))[0] == together[1]


def test_samples_are_extended_by_asking_for_more(sampler):
    """More samples or more tokens never change those that a smaller request gives."""
    two = _tokens(_sampled(sampler, PROMPTS, num_samples=2))
    three = _tokens(_sampled(sampler, PROMPTS, max_new_tokens=20))
    assert [[tokens[:6] for tokens in samples[:2]] for samples in three] == two


def test_samples_differ_by_seed_by_sample_and_between_equal_prompts(sampler):
    first, again, *_ = _tokens(_sampled(sampler, [PROMPTS[0]] * 4))
    other = _tokens(_sampled(sampler, PROMPTS, seed=8))[0]
    assert len({*first, *again, *other}) == 9
    assert _tokens(_sampled(sampler, PROMPTS))[0] == first


def test_each_prompt_has_its_own_temperature_and_greedy_samples_are_alike(sampler):
    mixed = _tokens(_sampled(sampler, PROMPTS, temperature=[0.0, 1.5, 0, 1.5]))
    hot = _tokens(_sampled(sampler, PROMPTS))
    cold = sampler.generate(PROMPTS, max_new_tokens=6, return_details=True)
    assert [mixed[1], mixed[3]] == [hot[1], hot[3]]
    assert [mixed[0], mixed[2]] == [[cold[i][0].token_ids] * 3 for i in (0, 2)]


def test_the_end_token_ends_a_sample_and_stays_in_its_ids_though_it_pads_too():
    """Bug case F11's kind: with pad == eos, real lengths decide, never the id."""
    decoder = tiny_decoder()
    free = Sampler(decoder).generate(PROMPTS, max_new_tokens=6, return_details=True)
    end = free[1][0].token_ids[2]
    decoder.tokenizer.eos_ids = (end,)
    decoder.tokenizer.pad_id = end
    prompts = [*PROMPTS[:3], [70, end, end]]
    results = Sampler(decoder).generate(prompts, max_new_tokens=6, return_details=True)
    cut = results[1][0]
    assert cut.token_ids == free[1][0].token_ids[: len(cut.token_ids)]
    assert cut.token_ids[-1] == end and cut.finish_reason == "stop"
    assert len(cut.log_probs) == len(cut.entropies) == len(cut.token_ids)
    assert cut.text == decoder.tokenizer.decode(cut.token_ids[:-1])
    # The prompt that ends in that very id is read to its last token.
    first = results[3][0].token_ids[0]
    assert first == _next_log_probs(decoder, [70, end, end]).argmax()


def test_stop_strings_end_a_text_before_them(sampler):
    options = dict(max_new_tokens=16, return_details=True)
    free = sampler.generate(PROMPTS, **options)[0][0]
    stop = free.text[4:6]
    cut = sampler.generate(PROMPTS, stop=[stop], **options)[0][0]
    assert cut.text == free.text[: free.text.index(stop)]
    assert cut.finish_reason == "stop" and free.finish_reason == "length"
    assert cut.token_ids == free.token_ids[: len(cut.token_ids)]
    assert len(cut.token_ids) < len(free.token_ids)


def test_lengths_and_limits_of_a_bucket_share_one_compiled_program(sampler):
    def run(length: int, max_new_tokens: int) -> tuple[int, int]:
        sampler.generate([[70] * length] * 4, max_new_tokens=max_new_tokens)
        return decoding.prefill._cache_size(), decoding.advance._cache_size()

    before = run(33, 2)
    assert [run(length, limit) for length, limit in ((40, 5), (64, 16), (50, 9))] == [before] * 3
    after = run(257, 2)
    assert after == (before[0] + 1, before[1] + 1), "the counts would see a new program"


def test_an_adapter_generates_as_the_decoder_it_is_merged_into():
    decoder = tiny_decoder()
    adapter = lora.Adapter(decoder.config, key=jax.random.key(0), rank=4)
    for name in adapter.targets:
        pair = getattr(adapter, name)
        noise = jax.random.normal(jax.random.key(1), pair.b[...].shape)
        pair.b[...] = noise.astype(jnp.float32)
    adapted = Sampler(decoder, adapter).generate(PROMPTS, max_new_tokens=6)
    merged = tiny_decoder()
    merged.module = lora.merge(decoder.module, adapter)
    assert adapted == Sampler(merged).generate(PROMPTS, max_new_tokens=6)
    assert adapted != Sampler(decoder).generate(PROMPTS, max_new_tokens=6)


@pytest.mark.parametrize(
    "options, match",
    [
        ({"max_new_tokens": 0}, "max_new_tokens=0"),
        ({"num_samples": 0}, "num_samples=0"),
        ({"temperature": -1.0}, "temperature=-1.0"),
        ({"temperature": float("nan")}, "temperature=nan"),
        ({"temperature": [1.0]}, r"one per prompt \(2\)"),
        ({"top_k": 0}, "top_k=0"),
        ({"top_p": 0.0}, "top_p=0.0"),
        ({"seed": -1}, "seed=-1"),
        ({"stop": [""]}, "stop="),
        ({"max_new_tokens": 5000}, "prompt="),
    ],
)
def test_arguments_out_of_range_are_named(sampler, options, match):
    with pytest.raises(InputError, match=match):
        sampler.generate(["a", "b"], **({"max_new_tokens": 4} | options))


def test_no_prompts_give_no_texts(sampler):
    assert sampler.generate([], max_new_tokens=4) == []


def test_class_probabilities_are_the_softmax_over_the_classes(decoder):
    classes = readout.class_token_ids(decoder.tokenizer, ("A", "B", "C"))
    probability_NC = readout.class_probabilities(decoder, PROMPTS, classes)
    assert probability_NC.dtype == np.float32
    for prompt, row in zip(PROMPTS, probability_NC):
        log_probs = _next_log_probs(decoder, decoder.tokenizer.encode_prompt(prompt))[classes]
        expected = np.exp(log_probs) / np.exp(log_probs).sum()
        np.testing.assert_allclose(row, expected, atol=1e-5)


@pytest.mark.parametrize("classes", [("A", "10"), ("A", "A")])
def test_a_class_must_be_one_token_of_its_own(decoder, classes):
    with pytest.raises(InputError, match="class=.*tiny"):
        readout.class_token_ids(decoder.tokenizer, classes)
