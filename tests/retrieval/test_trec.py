"""TREC files: bad rows by line, order as trec_eval's, and files that every reader agrees on."""

import numpy as np
import pytest

from calibjax.abstention.trec_examples import join_run, read_questions
from calibjax.errors import InputError
from calibjax.retrieval import trec

RUN = [
    "q1 Q0 d1 1 0.9 me",
    "q1\tQ0\td2 2 0.5 me",
    "q2 Q0 d1 7 0.1 me",
    "q2 Q0 d3 1 0.3 me",
]


def write(path, lines):
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_run_is_ordered_by_score_whatever_its_rank_says(tmp_path):
    found = trec.read_run(write(tmp_path / "a.run", RUN))
    assert found.rankings["q1"] == (["d1", "d2"], [0.9, 0.5])
    assert found.rankings["q2"].documents == ["d3", "d1"]


def test_ties_in_float32_go_by_document_id_downwards(tmp_path):
    lines = ["q Q0 a 1 30.00000001 t", "q Q0 b 2 30.0 t", "q Q0 c 3 29 t"]
    assert trec.read_run(write(tmp_path / "r", lines)).rankings["q"].documents == ["b", "a", "c"]


@pytest.mark.parametrize(
    "line, reason",
    [
        ("q1 Q0 d9 1 0.9", "expected 6 columns (query Q0 document rank score tag), found 5"),
        ("q 1 Q0 d9 1 0.9 me", "found 7"),
        ("q1 Q0 d1 3 0.2 me", "document=d1: expected once in query q1"),
        ("q1 Q0 d9 3 NaN me", "score=NaN: expected a finite float32 number (query q1)"),
        ("q1 Q0 d9 3 1e999 me", "score=1e999"),
        ("q1 Q0 d9 3 high me", "score=high"),
    ],
)
def test_bad_rows_are_set_aside_by_line(tmp_path, line, reason):
    found = trec.read_run(write(tmp_path / "a.run", [*RUN, "", line]))
    (rejected,) = found.rejected
    assert (rejected.file, rejected.line) == (str(tmp_path / "a.run"), 6)
    assert reason in rejected.reason
    assert len(found.rankings["q1"].documents) == 2


def test_mostly_bad_files_are_refused(tmp_path):
    with pytest.raises(InputError, match="run=.*kept 1 of 4 rows"):
        trec.read_run(write(tmp_path / "a.run", [RUN[0], "a b", "c d", "e f"]))


def test_judgements_of_trec_and_of_beir_are_the_same(tmp_path):
    plain = trec.read_qrels(write(tmp_path / "q", ["q1 0 d1 1", "q1 0 d2 0", "q2 0 d3 2"]))
    lines = ["query-id\tcorpus-id\tscore", "q1\td1\t1", "q1\td2\t0", "q2\td3\t2"]
    beir = trec.read_qrels(write(tmp_path / "b.tsv", lines))
    assert plain.relevance == beir.relevance
    assert plain.relevant("q1") == {"d1"} and plain.relevant("q9") == set()


def test_contradicting_judgements_are_set_aside(tmp_path):
    lines = ["q1 0 d1 1", "q1 0 d1 0", "q1 0 d2 1.5", "q2 0 d1 1"]
    found = trec.read_qrels(write(tmp_path / "q", lines))
    assert [row.line for row in found.rejected] == [2, 3]


def test_a_written_run_is_read_back_in_its_order(tmp_path):
    # Equal scores, and scores that are equal in float32.
    ranking = trec.Ranking(["z", "a", "m", "b"], [1.0, 1.0, 1.0 - 1e-12, 0.5])
    trec.write_run(tmp_path / "out.run", {"q": ranking})
    assert trec.read_run(tmp_path / "out.run").rankings["q"].documents == ["z", "a", "m", "b"]
    assert (np.diff(trec.strictly_decreasing([0.0, 0.0, 0.0])) < 0).all()


def test_ids_with_white_space_are_not_written(tmp_path):
    with pytest.raises(InputError, match="without white space"):
        trec.write_run(tmp_path / "out.run", {"q 1": trec.Ranking(["a"], [1.0])})


# ------------------------------------------------------------------------------------- joined


def joined(tmp_path, qrels, questions=None):
    run = trec.read_run(write(tmp_path / "a.run", RUN))
    return join_run(run, trec.read_qrels(write(tmp_path / "q", qrels)), questions, k=2)


def test_success_is_all_relevant_documents_in_the_top_k(tmp_path):
    found = joined(tmp_path, ["q1 0 d1 1", "q1 0 d2 1", "q2 0 d1 1", "q2 0 d9 1"])
    assert [e.success for e in found.examples] == [1.0, 0.0]


def test_what_is_missing_counts_as_a_failure_and_is_listed(tmp_path):
    found = joined(tmp_path, ["q1 0 d1 1", "q3 0 d1 1"])
    by_id = {e.id: e for e in found.examples}
    assert found.no_run == ["q3"] and by_id["q3"].hop1_scores == () and by_id["q3"].success == 0
    assert found.no_qrels == ["q2"] and by_id["q2"].success == 0


def test_queries_without_a_text_are_left_out_and_listed(tmp_path):
    found = joined(tmp_path, ["q1 0 d1 1"], {"q1": "who"})
    assert [e.id for e in found.examples] == ["q1"] and found.no_question == ["q2"]


def test_a_run_of_other_queries_is_refused(tmp_path):
    with pytest.raises(InputError, match="no query in common.*such as q1 and x1"):
        joined(tmp_path, ["x1 0 d1 1"])


def test_texts_are_read_in_our_names_and_in_beirs(tmp_path):
    write(tmp_path / "a.jsonl", ['{"id": "q1", "question": "who"}'])
    write(tmp_path / "b.jsonl", ['{"_id": "q1", "text": "who"}'])
    assert read_questions(tmp_path / "a.jsonl")[0] == read_questions(tmp_path / "b.jsonl")[0]
