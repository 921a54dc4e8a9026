"""`launch.train` is killed twenty times and ends as if nothing had happened, to the last bit."""

import random
import time

import pytest

from calibjax.training.checkpoint import Checkpoints
from tests.reliability import train_runs as runs

pytestmark = pytest.mark.faults
KILLS = 20


def test_twenty_kills_change_nothing(tmp_path):
    flags, cache = runs.inputs(tmp_path), tmp_path / "cache"
    whole, out = tmp_path / "whole", tmp_path / "killed"
    with runs.start([*flags, f"--out={whole}"], cache) as process:
        runs.wait_until(lambda: bool(runs.log(whole)), process)
        began = time.monotonic()
        process.communicate()
        seconds = time.monotonic() - began
    assert process.returncode == 0
    expected = runs.result(whole)

    rng, struck, left_behind = random.Random(1), 0, 0
    for _ in range(KILLS):
        with runs.start([*flags, f"--out={out}", "--resume"], cache) as process:
            known = len(runs.log(out))
            runs.wait_until(lambda: len(runs.log(out)) > known, process)
            # All kills together use up about half of the run.
            time.sleep(rng.uniform(0.0, seconds / KILLS))
            struck += process.poll() is None
            runs.kill(process)
        left_behind += bool(list((out / "checkpoint").glob("*.tmp")))
    # Kills hit a working process, most of them while it saved: else this proves nothing.
    assert struck == KILLS and left_behind >= KILLS // 4
    runs.finish([*flags, f"--out={out}", "--resume"], cache)
    assert runs.result(out) == expected
    runs.assert_whole(out)
    assert len(Checkpoints(out / "checkpoint").steps()) <= 3  # two newest and the best
