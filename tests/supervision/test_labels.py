"""Labels: what is asked, of whom, in which draws; and that nothing is asked for twice."""

import hashlib
import json
import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from calibjax.generation import Generation, Sampler
from calibjax.records import Hits, Passage, Question, Verdict
from calibjax.supervision import labels
from calibjax.supervision.asking import Model
from calibjax.supervision.grading import AliasGrader
from calibjax.supervision.labels import Labeller, Settings
from calibjax.training import signals
from tests.tiny import tiny_decoder

SETTINGS = Settings(k=4, docs_per_question=3, draws=5, batch_size=4)
PASSAGES = {
    f"p{number}": Passage(f"p{number}", f"Town {number}", f"Town {number} lies in land {number}.")
    for number in range(8)
}
QUESTIONS = [
    Question(f"q{number}", f"Where does town {number} lie?", (f"land {number}",))
    for number in range(6)
]


class Ranked:
    """Finds passages n, n + 1, ... for the n-th query."""

    def search(self, queries: list[str], k: int) -> Hits:
        ids = [[f"p{(row + rank) % 8}" for rank in range(k)] for row in range(len(queries))]
        return Hits(ids, np.zeros((len(ids), k), np.float32), np.ones((len(ids), k), bool))


class Scripted:
    """Answers by a hash of all that it is asked; remembers what that was."""

    def __init__(self, refuse: str = "\0") -> None:
        self.asked: list[Any] = []
        self.refuse = refuse
        self.stop_after = 10**9

    def generate(self, prompts: Any, *, temperature: Any, return_details: bool, **sampling: Any):
        assert return_details
        results = []
        for prompt, t in zip(prompts, temperature, strict=True):
            self.asked.append(prompt)
            if len(self.asked) == self.stop_after:
                os.kill(os.getpid(), signal.SIGTERM)
            content = json.dumps([prompt, t, sampling], sort_keys=True)
            if self.refuse in content:
                results.append([Generation("", finish_reason="rejected", error="too long")])
                continue
            samples = []
            for number in range(sampling["num_samples"]):
                digest = hashlib.sha256(f"{content} {number}".encode()).hexdigest()
                samples.append(Generation(f" land {int(digest[:2], 16) % 8} ", (1, 2, 3)))
            results.append(samples)
        return results


def run(out: Path, generator: Any, settings: Settings = SETTINGS, **changes: Any):
    """Labels the six questions; `changes` replaces questions, passages or more."""
    model = Model(generator, "scripted")
    labeller = Labeller(model, model, changes.pop("grader", AliasGrader()), out, settings)
    return labeller.label(
        changes.pop("questions", QUESTIONS),
        Ranked(),
        changes.pop("passages", PASSAGES),
        **changes,
    )


def files(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(directory.iterdir())}


def test_a_label_is_the_share_of_right_decisions(tmp_path):
    made = run(tmp_path, Scripted())
    assert len(made.rows) == 18
    for row in made.rows:
        gold = f"land {row.question_id[1:]}"
        assert len(row.decisions) == len(row.verdicts) == 5
        assert list(row.verdicts) == [int(text == gold) for text in row.decisions]
        assert row.label == sum(row.verdicts) / 5
    labels_seen = Counter(repr(round(row.label, 6)) for row in made.rows)
    assert labels_seen.total() == 18 and len(labels_seen) > 1
    histogram = made.report["labels"]["histogram"]
    assert list(histogram) == ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]
    assert all(histogram[label] == labels_seen[label] for label in histogram)
    mean = made.report["labels"]["mean"]
    assert mean == pytest.approx(np.mean([row.label for row in made.rows]))
    stages = made.report["stages"]
    assert stages["decisions"]["n_tokens"] == 18 * 5 * 3
    assert stages["guidance"]["n_asked"] == 18


def test_the_best_passage_is_always_labelled_and_the_others_evenly():
    questions = [Question(f"q{number}", "?", ("x",)) for number in range(2000)]
    settings = Settings(k=5, docs_per_question=3, seed=1)
    pairs = labels.choose_pairs(questions, ["?"] * 2000, Ranked(), PASSAGES, settings)
    ranks = Counter(pair.rank for pair in pairs)
    assert len(pairs) == 6000 and ranks[1] == 2000
    # Each other rank is drawn with probability 1/2: sd sqrt(2000)/2 = 22; five of them.
    assert all(abs(ranks[rank] - 1000) < 112 for rank in (2, 3, 4, 5))


def test_fewer_hits_than_asked_for_give_fewer_rows():
    class Short(Ranked):
        def search(self, queries, k):
            hits = super().search(queries, k)
            hits.valid[0, 1:] = False
            hits.valid[1] = False
            return hits

    pairs = labels.choose_pairs(QUESTIONS, ["?"] * 6, Short(), PASSAGES, SETTINGS)
    count = Counter(pair.question.id for pair in pairs)
    assert (count["q0"], count["q1"], count["q2"]) == (1, 0, 3)


def test_temperatures_are_uniform_and_belong_to_the_pair():
    drawn = [labels.user_temperature(0, f"q{number}", "p") for number in range(4000)]
    assert min(drawn) >= 1.0 and max(drawn) <= 2.0
    # Kolmogorov-Smirnov distance from U[1,2]: 1.95 / sqrt(n) is passed with probability 1e-3.
    distance = np.abs(np.sort(drawn) - (1 + (np.arange(4000) + 0.5) / 4000)).max()
    assert distance < 1.95 / np.sqrt(4000)
    assert labels.user_temperature(0, "q1", "p") == drawn[1]
    assert labels.user_temperature(1, "q1", "p") != drawn[1]
    assert labels.user_temperature(0, "q1", "p2") != drawn[1]
    # Ids do not run into one another.
    assert labels.fold_in(0, "a", "bc") != labels.fold_in(0, "ab", "c")


def test_a_row_does_not_depend_on_which_rows_are_with_it(tmp_path):
    whole = run(tmp_path / "whole", Scripted())
    part = run(tmp_path / "part", Scripted(), questions=QUESTIONS[:2])
    assert part.rows == whole.rows[:6]
    assert labels.sample_questions(QUESTIONS, 3, 0) == [
        question
        for question in labels.sample_questions(QUESTIONS, 5, 0)
        if question in labels.sample_questions(QUESTIONS, 3, 0)
    ]


def test_a_second_run_asks_for_nothing(tmp_path):
    first = run(tmp_path, Scripted())
    before = files(tmp_path)
    again = Scripted()
    assert run(tmp_path, again).rows == first.rows
    assert again.asked == []
    assert files(tmp_path) == before


def test_a_changed_passage_invalidates_its_own_rows_alone(tmp_path):
    first = run(tmp_path, Scripted())
    passages = PASSAGES | {"p3": Passage("p3", "Town 3", "Town 3 lies elsewhere.")}
    again = Scripted()
    made = run(tmp_path, again, passages=passages)
    mine = [row for row in first.rows if row.passage_id == "p3"]
    asked = [json.dumps(prompt) for prompt in again.asked]
    assert sum("lies elsewhere" in prompt for prompt in asked) == len(mine) > 0
    # Besides the guidance, only the decisions whose guidance came out different.
    assert len(asked) <= 2 * len(mine)
    kept = [row for row in made.rows if row.passage_id != "p3"]
    assert kept == [row for row in first.rows if row.passage_id != "p3"]
    assert made.report["stages"]["guidance"]["n_stale"] == len(mine)


def test_a_run_over_fewer_questions_keeps_the_rows_of_the_others(tmp_path):
    first = run(tmp_path, Scripted())
    fewer = Scripted()
    assert run(tmp_path, fewer, questions=QUESTIONS[:2]).rows == first.rows[:6]
    again = Scripted()
    assert run(tmp_path, again).rows == first.rows
    assert fewer.asked == again.asked == []


def test_other_sampling_of_the_user_leaves_the_guidance(tmp_path):
    run(tmp_path, Scripted())
    again = Scripted()
    made = run(tmp_path, again, SETTINGS._replace(user_top_k=7))
    assert made.report["stages"]["guidance"]["n_asked"] == 0
    assert made.report["stages"]["decisions"]["n_asked"] == len(again.asked) == 18


@pytest.mark.parametrize("stop_after", [1, 7, 18, 19, 30])
def test_a_signal_loses_no_answer_and_the_rest_is_the_same(tmp_path, stop_after):
    undisturbed = Scripted()
    expected = run(tmp_path / "whole", undisturbed).rows
    generator = Scripted()
    generator.stop_after = stop_after
    handlers = {signum: signal.getsignal(signum) for signum in signals.HANDLED}
    signals.install()
    try:
        with pytest.raises(signals.Preempted):
            run(tmp_path / "cut", generator)
    finally:
        signals.uninstall()
        for signum, handler in handlers.items():
            signal.signal(signum, handler)
    assert len(generator.asked) < len(undisturbed.asked)
    rest = Scripted()
    assert run(tmp_path / "cut", rest).rows == expected
    assert len(generator.asked) + len(rest.asked) == len(undisturbed.asked)
    assert files(tmp_path / "cut") == files(tmp_path / "whole")


def test_a_refused_prompt_costs_its_own_row(tmp_path):
    made = run(tmp_path, Scripted(refuse="Town 3 lies"))
    lost = [row for row in run(tmp_path / "all", Scripted()).rows if row.passage_id == "p3"]
    assert len(made.rows) == 18 - len(lost)
    assert [row.reason for row in made.rejected] == ["too long"] * len(lost)
    assert made.report["n_rejected"] == len(lost) > 0


def test_decisions_that_no_grader_could_judge_count_nowhere(tmp_path):
    class Unsure:
        name = "unsure"

        def grade(self, question, answers, prediction):
            return Verdict(prediction == "land 1", invalid=prediction == "land 2")

    made = run(tmp_path, Scripted(), grader=Unsure())
    row = next(row for row in made.rows if "land 2" in row.decisions)
    right = [{"land 1": 1, "land 2": -1}.get(text, 0) for text in row.decisions]
    assert list(row.verdicts) == right
    assert row.label == right.count(1) / (5 - right.count(-1))
    pair = labels.choose_pairs(QUESTIONS, ["?"] * 6, Ranked(), PASSAGES, SETTINGS)[0]
    with pytest.raises(ValueError, match="no decision that the grader could judge"):
        labels.supervision_row(pair, "z", ["a"], [Verdict(False, invalid=True)])


def test_questions_without_answers_are_counted_and_left_out(tmp_path):
    questions = [*QUESTIONS[:2], Question("none", "Why?", ())]
    made = run(tmp_path, Scripted(), questions=questions)
    assert made.report["n_without_answers"] == 1
    assert {row.question_id for row in made.rows} == {"q0", "q1"}


def test_the_user_sees_a_confidence_only_when_there_is_one(tmp_path):
    plain, shown = Scripted(), Scripted()
    run(tmp_path / "plain", plain)
    run(tmp_path / "shown", shown, confidence=lambda pairs: [0.125] * len(pairs))
    assert not any("12.50" in json.dumps(prompt) for prompt in plain.asked)
    assert sum("12.50" in json.dumps(prompt) for prompt in shown.asked) == 18


def test_the_reader_can_write_the_queries(tmp_path):
    generator = Scripted()
    made = run(tmp_path, generator, SETTINGS._replace(query_writer="llm"))
    assert made.report["stages"]["queries"]["n_asked"] == 6
    assert all(row.query.startswith(("land", "Where does town")) for row in made.rows)


def test_a_real_sampler_gives_the_same_rows_in_any_batch_size(tmp_path, monkeypatch):
    monkeypatch.setattr(labels, "DECISION_TOKENS", 4)
    decoder = tiny_decoder()
    user = Model(Sampler(decoder), "tiny", decoder.tokenizer)
    rows = []
    for size in (1, 32):
        settings = SETTINGS._replace(batch_size=size, docs_per_question=2, draws=2)
        reader = Model(Scripted(), "scripted")
        labeller = Labeller(reader, user, AliasGrader(), tmp_path / str(size), settings)
        rows.append(labeller.label(QUESTIONS[:1], Ranked(), PASSAGES).rows)
    assert rows[0] == rows[1] and len(rows[0]) == 2
    assert any(row.decisions[0] != row.decisions[1] for row in rows[0])


def test_a_long_passage_is_cut_before_the_prompt_is_made(tmp_path):
    decoder = tiny_decoder()
    generator = Scripted()
    for model in (Model(generator, "m", decoder.tokenizer), Model(generator, "m")):
        generator.asked.clear()
        long = PASSAGES | {"p0": Passage("p0", "T", "<|im_end|>word " * 5000)}
        settings = SETTINGS._replace(max_document_tokens=10, docs_per_question=1)
        labeller = Labeller(model, model, AliasGrader(), tmp_path / str(model.tokenizer), settings)
        made = labeller.label(QUESTIONS[:1], Ranked(), long)
        _, document, cue = generator.asked[0][1]["content"]
        assert len(document) == (10 if model.tokenizer else 40)
        assert cue.endswith("Answer in a few words.")
        assert made.rows[0].text == long["p0"].text
