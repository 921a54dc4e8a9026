"""Prediction files: what is kept, what is set aside and why."""

import csv
import gzip
import json
import re
import tracemalloc

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from calibjax.errors import InputError
from calibjax.report.predictions import pair, predictions
from calibjax.report.reading import load


def _row(key, confidence=0.5, correct=1, **more):
    return {"id": key, "confidence": confidence, "correct": correct, **more}


def _jsonl(path, rows):
    path.write_text("".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in rows))
    return path


def _good(count, start=0):
    return [_row(f"good{start + i}", 0.25, i % 2) for i in range(count)]


def _reasons(loaded):
    return {row.line: row.reason for row in loaded.rejected}


def test_json_csv_and_parquet_of_the_same_rows_are_equal(tmp_path):
    rows = [_row(f"q{i}", i / 8, i % 2, answered=i != 3, group=f"g{i // 2}") for i in range(8)]
    json_file = _jsonl(tmp_path / "a.jsonl", rows)
    with open(tmp_path / "b.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "c.parquet")
    (tmp_path / "d.jsonl.gz").write_bytes(gzip.compress(json_file.read_bytes()))
    paths = [json_file, tmp_path / "b.csv", tmp_path / "c.parquet", tmp_path / "d.jsonl.gz"]
    methods = load(paths).methods
    assert list(methods) == ["a", "b", "c", "d"]
    for name in "bcd":
        for part in ("ids", "confidence", "correct", "answered", "group"):
            expected, found = getattr(methods["a"], part), getattr(methods[name], part)
            np.testing.assert_array_equal(found, expected, err_msg=f"{name} {part}")
    assert methods["a"].answered.tolist() == [True, True, True, False] + [True] * 4


def test_the_method_column_names_methods_and_unknown_columns_are_ignored(tmp_path):
    rows = [_row("1", method="x", text="t"), _row("1", method="y"), _row("2")]
    loaded = load([_jsonl(tmp_path / "mine.jsonl", rows)])
    assert {name: rows.ids.tolist() for name, rows in loaded.methods.items()} == {
        "x": ["1"],
        "y": ["1"],
        "mine": ["2"],
    }


def test_files_called_alike_are_told_apart_by_directory(tmp_path):
    for directory in ("a", "b"):
        (tmp_path / directory).mkdir()
        _jsonl(tmp_path / directory / "preds.jsonl", _good(2))
    paths = [tmp_path / "a" / "preds.jsonl", tmp_path / "b" / "preds.jsonl"]
    assert list(load(paths).methods) == ["a/preds", "b/preds"]
    with pytest.raises(InputError, match="expected each file once"):
        load([paths[0], paths[0]])


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (_row("x", 1.2), "confidence=1.2: expected a number in [0,1]"),
        (_row("x", -0.1), "confidence=-0.1: expected a number in [0,1]"),
        (_row("x", "0.9"), 'confidence="0.9": expected a number in [0,1]'),
        (_row("x", "high"), 'confidence="high": expected a number in [0,1]'),
        (_row("x", True), "confidence=true: expected a number in [0,1]"),
        (_row("x", None), "confidence=null: expected a number in [0,1]"),
        (_row("x", 0.5, "yes"), 'correct="yes": expected true, false or a number in [0,1]'),
        (_row("x", 0.5, "True"), 'correct="True": expected true, false or a number in [0,1]'),
        (_row("x", 0.5, 2), "correct=2: expected true, false or a number in [0,1]"),
        (_row("x", 0.5, None), "correct=null: expected true, false or a number in [0,1]"),
        (_row("x", answered="no"), 'answered="no": expected true or false'),
        (_row(1.5), "id=1.5: expected a text or integer id"),
        (_row(""), 'id="": expected a text or integer id'),
        ({"id": "x", "correct": 1}, "confidence: missing"),
    ],
)
def test_a_value_of_the_wrong_kind_costs_its_row_alone(tmp_path, bad, reason):
    loaded = load([_jsonl(tmp_path / "p.jsonl", [*_good(3), bad, *_good(2, 3)])])
    assert len(loaded.methods["p"]) == loaded.n_kept == 5
    assert _reasons(loaded) == {4: reason}


def test_not_a_number_costs_its_row_alone(tmp_path):
    lines = ['{"id": "x", "confidence": NaN, "correct": 1}', '{"id": "y", "confidence": 1e999']
    loaded = load([_jsonl(tmp_path / "p.jsonl", [*_good(3), *lines])])
    assert len(loaded.methods["p"]) == 3
    assert _reasons(loaded)[4].startswith("confidence=NaN: expected a")
    assert 5 in _reasons(loaded)


def test_soft_and_boolean_verdicts_are_read(tmp_path):
    rows = [_row("a", 0.5, True), _row("b", 0.5, False), _row("c", 0.5, 0.3), _row("d", 1, 1)]
    methods = load([_jsonl(tmp_path / "p.jsonl", rows)]).methods
    assert methods["p"].correct.tolist() == [1, 0, 0.3, 1]


def test_csv_text_is_read_as_numbers_and_booleans(tmp_path):
    text = "id,confidence,correct,answered,group\n1,0.25,True,false,\nNA,1e-1,0.5,,g\nnan,1,0,1,g\n"
    (tmp_path / "p.csv").write_text(text)
    rows = load([tmp_path / "p.csv"]).methods["p"]
    assert rows.ids.tolist() == ["1", "NA", "nan"]
    assert rows.confidence.tolist() == [0.25, 0.1, 1.0]
    assert rows.correct.tolist() == [1.0, 0.5, 0.0]
    assert rows.answered.tolist() == [False, True, True]
    assert rows.group[1] == rows.group[2] != rows.group[0]


def test_confidences_in_percent_are_a_fault_of_the_file(tmp_path):
    path = _jsonl(tmp_path / "p.jsonl", [_row(i, v) for i, v in enumerate((0, 37.5, 90, 100))])
    with pytest.raises(InputError) as error:
        load([path])
    assert "confidence=37.5 at line 2 looks like percent" in str(error.value)
    assert str(error.value).endswith("fix: divide by 100")


def test_one_method_in_percent_beside_others_is_found(tmp_path):
    rows = [_row(i, 0.5, method=m) for i in range(4) for m in "ab"]
    rows += [_row(i, 60 + i, method="c") for i in range(4)]
    with pytest.raises(InputError, match=r"rows of c are above 1.*divide by 100"):
        load([_jsonl(tmp_path / "p.jsonl", rows)])


def test_a_copy_counts_once_and_contradicting_copies_are_all_rejected(tmp_path):
    rows = [_row(1), _row("1"), _row("2"), _row("3", 0.1), _row("4"), _row("3", 0.2)]
    rows += [_row("3", 0.1)]
    loaded = load([_jsonl(tmp_path / "p.jsonl", rows)])
    assert loaded.methods["p"].ids.tolist() == ["1", "2", "4"]
    assert (loaded.n_kept, loaded.n_duplicates) == (3, 1)
    reason = 'id="3": expected one row for method p, found 3 that differ (at 4, 6, 7)'
    assert _reasons(loaded) == {4: reason, 6: reason, 7: reason}


def test_contradicting_copies_in_two_files_name_both_files(tmp_path):
    one = _jsonl(tmp_path / "1.jsonl", [_row("a", 0.1, method="m"), *_good(2)])
    two = _jsonl(tmp_path / "2.jsonl", [_row("a", 0.2, method="m"), *_good(2)])
    loaded = load([one, two])
    assert [row.file for row in loaded.rejected] == [str(one), str(two)]
    assert all(f"{one}:1, {two}:1" in row.reason for row in loaded.rejected)
    assert "m" not in loaded.methods


def test_ids_above_float_precision_stay_apart(tmp_path):
    big = 2**53
    text = f'{{"id": {big}, "confidence": 0.1, "correct": 1}}\n'
    text += f'{{"id": {big + 1}, "confidence": 0.2, "correct": 0}}\n'
    (tmp_path / "p.jsonl").write_text(text)
    assert load([tmp_path / "p.jsonl"]).methods["p"].ids.tolist() == [str(big), str(big + 1)]


@pytest.mark.parametrize("text", ["", "\n\n", "[]"])
def test_an_empty_file_is_a_fault_of_the_file(tmp_path, text):
    path = tmp_path / ("p.json" if text == "[]" else "p.jsonl")
    path.write_text(text)
    with pytest.raises(InputError, match=re.escape(f"{path}: kept 0 of 0 rows")):
        load([path])


def test_more_than_half_rejected_is_a_fault_of_the_file_with_counted_reasons(tmp_path):
    path = _jsonl(tmp_path / "p.jsonl", [*_good(1), _row("x", "high"), _row("y", 0.5, "yes")])
    with pytest.raises(InputError) as error:
        load([path])
    assert "kept 1 of 3 rows" in str(error.value)
    assert '1 x confidence="high"' in str(error.value) and '1 x correct="yes"' in str(error.value)


def test_a_column_of_another_name_is_named_and_can_be_renamed(tmp_path):
    path = _jsonl(tmp_path / "p.jsonl", [{"id": "a", "prob": 0.5, "correct": 1}])
    with pytest.raises(InputError, match="fix: --rename=prob:confidence"):
        load([path], rename={})
    assert load([path], rename={"prob": "confidence"}).methods["p"].confidence.tolist() == [0.5]


def test_a_cut_gzip_gives_its_complete_rows_and_says_so(tmp_path):
    path = tmp_path / "p.jsonl.gz"
    rows = [_row(f"q{i}", i / 4000, i % 2, text=str(hash(i))) for i in range(4000)]
    whole = gzip.compress(_jsonl(tmp_path / "x.jsonl", rows).read_bytes())
    path.write_bytes(whole[: len(whole) // 2])
    loaded = load([path])
    kept = loaded.methods["p"].ids.tolist()
    assert loaded.truncated == [str(path)]
    assert 100 < len(kept) < 4000 and kept == [f"q{i}" for i in range(len(kept))]


def test_pairing_keeps_common_ids_in_one_order():
    a = predictions(["1", "2", "3"], [0.1, 0.2, 0.3], [1, 0, 1])
    b = predictions([3, 4, 1], [0.9, 0.8, 0.7], [0, 0, 1], answered=[True, True, False])
    paired, common = pair({"a": a, "b": b})
    assert common == 2
    assert paired["a"].ids.tolist() == paired["b"].ids.tolist() == ["1", "3"]
    assert paired["b"].confidence.tolist() == [0.7, 0.9]
    assert paired["b"].answered.tolist() == [False, True]


def test_methods_with_less_than_half_in_common_are_refused():
    a = predictions(range(10), [0.5] * 10, [1] * 10)
    half = predictions(range(5, 15), [0.5] * 10, [1] * 10)
    less = predictions(range(6, 16), [0.5] * 10, [1] * 10)
    assert pair({"a": a, "b": half})[1] == 5
    with pytest.raises(InputError, match="found 4 of the 10 ids of a"):
        pair({"a": a, "b": less})


def test_rows_are_kept_compactly(tmp_path):
    rows = (_row(f"q{i}", i / 20000, i % 2, text="x" * 400) for i in range(20000))
    path = _jsonl(tmp_path / "p.jsonl", rows)
    tracemalloc.start()
    try:
        load([path])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # The file holds 9 MB of text that nobody asked for; 400 bytes a row are plenty for the rest.
    assert peak < 400 * 20000
