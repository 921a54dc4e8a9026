"""`launch.train` as a user runs it: from a small labelled file to a forecaster that answers."""

import json

import numpy as np
import pytest

from calibjax.forecaster import Forecaster
from tests.launch.command import run
from tests.reliability import train_runs as runs

DOCUMENTS = [[{"title": "Title p0", "text": "good good"}, {"title": "", "text": "bad"}]]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of four steps on rows in two files: its directory, its backbone, what it printed."""
    directory = tmp_path_factory.mktemp("train")
    flags = [*runs.inputs(directory), "--steps=4", "--config.num_evaluations=2"]
    lines = (directory / "rows.jsonl").read_text().splitlines(keepends=True)
    parts = directory / "first.jsonl", directory / "second.jsonl"
    for path, part in zip(parts, (lines[:20], lines[20:])):
        path.write_text("".join(part))
    flags += [f"--data={parts[0]},{parts[1]}", "--peak_tflops=1", f"--out={directory / 'out'}"]
    done = run("train", *flags, timeout=900)
    assert done.code == 0, done.err
    return directory / "out", directory / "backbone", done


def test_a_few_steps_leave_a_log_a_report_and_checkpoints(trained):
    out, _, done = trained
    assert done.out.startswith("step ") and "validation loss" in done.out
    report = json.loads((out / "report.json").read_text())
    assert report["steps"] == 4 and np.isfinite(report["validation_loss"])
    assert report["train_rows"] == 32 and report["validation_rows"] == 8
    steps = [row for row in runs.log(out) if "loss" in row]
    assert [row["step"] for row in steps] == [0, 1, 2, 3]
    assert all(0 < row["mfu"] < 1 and 0 <= row["padding"] < 1 for row in steps)
    runs.assert_whole(out)


def test_the_checkpoint_is_a_forecaster(trained):
    out, backbone, _ = trained
    made = Forecaster.load(out / "checkpoint", backbone=str(backbone))
    scores = made.score(["Land 1?"], DOCUMENTS)
    assert scores.shape == (1, 2) and ((scores > 0) & (scores < 1)).all()
