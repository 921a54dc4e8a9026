"""`launch.label` is killed twenty times and cut at every byte: no row is lost, none asked twice."""

import json
import os
import random
import re
import shlex
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.launch.command import ROOT, command, environment
from tests.reliability.chat_server import ChatServer, serving

pytestmark = pytest.mark.faults

KILLS = 20
QUESTIONS = 120
DOCS = 3
CONCURRENCY = 8
STAGES = ("guidance", "decisions")


def write_inputs(directory: Path, count: int) -> list[str]:
    """Question and corpus files; returns the flags that name them."""
    questions, corpus = directory / "questions.jsonl", directory / "corpus.jsonl"
    with open(questions, "w") as file:
        for number in range(count):
            row = {
                "id": f"q{number}",
                "question": f"Where does the town of Name{number} lie?",
                "answers": [f"land {number % 4}"],
            }
            file.write(json.dumps(row) + "\n")
    with open(corpus, "w") as file:
        for number in range(count):
            text = f"The town of Name{number} lies amid its land, near Name{number + 1}."
            file.write(json.dumps({"id": f"p{number}", "title": f"T{number}", "text": text}) + "\n")
    return [f"--path={questions}", f"--corpus={corpus}", "--dataset=own", "--k=8"]


def arguments(server: ChatServer, out: Path, inputs: list[str]) -> list[str]:
    return [
        *inputs,
        f"--server={server.url}",
        "--reader=stub",
        f"--docs_per_question={DOCS}",
        "--draws=4",
        f"--concurrency={CONCURRENCY}",
        f"--batch_size={CONCURRENCY}",
        f"--out={out}",
        "--resume",
    ]


def start(argv: list[str]) -> subprocess.Popen:
    """The command in a process group of its own."""
    return subprocess.Popen(
        command("label", *argv),
        cwd=ROOT,
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def finish(argv: list[str]) -> None:
    with start(argv) as process:
        _, err = process.communicate(timeout=300)
    assert process.returncode == 0, err.decode()


def stored(out: Path) -> dict[str, set[str]]:
    """Per stage, the prompts (by the name in their answer) whose row is whole on disk."""
    found = {}
    for stage in STAGES:
        path = out / "stages" / f"{stage}.jsonl"
        data = path.read_bytes() if path.exists() else b""
        rows = [json.loads(line) for line in data.split(b"\n")[:-1]]
        found[stage] = {row["texts"][0].split()[0] for row in rows}
    return found


def result(out: Path) -> dict[str, Any]:
    """What a finished run leaves, apart from times and counts of this attempt."""
    shards = json.loads((out / "supervision" / "manifest.json").read_text())["shards"]
    texts = {path.name: path.read_bytes() for path in (out / "stages").iterdir()}
    return {"shards": shards, "rows": (out / "supervision.jsonl").read_bytes(), **texts}


def test_twenty_kills_lose_nothing_and_ask_nothing_twice(tmp_path):
    inputs = write_inputs(tmp_path, QUESTIONS)
    rng = random.Random(12)
    with serving(fault_share=0.09, delay=0.002) as server:
        finish(arguments(server, tmp_path / "whole", inputs))
        expected = result(tmp_path / "whole")
        n_calls = len(server.calls)
    # Each pair is asked once for guidance and once for decisions, and once more after a fault.
    assert n_calls == 2 * QUESTIONS * DOCS + sum(server.faults.values())
    assert len(server.faults) == 6

    out = tmp_path / "killed"
    struck = 0
    with serving(fault_share=0.09, delay=0.002) as server:
        argv = arguments(server, out, inputs)
        for _ in range(KILLS):
            known = stored(out)
            before = len(server.calls)
            goal = before + rng.randrange(10, 2 * n_calls // KILLS - 10)
            with start(argv) as process:
                try:
                    while len(server.calls) < goal and process.poll() is None:
                        time.sleep(0.001)
                    time.sleep(rng.uniform(0.0, 0.02))
                    struck += process.poll() is None
                finally:
                    os.killpg(process.pid, signal.SIGKILL)
            asked = {name[:16] for name in server.calls[before:]}
            assert not asked & set.union(*known.values()), "a row on disk was asked for again"
        finish(argv)
        # The kills hit a working process; else this test would prove nothing.
        assert struck >= KILLS // 2
        repeats = len(server.calls) - 2 * QUESTIONS * DOCS - sum(server.faults.values())
        assert 0 < repeats <= KILLS * CONCURRENCY
    assert result(out) == expected
    check_rows(out)
    attempts = json.loads((out / "run.json").read_text())["attempts"]
    assert len(attempts) == KILLS + 1


def check_rows(out: Path) -> None:
    """Each pair once, with what the server answers to its prompts."""
    rows = [json.loads(line) for line in (out / "supervision.jsonl").read_text().splitlines()]
    pairs = [(row["question_id"], row["passage_id"]) for row in rows]
    assert len(pairs) == len(set(pairs)) == QUESTIONS * DOCS
    assert {question for question, _ in pairs} == {f"q{number}" for number in range(QUESTIONS)}
    for row in rows:
        gold = int(row["question_id"][1:]) % 4
        assert row["verdicts"] == [int(f"land {gold}" in text) for text in row["decisions"]]
        assert row["label"] == sum(row["verdicts"]) / 4
    data = (out / "stages" / "decisions.jsonl").read_text()
    decisions = [json.loads(line) for line in data.splitlines()]
    names = [row["texts"][0].split()[0] for row in decisions]
    assert len(set(names)) == len(rows)
    for row in decisions[:50]:
        assert all(re.fullmatch(r"[0-9a-f]{16} land [0-3]", text) for text in row["texts"])


def test_a_stage_cut_at_any_byte_of_its_end_loses_at_most_the_torn_row(tmp_path):
    """In this process, through the labeller: 400 starts of the command would take half an hour."""
    from calibjax.generation import OpenAIClient
    from calibjax.retrieval import BM25Retriever
    from calibjax.sources import load_corpus, load_questions
    from calibjax.supervision.asking import Model
    from calibjax.supervision.grading import AliasGrader
    from calibjax.supervision.labels import Labeller, Settings

    inputs = dict(flag[2:].split("=") for flag in write_inputs(tmp_path, 6))
    questions = load_questions("own", inputs["path"]).questions
    retriever = BM25Retriever(load_corpus(inputs["corpus"]).passages)
    settings = Settings(k=4, draws=4)
    stages = tmp_path / "stages"
    with serving() as server:
        client = OpenAIClient(server.url, "stub")
        model = Model(client, "stub")

        def label():
            labeller = Labeller(model, model, AliasGrader(), stages, settings)
            return labeller.label(questions, retriever, retriever.passages).rows

        expected = label()
        whole = {path.name: path.read_bytes() for path in stages.iterdir()}
        for stage in STAGES:
            data = whole[f"{stage}.jsonl"]
            for cut in range(1, 401, 1 if stage == "decisions" else 11):
                (stages / f"{stage}.jsonl").write_bytes(data[:-cut])
                before = len(server.calls)
                assert label() == expected
                kept = data[:-cut].count(b"\n")
                # The line feed alone is no loss: the row before it is whole.
                kept += data[len(data) - cut : len(data) - cut + 1] == b"\n"
                assert len(server.calls) - before == len(expected) - kept
                assert {path.name: path.read_bytes() for path in stages.iterdir()} == whole


def test_a_signal_ends_the_run_with_the_command_that_goes_on(tmp_path):
    inputs = write_inputs(tmp_path, 40)
    with serving(delay=0.02) as server:
        finish(arguments(server, tmp_path / "whole", inputs))
        argv = arguments(server, tmp_path / "out", inputs)
        before = len(server.calls)
        with start(argv) as process:
            while len(server.calls) < before + 60:
                time.sleep(0.001)
            process.terminate()
            _, err = process.communicate(timeout=30)
        assert process.returncode == 143
        assert "stopped by SIGTERM; continue with: python -m launch.label" in err.decode()
        finish(argv)
    assert result(tmp_path / "out") == result(tmp_path / "whole")


def test_a_full_disk_loses_no_row(tmp_path):
    """A limit on file sizes takes the path of a full disk: a short write, then an error."""
    inputs = write_inputs(tmp_path, 40)
    with serving() as server:
        finish(arguments(server, tmp_path / "whole", inputs))
        argv = arguments(server, tmp_path / "out", inputs)
        limited = "ulimit -f 20; exec " + shlex.join(command("label", *argv))
        done = subprocess.run(
            ["bash", "-c", limited], cwd=ROOT, env=environment(), capture_output=True, text=True
        )
        assert done.returncode == 1
        last = done.stderr.splitlines()[-1]
        assert last.startswith(f"{tmp_path}/out/stages/guidance.jsonl: File too large (")
        assert last.endswith(shlex.join(argv[:-1]) + " --resume")
        kept = (tmp_path / "out" / "stages" / "guidance.jsonl").read_bytes()
        assert kept.endswith(b"}\n") and len(kept) <= 20 * 1024
        before = len(server.calls)
        finish(argv)
        assert len(server.calls) - before == 2 * 40 * DOCS - kept.count(b"\n")
    assert result(tmp_path / "out") == result(tmp_path / "whole")
    assert not list((tmp_path / "out").rglob("*.tmp"))


def test_a_server_that_is_not_there_is_said_before_any_work(tmp_path):
    inputs = write_inputs(tmp_path, 3)
    with serving() as server:
        argv = arguments(server, tmp_path / "out", inputs)
    with start(argv) as process:
        _, err = process.communicate(timeout=60)
    assert process.returncode == 2
    assert server.url in err.decode() and "Traceback" not in err.decode()
    assert not (tmp_path / "out").exists()
