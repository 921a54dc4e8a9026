"""Second hop and judge: resumable, and the blend does what it says."""

from dataclasses import replace

import jax
import numpy as np
import pytest

from calibjax.abstention import judge as judging
from calibjax.abstention import multihop_examples as multihop
from calibjax.abstention import multihop_run
from calibjax.abstention.fitting import Settings, fit_regime
from calibjax.abstention.policy_study import rescue_section
from calibjax.forecaster import Forecaster
from calibjax.generation import Sampler
from calibjax.generation.results import Generation
from calibjax.pipeline.forecasts import best_forecasts
from calibjax.records import Passage, Question
from calibjax.retrieval import BM25Retriever
from calibjax.retrieval.multihop import hit_lists
from calibjax.supervision.asking import Model
from calibjax.supervision.queries import template_query
from calibjax.supervision.stages import Stage
from tests.tiny import tiny_decoder

PASSAGES = [
    Passage("p1", "Red Hill", "Red Hill is a novel by Ann Lee. It won a prize."),
    Passage("p2", "Ann Lee", "Ann Lee was born in Lima. She wrote Red Hill."),
    Passage("p3", "Lima", "Lima is the capital of Peru."),
    Passage("p4", "Blue Lake", "Blue Lake is a lake in Ohio."),
    Passage("p5", "Ohio", "Ohio is a state with many lakes and a novel."),
]
QUESTIONS = [
    Question("q1", "Where was the author of Red Hill born?", ("Lima",), gold_ids=("p1", "p2")),
    Question("q2", "Which state is Blue Lake in?", ("Ohio",), gold_ids=("p4", "p5")),
]


@pytest.fixture(scope="module")
def model():
    return Model(Sampler(tiny_decoder()), "tiny", tiny_decoder().tokenizer)


def passes(model, directory, **more):
    retriever = BM25Retriever(PASSAGES)
    return multihop.Passes(retriever, retriever.passages, directory, judge=model, **more)


def build(work, recipe=multihop_run.Recipe("judge", multihop.Plan(depth=5)), forecaster=None):
    return multihop_run.build_examples(QUESTIONS, work, recipe, forecaster)


def test_both_architectures_describe_the_same_questions(model, tmp_path):
    work = passes(model, tmp_path)
    plan = multihop.Plan(k=2, depth=5, pool=3)
    plain = build(work, multihop_run.Recipe("dense", plan))
    built = build(work, multihop_run.Recipe("judge", plan))
    dense, judged = plain.examples, built.examples
    assert [e.hop1_scores for e in dense] == [e.hop1_scores for e in judged]
    assert all(e.hop2_scores is None for e in dense) and all(e.hop2_scores for e in judged)
    for one, two in zip(dense, judged):
        assert two.pipelines == {"dense": one.success, "judge": two.success}
        assert two.costs == {"dense": 0.0, "judge": 3.0}  # the pool that was judged
    assert built.counts["n_judged"] == 6 and built.counts["n_unparsed"] == 0
    assert built.counts["recall_of_hop1"] == plain.counts["recall_at_k"]


def test_a_second_run_asks_the_judge_nothing(model, tmp_path):
    first = build(passes(model, tmp_path))
    stored = (tmp_path / "judge.jsonl").read_bytes()

    class Deaf:
        """A generator whose decoder has a tokenizer and no weights."""

        class decoder:
            tokenizer = model.tokenizer

    deaf = model._replace(generator=Deaf())
    again = build(passes(deaf, tmp_path))
    assert again == first and (tmp_path / "judge.jsonl").read_bytes() == stored


def test_grades_are_expectations_over_the_letters(model, tmp_path):
    pairs = [judging.Pair(QUESTIONS[0], "Red Hill", passage) for passage in PASSAGES]
    grades, n_unparsed = judging.grade_passages(model, Stage(tmp_path, "judge"), pairs)
    assert n_unparsed == 0 and grades.shape == (5,) and ((grades >= 0) & (grades <= 2)).all()
    assert len(set(grades)) > 1


def test_a_server_is_read_by_the_letter_it_writes(tmp_path):
    class Server:
        def generate(self, prompts, **_):
            replies = ["A", " b) same topic", "According to", "C", "A fact that"]
            return [[Generation(text)] for text in replies[: len(prompts)]]

    pairs = [judging.Pair(QUESTIONS[0], "", passage) for passage in PASSAGES]
    found = judging.grade_passages(Model(Server(), "server"), Stage(tmp_path, "judge"), pairs)
    assert found.values.tolist() == [2.0, 1.0, 0.0, 0.0, 0.0] and found.n_unparsed == 2


@pytest.mark.parametrize(
    "reply, grade",
    [
        *[(text, 2.0) for text in ("A", " a\n", "A.", "(A)", "**A**", '"A"', "A: it does")],
        *[(text, 2.0) for text in ("Letter: A", "answer is A", "A = states it", "A - yes")],
        *[(text, 1.0) for text in ("B", "B\nBecause", "[b]", "B, it is")],
        ("C)", 0.0),
        *[(text, None) for text in ("", "According to", "A passage", "A-level", "Both", "none")],
        *[(text, None) for text in ("Cannot say", "The answer is A", "D", "AB", "Letter:")],
    ],
)
def test_a_reply_is_a_letter_that_stands_apart_or_no_grade(reply, grade):
    assert judging.parse_grade(reply) == grade


def test_bridges_can_be_written_by_a_model(model, tmp_path):
    found = build(passes(model, tmp_path, writer=model)).examples
    assert len(found) == 2 and (tmp_path / "judge_bridges.jsonl").exists()


def test_the_rescue_pass_is_for_flagged_questions_only(model, tmp_path):
    work = passes(model, tmp_path)
    hop1 = hit_lists([question.question for question in QUESTIONS], work.retriever, 5)
    plain = multihop.dense_examples(QUESTIONS, hop1)
    flagged = np.array([False, True])
    found, counts = multihop_run.with_rescue(plain, QUESTIONS, hop1, flagged, work)
    assert found[0] == plain[0] and counts["n_rescued"] == 1
    assert found[1].rescue_success in (0.0, 1.0) and found[1].rescue_cost >= 1


def test_the_rescue_is_of_the_test_rows_that_the_report_flags(model, tmp_path):
    questions = [replace(q, id=f"{q.id}-{n}") for n in range(12) for q in QUESTIONS]
    recipe = multihop_run.Recipe("dense", multihop.Plan(k=2), rescue_coverage=0.7, seed=3)
    examples = multihop_run.build_examples(questions, passes(model, tmp_path), recipe).examples
    regime = fit_regime(examples, Settings(seed=3, rescue_coverage=0.7))
    section = rescue_section(regime, Settings(seed=3, rescue_coverage=0.7))
    rescued = np.array([example.rescue_success is not None for example in examples])
    assert section is None and not rescued.any() or rescued[regime.test].any()
    assert not rescued[regime.tune].any()
    if section is not None:
        assert section["n_flagged"] == rescued.sum() and section["n_cost_unknown"] == 0


def test_the_forecasters_best_forecast_is_one_more_signal(model, tmp_path):
    forecaster = Forecaster(tiny_decoder(), key=jax.random.key(0))
    recipe = multihop_run.Recipe("dense", multihop.Plan(k=2))
    named = multihop_run.NamedForecaster(forecaster, "tiny")
    work = passes(None, tmp_path)
    found = build(work, recipe, named).examples
    lists = hit_lists([question.question for question in QUESTIONS], work.retriever, 2)
    for example, question, hits in zip(found, QUESTIONS, lists):
        documents = [work.passages[key] for key in hits.ids]
        every = forecaster.score([template_query(question.question)], [documents])
        assert example.scores["forecaster"] == pytest.approx(every.max(), abs=1e-6)
    # What is in the stage's file is not forecast again.
    deaf = multihop_run.NamedForecaster(None, "tiny")
    assert build(work, recipe, deaf).examples == found


def test_a_question_without_passages_has_forecast_0():
    forecaster = Forecaster(tiny_decoder(), key=jax.random.key(0))
    found = best_forecasts(forecaster, QUESTIONS, [[], PASSAGES[:1]])
    assert found[0] == 0.0 and 0 < found[1] < 1 and found.dtype == np.float64


def test_recall_is_the_share_of_gold_passages_that_are_kept(tmp_path):
    recipe = multihop_run.Recipe("dense", multihop.Plan(k=1))
    built = build(passes(None, tmp_path), recipe)
    assert built.counts["recall_at_k"] == pytest.approx(0.5)  # one of two each
    assert [example.success for example in built.examples] == [0.0, 0.0]
