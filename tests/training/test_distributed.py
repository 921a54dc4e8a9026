"""Who is who among several processes, and that a process that hangs ends."""

import subprocess
import sys

import pytest

from calibjax.errors import InputError
from calibjax.training import distributed, signals
from calibjax.training.distributed import Cluster, detect
from tests.launch.command import ROOT, environment

SLURM = {"SLURM_NTASKS": "4", "SLURM_STEP_NODELIST": "node[1-4]", "SLURM_PROCID": "2"}
JOBSET = {
    "JOBSET_NAME": "calibjax",
    "REPLICATED_JOB_NAME": "train",
    "NUM_PROCESSES": "2",
    "JOB_COMPLETION_INDEX": "1",
}


def test_a_process_alone_is_alone():
    assert detect({}) is None
    assert detect(SLURM | {"SLURM_NTASKS": "1"}) is None
    # The batch script itself, outside of srun, is no step.
    assert detect({"SLURM_NTASKS": "4", "SLURM_PROCID": "0"}) is None
    assert distributed.is_primary() and not distributed.is_joined()
    assert distributed.agree(7) == 7 and distributed.process_id() == 0


def test_schedulers_tell_who_a_process_is():
    assert detect(SLURM) == Cluster(None, 4, 2)
    assert detect(JOBSET) == Cluster("calibjax-train-0-0.calibjax:8476", 2, 1)


def test_flags_win_and_must_be_complete():
    flags = dict(coordinator="a:1", num_processes=3, process_id=2)
    assert detect(SLURM, **flags) == Cluster("a:1", 3, 2)
    for name in flags:
        with pytest.raises(InputError, match="all three flags or none"):
            detect({}, **(flags | {name: None}))
    with pytest.raises(InputError, match="process_id=3: expected an integer from 0 to"):
        detect({}, **(flags | {"process_id": 3}))


def test_with_several_processes_all_stop_at_the_check_that_they_agree_on():
    asked = []

    def reached(number):
        asked.append(number)
        return number >= 3

    signals.agree_through(reached)
    try:
        first = signals._pending.checks
        signals._pending.checks = 0
        signals.check()
        signals.check()
        with pytest.raises(signals.Preempted, match="SIGTERM"):
            signals.check()
        assert asked == [1, 2, 3]
    finally:
        signals._pending.checks = first
        signals.agree_through(None)


HANGS = """
import sys, time
from pathlib import Path
from calibjax.training.watchdog import watching

def the_step_that_hangs():
    time.sleep(60)

with watching(0.3, Path(sys.argv[1])) as watchdog:
    watchdog.expect_step()
    watchdog.step_done(0.001)
    if sys.argv[2] == "hang":
        the_step_that_hangs()
    watchdog.expect_long()
    time.sleep(0.8)
print("done")
"""


def test_a_process_that_hangs_ends_with_134_and_says_where(tmp_path):
    stacks = tmp_path / "stacks.0.txt"
    for mode, code in (("hang", 134), ("go on", 0)):
        done = subprocess.run(
            [sys.executable, "-c", HANGS, str(stacks), mode],
            cwd=ROOT,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == code, done.stderr
        assert stacks.exists() == (mode == "hang")
        if mode == "hang":
            assert "the_step_that_hangs" in stacks.read_text()
            assert str(stacks) in done.stderr
            stacks.unlink()


def test_a_slow_median_widens_the_limit(tmp_path):
    from calibjax.training.watchdog import Watchdog

    watchdog = Watchdog(1.0, tmp_path / "stacks")
    watchdog.expect_step()
    short = watchdog._deadline
    for _ in range(5):
        watchdog.step_done(10.0)
    assert watchdog._deadline - short > 150  # 20 times the median, not one second
