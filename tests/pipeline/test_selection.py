"""Stages 1 to 3."""

import numpy as np
import pytest

from calibjax.pipeline.selection import NO_PASSAGE, Selector, better_round, retrieve
from tests.pipeline import parts


def selector(reply: str = "", **settings) -> Selector:
    reader = parts.Scripted(lambda prompt: reply)
    found = parts.retriever()
    return Selector(
        parts.QUERIES,
        retriever=found,
        passages=found.passages,
        forecaster=parts.forecaster(),
        reader=reader,
        k=3,
        **settings,
    )


def test_a_query_without_hits_gets_the_empty_passage():
    found = parts.retriever()
    documents, scores = retrieve(parts.QUERIES, found, found.passages, 2)
    assert documents[2] == [NO_PASSAGE] and np.isnan(scores[2]).all()
    assert documents[0][0].id == "b" and scores[0, 0] > 0


def test_the_confidence_is_the_highest_forecast_of_the_candidates():
    chosen = selector(epsilon=0.0).choose()
    found = parts.retriever()
    documents, _ = retrieve(parts.QUERIES, found, found.passages, 3)
    scores = parts.forecaster().score(parts.QUERIES, documents)
    for n, one in enumerate(chosen):
        best = int(np.nanargmax(scores[n]))
        assert one.document == documents[n][best]
        assert one.confidence == pytest.approx(float(scores[n, best]), abs=1e-6)


def test_without_rerank_the_retrievers_best_document_is_kept():
    found = parts.retriever()
    documents, scores = retrieve(parts.QUERIES, found, found.passages, 3)
    for n, one in enumerate(selector(epsilon=1.0).choose(rerank=False)):
        assert one.document == documents[n][0]
        assert one.round == 1 and not one.triggered


def test_epsilon_zero_equals_no_stage_three_bitwise():
    off, never = selector(), selector("rivers", epsilon=0.0)
    # repr: the score of a query without hits is NaN, which equals nothing.
    assert repr(never.choose()) == repr(off.choose(stage3=False))


def test_a_forecast_equal_to_epsilon_does_not_trigger():
    best = selector(epsilon=0.0).choose()[0].confidence
    assert not selector("rivers", epsilon=best).choose()[0].triggered
    above = float(np.nextafter(np.float32(best), np.float32(2)))
    assert selector("rivers", epsilon=above).choose()[0].triggered


@pytest.mark.parametrize("rewrite", ["", "\n", "WHITE BARK"])
def test_an_empty_or_equal_rewrite_counts_as_no_trigger(rewrite):
    first = selector(rewrite, epsilon=1.0).choose()[0]
    assert first.round == 1 and not first.triggered and first.query == "white bark"


def test_each_query_is_reformulated_at_most_once():
    made = selector("rivers", epsilon=1.0)
    reader = made._reader
    made.choose()
    asked = len(reader.prompts)
    made.choose(1.0)
    made.choose(1.5)
    assert asked == len(parts.QUERIES) == len(reader.prompts)


def test_only_the_asked_questions_are_chosen_for_and_reformulated():
    made, whole = (selector("rivers", epsilon=1.0) for _ in range(2))
    assert made.choose(numbers=[1]) == whole.choose()[1:2]
    assert len(made._reader.prompts) == 1 and parts.QUERIES[1] in parts.text_of(
        made._reader.prompts[0]
    )
    assert made.choose(numbers=[]) == []


def test_the_reformulator_sees_queries_and_no_passage():
    made = selector("rivers", epsilon=1.0)
    made.choose()
    said = [parts.text_of(prompt) for prompt in made._reader.prompts]
    assert all(query in text for query, text in zip(parts.QUERIES, said))
    for passage in parts.PASSAGES:
        assert not any(passage.text in text or passage.title in text for text in said)


def test_the_better_round_wins_and_ties_go_to_the_first():
    one, two = selector(epsilon=0.0).choose()[:2]
    low, high = sorted((one, two), key=lambda s: s.confidence)
    assert better_round(low, high).round == 2
    assert better_round(high, low).round == 1
    assert better_round(one, one).round == 1 and better_round(one, one).triggered
