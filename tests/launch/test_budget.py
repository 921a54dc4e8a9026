"""launch.budget: one command from an outcome file to the report; bad flags cost one line."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from launch._budgets import parse_budgets, parse_families
from tests.launch.command import ROOT, environment, run


def test_budgets_are_sorted_shares():
    assert parse_budgets("0.5, 0,1.0,.25") == [0.0, 0.25, 0.5, 1.0]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("0.1,,0.5", "budgets=: expected numbers from 0 to 1"),
        ("1.2", "budgets=1.2: expected .*fix: --budgets=0.012"),
        ("50 %", "budgets=50 %: expected .*fix: --budgets=0.5"),
        ("50", "fix: --budgets=0.5"),
        ("nan", "budgets=nan"),
        ("-0.1", "budgets=-0.1"),
        ("1/2", "budgets=1/2"),
        ("0.5,0.50", "budgets=0.50: expected each budget once"),
    ],
)
def test_a_budget_that_is_no_share_is_named(text, said):
    with pytest.raises(ValueError, match=said):
        parse_budgets(text)


def test_a_family_needs_a_name():
    assert parse_families(["entropy=uncertainty", "a=b=query"]) == {
        "entropy": "uncertainty",
        "a=b": "query",
    }
    with pytest.raises(ValueError, match="families=uncertainty"):
        parse_families(["uncertainty"])


def write(path: Path, n: int = 60) -> Path:
    rng = np.random.default_rng(0)
    parts = ("train", "calibration", "test")
    header = "id,correct_without,correct_with,scores.entropy,features.query.length,split"
    lines = [
        f"q{i},{int(without < 0.3)},{int(with_evidence < 0.5)},{score},{i % 7},{parts[i % 3]}"
        for i, (without, with_evidence, score) in enumerate(rng.random((n, 3)))
    ]
    path.write_text("\n".join([header, *lines]) + "\n")
    return path


def test_a_csv_with_splits_gives_the_whole_report_and_the_fitted_routers(tmp_path):
    path, out = write(tmp_path / "o.csv"), tmp_path / "out"
    done = run(
        "budget",
        f"--examples={path}",
        f"--out={out}",
        "--budgets=0.5,0.25",
        "--families=entropy=uncertainty",
        "--replicates=40",
        env=environment(CALIBJAX_CACHE=str(tmp_path / "cache")),
    )
    assert done.code == 0, done.err
    assert done.out.startswith("kept 60 of 60 rows")
    report = json.loads((out / "report.json").read_text())
    assert report["settings"]["split"] == "column"
    assert list(report["routers"]["entropy"]["deployable"]) == ["0.25", "0.5"]
    assert report["routers"]["entropy"]["cost"] is None
    names = {path.stem for path in (out / "routers").iterdir()}
    assert names == {"bur_linear_query", "bur_gbm_query"}
    assert (out / "report.md").exists() and (out / "frontiers.png").exists()


@pytest.mark.parametrize(
    ("rows", "given", "said"),
    [
        ("id,correct_without,scores.a\nq,0,1\n", [], "no column correct_with"),
        (
            "id,correct_without,correct_with,scores.a\nq,0,1,1\nr,0,,1\n",
            [],
            "correct_with is missing in 1 of 2 rows, first at line 3; fix: ",
        ),
        (
            "id,correct_without,correct_with,scores.a\nq,0,1,1\nr,0,1,\n",
            [],
            "router scores.a is missing in 1 of 2 rows, first at line 3; fix: ",
        ),
        ("id,correct_without,correct_with,scores.a\nq,0,1,1\n", ["--budgets=50 %"], "budgets=50 %"),
        ("id,correct_without,correct_with,scores.a\nq,0,1,1\n", ["--budgets=1.2"], "budgets=1.2"),
    ],
)
def test_input_that_cannot_be_judged_costs_one_line(rows, given, said, tmp_path):
    path = tmp_path / "o.csv"
    path.write_text(rows)
    done = run("budget", f"--examples={path}", *given, f"--out={tmp_path / 'out'}")
    assert done.code == 2 and len(done.err.splitlines()) == 1, done.err
    assert said in done.err
    assert not (tmp_path / "out").exists()


def test_learning_without_features_is_refused(tmp_path):
    path = tmp_path / "o.csv"
    rows = "".join(f"q{i},{i % 2},{i % 3 % 2},{i}\n" for i in range(12))
    path.write_text("id,correct_without,correct_with,scores.a\n" + rows)
    done = run("budget", f"--examples={path}", "--learned=both", f"--out={tmp_path / 'out'}")
    assert done.code == 2 and len(done.err.splitlines()) == 1
    assert "learned=both: expected columns features.<family>.<name>" in done.err
    assert "fix: drop --learned" in done.err
    assert not (tmp_path / "out").exists()


def test_the_converter_of_the_documentation_runs(tmp_path):
    page = (ROOT / "docs" / "routing.md").read_text()
    code = next(c for c in re.findall(r"```python\n(.*?)```", page, re.S) if "sys.argv[1]" in c)
    (tmp_path / "convert.py").write_text(code)
    arm = {"em": 1, "f1": 1.0}
    meta = {
        "systems": {"no_retrieval": arm, "one_retrieval": {"em": 0, "f1": 0.5}},
        "router_probs": {"no_retrieval": 0.25},
        "verbal": {"says_uncertain": True},
        "seakr_direct": {"perplexity": 1.5, "eigen_score": -0.5},
    }
    row = {"id": "a", "question": "Who is older, Ann Lee or Bo Roe?", "meta": meta}
    (tmp_path / "theirs.jsonl").write_text(json.dumps(row) + "\n")
    done = run(tmp_path / "convert.py", tmp_path / "theirs.jsonl")
    assert done.code == 0, done.err
    made = json.loads(done.out)
    assert (made["correct_without"], made["correct_with"]) == (1, 0)
    assert made["scores"]["classifier"] == 0.75 and made["scores"]["perplexity"] == 1.5
