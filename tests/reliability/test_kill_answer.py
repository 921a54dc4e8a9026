"""`launch.answer` and `launch.evaluate` are killed in the midst and go on to the same result."""

import json
import os
import random
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import jax
import pytest

from calibjax.backbone import load_decoder
from calibjax.forecaster import Forecaster
from tests.backbone import checkpoints
from tests.labelled import small_preset
from tests.launch.command import ROOT, command, environment
from tests.reliability.chat_server import serving

pytestmark = pytest.mark.faults

QUESTIONS = 24
KILLS = 4


def start(name: str, argv: list[str]) -> subprocess.Popen:
    """The command in a process group of its own."""
    return subprocess.Popen(
        command(name, *argv),
        cwd=ROOT,
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def finish(name: str, argv: list[str]) -> None:
    with start(name, argv) as process:
        _, err = process.communicate(timeout=900)
    assert process.returncode == 0, err.decode()


def kill(process: subprocess.Popen) -> bool:
    """Whether it was still at work."""
    struck = process.poll() is None
    if struck:
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    return struck


@pytest.fixture(scope="module")
def inputs(tmp_path_factory) -> list[str]:
    """Flags of `answer`: questions, passages and an untrained forecaster."""
    place = tmp_path_factory.mktemp("inputs")
    fields = checkpoints.config()
    backbone = checkpoints.save(place / "backbone", fields, checkpoints.tensors(fields))
    decoder = load_decoder(backbone)
    preset = small_preset(lora_rank=2)
    Forecaster(decoder, preset, key=jax.random.key(0)).save(place / "forecaster")
    with open(place / "q.jsonl", "w") as file:
        for n in range(QUESTIONS):
            asked = {"question": f"Where does Name{n} lie?", "answers": [f"land {n % 4}"]}
            text = f"Name{n} lies near Name{n + 1}."
            given = {"passages": [{"title": f"T{n}", "text": text}]}
            file.write(json.dumps({"id": f"q{n}", **asked, **given}) + "\n")
    model = [f"--forecaster={place / 'forecaster'}", f"--backbone={backbone}"]
    return ["--dataset=own", f"--path={place / 'q.jsonl'}", "--k=3", "--reader=stub", *model]


def result(out: Path) -> dict[str, Any]:
    """What a finished run leaves, but for times and counts of this attempt."""
    stages = {path.name: path.read_bytes() for path in (out / "stages").iterdir()}
    names = ("answers.jsonl", "predictions.jsonl")
    return {name: (out / name).read_bytes() for name in names} | stages


def test_answers_after_kills_are_those_of_an_undisturbed_run(inputs, tmp_path):
    with serving() as server:
        flags = [*inputs, f"--server={server.url}", f"--out={tmp_path / 'whole'}"]
        finish("answer", flags)
        n_calls = len(server.calls)
    rng, struck = random.Random(3), 0
    with serving(delay=0.05) as server:
        flags = [*inputs, f"--server={server.url}", f"--out={tmp_path / 'out'}", "--resume"]
        flags.append("--concurrency=2")
        for _ in range(KILLS):
            goal = len(server.calls) + rng.randrange(3, n_calls // KILLS)
            process = start("answer", flags)
            while len(server.calls) < goal and process.poll() is None:
                time.sleep(0.005)
            struck += kill(process)
        finish("answer", flags)
    assert struck == KILLS
    assert result(tmp_path / "out") == result(tmp_path / "whole")
    assert not list((tmp_path / "out").rglob("*.tmp"))


def test_an_evaluation_that_was_killed_is_finished_by_resuming(tmp_path):
    path = tmp_path / "p.jsonl"
    rng = random.Random(0)
    rows = [{"id": n, "confidence": rng.random(), "correct": rng.randrange(2)} for n in range(500)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    flags = [f"--predictions={path}", "--replicates=200"]
    finish("evaluate", [*flags, f"--out={tmp_path / 'whole'}"])
    out, struck = tmp_path / "out", 0
    for sight in (".lock", "run.json", "report.json"):
        process = start("evaluate", [*flags, f"--out={out}", "--resume"])
        while not (out / sight).exists() and process.poll() is None:
            time.sleep(0.002)
        struck += kill(process)
    assert struck == 3
    finish("evaluate", [*flags, f"--out={out}", "--resume"])
    names = {path.name for path in (tmp_path / "whole").iterdir()}
    assert {path.name for path in out.iterdir()} == names
    for name in names - {"run.json"}:
        assert (out / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name
