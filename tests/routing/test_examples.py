"""Outcome files: what is read, what is set aside, what is refused."""

import json

import numpy as np
import pytest

from calibjax.routing import example_rows, examples


def row(number, **changes):
    made = {
        "id": f"q{number}",
        "correct_without": number % 3 == 0,
        "correct_with": number % 2,
        "scores": {"a": number / 10, "b": -number},
        "features": {"query": {"length": number}},
        "tokens": dict.fromkeys(example_rows.TOKENS, 10 + number),
    }
    return made | changes


def write(path, rows):
    path.write_text("".join(json.dumps(one) + "\n" for one in rows))
    return path


def load(tmp_path, rows):
    return examples.load(write(tmp_path / "o.jsonl", rows))


def message(tmp_path, rows):
    with pytest.raises(ValueError) as caught:
        load(tmp_path, rows)
    return str(caught.value).replace(str(tmp_path), "DIR")


def test_nested_dotted_csv_and_parquet_files_say_the_same(tmp_path):
    import pyarrow
    import pyarrow.parquet

    rows = [row(number) for number in range(6)]
    nested = load(tmp_path, rows)
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "o.parquet")
    flat = []
    for one in rows:
        names = {f"scores.{k}": v for k, v in one["scores"].items()}
        names |= {f"tokens.{k}": v for k, v in one["tokens"].items()}
        kept = {k: one[k] for k in ("id", "correct_without", "correct_with")}
        flat.append(kept | names | {"features.query.length": one["features"]["query"]["length"]})
    header = list(flat[0])
    lines = [",".join(header)] + [",".join(str(one[key]) for key in header) for one in flat]
    (tmp_path / "o.csv").write_text("\n".join(lines) + "\n")
    for name in ("o.parquet", "o.csv"):
        other = examples.load(tmp_path / name)
        for key in ("a", "b"):
            np.testing.assert_array_equal(other.scores[key], nested.scores[key])
        np.testing.assert_array_equal(other.correct_without, nested.correct_without)
        np.testing.assert_array_equal(other.features["query"][1], nested.features["query"][1])
        np.testing.assert_array_equal(other.tokens["with_prompt"], nested.tokens["with_prompt"])


def test_a_row_that_cannot_be_read_is_set_aside_with_its_line(tmp_path):
    rows = [row(number) for number in range(10)]
    rows[3]["correct_with"] = 1.2
    rows[5]["scores"]["a"] = "high"
    rows[7]["tokens"]["with_output"] = -1
    found = load(tmp_path, rows)
    assert len(found) == 7
    assert [(one.line, one.reason.split(":")[0]) for one in found.rejected] == [
        (4, "correct_with=1.2"),
        (6, 'scores.a="high"'),
        (8, "tokens.with_output=-1"),
    ]


def test_a_missing_arm_is_refused_with_its_rows(tmp_path):
    rows = [row(number) for number in range(10)]
    rows[6]["correct_with"] = rows[8]["correct_with"] = None
    said = message(tmp_path, rows)
    assert "correct_with is missing in 2 of 10 rows, first at line 7; fix: " in said
    for one in rows:
        del one["correct_with"]
    said = message(tmp_path, rows)
    assert "no column correct_with" in said


def test_a_score_missing_in_some_rows_is_refused_naming_the_router(tmp_path):
    rows = [row(number) for number in range(10)]
    rows[4]["scores"] = {"a": 1.0}
    rows[9]["scores"] = {"a": 1.0, "b": None}
    said = message(tmp_path, rows)
    assert "router scores.b is missing in 2 of 10 rows, first at line 5; fix: " in said


def test_splits_are_three_names_that_do_not_overlap(tmp_path):
    parts = ["train", "calibration", "test"]
    rows = [row(number, split=parts[number % 3]) for number in range(9)]
    assert list(load(tmp_path, rows).split[:3]) == parts
    said = message(tmp_path, [*rows, row(9, split="validation")])
    assert "split=validation: expected each row in one of train, calibration, test" in said
    assert "validation 1" in said
    said = message(tmp_path, [one for one in rows if one["split"] != "test"])
    assert "split: no test rows, found calibration 3, train 3" in said
    said = message(tmp_path, [*rows, rows[0] | {"split": "test"}])
    assert "id=q0 is in splits test and train (lines 1, 10)" in said
    grouped = [one | {"group": f"g{place // 2}"} for place, one in enumerate(rows)]
    assert "groups are in two splits (g0" in message(tmp_path, grouped)


def test_equal_copies_count_once_and_differing_ones_not_at_all(tmp_path):
    rows = [row(number) for number in range(8)]
    found = load(tmp_path, [*rows, rows[1], rows[2] | {"correct_with": 0.5}])
    assert (len(found), found.n_duplicates) == (7, 1)
    assert [one.line for one in found.rejected] == [3, 10]


def test_without_token_counts_there_is_a_reason(tmp_path):
    rows = [row(number) for number in range(4)]
    del rows[2]["tokens"]["with_prompt"]
    found = load(tmp_path, rows)
    assert found.tokens == {}
    reason = "tokens.with_prompt is missing in 1 of 4 rows, first at line 3"
    assert found.reasons["tokens"] == reason
    assert found.reasons["seconds"] == "no column seconds.without"


def test_what_a_score_took_is_read_where_every_row_has_it(tmp_path):
    rows = [row(number, scoring={"a": {"tokens": 100 + number}}) for number in range(4)]
    rows[1]["scoring"]["b"] = {"tokens": 5, "seconds": 0.5}
    found = load(tmp_path, rows)
    assert list(found.scoring["tokens"]) == ["a"] and found.scoring["seconds"] == {}
    np.testing.assert_array_equal(found.scoring["tokens"]["a"], [100, 101, 102, 103])
    reason = "scoring.b.tokens is missing in 3 of 4 rows, first at line 1"
    assert found.reasons["scoring.b.tokens"] == reason
    rows[2]["scoring"]["a"]["tokens"] = -3
    assert [one.line for one in load(tmp_path, rows).rejected] == [3]


def test_a_score_that_is_no_number_sets_its_row_aside(tmp_path):
    rows = [row(number) for number in range(6)]
    rows[2]["scores"]["a"] = float("nan")
    found = load(tmp_path, rows)
    assert len(found) == 5
    assert [(one.line, one.reason.split(":")[0]) for one in found.rejected] == [(3, "a=NaN")]


def test_a_file_without_routers_or_with_an_unknown_family_is_refused(tmp_path):
    rows = [row(number, scores={}, features={}) for number in range(4)]
    assert "expected a router: a column scores.<name>" in message(tmp_path, rows)
    rows = [row(number, features={"querry": {"x": 1}}) for number in range(4)]
    assert "column features.querry.x: expected features.<family>.<name>" in message(tmp_path, rows)


def test_columns_may_have_other_names(tmp_path):
    names = {"correct_with": "em_rag"}
    rows = [{names.get(k, k): v for k, v in row(n).items()} for n in range(4)]
    path = write(tmp_path / "o.jsonl", rows)
    assert len(examples.load(path, rename={"em_rag": "correct_with"})) == 4


def test_graded_and_repeated_outcomes_come_in_pairs(tmp_path):
    more = {"f1_without": 0.5, "f1_with": 0.75, "repeat_without": 1, "level": 2}
    found = load(tmp_path, [row(number, **more) for number in range(4)])
    assert list(found.pairs) == ["f1"]
    np.testing.assert_array_equal(found.pairs["f1"][1], [0.75] * 4)
    np.testing.assert_array_equal(found.level, [2] * 4)
