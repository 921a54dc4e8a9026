"""Two processes train as one: same batches, same result, one stop, and no hang when one is lost."""

import json
import signal
from pathlib import Path

import numpy as np
import pytest

from calibjax.training.checkpoint import Checkpoints
from tests.reliability import train_runs as runs

pytestmark = pytest.mark.faults
WORKER = Path(__file__).parent / "faulty_train.py"


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Flags, cache, and the directories of a run by one process and of one by two."""
    directory = tmp_path_factory.mktemp("two")
    flags, cache = runs.inputs(directory), directory / "cache"
    runs.finish([*flags, f"--out={directory / 'one'}"], cache)
    both = runs.finish_all(runs.start_two([*flags, f"--out={directory / 'two'}"], cache))
    assert [code for code, _ in both] == [0, 0], both
    return flags, cache, directory / "one", directory / "two"


def test_two_processes_train_to_the_parameters_of_one(alone):
    """Same batches; sums in another order. After 40 Adam steps entries whose gradient nearly
    vanishes may have gone apart by a few learning rates of 1e-4, so the losses are compared, and
    the parameters to 2e-3 absolutely."""
    _, _, one, two = alone
    ours, theirs = runs.steps(two), runs.steps(one)
    assert [row["batch"] for row in ours] == [row["batch"] for row in theirs]
    for key in ("loss", "grad_norm"):
        np.testing.assert_allclose(
            [row[key] for row in ours], [row[key] for row in theirs], rtol=1e-3
        )
    np.testing.assert_allclose(ours[0]["loss"], theirs[0]["loss"], rtol=1e-5)
    a, b = runs.arrays(two), runs.arrays(one)
    assert set(a) == set(b)
    for name in a:
        if name.startswith("params/"):
            np.testing.assert_allclose(a[name], b[name], atol=2e-3, err_msg=name)
    reports = [json.loads((out / "report.json").read_text()) for out in (one, two)]
    assert reports[0]["validation_loss"] == pytest.approx(reports[1]["validation_loss"], abs=1e-4)
    assert len(runs.log(two)) == len(runs.log(one))  # process 0 alone writes


@pytest.mark.parametrize("which", [(0,), (1,), (0, 1)])
def test_a_signal_to_either_stops_both_at_one_step(alone, tmp_path, which):
    flags, cache, _, two = alone
    out = tmp_path / "out"
    processes = runs.start_two([*flags, f"--out={out}"], cache)
    runs.wait_until(lambda: len(runs.log(out)) > 10, processes[0])
    for number in which:
        processes[number].send_signal(signal.SIGUSR1 if number else signal.SIGTERM)
    ended = runs.finish_all(processes, timeout=900)
    assert [code for code, _ in ended] == [143, 143], ended
    stopped = {err.partition("at step ")[2].partition(",")[0] for _, err in ended}
    assert stopped == {str(Checkpoints(out / "checkpoint").steps()[-1])}
    ended = runs.finish_all(runs.start_two([*flags, f"--out={out}", "--resume"], cache))
    assert [code for code, _ in ended] == [0, 0], ended
    assert runs.result(out) == runs.result(two)


@pytest.mark.parametrize("fault", ["kill", "stop", "sleep", "raise", "short"])
def test_when_one_is_lost_or_stuck_neither_waits_for_ever(alone, tmp_path, fault):
    """Limits of a few seconds; the last checkpoint is whole and the run goes on from it."""
    flags, cache, _, two = alone
    out = tmp_path / "out"
    processes = runs.start_two(
        [*flags, f"--out={out}", "--hang_seconds=8"], cache, script=WORKER, FAULT=fault
    )
    try:
        runs.wait_until((out / "struck").exists, processes[0])
        # The stopped one never ends by itself: that is for whoever started it.
        [(code, err)] = runs.finish_all(processes[:1], timeout=300)
    finally:
        for process in processes:
            if process.poll() is None:
                runs.kill(process)
            elif process.stderr and not process.stderr.closed:
                process.communicate()
    assert code in (134, -6, 1), err
    if fault == "sleep":
        # Whose deadline passes first ends both: the one that waits, or the one that sleeps.
        stacks = "".join(path.read_text() for path in out.glob("stacks.*.txt"))
        assert any(place in stacks for place in ("_fetch", "report_step", "faulty_train")), err
    runs.arrays(out)
    ended = runs.finish_all(runs.start_two([*flags, f"--out={out}", "--resume"], cache))
    assert [code for code, _ in ended] == [0, 0], ended
    assert runs.result(out) == runs.result(two)
