"""Every reader on real slices: no row is lost. Skipped unless CALIBJAX_DATA names the directory."""

import os
from pathlib import Path

import pytest

from calibjax.sources import load_questions, pool_passages

DATA = os.environ.get("CALIBJAX_DATA")
pytestmark = pytest.mark.skipif(not DATA, reason="CALIBJAX_DATA is not set")
ROOT = Path(DATA or ".")

# Set, file, questions kept.
PUBLISHED = [
    ("hotpotqa", "hotpot_dev_distractor_v1.json", 25),
    ("2wiki", "2wikimultihop_dev.json", 25),
    ("hover", "hover_dev_release_v1.1.json", 100),
    ("musique", "musique_ans_v1.0_dev.jsonl", 25),
    ("nq_open", "NQ-open.dev.jsonl", 200),
    ("squad2", "dev-v2.0.json", 200),
    ("pubmedqa", "ori_pqal.json", 40),
    ("mmlu", "anatomy_test.csv", 36),
]
OURS = [
    ("2wiki", "2wiki/2wiki.jsonl", 160),
    ("2wiki", "2wiki/2wiki_train.jsonl", 300),
    ("2wiki", "2wiki/2wiki_typed.jsonl", 45),
    ("bioasq", "bioasq/bioasq_yesno.jsonl", 100),
    ("hotpotqa", "hotpotqa/hotpotqa.jsonl", 160),
    ("hotpotqa", "hotpotqa/hotpotqa_train.jsonl", 300),
    ("hotpotqa", "hotpotqa/hotpotqa_rerank.jsonl", 45),
    ("hover", "hover/hover_claims.jsonl", 300),
    ("hover", "hover/hover_passages.jsonl", 60),
    ("mmlu", "mmlu_med/mmlu_med.jsonl", 300),
    ("musique", "musique/musique.jsonl", 80),
    ("musique", "musique/musique_train.jsonl", 20),
    ("nq_open", "nq_open/nq_open.jsonl", 500),
    ("popqa", "popqa/popqa.jsonl", 70),
    ("pubmedqa", "pubmedqa/pubmedqa.jsonl", 110),
    ("squad2", "squad2/squad2.jsonl", 200),
    ("webquestions", "webquestions/webquestions.jsonl", 300),
]


@pytest.mark.parametrize("dataset, name, n", PUBLISHED)
def test_published_files_keep_every_question(dataset, name, n):
    loaded = load_questions(dataset, ROOT / "published_formats" / name)
    assert len(loaded.questions) == n and loaded.rejected == []


@pytest.mark.parametrize("dataset, name, n", OURS)
def test_slices_keep_every_line(dataset, name, n):
    lines = sum(1 for line in (ROOT / name).read_bytes().split(b"\n") if line.strip())
    loaded = load_questions(dataset, ROOT / name)
    assert len(loaded.questions) + len(loaded.rejected) + loaded.counts["n_duplicates"] == lines
    assert len(loaded.questions) == n


def test_results_of_other_systems_lose_only_the_row_whose_gold_is_blank():
    kept = rejected = lines = 0
    for path in sorted((ROOT / "results").glob("*.jsonl")):
        loaded = load_questions("own", path)
        kept, rejected = kept + len(loaded.questions), rejected + len(loaded.rejected)
        lines += sum(1 for line in path.read_bytes().split(b"\n") if line.strip())
    assert kept + rejected == lines and rejected == 1


@pytest.mark.parametrize("published, slice_", [("dev-v2.0.json", "squad2/squad2.jsonl")])
def test_both_formats_of_one_set_give_the_same_questions(published, slice_):
    first = load_questions("squad2", ROOT / "published_formats" / published).questions
    second = {q.id: q for q in load_questions("squad2", ROOT / slice_).questions}
    assert {q.id for q in first} == second.keys()
    for question in first:
        other = second[question.id]
        assert (question.question, question.answers) == (other.question, other.answers)
        assert bool(question.gold_ids) == bool(other.gold_ids)


def test_2wiki_passages_have_the_same_ids_in_both_formats():
    first = load_questions("2wiki", ROOT / "published_formats/2wikimultihop_dev.json").questions
    slices = [load_questions("2wiki", ROOT / name).questions for s, name, _ in OURS if s == "2wiki"]
    known = {passage.id for passage in pool_passages(*slices)}
    shared = {q.id for q in first} & {q.id for questions in slices for q in questions}
    assert shared
    for question in first:
        if question.id in shared:
            assert {passage.id for passage in question.passages} <= known
