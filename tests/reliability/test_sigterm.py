"""SIGTERM anywhere ends the run after a save, and the next one goes on as if it had not come."""

import random
import signal
import time

import pytest

from calibjax.training.checkpoint import Checkpoints
from tests.reliability import train_runs as runs

pytestmark = pytest.mark.faults


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """Flags, cache of programs, and what a run without signals leaves."""
    directory = tmp_path_factory.mktemp("undisturbed")
    flags, cache = runs.inputs(directory), directory / "cache"
    runs.finish([*flags, f"--out={directory / 'out'}"], cache)
    return flags, cache, runs.result(directory / "out")


def signalled(flags, cache, out, when, signum):
    """Exit code and last line of a run that gets a signal when `when` holds."""
    with runs.start([*flags, f"--out={out}", "--resume"], cache) as process:
        if runs.wait_until(when, process):
            process.send_signal(signum)
        _, err = process.communicate(timeout=900)
    return process.returncode, err.splitlines()[-1] if err else ""


def test_a_signal_at_any_time_saves_and_says_how_to_go_on(undisturbed, tmp_path):
    """Seven signals in a chain of runs: while it loads, trains, validates and saves."""
    flags, cache, expected = undisturbed
    out, rng = tmp_path / "out", random.Random(4)
    code, last = signalled(flags, cache, out, (out / "run.json").exists, signal.SIGTERM)
    assert code == 143 and "stopped by SIGTERM" in last
    assert Checkpoints(out / "checkpoint").steps() == []
    for number in range(6):
        known = len(runs.log(out)) + rng.randrange(1, 7)
        pause = rng.uniform(0.0, 0.02)

        def reached():
            if len(runs.log(out)) < known:
                return False
            time.sleep(pause)
            return True

        signum = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)[number % 3]
        code, last = signalled(flags, cache, out, reached, signum)
        assert code == (130 if signum == signal.SIGINT else 143)
        stopped = int(last.partition("at step ")[2].partition(",")[0])
        assert last.startswith(f"stopped by {signum.name} at step {stopped}, saved; continue with:")
        assert Checkpoints(out / "checkpoint").steps()[-1] == stopped
        runs.assert_whole(out)
    runs.finish([*flags, f"--out={out}", "--resume"], cache)
    assert runs.result(out) == expected


def test_a_second_signal_ends_the_run_at_once(undisturbed, tmp_path):
    flags, cache, expected = undisturbed
    out = tmp_path / "out"
    with runs.start([*flags, f"--out={out}"], cache) as process:
        runs.wait_until(lambda: len(runs.log(out)) > 12, process)
        process.terminate()
        process.terminate()
        process.communicate(timeout=60)
    assert process.returncode == 143
    runs.finish([*flags, f"--out={out}", "--resume"], cache)
    assert runs.result(out) == expected
