"""`launch.outcomes` is killed ten times: no answer is lost, none asked for twice."""

import json
import os
import random
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.launch.command import ROOT, command, environment
from tests.reliability.chat_server import ChatServer, serving

pytestmark = pytest.mark.faults

KILLS, QUESTIONS, CONCURRENCY = 10, 150, 8
STAGES = ("without", "with")


def write_questions(directory: Path) -> Path:
    path = directory / "questions.jsonl"
    rows = [
        {
            "id": f"q{number}",
            "question": f"Where does the town of Name{number} lie?",
            "answers": [f"land {number % 4}"],
            "passages": [{"title": f"T{number}", "text": f"Name{number} lies in its land."}],
        }
        for number in range(QUESTIONS)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def start(server: ChatServer, path: Path, out: Path) -> subprocess.Popen:
    argv = [
        "--dataset=own",
        f"--path={path}",
        f"--server={server.url}",
        "--reader=stub",
        "--grader=auto",
        f"--concurrency={CONCURRENCY}",
        f"--batch_size={CONCURRENCY}",
        f"--out={out}",
        "--resume",
    ]
    return subprocess.Popen(
        command("outcomes", *argv),
        cwd=ROOT,
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def finish(server: ChatServer, path: Path, out: Path) -> None:
    with start(server, path, out) as process:
        _, err = process.communicate(timeout=300)
    assert process.returncode == 0, err.decode()


def stored(out: Path) -> set[str]:
    """The prompts (by the name in their answer) whose row is whole on disk."""
    found = set()
    for stage in STAGES:
        path = out / "stages" / f"{stage}.jsonl"
        data = path.read_bytes() if path.exists() else b""
        found |= {json.loads(line)["text"].split()[0] for line in data.split(b"\n")[:-1]}
    return found


def result(out: Path) -> list[dict[str, Any]]:
    """What a finished run says, apart from how long it took."""
    rows = [json.loads(line) for line in (out / "outcomes.jsonl").read_text().splitlines()]
    return [{key: value for key, value in row.items() if key != "seconds"} for row in rows]


def test_ten_kills_lose_nothing_and_ask_nothing_twice(tmp_path):
    path, rng = write_questions(tmp_path), random.Random(5)
    with serving(delay=0.004) as server:
        finish(server, path, tmp_path / "whole")
        n_calls = len(server.calls)
    expected = result(tmp_path / "whole")
    assert n_calls == 2 * QUESTIONS and len(expected) == QUESTIONS
    out, struck = tmp_path / "killed", 0
    with serving(delay=0.004) as server:
        for _ in range(KILLS):
            known, before = stored(out), len(server.calls)
            goal = before + rng.randrange(5, n_calls // KILLS)
            with start(server, path, out) as process:
                try:
                    while len(server.calls) < goal and process.poll() is None:
                        time.sleep(0.001)
                    struck += process.poll() is None
                finally:
                    os.killpg(process.pid, signal.SIGKILL)
            assert not {name[:16] for name in server.calls[before:]} & known
        finish(server, path, out)
        # The kills hit a working process; else this test would prove nothing.
        assert struck >= KILLS // 2
        assert 0 <= len(server.calls) - n_calls <= KILLS * CONCURRENCY
    assert result(out) == expected
