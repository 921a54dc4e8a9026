"""Second hop and judge: resumable, and the blend does what it says."""

import numpy as np
import pytest

from calibjax.abstention import judge as judging
from calibjax.abstention import multihop_examples as multihop
from calibjax.generation import Sampler
from calibjax.generation.results import Generation
from calibjax.records import Passage, Question
from calibjax.retrieval import BM25Retriever
from calibjax.supervision.asking import Model
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


def test_both_architectures_describe_the_same_questions(model, tmp_path):
    work = passes(model, tmp_path)
    plan = multihop.Plan(k=2, depth=5, pool=3)
    hop1 = multihop.retrieve(QUESTIONS, work.retriever, plan.depth)
    dense = multihop.dense_examples(QUESTIONS, hop1, plan)
    judged = multihop.judge_examples(QUESTIONS, hop1, work, plan)
    assert [e.hop1_scores for e in dense] == [e.hop1_scores for e in judged]
    assert all(e.hop2_scores is None for e in dense) and all(e.hop2_scores for e in judged)
    for one, two in zip(dense, judged):
        assert two.pipelines == {"dense": one.success, "judge": two.success}
        assert two.costs == {"dense": 0.0, "judge": 3.0}  # the pool that was judged


def test_a_second_run_asks_the_judge_nothing(model, tmp_path):
    hop1 = multihop.retrieve(QUESTIONS, passes(model, tmp_path).retriever, 5)
    first = multihop.judge_examples(QUESTIONS, hop1, passes(model, tmp_path))
    stored = (tmp_path / "judge.jsonl").read_bytes()

    class Deaf:
        """A generator whose decoder has a tokenizer and no weights."""

        class decoder:
            tokenizer = model.tokenizer

    deaf = model._replace(generator=Deaf())
    again = multihop.judge_examples(QUESTIONS, hop1, passes(deaf, tmp_path))
    assert again == first and (tmp_path / "judge.jsonl").read_bytes() == stored


def test_grades_are_expectations_over_the_letters(model, tmp_path):
    pairs = [judging.Pair(QUESTIONS[0], "Red Hill", passage) for passage in PASSAGES]
    grades = judging.grade_passages(model, Stage(tmp_path, "judge"), pairs)
    assert grades.shape == (5,) and ((grades >= 0) & (grades <= 2)).all()
    assert len(set(grades)) > 1


def test_a_server_is_read_by_the_letter_it_writes(tmp_path):
    class Server:
        def generate(self, prompts, **_):
            replies = ["A", " b) same topic", "none of them", "C"]
            return [[Generation(text)] for text in replies[: len(prompts)]]

    pairs = [judging.Pair(QUESTIONS[0], "", passage) for passage in PASSAGES[:4]]
    grades = judging.grade_passages(Model(Server(), "server"), Stage(tmp_path, "judge"), pairs)
    assert grades.tolist() == [2.0, 1.0, 0.0, 0.0]


def test_bridges_can_be_written_by_a_model(model, tmp_path):
    work = passes(model, tmp_path, writer=model)
    hop1 = multihop.retrieve(QUESTIONS, work.retriever, 5)
    found = multihop.judge_examples(QUESTIONS, hop1, work)
    assert len(found) == 2 and (tmp_path / "judge_bridges.jsonl").exists()


def test_the_rescue_pass_is_for_flagged_questions_only(model, tmp_path):
    work = passes(model, tmp_path)
    hop1 = multihop.retrieve(QUESTIONS, work.retriever, 5)
    plain = multihop.dense_examples(QUESTIONS, hop1)
    found = multihop.with_rescue(plain, QUESTIONS, hop1, np.array([False, True]), work)
    assert found[0] == plain[0]
    assert found[1].rescue_success in (0.0, 1.0) and found[1].rescue_cost >= 1
