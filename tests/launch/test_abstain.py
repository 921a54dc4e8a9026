"""launch.abstain: from files of scores, TREC files or questions to decisions and a report."""

import csv
import json

import pytest

from calibjax.abstention.examples import load_examples
from launch import _abstain_inputs
from tests.abstention.data import make_examples
from tests.launch.command import environment, run

# 60 queries of one hop in every run: equal shapes, so that later runs find their programs.
N = 60


def write(path, examples, **changes):
    keys = ("id", "question", "hop1_scores", "success")
    rows = [{key: getattr(example, key) for key in keys} | changes for example in examples]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    path = tmp_path_factory.mktemp("abstain")
    for name, seed in (("a", 1), ("b", 2)):
        examples = make_examples(N, seed, with_hop2=False, prefix=name)
        write(path / f"{name}.jsonl", examples)
    return path


@pytest.fixture(scope="module")
def abstain(place):
    env = environment(CALIBJAX_CACHE=str(place / "cache"))

    def call(*arguments, out, code=0):
        more = ["--replicates=40", f"--out={place / out}"]
        done = run("abstain", *more, *arguments, timeout=600, env=env)
        assert done.code == code, done.err
        return done

    return call


def report_of(place, out):
    return json.loads((place / out / "report.json").read_text())


@pytest.fixture(scope="module")
def single(abstain, place):
    torn = (place / "a.jsonl").read_text() + '{"id": "torn\n'
    (place / "torn.jsonl").write_text(torn)
    return abstain(f"--examples={place / 'torn.jsonl'}", out="single")


def test_one_file_gives_the_whole_report(single, place):
    report = report_of(place, "single")
    assert report["rows"]["n_kept"] == N and report["rows"]["n_rejected"] == 1
    assert "60 questions, 1 rows rejected" in single.out
    for key in ("signals", "rcs", "thresholds", "ablation", "comparisons", "conformal"):
        assert report[key], key
    names = {path.name for path in (place / "single").iterdir()}
    files = "report.json report.md report.tex report.csv rcs.json rcs_certified.json run.json"
    plots = "decisions.jsonl rejected.jsonl accuracy_coverage.png risk.png weights.png"
    assert {*files.split(), *plots.split()} <= names


def test_tables_say_what_the_json_says(single, place):
    report = report_of(place, "single")
    with open(place / "single" / "report.csv", newline="") as file:
        rows = {(r["kind"], r["name"], r["figure"]): r for r in csv.DictReader(file)}
    for name, signal in report["signals"].items():
        assert float(rows["signal", name, "auc_ac"]["estimate"]) == signal["auc_ac"]["estimate"]
    for name, weight in report["rcs"]["weights"].items():
        assert float(rows["weight", name, "weight"]["estimate"]) == weight
    page = (place / "single" / "report.md").read_text()
    assert f"{report['signals']['rcs']['auc_ac']['estimate']:.3f}" in page
    latex = (place / "single" / "report.tex").read_text()
    assert latex.count("{") == latex.count("}") and r"query\_len\_inv" in latex


def test_every_question_has_a_decision(single, place):
    lines = (place / "single" / "decisions.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    tau = report_of(place, "single")["thresholds"]["suffix"]["tau"]
    assert len(rows) == N
    for row in rows:
        answers = tau is not None and row["confidence"] >= tau
        assert row["decision"] == ("answer" if answers else "abstain")


def test_a_stored_score_gives_the_same_confidence_without_success(single, abstain, place):
    examples = load_examples(place / "a.jsonl").examples
    write(place / "new.jsonl", examples[:5], success=None)
    stored = f"--apply={place / 'single' / 'rcs.json'}"
    abstain(f"--examples={place / 'new.jsonl'}", stored, "--tau=0.5", out="applied")
    rows = [json.loads(s) for s in (place / "applied" / "decisions.jsonl").read_text().splitlines()]
    known = [json.loads(s) for s in (place / "single" / "decisions.jsonl").read_text().splitlines()]
    assert [row["confidence"] for row in rows] == [row["confidence"] for row in known[:5]]
    counts = report_of(place, "applied")["applied"]["new"]["decisions"]
    assert sum(counts.values()) == 5


def test_a_fit_from_another_file_is_transferred_to_the_last_bit(single, abstain, place):
    fit = f"--fit_examples={place / 'a.jsonl'}"
    abstain(f"--examples={place / 'b.jsonl'}", fit, out="transfer")
    cell = report_of(place, "transfer")["transfer"]["a"]
    own = report_of(place, "single")["rcs"]
    assert cell["rcs"]["weights"] == own["weights"] and cell["rcs"]["mean"] == own["mean"]
    assert cell["auc_ac"]["estimate"] is not None


def test_questions_go_through_retrieval_and_their_examples_can_be_read_again(abstain, place):
    rows = [
        {
            "id": f"q{i}",
            "question": f"where is item{i} kept",
            "answers": ["here"],
            "passages": [
                {"title": "", "text": f"item{i if i % 3 else i + 1} is kept here", "is_gold": True},
                {"title": "", "text": f"item{i} was a thing of number {i}", "is_gold": False},
            ],
        }
        for i in range(N)
    ]
    (place / "own.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    flags = ["--dataset=own", f"--path={place / 'own.jsonl'}", "--retriever=bm25", "--k=1"]
    abstain(*flags, out="own")
    report = report_of(place, "own")
    assert report["rows"]["n"] == N and report["rows"]["n_passages"] >= N
    again = load_examples(place / "own" / "examples.own.jsonl")
    assert len(again.examples) == N and not again.rejected
    rate = sum(example.success for example in again.examples) / N
    assert 0 < rate < 1


# --------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    "flags, reason",
    [
        ([], "expected one of --examples, --run, --dataset; found none of them"),
        (["--examples=DIR/a.jsonl", "--run=DIR/r"], "found --examples and --run"),
        (["--examples=DIR/aa.jsonl"], "no such file; fix: did you mean"),
        (["--examples=DIR/a.jsonl,DIR/a.jsonl"], "each file once"),
        (["--run=DIR/a.run"], "qrels=: expected a file of relevance judgements"),
        (["--examples=DIR/a.jsonl", "--below=refuse"], "below=refuse"),
        (["--examples=DIR/a.jsonl", "--target=1.5"], "target=1.5"),
        (["--dataset=hotpotqq", "--path=DIR"], "did you mean hotpotqa"),
        (["--dataset=hotpotqa", "--path=DIR"], "hotpotqa.jsonl"),
        (["--dataset=hotpotqa,2wiki", "--path=DIR/a.jsonl"], "2 files, one for each"),
        (["--run=DIR/a.run", "--qrels=DIR/other.qrels"], "no query in common"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(place, tmp_path, flags, reason):
    (place / "a.run").write_text("q1 Q0 d1 1 0.5 t\n")
    (place / "other.qrels").write_text("x1 0 d1 1\n")
    given = [flag.replace("DIR", str(place)) for flag in flags]
    done = run("abstain", *given, f"--out={tmp_path / 'out'}", timeout=120)
    assert done.code == 2 and len(done.err.splitlines()) == 1, done.err
    assert reason in done.err
    assert not (tmp_path / "out").exists()


def test_trec_files_say_what_is_missing(tmp_path):
    (tmp_path / "a.run").write_text("q1 Q0 d1 1 0.5 t\nq2 Q0 d1 1 0.5\nq3 Q0 d1 1 0.5 t\n")
    (tmp_path / "a.qrels").write_text("q1 0 d1 1\nq4 0 d1 1\n")
    found = _abstain_inputs.from_trec(str(tmp_path / "a.run"), str(tmp_path / "a.qrels"), None, 5)
    assert found.counts["n_queries"] == 3 and found.counts["n_missing"] == 2
    assert found.counts["no_run"] == ["q4"] and found.counts["no_qrels"] == ["q3"]
    assert [row.line for row in found.rejected] == [2]
    assert any("q4" in note for note in found.notes)
