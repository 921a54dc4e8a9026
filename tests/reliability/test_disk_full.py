"""A full disk ends the run in one line; with room again the same command ends as if undisturbed."""

import os
import shlex
import subprocess

import pytest

from calibjax.training.checkpoint import Checkpoints, find_fault
from tests.launch.command import ROOT, command, environment
from tests.reliability import train_runs as runs

pytestmark = pytest.mark.faults


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    directory = tmp_path_factory.mktemp("undisturbed")
    flags, cache = runs.inputs(directory), directory / "cache"
    runs.finish([*flags, f"--out={directory / 'out'}"], cache)
    return flags, cache, runs.result(directory / "out")


@pytest.fixture
def small_disk(tmp_path):
    """A file system of its own, and a function that makes it larger."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(place)], capture_output=True
    )
    if mounted.returncode:
        pytest.skip("needs the right to mount a tmpfs")

    def resize(size: str) -> None:
        subprocess.run(["mount", "-o", f"remount,size={size}", str(place)], check=True)

    try:
        yield place, resize
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def test_a_full_disk_stops_within_one_save_and_loses_nothing(undisturbed, small_disk):
    flags, cache, expected = undisturbed
    place, resize = small_disk
    out = place / "out"
    with runs.start([*flags, f"--out={out}"], cache) as process:
        runs.wait_until(lambda: len(Checkpoints(out / "checkpoint").steps()) >= 2, process)
        # The rest of the disk is taken by someone else.
        free = os.statvfs(place)
        (place / "filler").write_bytes(b"x" * (free.f_bavail * free.f_bsize - 64 * 1024))
        _, err = process.communicate(timeout=900)
    assert process.returncode == 1, err
    last = err.splitlines()[-1]
    assert str(out) in last and "MiB free" in last and "Traceback" not in err
    assert last.endswith("--resume") and "continue with: python -m launch.train" in last
    kept = Checkpoints(out / "checkpoint")
    assert kept.steps() and all(find_fault(kept.directory / str(s)) is None for s in kept.steps())
    # No more than one save interval was trained past the last good checkpoint.
    assert max(row["step"] for row in runs.steps(out)) < kept.steps()[-1] + 2 * 5
    (place / "filler").unlink()
    resize("64m")
    runs.finish([*flags, f"--out={out}", "--resume"], cache)
    assert runs.result(out) == expected
    runs.assert_whole(out)


def test_too_little_room_is_said_before_the_first_step(undisturbed, small_disk):
    flags, cache, _ = undisturbed
    place, resize = small_disk
    free = os.statvfs(place)
    (place / "filler").write_bytes(b"x" * (free.f_bavail * free.f_bsize - 300 * 1024))
    err = runs.finish([*flags, f"--out={place / 'out'}"], cache, code=2)
    assert "MiB for three checkpoints; fix: free some space" in err.splitlines()[-1]


def test_a_limit_on_file_sizes_takes_the_same_path(undisturbed, tmp_path):
    """A short write, then an error, as on a disk that fills up during a save."""
    flags, cache, expected = undisturbed
    out = tmp_path / "out"
    argv = [*flags, f"--out={out}"]
    done = subprocess.run(
        ["bash", "-c", "ulimit -f 100; exec " + shlex.join(command("train", *argv))],
        cwd=ROOT,
        env=environment(CALIBJAX_CACHE=str(cache)),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1, done.stderr
    # orbax's own threads speak meanwhile, even in the middle of our line.
    assert done.stderr.count(f"{out}/checkpoint/0: File too large, ") == 1, done.stderr
    assert "continue with: python -m launch.train" in done.stderr
    runs.finish([*argv, "--resume"], cache)
    assert runs.result(out) == expected
