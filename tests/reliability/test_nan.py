"""Batches that are not finite never reach the parameters, and the run says where they are."""

import dataclasses

import jax
import numpy as np
import pytest

from calibjax.data.loader import Loader
from calibjax.forecaster import Forecaster
from calibjax.training.checkpoint import Checkpoints, find_fault
from calibjax.training.engine import Engine
from calibjax.training.journal import TrainingError
from tests.labelled import make_rows, small_preset
from tests.reliability import train_runs as runs
from tests.tiny import tiny_decoder

pytestmark = pytest.mark.faults
DECODER = tiny_decoder()
ROWS = make_rows(num_questions=10)
PRESET = small_preset(steps=40, num_evaluations=4, lora_dropout=0.0, ridge_start=False)


def train(out, *, preset=PRESET, engine=Engine()):
    made = Forecaster(DECODER, preset, key=jax.random.key(0))
    return made.fit(ROWS, out=out, engine=engine)


def poison(monkeypatch, numbers):
    """Labels of these batches become NaN."""
    real = Loader.batch

    def batch(self, number):
        made = real(self, number)
        if number not in numbers:
            return made
        return made._replace(label_BNM=np.full_like(made.label_BNM, np.nan))

    monkeypatch.setattr(Loader, "batch", batch)


def test_a_run_with_one_bad_batch_is_the_run_without_it(tmp_path, monkeypatch):
    poison(monkeypatch, {37})
    report = train(tmp_path / "poisoned")
    monkeypatch.undo()
    real = Loader.batch
    shifted = lambda self, n: real(self, n if n < 37 else n + 1)  # noqa: E731
    monkeypatch.setattr(Loader, "batch", shifted)
    train(tmp_path / "without", preset=dataclasses.replace(PRESET, num_evaluations=40))
    monkeypatch.undo()
    assert report.skipped == 1
    ours = runs.arrays(tmp_path / "poisoned", 40)
    theirs = runs.arrays(tmp_path / "without", 39)
    for name in theirs:
        if name.startswith(("params/", "opt_state/")):
            np.testing.assert_array_equal(ours[name], theirs[name], err_msg=name)
    assert ours["skipped"] == 1 and ours["step"] == 40


def test_stop_ends_at_the_first_bad_batch_with_its_rows(tmp_path, monkeypatch):
    poison(monkeypatch, {13})
    with pytest.raises(TrainingError, match="step=13: .* 1 batches in a row") as caught:
        train(tmp_path, engine=Engine(max_bad_in_a_row=1))
    saved = np.load(tmp_path / "bad_batch.npz")
    ids = {f"{row.question_id}/{row.passage_id}" for row in ROWS}
    named = str(caught.value).partition("rows ")[2].partition(";")[0].split(", ")
    assert set(named) <= ids and np.isnan(saved["label_BNM"]).all()


@pytest.mark.parametrize("cause", ["five in a row", "learning rate"])
def test_too_many_stop_the_run_and_leave_finite_checkpoints(tmp_path, monkeypatch, cause):
    preset = PRESET
    if cause == "learning rate":
        preset = dataclasses.replace(PRESET, learning_rate=1e30, warmup_steps=0)
    else:
        poison(monkeypatch, set(range(15, 20)))
    with pytest.raises(TrainingError, match="5 batches in a row"):
        train(tmp_path, preset=preset)
    checkpoints = Checkpoints(tmp_path / "checkpoint")
    for step in checkpoints.steps():
        assert find_fault(checkpoints.directory / str(step)) is None
        arrays = runs.arrays(tmp_path, step)
        assert all(np.isfinite(a).all() for a in arrays.values() if a.dtype.kind == "f")
    assert checkpoints.steps()[-1] <= 15


def test_a_label_that_is_not_a_number_never_reaches_training(tmp_path):
    rows = [*ROWS, dataclasses.replace(ROWS[0], label=float("nan"))]
    made = Forecaster(DECODER, PRESET, key=jax.random.key(0))
    with pytest.raises(ValueError, match="label=nan: expected a number in"):
        made.fit(rows, validation=ROWS[:3])


def test_a_backbone_that_is_not_finite_is_refused_at_load(tmp_path):
    from tests.backbone import checkpoints as backbones

    flags, cache = runs.inputs(tmp_path), tmp_path / "cache"
    fields = backbones.config()
    named = backbones.tensors(fields)
    named["model.layers.0.mlp.up_proj.weight"][3, 4] = np.nan
    backbones.save(tmp_path / "backbone", fields, named)
    err = runs.finish([*flags, f"--out={tmp_path / 'out'}"], cache, code=2)
    assert "model.layers.0.mlp.up_proj.weight" in err.splitlines()[-1]
