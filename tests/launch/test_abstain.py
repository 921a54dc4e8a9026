"""launch.abstain: from files of scores, TREC files or questions to decisions and a report."""

import csv
import json
import re
import subprocess
import sys

import pytest

from calibjax.abstention.examples import load_examples
from launch import _abstain_inputs
from tests.abstention.data import make_examples
from tests.launch.command import ROOT, environment, run
from tests.reliability import chat_server

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
        fits = not any(str(flag).startswith("--apply") for flag in arguments)
        more = [f"--out={place / out}", *(["--replicates=40"] if fits else [])]
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


def test_a_stored_score_that_reads_the_question_names_the_row_without_one(single, abstain, place):
    rows = [json.loads(line) for line in (place / "a.jsonl").read_text().splitlines()[:3]]
    del rows[1]["question"]
    (place / "some.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    stored = f"--apply={place / 'single' / 'rcs.json'}"
    done = abstain(f"--examples={place / 'some.jsonl'}", stored, "--tau=0.5", out="some", code=2)
    wanted = f"1 of 3 rows lack it, such as id={rows[1]['id']}; fix: add the question to every row"
    assert "question: needed for query_len" in done.err and wanted in done.err


def test_a_fit_from_another_file_is_transferred_to_the_last_bit(single, abstain, place):
    fit = f"--fit_examples={place / 'a.jsonl'}"
    abstain(f"--examples={place / 'b.jsonl'}", fit, out="transfer")
    cell = report_of(place, "transfer")["transfer"]["a"]
    own = report_of(place, "single")["rcs"]
    assert cell["rcs"]["weights"] == own["weights"] and cell["rcs"]["mean"] == own["mean"]
    assert cell["auc_ac"]["estimate"] is not None


def test_files_of_one_name_are_called_by_their_directories(abstain, place):
    for name in ("train", "new"):
        (place / name).mkdir()
    (place / "train" / "set.jsonl").write_bytes((place / "a.jsonl").read_bytes())
    (place / "new" / "set.jsonl").write_bytes((place / "b.jsonl").read_bytes())
    fit = f"--fit_examples={place / 'train' / 'set.jsonl'}"
    abstain(f"--examples={place / 'new' / 'set.jsonl'}", fit, out="same_name")
    report = report_of(place, "same_name")
    assert report["name"] == "new/set" and report["transfer"].keys() == {"train/set"}


def test_names_are_as_short_as_they_can_be():
    names = _abstain_inputs.names_of(["x/a/h.jsonl", "y/a/h.jsonl", "b/h.csv.gz", "c/other.jsonl"])
    assert names == ["x/a/h", "y/a/h", "b/h", "other"]
    assert _abstain_inputs.names_of(["a/h.jsonl", "a/h.csv"]) == ["h.jsonl", "h.csv"]
    assert _abstain_inputs.names_of(["a/h.jsonl", "a/../a/h.jsonl"]) == ["h", "h"]


@pytest.fixture(scope="module")
def questions(place):
    """The flags of a set whose first hop finds some of the gold passages."""
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
    return ["--dataset=own", f"--path={place / 'own.jsonl'}", "--retriever=bm25", "--k=1"]


def test_questions_go_through_retrieval_and_their_examples_can_be_read_again(
    abstain, place, questions
):
    abstain(*questions, out="own")
    report = report_of(place, "own")
    assert report["rows"]["n"] == N and report["rows"]["n_passages"] >= N
    again = load_examples(place / "own" / "examples.own.jsonl")
    assert len(again.examples) == N and not again.rejected
    rate = sum(example.success for example in again.examples) / N
    assert 0 < rate < 1
    assert report["rows"]["recall_at_k"] == pytest.approx(rate)  # one gold passage each


def test_a_judge_on_a_server_grades_the_pool_and_what_it_says_is_kept(
    abstain, place, questions, monkeypatch
):
    # A function of the prompt: a grade, or now and then no grade.
    replies = ("A", "(B)", "Letter: C", "According to the passage")
    monkeypatch.setattr(chat_server, "answer", lambda name, _: replies[int(name[0], 16) % 4])
    with chat_server.serving() as server:
        judge = ["--architecture=judge", f"--server={server.url}", f"--judge={chat_server.MODEL}"]
        more = ["--pool=3", "--rescue", "--rescue_coverage=0.7"]
        abstain(*questions, *judge, *more, out="judged")
        calls = len(server.calls)
        abstain(*questions, *judge, *more, "--resume", out="judged")
        # All that the server said is on disk.
        assert len(server.calls) == calls
    report = report_of(place, "judged")
    rows = report["rows"]
    assert 0 < rows["n_unparsed"] < rows["n_judged"] <= 3 * N
    text = (place / "judged" / "report.md").read_text()
    assert "name no grade" in text
    assert f"Hop 1 alone, without the judge: recall {rows['recall_of_hop1']:.3f}." in text
    assert {"hop2_max", "hop2_margin", "hop2_H"} <= report["rcs"]["weights"].keys()
    kept = load_examples(place / "judged" / "examples.own.jsonl").examples
    rescued = [example for example in kept if example.rescue_success is not None]
    assert report["rescue"]["n_flagged"] == rows["n_rescued"] == len(rescued)
    assert report["router"]["pipelines"].keys() == {"dense", "judge"}


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
        (["--examples=DIR/a.jsonl", "--k=3"], "k=3: expected --run or --dataset beside it"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(place, tmp_path, flags, reason):
    (place / "a.run").write_text("q1 Q0 d1 1 0.5 t\n")
    (place / "other.qrels").write_text("x1 0 d1 1\n")
    given = [flag.replace("DIR", str(place)) for flag in flags]
    done = run("abstain", *given, f"--out={tmp_path / 'out'}")
    assert done.code == 2 and len(done.err.splitlines()) == 1, done.err
    assert reason in done.err
    assert not (tmp_path / "out").exists()


REFUSED = {
    "--examples=a --exclude_self": "exclude_self",
    "--examples=a --qrels=q": "qrels",
    "--examples=a --tau=0.5": "tau",
    "--examples=a --architecture=judge": "architecture",
    "--examples=a --retriever=bm25": "retriever",
    "--examples=a --apply=r --target=0.1": "target",
    "--examples=a --apply=r --fit_examples=b": "fit_examples",
    "--examples=a --rescue": "rescue",
    "--run=r --forecaster=f": "forecaster",
    "--run=r --rescue_coverage=0.5": "rescue_coverage",
    "--dataset=own --path=p --alpha=0.2": "alpha",
    "--dataset=own --path=p --server=http://x": "server",
    "--dataset=own --path=p --rescue --pool=9": "pool",
    "--dataset=own --path=p --retriever=bm25 --encoder=e": "encoder",
    "--dataset=own --path=p --rescue --concurrency=2": "concurrency",
    "--dataset=own --path=p --rescue_coverage=0.5": "rescue_coverage",
}
TAKEN = (
    "--examples=a --rescue_coverage=0.5 --fit_examples=b",
    "--examples=a --apply=r --tau=0.5 --below=escalate:x",
    "--run=r --qrels=q --questions=t --k=3 --exclude_self --target=0.1",
    "--dataset=own --path=p --architecture=judge --pool=9 --alpha=0 --server=u --concurrency=2",
    "--path=p --rescue --rescue_coverage=0.9 --judge=m --bridge_writer=llm --encoder=e",
)


@pytest.fixture(scope="module")
def complaints():
    """What is said of each command line, "" where nothing is. One process: flags are global."""
    script = (
        "import json, sys\n"
        "from absl import flags\n"
        "from absl.testing import flagsaver\n"
        "from launch import abstain, _abstain_combinations\n"
        "said = {}\n"
        "for given in json.loads(sys.argv[1]):\n"
        "    with flagsaver.flagsaver():\n"
        "        flags.FLAGS(['abstain', *given.split()])\n"
        "        try:\n"
        "            said[given] = _abstain_combinations.check() or ''\n"
        "        except ValueError as error:\n"
        "            said[given] = str(error)\n"
        "print(json.dumps(said))\n"
    )
    cases = json.dumps([*REFUSED, *TAKEN])
    command = [sys.executable, "-c", script, cases]
    done = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("given", REFUSED)
def test_a_flag_that_would_be_ignored_is_refused(complaints, given):
    name = REFUSED[given]
    assert re.fullmatch(f"{name}=.* beside it; fix: drop --{name}", complaints[given])


@pytest.mark.parametrize("given", TAKEN)
def test_flags_that_have_an_effect_are_taken(complaints, given):
    assert complaints[given] == ""


def test_a_querys_own_document_is_left_out_on_request(tmp_path):
    (tmp_path / "a.run").write_text("q1 Q0 q1 1 0.9 t\nq1 Q0 d1 2 0.5 t\nq2 Q0 d2 1 0.5 t\n")
    (tmp_path / "a.qrels").write_text("q1 0 d1 1\nq2 0 d2 1\n")
    files = str(tmp_path / "a.run"), str(tmp_path / "a.qrels"), None
    kept = _abstain_inputs.from_trec(*files, k=1)
    assert kept.counts["own_document"] == ["q1"] and not kept.counts["exclude_self"]
    assert "kept; --exclude_self" in kept.notes[0] and kept.examples[0].success == 0
    without = _abstain_inputs.from_trec(*files, k=1, exclude_self=True)
    assert without.examples[0].hop1_scores == (0.5,) and without.examples[0].success == 1
    assert "left out" in without.notes[0]


def test_trec_files_say_what_is_missing(tmp_path):
    (tmp_path / "a.run").write_text("q1 Q0 d1 1 0.5 t\nq2 Q0 d1 1 0.5\nq3 Q0 d1 1 0.5 t\n")
    (tmp_path / "a.qrels").write_text("q1 0 d1 1\nq4 0 d1 1\n")
    files = str(tmp_path / "a.run"), str(tmp_path / "a.qrels"), None
    found = _abstain_inputs.from_trec(*files, k=5)
    assert found.counts["n_queries"] == 3 and found.counts["n_missing"] == 2
    assert found.counts["no_run"] == ["q4"] and found.counts["no_qrels"] == ["q3"]
    assert [row.line for row in found.rejected] == [2]
    assert any("q4" in note for note in found.notes)


def test_a_query_without_results_and_judgements_is_missing_once(tmp_path):
    (tmp_path / "a.run").write_text("q1 Q0 d1 1 0.5 t\n")
    (tmp_path / "a.qrels").write_text("q1 0 d1 1\nq2 0 d1 0\n")
    found = _abstain_inputs.from_trec(str(tmp_path / "a.run"), str(tmp_path / "a.qrels"), None, k=5)
    assert found.counts["no_run"] == found.counts["no_qrels"] == ["q2"]
    assert found.counts["n_missing"] == 1
