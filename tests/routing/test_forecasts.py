"""The forecaster as a router: its best forecast, and the tokens that it reads."""

import jax
import pytest

from calibjax.forecaster import Forecaster
from calibjax.forecaster.prompts import forecast_prompts
from calibjax.records import Passage, Question
from calibjax.routing.forecasts import forecast
from calibjax.supervision.queries import write_queries
from tests.tiny import tiny_decoder

PASSAGES = [Passage(f"p{i}", f"Tree {i}", "A tree that grows by the river." * i) for i in range(7)]
QUESTIONS = [Question(f"q{i}", f"Which tree is number {i}?", ("one",)) for i in range(3)]


@pytest.fixture(scope="module")
def forecaster():
    return Forecaster(tiny_decoder(), key=jax.random.key(0))


def test_the_best_forecast_counts_and_none_is_zero(forecaster):
    given = [PASSAGES[:2], [], PASSAGES[1:4]]
    found = forecast(forecaster, QUESTIONS, given)
    scores = forecaster.score(write_queries(QUESTIONS, "template").texts, given)
    assert found.scores == [scores[0, :2].max(), 0.0, scores[2].max()]
    assert found.tokens[1] == 0 and found.seconds > 0


def test_every_prompt_is_counted_and_a_shared_query_once_a_row(forecaster):
    query = "Which tree is it?"
    prompts = forecast_prompts(
        forecaster.decoder.tokenizer,
        query,
        PASSAGES,
        max_document_tokens=forecaster.preset.max_document_tokens,
        max_tokens=forecaster.decoder.config.max_positions,
        bos=forecaster.preset.bos,
    )
    documents = 2 * sum(len(prompt.suffix) for prompt in prompts)
    # Fourteen documents lie in two rows.
    expected = documents + 2 * len(prompts[0].prefix)
    assert forecaster.count_tokens([query, query], [[*PASSAGES, *PASSAGES], []]) == [expected, 0]
