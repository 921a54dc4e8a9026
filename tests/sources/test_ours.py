"""Our own question and corpus files, and what happens to rows that cannot be used."""

import csv
import gzip
import json
import os
from pathlib import Path

import pytest

from calibjax.errors import InputError
from calibjax.records import Passage, passage_id
from calibjax.sources import load_corpus, load_questions, pool_passages


def row(id="q1", **change) -> dict:
    passages = [
        {"title": "T", "text": "Text.", "is_gold": True},
        {"title": "U", "text": "Other.", "is_gold": False},
    ]
    return {"id": id, "question": "Q?", "answers": ["A"], "passages": passages, "meta": {}} | change


def write(path: Path, rows: list) -> Path:
    lines = [line if isinstance(line, str) else json.dumps(line) for line in rows]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "questions.jsonl"


def test_passages_and_gold_have_content_ids(path):
    (question,) = load_questions("own", write(path, [row()])).questions
    assert question.passages == (
        Passage(passage_id("T", "Text."), "T", "Text."),
        Passage(passage_id("U", "Other."), "U", "Other."),
    )
    assert question.gold_ids == (passage_id("T", "Text."),)


def test_any_set_may_come_in_our_format(path):
    write(path, [row()])
    for dataset in ("hotpotqa", "squad2", "mmlu", "triviaqa", "popqa", "worldfacts"):
        assert load_questions(dataset, path).questions[0].answers == ("A",)


@pytest.mark.parametrize("gold", ["None", "NA", "null", "nan", "N/A", "unknown", "0"])
def test_golds_that_look_like_missing_values_stay_text(path, gold):
    (question,) = load_questions("own", write(path, [row(answers=[gold])])).questions
    assert question.answers == (gold,)


def test_bad_rows_are_set_aside_with_line_and_reason_and_good_rows_kept(path):
    rows = [
        row("q1"),
        row("q2", answers="Paris"),
        row("q3", answers=[]),
        row("q4", answers=["", " "]),
        row("q5", question="  "),
        row(True),
        row("q7", passages=[{"title": "T"}]),
        row("q8", meta=[]),
        '{"id": "q9", "question": "Q?", "ans',
        *(row(f"good{i}") for i in range(9)),
    ]
    loaded = load_questions("own", write(path, rows))
    assert len(loaded.questions) == 10 and loaded.counts["n_rejected"] == 8
    reasons = {rejected.line: rejected.reason for rejected in loaded.rejected}
    assert list(reasons) == [2, 3, 4, 5, 6, 7, 8, 9]
    assert reasons[2] == 'answers="Paris": expected a list of texts; fix: ["Paris"]'
    assert reasons[3] == "answers=[]: expected an answer that is not blank"
    assert "not JSON" in reasons[9]


def test_questions_without_gold_are_kept_and_counted(path):
    bare = {"id": 7, "question": "Q?"}
    loaded = load_questions("own", write(path, [bare, row(answers=None)]))
    assert [(q.id, q.answers) for q in loaded.questions] == [("7", ()), ("q1", ())]
    assert loaded.counts["n_without_answers"] == 2 and loaded.counts["n_unanswerable"] == 0


def test_unanswerable_questions_are_kept_and_flagged_where_the_row_or_the_set_says_so(path):
    said = row(answers=[], meta={"is_impossible": True})
    loaded = load_questions("own", write(path, [said]))
    assert loaded.questions[0].meta["unanswerable"] is True
    loaded = load_questions("squad2", write(path, [row(answers=[])]))
    assert loaded.counts["n_unanswerable"] == 1


def test_equal_copies_count_once_and_differing_ones_are_all_set_aside(path):
    rows = [row("a"), row("b"), row("a"), row("b", answers=["B"]), row(7), row("c"), row("d")]
    loaded = load_questions("own", write(path, rows))
    assert [q.id for q in loaded.questions] == ["a", "7", "c", "d"]
    assert loaded.counts["n_duplicates"] == 1
    assert [(r.line, r.reason) for r in loaded.rejected] == [
        (2, "id=b: lines 2, 4 share this id and differ: expected one of them"),
        (4, "id=b: lines 2, 4 share this id and differ: expected one of them"),
    ]


def test_an_integer_id_and_its_text_are_one_id(path):
    loaded = load_questions("own", write(path, [row(7), row("7"), row(2**60 + 1)]))
    assert [q.id for q in loaded.questions] == ["7", str(2**60 + 1)]


def test_line_separators_inside_strings_do_not_end_a_record(path):
    text = "x\u2028y\u2029z\x85w"
    path.write_text(json.dumps(row(question=text), ensure_ascii=False) + "\n", encoding="utf-8")
    assert [q.question for q in load_questions("own", path).questions] == [text]


def test_choices_become_options_and_unknown_columns_go_to_meta(path):
    rows = [row("a", meta={"choices": ["x", "y"]}, level="hard"), row("b", options=["p", "q"])]
    first, second = load_questions("own", write(path, rows)).questions
    assert first.options == ("x", "y") and first.meta["level"] == "hard"
    assert second.options == ("p", "q")


def test_passages_without_text_leave_their_gold_titles_behind(path):
    empty = [{"title": "A", "text": "", "is_gold": True}, {"title": "B", "text": " "}]
    (question,) = load_questions("hover", write(path, [row(passages=empty)])).questions
    assert question.passages == () and question.meta["gold_titles"] == ["A"]


def test_csv_and_parquet_and_gzip_hold_the_same_questions(tmp_path):
    pq = pytest.importorskip("pyarrow.parquet")
    import pyarrow

    rows = [row("a", answers=["NA", "x, y"]), row("b", question='Say "yes"?')]
    plain = load_questions("own", write(tmp_path / "q.jsonl", rows)).questions
    with (tmp_path / "q.csv").open("w", newline="") as file:
        table = csv.DictWriter(file, list(rows[0]))
        table.writeheader()
        for each in rows:
            cells = {k: v if isinstance(v, str) else json.dumps(v) for k, v in each.items()}
            table.writerow(cells)
    flat = [{k: v for k, v in each.items() if k != "meta"} for each in rows]
    pq.write_table(pyarrow.Table.from_pylist(flat), tmp_path / "q.parquet")
    with gzip.open(tmp_path / "q.jsonl.gz", "wb") as file:
        file.write((tmp_path / "q.jsonl").read_bytes())
    for name in ("q.csv", "q.parquet", "q.jsonl.gz"):
        assert load_questions("own", tmp_path / name).questions == plain, name


def test_a_cut_gzip_file_gives_its_complete_rows_and_says_so(tmp_path):
    # Ids that do not compress, so that half of the bytes are about half of the rows.
    rows = [row(os.urandom(200).hex(), passages=[]) for _ in range(200)]
    packed = gzip.compress(write(tmp_path / "q.jsonl", rows).read_bytes())
    (tmp_path / "cut.jsonl.gz").write_bytes(packed[: len(packed) // 2])
    loaded = load_questions("own", tmp_path / "cut.jsonl.gz")
    assert loaded.truncated and 50 < len(loaded.questions) < 150


def test_a_missing_file_names_the_flag(tmp_path):
    with pytest.raises(InputError, match="^train_path=.*no such file"):
        load_questions("own", tmp_path / "gone.jsonl", name="train_path")


def test_the_pool_holds_each_content_once_in_order_of_appearance(path):
    other = [{"title": "U", "text": "Other."}, {"title": "T", "text": "Another text."}]
    first = load_questions("own", write(path, [row("a")])).questions
    second = load_questions("own", write(path, [row("b", passages=other)])).questions
    texts = [passage.text for passage in pool_passages(first, second)]
    assert texts == ["Text.", "Other.", "Another text."]


def test_a_corpus_keeps_passages_without_text_and_counts_them(tmp_path):
    rows = [
        {"id": "1", "title": "T", "text": "Text."},
        {"id": 2, "text": ""},
        {"id": "1", "title": "T", "text": "Text."},
        {"id": "3", "title": "T"},
        {"id": "4", "contents": '"Title"\nBody.\nMore.'},
    ]
    corpus = load_corpus(write(tmp_path / "corpus.jsonl", rows))
    assert corpus.passages == [
        Passage("1", "T", "Text."),
        Passage("2", "", ""),
        Passage("4", "Title", "Body.\nMore."),
    ]
    assert corpus.counts == {"n": 3, "n_rejected": 1, "n_duplicates": 1, "n_without_text": 1}
    assert corpus.rejected[0].line == 4


def test_two_passages_with_one_id_are_a_fault_that_names_both_lines(tmp_path):
    rows = [{"id": "a", "text": "x"}, {"id": "b", "text": "x"}, {"id": "a", "text": "y"}]
    with pytest.raises(InputError, match="lines 1 and 3 share id=a and differ"):
        load_corpus(write(tmp_path / "corpus.jsonl", rows))


def test_a_corpus_may_be_a_table(tmp_path):
    path = tmp_path / "psgs_w100.tsv"
    path.write_text('id\ttext\ttitle\n1\tSay "no" now.\tT\n', encoding="utf-8")
    assert load_corpus(path).passages == [Passage("1", "T", 'Say "no" now.')]
