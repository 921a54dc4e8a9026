"""Reading abstain examples: bad rows are set aside by line and id, bad files are one line."""

import json

import numpy as np
import pytest

from calibjax.abstention.example_rows import to_row
from calibjax.abstention.examples import example_features, load_examples
from calibjax.abstention.splits import half_of, split_hash, split_of
from calibjax.errors import InputError


def row(key, **changes):
    return {"id": key, "question": "who was it", "hop1_scores": [0.9, 0.5], "success": 1} | changes


def write(path, rows):
    path.write_text("".join(json.dumps(r) + "\n" for r in rows))
    return path


def load(tmp_path, rows, **options):
    return load_examples(write(tmp_path / "ex.jsonl", rows), **options)


GOOD = [row(f"g{i}", success=i % 2) for i in range(10)]


@pytest.mark.parametrize(
    "change, reason",
    [
        ({"hop1_scores": []}, "hop1_scores=[]: expected a list of numbers, at least one"),
        ({"hop1_scores": [1e39, 0.5]}, "hop1_scores=1e+39: expected scores below 3.4e38"),
        ({"hop2_scores": [[0.5, -1e39]]}, "hop2_scores=-1e+39: expected scores below 3.4e38"),
        ({"hop1_scores": ["high", "low"]}, "hop1_scores"),
        ({"hop1_scores": None}, "hop1_scores=null"),
        ({"hop1_scores": [0.1, 0.5, 0.9]}, "ascending; fix: negate"),
        ({"hop1_scores": [0.9, 0.1, 0.5]}, r"hop1_scores[2]=0.5: expected at most 0.1"),
        ({"success": 0.5}, "success=0.5: expected 0 or 1"),
        ({"success": "yes"}, "success"),
        ({"hop2_scores": [0.1]}, "a list of lists"),
        (
            {"hop2_scores": [[0.1]], "hop2_ids": [["a", "b"]]},
            "hop2_ids: expected one id for each score, found [2] ids for [1] scores",
        ),
        ({"scores": {"mine": "high"}}, "scores.mine"),
        ({"pipelines": {"a": {"success": 2}}}, "success=2"),
        ({"question": ""}, "question"),
    ],
)
def test_a_bad_row_is_set_aside_by_line_and_id(tmp_path, change, reason):
    found = load(tmp_path, [*GOOD, row("bad", **change)])
    assert len(found.examples) == 10
    (rejected,) = found.rejected
    assert rejected.line == 11 and rejected.reason.startswith("id=bad: ")
    assert reason in rejected.reason


def test_nan_is_set_aside_by_its_line(tmp_path):
    path = write(tmp_path / "ex.jsonl", GOOD)
    path.write_text(path.read_text() + '{"id": "n", "hop1_scores": [NaN], "success": 1}\n')
    (rejected,) = load_examples(path).rejected
    assert rejected.line == 11 and "hop1_scores=NaN" in rejected.reason


def test_good_degenerate_rows_are_kept(tmp_path):
    rows = [
        row("equal", hop1_scores=[0.5, 0.5, 0.5]),
        row("negative", hop1_scores=[-1, -2]),
        row("one", hop1_scores=[3], success=False),
        row("found nothing", hop2_scores=[[], []]),
        row("null hop 2", hop2_scores=None),
    ]
    found = load(tmp_path, rows)
    assert not found.rejected
    made = example_features(found.examples)
    assert np.isfinite(made.values).all() and made.names[-1] == "hop2_missing"


def test_files_of_distances_are_refused(tmp_path):
    rows = [row(f"q{i}", hop1_scores=[0.1, 0.2 + i]) for i in range(6)] + GOOD[:4]
    with pytest.raises(InputError, match=r"distances \(lower = better\): 6 of 10.*negate"):
        load(tmp_path, rows)


@pytest.mark.parametrize(
    "splits, reason",
    [
        (["tune", "validation", "test"], "found tune 1, validation 1, test 1"),
        (["tune", "tune", "tune"], "no test row: found tune 3"),
        (["tune", "test", None], r"\(none\) 1"),
    ],
)
def test_a_wrong_split_is_refused_with_its_counts(tmp_path, splits, reason):
    rows = [row(f"q{i}", **({"split": s} if s else {})) for i, s in enumerate(splits)]
    with pytest.raises(InputError, match=reason):
        load(tmp_path, rows)


def test_an_id_in_both_splits_is_refused_by_name(tmp_path):
    rows = [row("a", split="tune"), row("b", split="test"), row("a", split="test")]
    with pytest.raises(InputError, match=r"1 ids are in tune and in test \(a\)"):
        load(tmp_path, rows)


def test_copies_count_once_and_contradictions_not_at_all(tmp_path):
    found = load(tmp_path, [*GOOD, GOOD[0], row("g1", success=0), row(1), row("1")])
    assert found.n_duplicates == 2  # g0, and 1 with "1"
    assert [r.line for r in found.rejected] == [2, 12]
    assert len(found.examples) == 10  # nine of GOOD and the 1


def test_a_signal_that_some_rows_lack_is_refused(tmp_path):
    rows = [row("a", scores={"x": 0.1}), row("b"), row("c", scores={"x": 0.2})]
    with pytest.raises(InputError, match="scores.x: missing in 1 of 3 rows, the first at line 2"):
        load(tmp_path, rows)


def test_csv_holds_lists_in_cells_and_dotted_columns(tmp_path):
    (tmp_path / "ex.csv").write_text(
        "id,question,hop1_scores,success,split,scores.mine,pipelines.a.success,rescue_success\n"
        'q1,who,"[0.9, 0.5]",1,tune,0.25,1,\n'
        'q2,who,"[0.8]",0,test,0.5,0,1\n'
        'q3,who,"[0.8",0,test,0.5,0,1\n'
    )
    found = load_examples(tmp_path / "ex.csv")
    one, two = found.examples
    assert one.hop1_scores == (0.9, 0.5) and one.scores == {"mine": 0.25}
    assert one.rescue_success is None and two.rescue_success == 1.0
    assert two.pipelines == {"a": 0.0} and one.split == "tune"
    assert "JSON in the cell" in found.rejected[0].reason


def test_success_is_needed_unless_a_stored_score_is_applied(tmp_path):
    rows = [{"id": "a", "hop1_scores": [0.5]}]
    with pytest.raises(InputError, match="success"):
        load(tmp_path, rows)
    assert load(tmp_path, rows, needs_success=False).examples[0].success is None


def test_the_half_split_depends_on_ids_and_seed_alone():
    ids = [f"q{i}" for i in range(101)]
    half = half_of(ids, 0)
    assert half.sum() == 50
    backwards = half_of(ids[::-1], 0)[::-1]
    np.testing.assert_array_equal(half, backwards)
    assert (half_of(ids, 1) != half).any()
    assert split_hash(ids, half) == split_hash(ids[::-1], half[::-1])
    assert split_hash(ids, half) != split_hash(ids, ~half)
    # The same on every machine.
    assert np.flatnonzero(half)[:5].tolist() == [2, 4, 5, 7, 8]


def test_a_given_split_is_kept_to_the_row(tmp_path):
    # The sizes of MuSiQue's published split.
    parts = ["tune"] * 486 + ["test"] * 514
    rows = [row(f"q{i}", split=part) for i, part in enumerate(parts)]
    tune = split_of(load(tmp_path, rows).examples, seed=0)
    assert tune.tolist() == [part == "tune" for part in parts]
    assert (tune == split_of(load(tmp_path, rows).examples, seed=1)).all()


def test_a_written_row_is_read_back_as_it_was(tmp_path):
    pipelines = {"a": {"success": 1, "cost": 2.0}, "b": {"success": 0}}
    more = {"hop2_scores": [[0.4], []], "hop2_ids": [["p"], []], "scores": {"x": 0.5}}
    given = [
        row("full", split="tune", pipelines=pipelines, type="bridge", rescue_cost=0.0, **more),
        row("bare", split="test", pipelines=pipelines, scores={"x": -1.0}, rescue_success=0),
    ]
    first = load(tmp_path, given).examples
    assert first[0].costs == {"a": 2.0} and first[0].type == "bridge"
    assert load(tmp_path, [to_row(example) for example in first]).examples == first


@pytest.mark.parametrize("value", [None, "", ["a"], {"of": "q"}, 1.5, True])
def test_a_type_column_of_another_meaning_rejects_no_row(tmp_path, value):
    found = load(tmp_path, [*GOOD, row("x", type=value)])
    assert not found.rejected and found.examples[-1].type is None


def test_one_query_cannot_be_split(tmp_path):
    found = load(tmp_path, [row("a")])
    with pytest.raises(InputError, match="found no tune row"):
        split_of(found.examples, 0)
