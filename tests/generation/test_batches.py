"""Batches of prompts: equal prompts and common beginnings are found, and only those."""

import numpy as np
import pytest

from calibjax.generation.batches import common_tokens, distinct_rows, plan
from calibjax.generation.sampler import Sampler
from tests.tiny import tiny_decoder

SYSTEM = list(range(40, 110))


@pytest.mark.parametrize(
    "prompts, expected",
    [
        ([[*SYSTEM, 1], [*SYSTEM, 2, 3]], 64),
        ([SYSTEM, SYSTEM], 64),
        ([SYSTEM[:64], [*SYSTEM[:64], 9]], 48),  # one token of each row must be its own
        ([[*SYSTEM[:31], 1, 1], [*SYSTEM[:31], 2, 2]], 16),
        ([SYSTEM], 0),
        ([[5], [*SYSTEM]], 0),
    ],
)
def test_common_tokens_are_a_multiple_of_16_and_shorter_than_every_prompt(prompts, expected):
    [batch] = plan(prompts)
    assert common_tokens(batch.tokens_BT, batch.lengths_B) == expected


def test_equal_prompts_of_a_batch_are_one_row_to_compute():
    prompts = [[1, 2, 3], [4], [1, 2, 3], [5, 6], [1, 2, 3], [1, 2, 3], [1, 2, 3], [5, 6]]
    [batch] = plan(prompts, pad_id=3)
    places, rows = distinct_rows(batch)
    assert len(places) == 4, "three prompts, filled up to a power of two"
    np.testing.assert_array_equal(batch.tokens_BT[places][rows], batch.tokens_BT)
    np.testing.assert_array_equal(batch.lengths_B[places][rows], batch.lengths_B)


def test_a_prompt_and_the_same_with_a_pad_after_it_differ():
    [batch] = plan([[7, 0], [7], [7], [7]], pad_id=0)
    places, rows = distinct_rows(batch)
    assert len(places) == 2 and len(set(rows[1:].tolist())) == 1 and rows[0] != rows[1]


def test_texts_are_those_of_prompts_asked_alone():
    """Several temperatures of a prompt, and prompts that begin alike, share their computation."""
    sampler = Sampler(tiny_decoder())
    prompts = [[*SYSTEM, 1], [*SYSTEM, 1], [*SYSTEM, 2, 3], [*SYSTEM, 1], [*SYSTEM, 1]]
    temperatures = [1.0, 1.5, 0.0, 1.2, 2.0]
    options = dict(max_new_tokens=5, num_samples=2, seed=3)
    together = sampler.generate(prompts, temperature=temperatures, **options)
    alone = [
        sampler.generate([prompt], temperature=t, **options)[0]
        for prompt, t in zip(prompts, temperatures)
    ]
    assert together == alone


def test_rows_that_ended_are_dropped_and_the_others_go_on_as_before():
    decoder = tiny_decoder()
    prompts = [[70 + i] * (i % 5 + 1) for i in range(12)]
    options = dict(temperature=2.0, max_new_tokens=32, num_samples=2, seed=1, return_details=True)
    decoder.tokenizer.eos_ids = (-1,)
    free = Sampler(decoder).generate(prompts, **options)
    # Ends that strike at all times: of 259 tokens every twelfth.
    decoder.tokenizer.eos_ids = tuple(range(0, 259, 12))
    ended = Sampler(decoder).generate(prompts, **options)
    lengths = [len(sample.token_ids) for samples in ended for sample in samples]
    assert min(lengths) <= 8 and max(lengths) > 16, "some rows are dropped early, some are not"
    for sample, whole in zip(sum(ended, []), sum(free, [])):
        size = len(sample.token_ids)
        assert sample.token_ids == whole.token_ids[:size]
        # Another number of rows sums in another order.
        np.testing.assert_allclose(sample.log_probs, whole.log_probs[:size], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(sample.entropies, whole.entropies[:size], rtol=1e-4, atol=1e-5)
