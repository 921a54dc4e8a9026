"""Whatever happens to the newest checkpoint, the one before it is restored, bit for bit.

orbax by itself loads a flipped bit in silence; the manifest is what notices. Every case checks that
the damage really struck.
"""

import json
import logging
import os
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calibjax.training.checkpoint import CheckpointError, Checkpoints, find_fault

pytestmark = pytest.mark.faults

STEPS = (10, 15, 20)


def state_at(step: int) -> dict:
    """Values that differ at every step, in several files."""
    key = jax.random.key(step)
    return {
        "params": {"a": jax.random.normal(key, (40, 30)), "b": jnp.full(7, float(step))},
        "opt_state": [jnp.arange(5.0) * step, jnp.asarray(np.zeros((), np.int32))],
        "step": jnp.asarray(np.asarray(step, np.int32)),
    }


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("written")
    checkpoints = Checkpoints(directory, keep=3)
    for step in STEPS:
        checkpoints.save(step, state_at(step), info={"preset": "fixed"}, metric=1.0 / step)
    assert checkpoints.steps() == list(STEPS)
    return directory


@pytest.fixture
def run(written, tmp_path) -> Path:
    shutil.copytree(written, tmp_path / "checkpoint")
    return tmp_path / "checkpoint"


def files_of(step: Path) -> list[str]:
    found = sorted(path for path in step.rglob("*") if path.is_file())
    return [path.relative_to(step).as_posix() for path in found]


def flip(path: Path, seed: int) -> None:
    data = bytearray(path.read_bytes())
    rng = np.random.default_rng(seed)
    data[int(rng.integers(len(data)))] ^= 1 << int(rng.integers(8))
    path.write_bytes(data)


def truncate(path: Path, seed: int) -> None:
    os.truncate(path, path.stat().st_size // 2)


def zero(path: Path, seed: int) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def delete(path: Path, seed: int) -> None:
    path.unlink()


def swap(path: Path, seed: int) -> None:
    """The same file of the step before: well-formed, and not what was written here."""
    others = sorted(path for path in path.parent.iterdir() if path.is_file())
    other = Path(str(path).replace("/20/", "/15/"))
    source = other if other.is_file() else next((o for o in others if o != path), path)
    path.write_bytes(source.read_bytes())


def warnings_of(caplog) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def restore(run: Path, caplog) -> tuple[dict, list[str]]:
    """State and warning lines of a restore. absl's logger does not propagate by default."""
    caplog.clear()
    logger = logging.getLogger("absl")
    logger.addHandler(caplog.handler)
    try:
        with caplog.at_level(logging.WARNING, logger="absl"):
            state, _ = Checkpoints(run).restore(state_at(0))
    finally:
        logger.removeHandler(caplog.handler)
    return state, sorted(set(warnings_of(caplog)))


def assert_is_step(state: dict, step: int) -> None:
    for a, b in zip(jax.tree.leaves(state), jax.tree.leaves(state_at(step)), strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


def test_an_undamaged_run_restores_its_newest_step_without_a_word(run, caplog):
    state, lines = restore(run, caplog)
    assert_is_step(state, 20)
    assert lines == []


@pytest.mark.parametrize("damage", [flip, truncate, zero, delete, swap])
def test_any_damage_to_any_file_falls_back_to_the_step_before(damage, run, written, caplog):
    cases = 0
    for number, name in enumerate(files_of(written / "20")):
        victim = run / "20" / name
        before = victim.read_bytes()
        if not before and damage is not delete:
            continue  # an empty marker file has no bytes to change
        damage(victim, number)
        after = victim.read_bytes() if victim.exists() else None
        if after == before:
            assert damage in (zero, swap)  # a file of zeros, or equal in both steps
            continue
        state, lines = restore(run, caplog)
        assert_is_step(state, 15)
        assert len(lines) == 1 and name in lines[0] and str(run / "20") in lines[0], lines
        assert lines[0].endswith("using step 15")
        victim.write_bytes(before)
        cases += 1
    assert cases >= 5, "too few files were really damaged"


def test_twenty_flipped_bits_none_loaded_in_silence(run, written, caplog):
    names = [name for name in files_of(written / "20") if (written / "20" / name).stat().st_size]
    loaded_in_silence = 0
    for seed in range(20):
        victim = run / "20" / names[seed % len(names)]
        before = victim.read_bytes()
        flip(victim, seed)
        assert victim.read_bytes() != before
        state, lines = restore(run, caplog)
        loaded_in_silence += not lines
        assert_is_step(state, 15)
        victim.write_bytes(before)
    assert loaded_in_silence == 0


def test_an_empty_step_directory_is_passed_over(run, caplog):
    (run / "25").mkdir()
    state, lines = restore(run, caplog)
    assert_is_step(state, 20)
    assert len(lines) == 1 and "25" in lines[0] and "using step 20" in lines[0]


def test_an_unfinished_newest_step_is_passed_over(run, caplog):
    """Complete arrays whose manifest never came: the save was killed before its last act."""
    shutil.copytree(run / "20", run / "30")
    (run / "30" / "manifest.json").unlink()
    state, lines = restore(run, caplog)
    assert_is_step(state, 20)
    assert len(lines) == 1 and "unfinished save" in lines[0]


def test_a_temporary_directory_is_no_step_and_is_cleared(run, caplog):
    shutil.copytree(run / "20", run / "40.tmp")
    state, lines = restore(run, caplog)
    assert_is_step(state, 20)
    assert lines == []
    Checkpoints(run).remove_temporary()
    assert not (run / "40.tmp").exists() and Checkpoints(run).steps() == list(STEPS)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"files": 3}', "null", "\x00", "{}"])
def test_a_manifest_that_is_no_manifest_falls_back(text, run, caplog):
    (run / "20" / "manifest.json").write_text(text)
    state, lines = restore(run, caplog)
    assert_is_step(state, 15)
    assert len(lines) == 1 and "manifest.json" in lines[0]


def test_a_manifest_that_lies_about_a_hash_falls_back(run, caplog):
    path = run / "20" / "manifest.json"
    manifest = json.loads(path.read_text())
    name = next(iter(manifest["files"]))
    manifest["files"][name]["sha256"] = "0" * 64
    path.write_text(json.dumps(manifest))
    state, lines = restore(run, caplog)
    assert_is_step(state, 15)
    assert len(lines) == 1 and "manifest.json differs from its own hash" in lines[0]


def test_a_whole_step_under_another_name_is_passed_over(run, caplog):
    shutil.rmtree(run / "20")
    shutil.copytree(run / "10", run / "20")
    state, lines = restore(run, caplog)
    assert_is_step(state, 15)
    assert len(lines) == 1 and "is that of step 10" in lines[0]


def test_two_damaged_steps_are_named_one_line_each(run, caplog):
    for step in (15, 20):
        delete(run / str(step) / "manifest.json", 0)
    state, lines = restore(run, caplog)
    assert_is_step(state, 10)
    assert len(lines) == 2 and all("using step 10" in line for line in lines)


def test_nothing_good_left_is_an_error_and_not_a_fresh_start(run):
    for step in STEPS:
        flip(run / str(step) / "manifest.json", step)
        delete(run / str(step) / "manifest.json", 0)
    with pytest.raises(CheckpointError, match="no good checkpoint left") as caught:
        Checkpoints(run).restore(state_at(0))
    assert len(str(caught.value).splitlines()) == 1
    with pytest.raises(CheckpointError, match="no step found"):
        Checkpoints(run / "nowhere").restore(state_at(0))


def test_the_best_step_is_chosen_among_the_whole_ones(run):
    assert Checkpoints(run).best().name == "20"
    zero(run / "20" / "manifest.json", 0)
    assert Checkpoints(run).best().name == "15"


def test_an_older_step_goes_only_after_its_successor_was_read_back(run, monkeypatch):
    """A save whose bytes do not reach the disk: the old steps must all still be there."""
    from calibjax.training import checkpoint

    real = checkpoint._publish

    def lossy(path, *arguments):
        real(path, *arguments)
        victim = max(path.rglob("*"), key=lambda p: p.stat().st_size if p.is_file() else 0)
        flip(victim, 0)

    monkeypatch.setattr(checkpoint, "_publish", lossy)
    with pytest.raises(CheckpointError, match="right after it was written"):
        Checkpoints(run, keep=1).save(30, state_at(30), info={}, metric=None)
    for step in STEPS:
        assert find_fault(run / str(step)) is None


def test_saving_a_step_again_replaces_a_damaged_one(run):
    flip(run / "20" / "manifest.json", 3)
    zero(run / "20" / "manifest.json", 0)
    Checkpoints(run, keep=3).save(20, state_at(20), info={}, metric=0.5)
    assert find_fault(run / "20") is None
    state, _ = Checkpoints(run).restore(state_at(0))
    assert_is_step(state, 20)
    assert not list(run.glob("*.tmp"))


def test_an_asynchronous_save_is_as_whole_as_any(tmp_path):
    """The state may be donated to the next step while it is written: a copy is what is saved."""
    checkpoints = Checkpoints(tmp_path, keep=2, asynchronous=True)
    change = jax.jit(lambda tree: jax.tree.map(lambda x: x + 1, tree), donate_argnums=0)
    state = jax.device_put(state_at(10))
    for step in (10, 15, 20):
        checkpoints.save(step, state, info={}, metric=None)
        state = change(state)
    checkpoints.wait()
    assert checkpoints.steps() == [15, 20]
    assert all(find_fault(tmp_path / str(step)) is None for step in (15, 20))
    restored, _ = checkpoints.restore(state_at(0))
    for ours, first in zip(jax.tree.leaves(restored), jax.tree.leaves(state_at(10))):
        np.testing.assert_array_equal(np.asarray(ours), np.asarray(first + 1 + 1))


def test_what_goes_wrong_with_an_asynchronous_save_is_raised_by_the_next(tmp_path, monkeypatch):
    from calibjax.training import checkpoint

    def full(*arguments):
        raise OSError(28, "No space left on device")

    checkpoints = Checkpoints(tmp_path, asynchronous=True)
    checkpoints.save(1, state_at(10), info={}, metric=None)
    checkpoints.wait()
    monkeypatch.setattr(checkpoint, "_publish", full)
    checkpoints.save(2, state_at(15), info={}, metric=None)
    with pytest.raises(OSError, match="No space left on device"):
        checkpoints.save(3, state_at(20), info={}, metric=None)
    assert Checkpoints(tmp_path).newest_good().name == "1"
