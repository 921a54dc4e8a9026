"""What every command promises: exit codes, one-line faults, help, and the run directory."""

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.launch.command import ROOT, command, environment, run

SCRIPT = '''
"""Counts questions.

Reads a file and waits for a moment.
"""
import os
import time

from absl import flags

from calibjax.reading import textfiles
from calibjax.errors import InputError
from calibjax.training import signals
from launch import _main

PATH = flags.DEFINE_string("path", None, "the questions", required=True)
K = flags.DEFINE_integer("k", 3, "passages per question", lower_bound=1)
RETRIEVER = flags.DEFINE_enum("retriever", "bm25", ["bm25", "dense"], "how to search")
EPSILON = flags.DEFINE_float("epsilon", 0.5, "threshold", lower_bound=0.0, upper_bound=1.0)
LINES = flags.DEFINE_integer("lines", 3, "how much it says")
SECONDS = flags.DEFINE_float("seconds", 0.0, "how long it takes")


def main() -> None:
    if K.value == 13:
        raise RuntimeError("a bug")
    if K.value == 14:
        raise OSError(28, "No space left on device", "some/file")
    records = textfiles.read_records(PATH.value)
    with _main.open_out(main, files={"path": PATH.value}, harmless=["seconds"]) as out:
        out.reject(records.rejected)
        out.check_same("backbone_sha256", os.environ.get("BACKBONE", "b"))
        with out.stage("work"):
            print("started", flush=True)
            end = time.monotonic() + SECONDS.value
            while time.monotonic() < end:
                signals.check()
                time.sleep(0.01)
            for number in range(LINES.value):
                print("line", number)
        (out.path / "result.txt").write_text("whole")


if __name__ == "__main__":
    _main.run(main, examples=["python -m launch.count --path=questions.jsonl --out=runs/count"])
'''


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    path = tmp_path_factory.mktemp("launch") / "count.py"
    path.write_text(SCRIPT)
    return path


@pytest.fixture
def questions(tmp_path):
    path = tmp_path / "questions.jsonl"
    path.write_text('{"id": "a"}\n{"id": "b"}\n')
    return path


def state_of(directory: Path) -> str:
    """A hash over names and bytes of everything in a directory."""
    entries = sorted(directory.rglob("*"))
    facts = [(str(path), path.read_bytes() if path.is_file() else b"") for path in entries]
    return hashlib.sha256(repr(facts).encode()).hexdigest()


def one_line(done) -> str:
    """The single stderr line of a command that was used wrongly."""
    assert done.code == 2, done
    assert done.out == ""
    lines = done.err.splitlines()
    assert len(lines) == 1, done.err
    return lines[0]


def test_help_says_what_it_does_lists_its_own_flags_and_shows_commands(script):
    done = run(script, "--help")
    assert done.code == 0 and done.err == ""
    for text in (
        "Counts questions.",
        "--k=N",
        "passages per question (default: 3)",
        "--retriever=bm25|dense",
        "--out=TEXT",
        "python -m launch.count --path=questions.jsonl --out=runs/count",
    ):
        assert text in done.out
    # Nothing of absl's own flags, which no newcomer needs.
    assert "--v=" not in done.out and "logtostderr" not in done.out


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["a.jsonl"], "argument=a.jsonl: expected flags only; fix: --path=a.jsonl"),
        (["k=4"], "argument=k=4: expected flags only; fix: --k=4"),
        (["--pathh=x"], "pathh=x: no such flag; fix: did you mean --path"),
        (["--zzz"], "zzz: no such flag; fix: --help lists the flags"),
        (["--path=x", "--k=0"], "k=0: expected an integer >= 1; fix: --k=3"),
        (["--path=x", "--k=1.5"], "k=1.5: expected an integer >= 1; fix: --k=3"),
        (
            ["--path=x", "--retriever=dens"],
            "retriever=dens: expected one of bm25, dense; fix: --retriever=dense",
        ),
        (
            ["--path=x", "--epsilon=nan"],
            "epsilon=nan: expected a finite number; fix: --epsilon=0.5",
        ),
        (
            ["--path=x", "--epsilon=2"],
            "epsilon=2: expected a number in [0.0, 1.0]; fix: --epsilon=0.5",
        ),
        (
            ["--path=x", "--resume=maybe"],
            "resume=maybe: expected true or false; fix: --resume=false",
        ),
        (["--path"], "path=: expected a value; fix: --path=TEXT"),
        ([], "path=: expected a value; fix: --path=TEXT"),
        (
            ["--path=x", "--seed=-1"],
            "seed=-1: expected an integer in [0, 4294967295]; fix: --seed=0",
        ),
    ],
)
def test_a_wrong_flag_is_one_line_that_says_how_to_mend_it(script, arguments, message):
    assert one_line(run(script, *arguments)) == message


def test_a_bug_keeps_its_traceback_and_a_full_disk_says_how_to_go_on(script):
    done = run(script, "--path=x", "--k=13")
    assert done.code == 1 and "Traceback" in done.err and "RuntimeError: a bug" in done.err
    done = run(script, "--path=x", "--k=14", "--out=o")
    assert done.code == 1 and "Traceback" not in done.err
    assert done.err.startswith("some/file: No space left on device (")
    assert " MiB free); free some space and continue with: python -m " in done.err
    assert done.err.rstrip().endswith("--path=x --k=14 --out=o --resume")


def test_a_run_records_what_it_was(script, questions, tmp_path):
    out = tmp_path / "out"
    done = run(script, f"--path={questions}", f"--out={out}", "--seed=7")
    assert done.code == 0, done.err
    record = json.loads((out / "run.json").read_text())
    assert record["seed"] == 7
    assert record["depends_on"]["k"] == 3
    assert record["depends_on"]["path"].startswith("sha256:")
    assert record["versions"]["jax"] and record["host"]["cpus"]
    assert record["seconds"]["work"] >= 0
    assert record["attempts"][0]["status"] == "done"
    assert sorted(os.listdir(out)) == ["result.txt", "run.json"]


def test_a_used_directory_is_left_as_it_is(script, questions, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    (out / "precious.txt").write_text("keep me")
    before = state_of(tmp_path)
    line = one_line(run(script, f"--path={questions}", f"--out={out}"))
    assert line == (
        f"out={out}: expected an empty or new directory;"
        " fix: --resume, --overwrite or another --out"
    )
    assert "run.json" in one_line(run(script, f"--path={questions}", f"--out={out}", "--resume"))
    assert state_of(tmp_path) == before


def test_resuming_needs_the_same_seed_flags_data_and_backbone(script, questions, tmp_path):
    out = tmp_path / "out"
    arguments = [f"--path={questions}", f"--out={out}"]
    assert run(script, *arguments).code == 0
    before = state_of(out)
    fix = "the same flags, or --overwrite, or another --out"
    line = one_line(run(script, *arguments, "--resume", "--seed=1"))
    assert line == f"seed=1: expected 0 as in {out}/run.json; fix: {fix}"
    line = one_line(run(script, *arguments, "--resume", "--k=4"))
    assert line == f"k=4: expected 3 as in {out}/run.json; fix: {fix}"
    both = one_line(run(script, *arguments, "--resume", "--overwrite"))
    assert both == "overwrite=true: expected not both --resume and --overwrite; fix: drop one"
    assert state_of(out) == before
    other = run(script, *arguments, "--resume", env=environment(BACKBONE="other"))
    assert other.code == 2
    assert other.err.startswith("backbone_sha256=other: expected b as in")
    assert run(script, *arguments, "--resume", "--seconds=0.1").code == 0
    # The same content under another name is the same data; other content is not.
    moved = questions.rename(tmp_path / "moved.jsonl")
    assert run(script, f"--path={moved}", f"--out={out}", "--resume").code == 0
    moved.write_text('{"id": "c"}\n')
    line = one_line(run(script, f"--path={moved}", f"--out={out}", "--resume"))
    assert re.fullmatch(
        rf"path=sha256:\w{{12}}: expected the content sha256:\w{{12}} as in {out}/run.json;"
        " fix: the same file, or --overwrite, or another --out",
        line,
    )


def test_any_name_a_file_system_takes_is_taken(script, tmp_path):
    place = tmp_path / "Übung 1 — «ö'\" $x"
    place.mkdir()
    path = place / "fragen ü.jsonl"
    path.write_text('{"id": "a"}\n{"id": NaN}\n')
    ascii_only = environment(PYTHONIOENCODING="ascii", LC_ALL="C")
    for number in range(2):
        out = place / f"lauf {number}"
        with open(tmp_path / "log", "w") as log:
            argv = command(script, f"--path={path}", f"--out={out}")
            done = subprocess.run(argv, cwd=ROOT, env=ascii_only, stdout=log, stderr=log)
        assert done.returncode == 0, (tmp_path / "log").read_text()[-2000:]
        rejected = json.loads((out / "rejected.jsonl").read_text())
        assert rejected["file"] == str(path) and rejected["raw"] == '{"id": NaN}'
        ascii_only = environment()


def test_what_a_killed_writer_left_behind_is_cleared_away(script, questions, tmp_path):
    out = tmp_path / "out"
    arguments = [f"--path={questions}", f"--out={out}"]
    assert run(script, *arguments).code == 0
    (out / ".report.json.123.tmp").write_text('{"half')
    (out / "notes.tmp").write_text("mine")
    assert run(script, *arguments, "--resume").code == 0
    assert sorted(os.listdir(out)) == ["notes.tmp", "result.txt", "run.json"]


def test_overwriting_takes_only_what_an_earlier_run_has_left(script, questions, tmp_path):
    out = tmp_path / "thesis"
    out.mkdir()
    (out / "report.md").write_text("my own report")
    arguments = [f"--path={questions}", f"--out={out}", "--overwrite"]
    for foreign in (None, "{}", '{"attempts": 3}', "not json"):
        if foreign is not None:  # a run.json that some other tool wrote
            (out / "run.json").write_text(foreign)
        before = state_of(tmp_path)
        line = one_line(run(script, *arguments))
        assert line.startswith(f"out={out}: expected an empty directory or an earlier run, found")
        assert line.endswith("report.md; fix: another --out" if foreign is None else "--out")
        assert state_of(tmp_path) == before
    empty = tmp_path / "empty"
    empty.mkdir()
    assert run(script, f"--path={questions}", f"--out={empty}", "--overwrite").code == 0


def test_overwriting_keeps_the_old_run_until_the_new_one_is_done(script, questions, tmp_path):
    out = tmp_path / "out"
    arguments = [f"--path={questions}", f"--out={out}"]
    assert run(script, *arguments).code == 0
    (out / "result.txt").write_text("the old one")
    with start(script, *arguments, "--overwrite", "--seconds=60") as process:
        process.kill()
    assert (out / ".previous" / "result.txt").read_text() == "the old one"
    assert run(script, *arguments, "--overwrite").code == 0
    assert (out / "result.txt").read_text() == "whole"
    assert sorted(os.listdir(out)) == ["result.txt", "run.json"]


def test_overwriting_leaves_what_was_put_beside_a_finished_run(script, questions, tmp_path):
    out = tmp_path / "out"
    arguments = [f"--path={questions}", f"--out={out}"]
    assert run(script, *arguments).code == 0
    (out / "notes.txt").write_text("mine")
    (out / "figures").mkdir()
    for more in (["--overwrite"], ["--resume"], ["--overwrite"]):
        (out / "result.txt").write_text("the old one")
        assert run(script, *arguments, *more).code == 0
        assert (out / "result.txt").read_text() == "whole"
        assert sorted(os.listdir(out)) == ["figures", "notes.txt", "result.txt", "run.json"]
    # A killed attempt may have written what it had not noted; that goes, also after a finished one.
    for more in ("--overwrite", "--resume"):
        with start(script, *arguments, more, "--seconds=60") as process:
            process.kill()
        (out / "part.bin").write_text("by the killed attempt")
        assert run(script, *arguments, "--overwrite").code == 0
        assert sorted(os.listdir(out)) == ["figures", "notes.txt", "result.txt", "run.json"]


def test_overwriting_refuses_an_input_file_of_the_same_directory(script, questions, tmp_path):
    out = tmp_path / "out"
    assert run(script, f"--path={questions}", f"--out={out}").code == 0
    inside = out / "questions.jsonl"
    inside.write_bytes(Path(questions).read_bytes())
    before = state_of(tmp_path)
    line = one_line(run(script, f"--path={inside}", f"--out={out}", "--overwrite"))
    assert line.startswith(f"path={inside}: expected a path outside {out}, whose files")
    assert state_of(tmp_path) == before


def start(script: Path, *arguments: object) -> subprocess.Popen:
    """Starts the command and waits until it is at work."""
    process = subprocess.Popen(
        command(script, *arguments),
        cwd=ROOT,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None and process.stdout.readline() == "started\n"
    return process


def test_two_commands_cannot_share_a_directory_and_a_dead_ones_lock_is_taken_over(
    script, questions, tmp_path
):
    out = tmp_path / "out"
    arguments = [f"--path={questions}", f"--out={out}"]
    with start(script, *arguments, "--seconds=60") as process:
        for more in ([], ["--resume"], ["--overwrite"]):
            line = one_line(run(script, *arguments, *more))
            assert line.startswith(f"out={out}: in use by pid {process.pid} on host ")
        process.kill()
    done = run(script, *arguments, "--resume")
    assert done.code == 0
    assert f"taking over the lock of pid {process.pid} on host" in done.err
    assert not (out / ".lock").exists()


@pytest.mark.parametrize(
    "signum, code", [(signal.SIGTERM, 143), (signal.SIGUSR1, 143), (signal.SIGINT, 130)]
)
def test_a_signal_stops_the_run_with_its_code_and_the_command_to_go_on(
    script, questions, tmp_path, signum, code
):
    out = tmp_path / "out"
    with start(script, f"--path={questions}", f"--out={out}", "--seconds=60") as process:
        process.send_signal(signum)
        _, err = process.communicate(timeout=10)
    assert process.returncode == code
    assert err.splitlines() == [
        f"stopped by {signum.name}; continue with: python -m {script.parent.name}.count"
        f" --path={questions} --out={out} --seconds=60 --resume"
    ]
    record = json.loads((out / "run.json").read_text())
    assert record["attempts"][0]["status"] == "stopped: Preempted"
    assert run(script, f"--path={questions}", f"--out={out}", "--resume").code == 0


def test_a_reader_that_goes_away_does_not_stop_the_run(script, questions, tmp_path):
    out = tmp_path / "out"
    argv = command(script, f"--path={questions}", f"--out={out}", "--lines=20000")
    with subprocess.Popen(
        argv, cwd=ROOT, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        process.stdout.readline()
        process.stdout.close()
        err = process.stderr.read()
        assert process.wait(timeout=600) == 0, err
    assert b"Traceback" not in err and b"Broken pipe" not in err
    assert (out / "result.txt").read_text() == "whole"


def test_closed_standard_streams_are_no_reason_to_stop(script, questions, tmp_path):
    for number in (0, 1, 2):
        out = tmp_path / f"out{number}"
        argv = command(script, f"--path={questions}", f"--out={out}")
        closing = f"exec {number}>&-; exec " + " ".join(argv)
        done = subprocess.run(["bash", "-c", closing], cwd=ROOT, env=environment())
        assert done.returncode == 0
        assert (out / "result.txt").read_text() == "whole"


@pytest.mark.parametrize("out", ["/dev/null", "/dev/null/x", "/proc/none/x", ""])
def test_a_place_that_cannot_be_written_is_refused_before_any_work(script, questions, out):
    line = one_line(run(script, f"--path={questions}", f"--out={out}"))
    assert line.startswith(f"out={out}: expected a ") and "; fix: " in line


def test_bad_rows_are_set_aside_or_with_strict_end_the_run(script, questions, tmp_path):
    with open(questions, "a") as file:
        file.write('{"id": NaN}\n{"id": "c"}\n')
    out = tmp_path / "out"
    done = run(script, f"--path={questions}", f"--out={out}")
    assert done.code == 0
    rejected = json.loads((out / "rejected.jsonl").read_text())
    assert (rejected["file"], rejected["line"]) == (str(questions), 3)
    assert rejected["reason"] == "id=NaN: expected a finite number"
    done = run(script, f"--path={questions}", f"--out={tmp_path / 'strict'}", "--strict")
    assert done.code == 2
    assert f"{questions}:3: id=NaN: expected a finite number; fix: " in done.err


def test_without_a_home_caches_go_into_the_run_directory(script, questions, tmp_path):
    unset = ("HOME", "XDG_CACHE_HOME", "CALIBJAX_CACHE")
    bare = {name: value for name, value in environment().items() if name not in unset}
    out = tmp_path / "out"
    assert run(script, f"--path={questions}", f"--out={out}", env=bare).code == 0
    assert list((out / ".cache" / "xla").iterdir())


def test_a_wrong_flag_is_answered_without_starting_jax():
    """What a user gets wrong most often should not cost the seconds that JAX takes to import."""
    check = "import sys; from launch import _main; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], cwd=ROOT).returncode == 0
