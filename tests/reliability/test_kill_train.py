"""`launch.train` is killed twenty times and ends as if nothing had happened, to the last bit."""

import random
import time

import pytest

from calibjax.training.checkpoint import Checkpoints
from tests.reliability import train_runs as runs

pytestmark = pytest.mark.faults
KILLS = 20


def test_twenty_kills_change_nothing(tmp_path):
    """Fourteen kills aim at a save, right away or at the one after it; six strike anywhere."""
    flags, cache = runs.inputs(tmp_path), tmp_path / "cache"
    flags += ["--steps=90", "--config.num_evaluations=18"]
    whole, out = tmp_path / "whole", tmp_path / "killed"
    runs.finish([*flags, f"--out={whole}"], cache)
    expected = runs.result(whole)

    def saving():
        return bool(list((out / "checkpoint").glob("*.tmp")))

    rng, struck, in_a_save = random.Random(1), 0, 0
    for number in range(KILLS):
        with runs.start([*flags, f"--out={out}", "--resume"], cache) as process:
            known = len(runs.log(out))
            runs.wait_until(lambda: len(runs.log(out)) > known, process)
            if number % 10 < 7:
                for _ in range(rng.choice((0, 0, 1))):
                    runs.wait_until(saving, process)
                    runs.wait_until(lambda: not saving(), process)
                runs.wait_until(saving, process)
                time.sleep(rng.uniform(0.0, 0.05))
            else:
                time.sleep(rng.uniform(0.0, 0.5))
            struck += process.poll() is None
            runs.kill(process)
        in_a_save += saving()
    # Kills hit a working process, half of them while it saved: else this proves nothing.
    assert struck == KILLS and in_a_save >= KILLS // 2
    runs.finish([*flags, f"--out={out}", "--resume"], cache)
    assert runs.result(out) == expected
    runs.assert_whole(out)
    assert len(Checkpoints(out / "checkpoint").steps()) <= 3  # two newest and the best
