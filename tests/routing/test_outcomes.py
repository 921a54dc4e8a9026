"""Both arms of every question: what is asked, what is noted, what a resumed run asks again."""

import json

import pytest

from calibjax.generation import Sampler, prompts
from calibjax.records import Passage, Question
from calibjax.retrieval import BM25Retriever
from calibjax.routing import answering, examples, outcomes, probes, signals
from calibjax.routing.forecasts import Scored
from calibjax.routing.routers import KNOWN_FAMILIES
from calibjax.supervision.asking import Model
from calibjax.supervision.grading import ExactGrader
from tests.tiny import tiny_decoder

PASSAGES = (
    Passage("a", "Alder", "The alder grows by rivers."),
    Passage("b", "Birch", "The birch has white bark."),
    Passage("c", "Cedar", "The cedar grows on hills by the sea."),
)
QUESTIONS = [
    Question("q1", "Which tree has white bark?", ("birch",), PASSAGES[:2]),
    Question("q2", "Which tree grows by rivers?", ("alder",), PASSAGES, meta={"hops": 2}),
    Question("q3", "Which tree grows on hills?", ("cedar",), PASSAGES[1:], meta={"hops": 3}),
]
SETTINGS = answering.Settings(passages=2, max_new_tokens=4, repeat=True)


def model():
    decoder = tiny_decoder()
    return Model(Sampler(decoder), "tiny", decoder.tokenizer)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    directory = tmp_path_factory.mktemp("stages")
    hits, seconds = probes.search_own(QUESTIONS, BM25Retriever, 20)
    answerer = answering.Answerer(model(), directory, SETTINGS)
    answers = answerer.answer(QUESTIONS, hits)
    made = outcomes.make_outcomes(
        QUESTIONS, hits, answers, ExactGrader(), retrieval_seconds=seconds
    )
    return directory, hits, answers, made


def test_own_evidence_comes_from_the_question_and_pooled_evidence_from_anywhere():
    own, _ = probes.search_own(QUESTIONS, BM25Retriever, 20)
    for question, probe in zip(QUESTIONS, own):
        assert {passage.id for passage in probe.passages} <= {p.id for p in question.passages}
    pooled, _ = probes.search_pool(QUESTIONS, BM25Retriever(PASSAGES), 1)
    assert [probe.passages[0].id for probe in pooled] == ["b", "a", "c"]
    assert all(len(probe.scores) == 1 for probe in pooled)
    bare = [Question("q9", "Why?", ("x",))]
    with pytest.raises(ValueError, match="evidence=own: 1 questions bring no passages, such as q9"):
        probes.search_own(bare, BM25Retriever, 3)


def test_the_arms_differ_in_the_passages_alone():
    with_evidence = prompts.answer_messages("Why?", ["First text.", "Second text."])
    without = prompts.answer_messages("Why?")
    assert with_evidence[:-1] == without[:-1]
    content = with_evidence[-1]["content"]
    documents = ["\n\nPassage 1: ", "First text.", "\n\nPassage 2: ", "Second text."]
    assert content == without[-1]["content"][:2] + documents + without[-1]["content"][2:]


def test_signals_are_those_of_the_answer_that_is_graded(run):
    _, _, answers, made = run
    messages = [prompts.answer_messages(question.question) for question in QUESTIONS]
    found = model().generator.generate(
        messages, max_new_tokens=4, stop=["\n"], return_details=True
    )
    for row, kept, (direct,) in zip(made.rows, answers["without"], found):
        assert row["answer_without"] == kept["text"] == direct.text.strip()
        assert kept["entropies"] == list(direct.entropies)
        expected = signals.uncertainty_scores(direct.log_probs, direct.entropies)
        assert {name: row["scores"][name] for name in expected} == expected


def test_evidence_is_read_and_its_tokens_are_counted(run):
    _, _, answers, made = run
    tokenizer = model().tokenizer
    for row, question, probe in zip(made.rows, QUESTIONS, run[1]):
        assert row["tokens"]["without_prompt"] == len(
            tokenizer.encode_prompt(prompts.answer_messages(question.question))
        )
        texts = [prompts.passage_text(p.title, p.text) for p in probe.passages[:2]]
        asked = prompts.answer_messages(question.question, [tokenizer.encode(t) for t in texts])
        assert row["tokens"]["with_prompt"] == len(tokenizer.encode_prompt(asked))
        assert 1 <= row["tokens"]["with_output"] <= 4
        assert row["seconds"]["with"] > 0 and row["seconds"]["retrieval"] >= 0


def test_a_greedy_repeat_changes_nothing(run):
    _, _, answers, made = run
    for arm in answering.ARMS:
        first, again = ([row["text"] for row in answers[name]] for name in (arm, f"{arm}_repeat"))
        assert first == again
        assert all(row[f"repeat_{arm}"] == row[f"correct_{arm}"] for row in made.rows)


def test_a_resumed_run_asks_for_nothing_twice(run, tmp_path):
    directory, hits, answers, _ = run
    again = answering.Answerer(model(), directory, SETTINGS)
    assert again.answer(QUESTIONS, hits) == answers
    assert [stage.counts["n_asked"] for stage in again.stages.values()] == [0] * 4
    lines = (directory / "with.jsonl").read_bytes().splitlines(keepends=True)
    for path in directory.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "with.jsonl").write_bytes(b"".join(lines[:-1]) + lines[-1][:40])  # a kill
    torn = answering.Answerer(model(), tmp_path, SETTINGS)
    texts = [row["text"] for row in torn.answer(QUESTIONS, hits)["with"]]
    assert texts == [row["text"] for row in answers["with"]]
    assert [stage.counts["n_asked"] for stage in torn.stages.values()] == [0, 1, 0, 0]


def test_what_is_written_is_what_the_budget_reads(run, tmp_path):
    made = run[-1]
    path = tmp_path / "outcomes.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in made.rows))
    found = examples.load(path)
    assert len(found) == 3 and not found.rejected
    assert set(found.scores) <= set(KNOWN_FAMILIES)
    assert set(found.features) == {"query", "uncertainty", "retrieval"}
    assert set(found.pairs) == {"f1", "repeat"}
    assert found.tokens and found.seconds
    assert found.level is None  # q1 has no hops


def answered(text, **more):
    shown = {"text": text, "n_prompt_tokens": None, "n_tokens": 0, "seconds": 0.1}
    return shown | {"log_probs": [], "entropies": []} | more


def test_a_question_that_was_refused_or_cannot_be_graded_is_set_aside():
    questions = [*QUESTIONS, Question("q4", "Whose?", (" ",))]
    hits = [probes.Probe([], [])] * 4
    answers = {arm: [answered("birch") for _ in questions] for arm in answering.ARMS}
    answers["with"][1] = {"text": "", "error": "too long"}
    made = outcomes.make_outcomes(questions, hits, answers, ExactGrader())
    assert [row["id"] for row in made.rows] == ["q1", "q3"]
    assert [(one.raw, one.reason) for one in made.rejected] == [
        ("q2", "too long"),
        ("q4", "no verdict: no valid gold"),
    ]
    row = made.rows[0]
    # A server tells neither tokens nor entropies: no cost, no uncertainty triggers.
    assert "tokens" not in row and "mean_entropy" not in row["scores"]
    assert row["correct_without"] == 1 and row["f1_without"] == 1.0
    assert made.report["utility"] == {"harmful": 0, "neutral": 2, "beneficial": 0}


def test_an_empty_draft_gets_evidence_first_and_is_counted(tmp_path):
    """A server writes nothing for one question: the file is whole, and no trigger calls it sure."""
    told = {"log_probs": [-0.1, -2.5], "entropies": [0.2, 3.0], "n_tokens": 2}
    drafts = [answered("birch", **told, approximate=True), answered(""), answered("alder", **told)]
    answers = {"without": drafts, "with": [answered("birch", **told)] * 3}
    hits = [probes.Probe([], [])] * 3
    made = outcomes.make_outcomes(QUESTIONS, hits, answers, ExactGrader())
    path = tmp_path / "outcomes.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in made.rows))
    found = examples.load(path)
    for name in ("mean_entropy", "max_entropy", "min_confidence", "sequence_log_prob"):
        assert found.scores[name][1] > max(found.scores[name][[0, 2]]), name
    assert made.report["uncertainty"] == {"n_unknown": 1, "n_approximate": 1}


def test_a_forecast_comes_with_what_it_read(tmp_path):
    hits, _ = probes.search_own(QUESTIONS, BM25Retriever, 2)
    answers = {arm: [answered("birch") for _ in QUESTIONS] for arm in answering.ARMS}
    extra = {"forecaster": Scored([0.5, 0.25, 0.0], [120, 80, 0], 0.5)}
    made = outcomes.make_outcomes(QUESTIONS, hits, answers, ExactGrader(), extra=extra)
    path = tmp_path / "outcomes.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in made.rows))
    found = examples.load(path)
    assert found.scores["forecaster"].tolist() == [0.5, 0.25, 0.0]
    assert found.scoring["tokens"]["forecaster"].tolist() == [120, 80, 0]
    assert found.scoring["seconds"]["forecaster"].tolist() == [0.5] * 3
