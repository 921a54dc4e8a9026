"""launch.evaluate: one command from prediction files to a report; bad input costs one line."""

import csv
import gzip
import json
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.launch.command import Done, environment, run
from tests.report import oracle


def _row(key, confidence=0.5, correct=1, **more):
    return {"id": key, "confidence": confidence, "correct": correct, **more}


def _rows(count, start=0):
    values = range(start, start + count)
    return [_row(f"q{i}", (i * 37 % 100) / 100, int(i * 53 % 100 < i * 37 % 100)) for i in values]


def _text(rows):
    return "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows)


def _write(path, rows):
    path.write_text(_text(rows))
    return path


@pytest.fixture(scope="module")
def evaluate(tmp_path_factory):
    """Runs the command; programs compiled for one run serve the next ones."""
    env = environment(CALIBJAX_CACHE=str(tmp_path_factory.mktemp("cache")))

    def call(*arguments, out, **options):
        more = [f"--out={out}", "--replicates=50"]
        return run("evaluate", *more, *arguments, env=env, **options)

    return call


def _report(out):
    return json.loads((out / "report.json").read_text())


# ------------------------------------------------------------------------------ good input


class Run(NamedTuple):
    """A finished run, the rows that both methods share, and its arguments."""

    done: Done
    out: Path
    a: list[dict]
    b: list[dict]
    arguments: list[str]


@pytest.fixture(scope="module")
def two_methods(evaluate, tmp_path_factory):
    """A run over a JSON-lines and a CSV file that share 50 of 55 and 50 ids."""
    path = tmp_path_factory.mktemp("two")
    a = [row | {"answered": i % 9 != 0, "group": f"g{i}"} for i, row in enumerate(_rows(55))]
    _write(path / "a.jsonl", [*a, a[0], '{"id": "torn', _row("bad", 1.2)])
    b = [row | {"confidence": 0.5 * row["confidence"] + 0.2} for row in a[:50]]
    with open(path / "b.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, b[0])
        writer.writeheader()
        writer.writerows(b)
    files = f"--predictions={path / 'a.jsonl'},{path / 'b.csv'}"
    judged = [f"yes,{'no' if i % 3 == 0 else 'yes'},q{i}" for i in range(40)]
    human = _write(path / "human.csv", ["human,user,id", *judged])
    arguments = [files, f"--human={human}", "--pdf"]
    done = evaluate(*arguments, out=path / "out")
    return Run(done, path / "out", a[:50], b, arguments)


def test_files_of_two_formats_become_one_report(two_methods):
    done, out = two_methods.done, two_methods.out
    assert done.code == 0, done.err
    names = {path.name for path in out.iterdir()}
    assert {"report.json", "report.md", "report.tex", "report.csv", "run.json"} <= names
    for plot in ("reliability", "accuracy_coverage", "metrics"):
        assert {f"{plot}.png", f"{plot}.pdf", f"{plot}.csv"} <= names
    assert not [name for name in names if name.endswith(".tmp")]


def test_the_figures_are_those_of_the_common_rows(two_methods):
    report = _report(two_methods.out)
    for name, rows in (("a", two_methods.a), ("b", two_methods.b)):
        columns = ([row[key] for row in rows] for key in ("confidence", "correct", "answered"))
        for metric, value in oracle.figures(*columns).items():
            found = report["methods"][name]["metrics"][metric]["estimate"]
            assert found == pytest.approx(value, abs=1e-9), metric
    difference = report["comparisons"]["a-b"]["brier"]
    own = [report["methods"][m]["metrics"]["brier"]["estimate"] for m in "ab"]
    assert difference["estimate"] == pytest.approx(own[0] - own[1], abs=1e-12)
    assert report["settings"]["cluster"] == "group"


def test_all_counts_are_in_the_report_and_in_the_last_line(two_methods):
    done, out = two_methods.done, two_methods.out
    rows = _report(out)["rows"]
    assert (rows["n_kept"], rows["n_rejected"], rows["n_duplicates"]) == (105, 2, 1)
    assert (rows["n_common"], rows["n_by_method"]) == (50, {"a": 55, "b": 50})
    line = done.err.strip().splitlines()[-1]
    assert "kept 105 of 108 rows; 1 exact copies left out; 2 rejected" in line
    assert "50 ids in common (a 55, b 50)" in line
    rejected = [json.loads(text) for text in (out / "rejected.jsonl").read_text().splitlines()]
    assert [row["line"] for row in rejected] == [57, 58]
    assert rejected[1]["reason"] == "confidence=1.2: expected a number in [0,1]"


def test_human_agreement_is_reported_by_bins_of_the_methods_confidence(two_methods):
    found = _report(two_methods.out)["agreement"]
    # The user says "no" on every third row of 40: 14 disagreements.
    assert found["n"] == 40 and found["rate"]["estimate"] == pytest.approx(26 / 40)
    assert found["rate"]["low"] < 26 / 40 < found["rate"]["high"]
    assert sum(row["n"] for row in found["bins"]) == 40
    first = [i for i, row in enumerate(two_methods.a[:40]) if row["confidence"] <= 0.2]
    expected = sum(i % 3 != 0 for i in first) / len(first)
    assert found["bins"][0]["n"] == len(first)
    assert found["bins"][0]["rate"]["estimate"] == pytest.approx(expected)


def test_a_second_run_needs_overwrite_and_then_gives_the_same_report(two_methods, evaluate):
    out = two_methods.out
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    refused = evaluate(*two_methods.arguments, out=out)
    assert refused.code == 2 and "--resume, --overwrite or another --out" in refused.err
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    again = evaluate(*two_methods.arguments, "--overwrite", out=out)
    assert again.code == 0, again.err
    assert {path.name for path in out.iterdir()} == set(before)
    for name in before.keys() - {"run.json"}:
        assert (out / name).read_bytes() == before[name], name


def test_one_class_is_reported_with_nulls_and_reasons(evaluate, tmp_path):
    path = _write(tmp_path / "p.jsonl", [_row(i, 0.1, 0) for i in range(50)])
    done = evaluate(f"--predictions={path}", out=tmp_path / "out")
    assert done.code == 0, done.err
    text = (tmp_path / "out" / "report.json").read_text()
    assert "NaN" not in text
    cells = json.loads(text)["methods"]["p"]["metrics"]
    assert cells["auroc"]["estimate"] is None and "only one class" in cells["auroc"]["reason"]
    assert cells["accuracy"]["estimate"] == 0
    assert "AUROC: only one class" in (tmp_path / "out" / "report.md").read_text()


def test_one_row_alone_has_figures_and_reasons_for_those_it_cannot_have(evaluate, tmp_path):
    path = _write(tmp_path / "p.jsonl", [_row("only", 0.75, 1)])
    done = evaluate(f"--predictions={path}", out=tmp_path / "out")
    assert done.code == 0, done.err
    cells = _report(tmp_path / "out")["methods"]["p"]["metrics"]
    assert cells["brier"]["estimate"] == 0.0625 and cells["ece"]["estimate"] == 0.25
    assert cells["auroc"]["estimate"] is None and "only one class" in cells["auroc"]["reason"]


def test_ids_are_exact_text_and_copies_count_once(evaluate, tmp_path):
    """Words that mean "missing" elsewhere are ids; 1 and "1" are one; beyond 2**53 they differ."""
    ids = [1, 2**53, 2**53 + 1, "None", "NA", "null", "nan", "N/A"]
    rows = [_row(key, 0.5 + place / 20, place % 2) for place, key in enumerate(ids)]
    copies = [_row("1", 0.5, 0), _row("x", 0.5, 1), _row("x", 0.6, 1), _row("", 0.5, 1)]
    path = _write(tmp_path / "a.jsonl", [*rows, *copies])
    table = tmp_path / "b.csv"
    cells = [f"{key},{0.9 - place / 20},{place % 2},," for place, key in enumerate(ids)]
    table.write_text("\n".join(["id,confidence,correct,answered,group", *cells, ",0.5,1,,"]) + "\n")
    done = evaluate(f"--predictions={path},{table}", "--replicates=0", out=tmp_path / "out")
    assert done.code == 0, done.err
    counts = _report(tmp_path / "out")["rows"]
    assert counts["n_common"] == len(ids) and counts["n_duplicates"] == 1
    lines = (tmp_path / "out" / "rejected.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    reasons = {(Path(row["file"]).name, row["line"]): row["reason"] for row in rows}
    differ = 'id="x": expected one row for method a, found 2 that differ (at 10, 11)'
    assert reasons == {
        ("a.jsonl", 10): differ,
        ("a.jsonl", 11): differ,
        ("a.jsonl", 12): 'id="": expected a text or integer id',
        ("b.csv", 10): 'id="": expected a text or integer id',
    }


def test_a_cut_file_is_evaluated_as_far_as_it_goes_and_then_ends_with_2(evaluate, tmp_path):
    first, second = (gzip.compress(_text(_rows(50, start)).encode()) for start in (0, 50))
    path = tmp_path / "p.jsonl.gz"
    path.write_bytes(first + second[:20])
    done = evaluate(f"--predictions={path}", out=tmp_path / "out")
    assert done.code == 2 and "cut short" in done.err.splitlines()[-1]
    report = _report(tmp_path / "out")
    assert report["rows"]["truncated"] == [str(path)]
    assert report["methods"]["p"]["n"] == 50
    assert "TRUNCATED" in (tmp_path / "out" / "report.md").read_text()


# ------------------------------------------------------------------------------- bad input

GOOD = [_row(1), _row(2, 0.4, 0), _row(3, 0.7, 1)]
# name: (rows of preds.jsonl, arguments, the one line on stderr); DIR stands for its directory.
FILE = "--predictions=DIR/preds.jsonl"
BAD = {
    "stray_argument": (
        GOOD,
        ["DIR/preds.jsonl"],
        "argument=DIR/preds.jsonl: expected flags only; fix: --predictions=DIR/preds.jsonl",
    ),
    "no_predictions": (GOOD, [], "predictions=: expected a file; fix: --predictions=FILE[,FILE]"),
    "missing_file": (
        GOOD,
        ["--predictions=DIR/pred.jsonl"],
        "predictions=DIR/pred.jsonl: no such file; fix: did you mean DIR/preds.jsonl",
    ),
    "missing_second_file": (
        GOOD,
        [f"{FILE},DIR/b.csv"],
        "predictions=DIR/b.csv: no such file; fix: name one of its files (preds.jsonl)",
    ),
    "zero_bins": (
        GOOD,
        [FILE, "--num_bins=0"],
        "num_bins=0: expected an integer >= 1; fix: --num_bins=15",
    ),
    "negative_bins": (
        GOOD,
        [FILE, "--num_bins=-3"],
        "num_bins=-3: expected an integer >= 1; fix: --num_bins=15",
    ),
    "fractional_bins": (
        GOOD,
        [FILE, "--num_bins=1.5"],
        "num_bins=1.5: expected an integer >= 1; fix: --num_bins=15",
    ),
    "too_few_replicates": (
        GOOD,
        [FILE, "--replicates=39"],
        "replicates=39: expected at least 40 for a 95 % interval, or 0 for none;"
        " fix: --replicates=2000",
    ),
    "absent_column_renamed": (
        GOOD,
        [FILE, "--rename=conf:confidence"],
        "rename=conf:confidence: expected a column that is there (DIR/preds.jsonl: id, confidence,"
        " correct); fix: --rename=confidence:confidence",
    ),
    "two_columns_of_one_name": (
        [_row(1, prob=0.5)],
        [FILE, "--rename=prob:confidence"],
        "rename=prob:confidence: expected one column confidence in DIR/preds.jsonl, found id,"
        " confidence, correct, prob;"
        " fix: --rename=prob:confidence,confidence:confidence_before",
    ),
    "unknown_flag": (
        GOOD,
        ["--prediction=DIR/preds.jsonl"],
        "prediction=DIR/preds.jsonl: no such flag; fix: did you mean --predictions",
    ),
    "bad_rename": (
        GOOD,
        [FILE, "--rename=prob"],
        "rename=prob: expected FILE_NAME:OUR_NAME; fix: --rename=prob:confidence",
    ),
    "empty_file": (
        [],
        [FILE],
        "predictions=DIR/preds.jsonl: kept 0 of 0 rows; fix: give a file that holds rows",
    ),
    "all_rows_bad": (
        [_row(1, 1.5), _row(2, 0.5, "yes"), _row(3, -1)],
        [FILE],
        "predictions=DIR/preds.jsonl: kept 0 of 3 rows (2 x confidence=1.5: expected a number in"
        ' [0,1], first at line 1; 1 x correct="yes": expected true, false or a number in [0,1],'
        " first at line 2); fix: mend the rows",
    ),
    "other_column": (
        [{"id": 1, "prob": 0.5, "correct": 1}],
        [FILE],
        "predictions=DIR/preds.jsonl: no column confidence: expected id, confidence, correct, found"
        " id, prob, correct; fix: --rename=prob:confidence or rename in the file",
    ),
    "all_other_columns": (
        [{"qid": 1, "prob": 0.5, "label": 1}],
        [FILE],
        "predictions=DIR/preds.jsonl: no columns id, confidence, correct: expected id, confidence,"
        " correct, found qid, prob, label;"
        " fix: --rename=qid:id,prob:confidence,label:correct or rename in the file",
    ),
    "list_in_a_file_of_lines": (
        [json.dumps(GOOD)],
        [FILE],
        "predictions=DIR/preds.jsonl: expected one JSON object a line, found a JSON list;"
        " fix: mv DIR/preds.jsonl DIR/preds.json",
    ),
    "list_over_several_lines": (
        ["[", *(json.dumps(row) + "," for row in GOOD), json.dumps(_row(9)), "]"],
        [FILE],
        "predictions=DIR/preds.jsonl: expected one JSON object a line, found a JSON list;"
        " fix: mv DIR/preds.jsonl DIR/preds.json",
    ),
    "object_over_several_lines": (
        [json.dumps(GOOD[0], indent=1)],
        [FILE],
        "predictions=DIR/preds.jsonl: expected one JSON object a line, found an object over several"
        " lines; fix: jq -c . DIR/preds.jsonl > DIR/preds.lines.jsonl",
    ),
    "percent": (
        [_row(1, 55), _row(2, 90), _row(3, 100)],
        [FILE],
        "predictions=DIR/preds.jsonl: confidence=55 at line 1 looks like percent (3 of 3 rows of"
        " preds are above 1); fix: divide by 100",
    ),
    "same_file_twice": (
        GOOD,
        [f"{FILE},DIR/preds.jsonl"],
        "predictions=DIR/preds.jsonl: expected each file once; fix: drop the second mention",
    ),
    "other_ids": (
        [_row(i, method=m) for m, k in (("a", 0), ("b", 6)) for i in range(k, k + 10)],
        [FILE],
        "predictions=a,b: expected methods over the same ids, found 4 of the 10 ids of a in all of"
        " them (rows: a 10, b 10); fix: one file at a time, or the same questions",
    ),
    "no_out": (GOOD, [FILE, "--out="], "out=: expected a directory; fix: --out=runs/NAME"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_line_and_leaves_nothing(tmp_path, name):
    lines, arguments, message = BAD[name]
    _write(tmp_path / "preds.jsonl", lines)
    arguments = [argument.replace("DIR", str(tmp_path)) for argument in arguments]
    done = run("evaluate", f"--out={tmp_path / 'out'}", *arguments)
    assert (done.code, done.out) == (2, "")
    assert done.err == message.replace("DIR", str(tmp_path)) + "\n"
    assert [path.name for path in tmp_path.iterdir()] == ["preds.jsonl"]


def test_without_replicates_there_are_figures_and_no_intervals(evaluate, tmp_path):
    path = _write(tmp_path / "p.jsonl", _rows(30))
    done = evaluate(f"--predictions={path}", "--replicates=0", out=tmp_path / "out")
    assert done.code == 0, done.err
    cell = _report(tmp_path / "out")["methods"]["p"]["metrics"]["brier"]
    assert 0 < cell["estimate"] < 1 and cell["low"] is None and cell["high"] is None
    page = (tmp_path / "out" / "report.md").read_text()
    assert "No intervals" in page and "Undefined" not in page


def test_rejected_rows_are_what_the_file_says(evaluate, tmp_path):
    clash = [f'{{"id": "x",  "confidence": {value}, "correct": 1}}' for value in (0.5, 1)]
    bad = '{"id": "y", "confidence": "Zürich", "correct": null, "note": "kept"}'
    path = _write(tmp_path / "p.jsonl", [*_rows(9), clash[0], bad, clash[1]])
    table = tmp_path / "q.csv"
    table.write_text("id,confidence,correct,note\n" + "".join(f"q{i},0.5,1,\n" for i in range(9)))
    with table.open("a") as file:
        file.write('z,1.5,1,"two\nlines"\n')
    done = evaluate(f"--predictions={path},{table}", "--replicates=0", out=tmp_path / "out")
    assert done.code == 0, done.err
    rows = map(json.loads, (tmp_path / "out" / "rejected.jsonl").read_text().splitlines())
    raws = {(Path(row["file"]).name, row["line"]): row["raw"] for row in rows}
    assert raws == {
        ("p.jsonl", 10): clash[0],
        ("p.jsonl", 11): bad,
        ("p.jsonl", 12): clash[1],
        ("q.csv", 11): 'z,1.5,1,"two\nlines"',
    }


def test_a_changed_file_is_told_from_changed_flags_when_resuming(evaluate, tmp_path):
    path = _write(tmp_path / "p.jsonl", _rows(9))
    out = tmp_path / "out"
    assert evaluate(f"--predictions={path}", "--replicates=0", out=out).code == 0
    _write(path, _rows(10))
    done = evaluate(f"--predictions={path}", "--replicates=0", "--resume", out=out)
    assert done.code == 2
    start = f"predictions[{path}]=sha256:"
    assert done.err.startswith(start) and done.err[len(start) + 12 :].startswith(
        ": expected the content sha256:"
    )
    assert "; fix: the same file, or --overwrite, or another --out" in done.err


def test_strict_ends_at_the_first_bad_row(evaluate, tmp_path):
    path = _write(tmp_path / "p.jsonl", [*GOOD, _row(4, 0.5, "yes")])
    done = evaluate(f"--predictions={path}", "--strict", out=tmp_path / "out")
    assert done.code == 2
    expected = f'{path}:4: correct="yes": expected true, false or a number in [0,1]'
    assert done.err.splitlines()[-1].startswith(expected)
    assert not (tmp_path / "out" / "report.json").exists()


def test_utf16_names_the_encoding_and_the_remedy(tmp_path):
    path = tmp_path / "p.jsonl"
    path.write_bytes(json.dumps(GOOD[0]).encode("utf-16"))
    done = run("evaluate", f"--predictions={path}", f"--out={tmp_path / 'out'}")
    assert done.code == 2 and "UTF-16" in done.err and "iconv -f UTF-16" in done.err


def test_help_shows_commands_to_copy_and_starts_no_backend():
    start = time.monotonic()
    done = run("evaluate", "--help")
    assert done.code == 0 and "python -m launch.evaluate --predictions=" in done.out
    for flag in ("--predictions", "--num_bins", "--replicates", "--human", "--rename", "--out"):
        assert flag in done.out
    assert time.monotonic() - start < 60


def test_wrong_files_are_refused_before_jax_is_imported(tmp_path):
    path = _write(tmp_path / "p.jsonl", [_row(1, 55)] * 3)
    code = (
        "import sys; sys.argv = ['evaluate', '--predictions={}', '--out=x']\n"
        "from launch import evaluate, _main\n"
        "try: _main.run(evaluate.main)\n"
        "except SystemExit as stop: print(stop.code, 'jax' in sys.modules)"
    )
    script = tmp_path / "try.py"
    script.write_text(code.format(path))
    assert run(script).out == "2 False\n"
