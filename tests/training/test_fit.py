"""Whole training runs on the tiny decoder: what is written, resumed, chosen and refused."""

import dataclasses
import hashlib
import json
import os
import shutil
import signal

import jax
import numpy as np
import pytest

from calibjax.errors import InputError
from calibjax.forecaster import Forecaster
from calibjax.training import fit as fit_module
from calibjax.training import loop, signals
from calibjax.training.checkpoint import CheckpointError, Checkpoints, read_manifest
from calibjax.training.journal import TrainingError
from calibjax.trees import named_leaves
from tests.labelled import make_row, make_rows, small_preset
from tests.tiny import tiny_decoder

DECODER = tiny_decoder()
ROWS = make_rows(num_questions=10)
PRESET = small_preset(steps=8, num_evaluations=4)


def train(out, *, rows=ROWS, preset=PRESET, resume=False, seed=0):
    made = Forecaster(DECODER, preset, key=jax.random.key(seed))
    return made, made.fit(rows, seed=seed, out=out, resume=resume)


def log(out) -> list[dict]:
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def digest(out, step: int) -> str:
    """SHA-256 of every array of a checkpoint, by name, dtype, shape and bytes."""
    from orbax.checkpoint import v1 as ocp

    tree = ocp.load(out / "checkpoint" / str(step) / "state", _template(out, step))
    sha = hashlib.sha256()
    for name, leaf in sorted(named_leaves(tree).items()):
        array = np.asarray(leaf)
        sha.update(f"{name} {array.dtype} {array.shape}".encode() + array.tobytes())
    return sha.hexdigest()


def _template(out, step):
    from flax import traverse_util

    place = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    flat = {}
    for name, signature in read_manifest(out / "checkpoint" / str(step))["arrays"].items():
        dtype, shape = signature.split("[")
        sizes = tuple(int(n) for n in shape.rstrip("]").split(",") if n)
        flat[name] = jax.ShapeDtypeStruct(sizes, np.dtype(dtype), sharding=place)
    return traverse_util.unflatten_dict(flat, sep="/")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """One undisturbed run."""
    out = tmp_path_factory.mktemp("whole")
    made, report = train(out)
    return out, made, report


def test_the_run_is_written_down(whole):
    out, _, report = whole
    rows = log(out)
    steps = [row for row in rows if "loss" in row]
    assert [row["step"] for row in steps] == list(range(8))
    assert all(np.isfinite(row["loss"]) for row in steps)
    checks = [row for row in rows if "validation_loss" in row]
    assert [row["step"] for row in checks] == [0, 2, 4, 6, 8]
    losses = [row["validation_loss"] for row in checks]
    assert report.validation_loss == min(losses)
    assert report.best_step == checks[int(np.argmin(losses))]["step"]
    assert checks[-1]["best_step"] == report.best_step
    rates = [row["learning_rate"] for row in steps]
    assert rates[0] == 0.0 and rates[1] == pytest.approx(PRESET.learning_rate)


def test_the_report_says_what_the_losses_are_worth(whole):
    _, _, report = whole
    assert report.train_rows + report.validation_rows == len(ROWS)
    assert 0 < report.entropy_floor < report.base_rate_loss
    assert report.steps == 8 and report.skipped == 0


def test_newest_and_best_checkpoints_stay(whole):
    out, _, report = whole
    kept = Checkpoints(out / "checkpoint").steps()
    assert kept == sorted({6, 8, report.best_step})
    assert not list((out / "checkpoint").glob("*.tmp"))


def test_a_checkpoint_holds_arrays_of_the_trainables_and_nothing_of_the_backbone(whole):
    out, _, _ = whole
    manifest = read_manifest(out / "checkpoint" / "8")
    rooms = {name.split("/")[0] for name in manifest["arrays"]}
    assert rooms == {"params", "constants", "opt_state", "step", "skipped", "skipped_in_a_row"}
    assert not any("embedding" in name or "blocks" in name for name in manifest["arrays"])
    assert manifest["backbone"]["sha256"] == DECODER.sha256
    assert manifest["preset"]["name"] == "fixed" and manifest["step"] == 8


def test_the_best_step_is_what_the_forecaster_keeps_and_what_load_finds(whole):
    out, made, _ = whole
    documents = [[{"title": "Title p0", "text": "good good"}, {"title": "", "text": "bad"}]]
    loaded = Forecaster.load(out, backbone=DECODER)
    np.testing.assert_array_equal(
        loaded.score(["Land 1?"], documents), made.score(["Land 1?"], documents)
    )
    assert loaded.method == "calibrag" and loaded.preset == PRESET


def test_stopping_and_resuming_changes_nothing_not_even_a_bit(whole, tmp_path, monkeypatch):
    out, made, report = whole
    real = loop._await_step
    calls = []

    def signal_in_step_four(*arguments):
        calls.append(1)
        if len(calls) == 5:
            os.kill(os.getpid(), signal.SIGTERM)
        return real(*arguments)

    monkeypatch.setattr(loop, "_await_step", signal_in_step_four)
    signals.install()
    try:
        with pytest.raises(signals.Preempted, match="SIGTERM at step 5, saved"):
            train(tmp_path)
    finally:
        signals.uninstall()
    monkeypatch.undo()
    assert Checkpoints(tmp_path / "checkpoint").steps()[-1] == 5
    made_again, report_again = train(tmp_path, resume=True)
    assert digest(tmp_path, 8) == digest(out, 8)
    assert report_again == report
    keys = ("step", "loss", "batch", "grad_norm")
    ours, theirs = (
        [[row[k] for k in keys] for row in log(path) if "loss" in row] for path in (tmp_path, out)
    )
    assert ours == theirs
    for a, b in zip(jax.tree.leaves(made.model), jax.tree.leaves(made_again.model)):
        np.testing.assert_array_equal(a, b)


def test_a_signal_in_mid_validation_loses_no_validation(whole, tmp_path, monkeypatch):
    out, _, report = whole
    real = fit_module.extract_features
    calls = []

    def signal_in_third_validation(*args, **kwargs):
        calls.append(1)
        if len(calls) == 2 + 3:  # two passes measure features, step 0 is validated, then 2 and 4
            os.kill(os.getpid(), signal.SIGTERM)
        return real(*args, **kwargs)

    monkeypatch.setattr(fit_module, "extract_features", signal_in_third_validation)
    signals.install()
    try:
        with pytest.raises(signals.Preempted, match="at step 4, saved"):
            train(tmp_path)
    finally:
        signals.uninstall()
    monkeypatch.undo()
    _, report_again = train(tmp_path, resume=True)
    assert report_again == report and digest(tmp_path, 8) == digest(out, 8)
    checks = [[row for row in log(p) if "validation_loss" in row] for p in (tmp_path, out)]
    assert checks[0] == checks[1]


def test_restored_counters_continue_the_schedule(whole, tmp_path):
    out, _, _ = whole
    shutil.copytree(out, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoint" / "8")
    before = len(log(tmp_path / "run"))
    train(tmp_path / "run", resume=True)
    again = [row for row in log(tmp_path / "run")[before:] if "loss" in row]
    first = [row for row in log(out) if "loss" in row][6:]
    assert [row["step"] for row in again] == [6, 7]
    for a, b in zip(again, first):
        assert (a["loss"], a["learning_rate"], a["batch"]) == (
            b["loss"], b["learning_rate"], b["batch"],
        )  # fmt: skip


def test_the_same_seed_gives_the_same_run_and_another_seed_another(whole, tmp_path):
    out, _, _ = whole
    train(tmp_path / "a")
    assert digest(tmp_path / "a", 8) == digest(out, 8)
    train(tmp_path / "b", seed=1)
    assert log(tmp_path / "b")[1]["batch"] != log(out)[1]["batch"]


def test_a_run_without_good_checkpoint_does_not_start_afresh(whole, tmp_path):
    out, _, _ = whole
    shutil.copytree(out / "checkpoint", tmp_path / "checkpoint")
    for path in (tmp_path / "checkpoint").glob("*/manifest.json"):
        path.unlink()
    with pytest.raises(CheckpointError, match="no good checkpoint left"):
        train(tmp_path, resume=True)


def test_a_poisoned_run_stops_and_says_where(tmp_path, monkeypatch):
    real = fit_module.prepare

    def poison(decoder, preset, rows):
        data = real(decoder, preset, rows)
        if len(rows) < 10:  # validation rows stay as they are
            return data
        bad = [dataclasses.replace(row, label=float("inf")) for row in data.rows]
        return data._replace(rows=bad)

    monkeypatch.setattr(fit_module, "prepare", poison)
    with pytest.raises(TrainingError) as caught:
        train(tmp_path)
    text = str(caught.value)
    assert "not finite for 5 batches in a row" in text and "rows q" in text
    assert "adapter/" in text  # the first leaf that is not finite
    saved = np.load(tmp_path / "bad_batch.npz")
    assert np.isinf(saved["label_BNM"][saved["mask_BNM"]]).all()
    # What is on disk is finite: the parameters as they were.
    loaded = Forecaster.load(tmp_path, backbone=DECODER)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(loaded.model))


def test_a_checkpoint_that_is_not_finite_is_refused(tmp_path):
    import jax.numpy as jnp

    checkpoints = Checkpoints(tmp_path)
    with pytest.raises(CheckpointError, match="a is not finite"):
        checkpoints.save(1, {"a": jnp.array([1.0, jnp.nan])}, info={}, metric=None)
    assert checkpoints.steps() == [] and not list(tmp_path.iterdir())


def test_questions_are_split_and_never_rows():
    train_rows, validation = fit_module.split_by_question(ROWS, seed=0)
    ids = [{row.question_id for row in part} for part in (train_rows, validation)]
    assert not ids[0] & ids[1] and len(ids[1]) == 2
    assert len(train_rows) + len(validation) == len(ROWS)
    assert fit_module.split_by_question(list(reversed(ROWS)), seed=0)[1][0].question_id in ids[1]
    assert fit_module.split_by_question(ROWS, seed=1)[1] != validation


@pytest.mark.parametrize(
    "change, message",
    [
        (dict(label=1.3), "row q/p: label=1.3: expected a number in"),
        (dict(label=float("nan")), "label=nan"),
        (dict(temperature=0.0), "row q/p: temperature=0.0: expected a number in"),
    ],
)
def test_impossible_rows_are_named(change, message):
    row = dataclasses.replace(make_row("q", "p", "query", "text", 1.5, 0.5), **change)
    made = Forecaster(DECODER, PRESET, key=jax.random.key(0))
    with pytest.raises(InputError, match=message):
        made.fit([*ROWS, row], validation=ROWS[:3])


def test_too_little_data_is_refused():
    made = Forecaster(DECODER, PRESET, key=jax.random.key(0))
    with pytest.raises(InputError, match="questions=1: expected two or more"):
        made.fit(ROWS[:2])
    with pytest.raises(InputError, match="rows=0"):
        made.fit([], validation=ROWS)


def test_another_backbone_is_refused_with_both_hashes(whole):
    out, _, _ = whole
    other = tiny_decoder(seed=1)
    with pytest.raises(InputError) as caught:
        Forecaster.load(out, backbone=other)
    assert DECODER.sha256 in str(caught.value) and other.sha256 in str(caught.value)


def test_save_and_load_give_the_same_forecaster(whole, tmp_path):
    _, made, _ = whole
    made.save(tmp_path / "saved")
    loaded = Forecaster.load(tmp_path / "saved", backbone=DECODER)
    documents = [[{"title": "", "text": "good"}]]
    np.testing.assert_array_equal(loaded.score(["q"], documents), made.score(["q"], documents))
    card = (tmp_path / "saved" / "README.md").read_text()
    assert "calibrag" in card and DECODER.sha256 in card
    made.save(tmp_path / "saved")  # replaces its own kind
    other = tmp_path / "other"
    other.mkdir()
    (other / "file").write_text("precious")
    with pytest.raises(InputError, match="path="):
        made.save(other)
    with pytest.raises(InputError, match="forecaster="):
        Forecaster.load(other, backbone=DECODER)
    with pytest.raises(InputError, match="forecaster="):
        Forecaster.load(tmp_path / "nowhere", backbone=DECODER)


def test_a_damaged_forecaster_is_refused(whole, tmp_path):
    _, made, _ = whole
    made.save(tmp_path / "saved")
    files = [path for path in (tmp_path / "saved").rglob("*") if path.is_file()]
    victim = max(files, key=lambda path: path.stat().st_size)
    data = bytearray(victim.read_bytes())
    data[len(data) // 2] ^= 1
    victim.write_bytes(data)
    with pytest.raises(CheckpointError, match="differs from its manifest"):
        Forecaster.load(tmp_path / "saved", backbone=DECODER)
