"""The whole job on a tiny random decoder: every file and figure that the real one has."""

import json
from contextlib import nullcontext
from dataclasses import replace

import pytest

from calibjax.errors import InputError
from calibjax.generation.prompts import NUMBER_CLASSES
from calibjax.pipeline import quickstart
from calibjax.pipeline.quickstart import Job, Size, split_questions
from calibjax.pipeline.quickstart_page import sections
from calibjax.records import Passage, Question
from calibjax.report.writer import write_report
from calibjax.retrieval import BM25Retriever
from calibjax.supervision.grading import make_grader
from tests.check_report import METHODS, check
from tests.tiny import tiny_decoder

SIZE = Size(
    train_questions=4,
    validation_questions=2,
    test_questions=4,
    k=2,
    docs_per_question=2,
    draws=2,
    test_draws=2,
    temperature_questions=3,
    steps=2,
    epsilon=0.3,
    replicates=20,
)


def questions(count: int, prefix: str = "q") -> list[Question]:
    return [
        Question(f"{prefix}{n}", f"Is {prefix} tree {n} tall?", ("e", "yes")) for n in range(count)
    ]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    directory = tmp_path_factory.mktemp("quickstart")
    made = questions(10)
    passages = [Passage(f"p{n}", f"tree {n}", f"q tree {n} is tall") for n in range(10)]
    decoder = tiny_decoder()
    job = Job(
        train=made[:4],
        validation=made[4:6],
        test=made[6:],
        retriever=BM25Retriever(passages),
        decoder=decoder,
        grader=make_grader("auto"),
        preset="fixed",
        user_top_k=5,
        user_top_p=1.0,
        seed=0,
    )

    def run():
        report = quickstart.run(job, SIZE, directory, lambda name: nullcontext())
        report["seconds"] = {"label": 1.0}
        return report

    report = run()
    write_report(directory, report, sections=sections(report))
    (directory / "run.json").write_text("{}")
    return directory, report, run


def test_every_figure_agrees_with_the_rows_beside_it(finished):
    directory, report, _ = finished
    assert check(directory) == []
    assert set(report["methods"]) == METHODS


def test_users_decide_at_each_temperature_on_the_questions_set_aside_for_it(finished):
    directory, report, _ = finished
    lines = (directory / "predictions_by_temperature.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    asked = {(row["method"], row["temperature"], row["group"]) for row in rows}
    assert report["temperature_questions"] == SIZE.temperature_questions
    assert len(asked) == 2 * 3 * SIZE.temperature_questions
    assert len(rows) == SIZE.test_draws * len(asked)


def test_baselines_are_compared_on_the_same_outcomes(finished):
    _, report, _ = finished
    for name in ("base_rate", "retriever_logistic", "verbal_number", "p_true"):
        assert "log_loss" in report["comparisons"][f"calibrag-{name}"]


def test_the_page_tells_of_temperature_answers_labels_and_time(finished):
    directory, _, _ = finished
    page = (directory / "report.md").read_text()
    for word in ("temperature", "hidden", "answer", "Labels", "Seconds per stage"):
        assert word in page


def test_a_second_run_repeats_no_work_and_gives_the_same_report(finished):
    directory, report, run = finished
    before = (directory / "stages" / "test" / "answer_decisions.jsonl").read_bytes()
    again = run()
    assert (directory / "stages" / "test" / "answer_decisions.jsonl").read_bytes() == before
    asked = again["supervision"]["train"]["stages"]
    assert all(counts["n_asked"] == 0 for counts in asked.values())
    for name in report.keys() - {"supervision"}:
        assert json.dumps(again[name], sort_keys=True) == json.dumps(report[name], sort_keys=True)


def test_number_classes_are_single_tokens_of_the_tiny_tokenizer():
    assert all(len(tiny_decoder().tokenizer.encode(letter)) == 1 for letter in NUMBER_CLASSES)


def test_parts_are_disjoint_and_of_the_asked_size():
    train, validation, test = split_questions(questions(40, "t"), None, questions(40), SIZE, 0)
    assert [len(part) for part in (train, validation, test)] == [4, 2, 4]
    ids = [question.id for part in (train, validation, test) for question in part]
    assert len(set(ids)) == len(ids)


def test_one_file_is_split_into_training_and_test_questions():
    train, validation, test = split_questions(None, None, questions(40), SIZE, 0)
    assert not {x.id for x in test} & {x.id for x in (*train, *validation)}


def test_a_training_question_that_is_also_a_test_question_is_left_out():
    shared = questions(6)
    with pytest.raises(InputError, match="train questions=0"):
        split_questions(shared, questions(4, "v"), shared, SIZE, 0)


def test_questions_without_golds_are_left_out():
    empty = [replace(question, answers=()) for question in questions(30)]
    with pytest.raises(InputError, match="test questions"):
        split_questions(questions(30, "t"), None, empty, SIZE, 0)
