"""Trackers hear what metrics.jsonl says, and none of them can stop a run."""

import sys

import pytest

from calibjax.errors import InputError
from calibjax.training.trackers import Several, open_trackers


class Listening:
    """Keeps what it is told."""

    def __init__(self, run_id=None, fails_at=None):
        self.run_id, self.fails_at, self.heard = run_id, fails_at, []

    def _hear(self, *what):
        if what[0] == self.fails_at:
            raise ConnectionError("the service is down")
        self.heard.append(what)

    def log_hyperparameters(self, values):
        self._hear("hyperparameters", values)

    def log(self, values, *, step):
        self._hear("log", step, values)

    def log_summary(self, values):
        self._hear("summary", values)

    def finish(self):
        self._hear("finish")


def tell_all(trackers):
    trackers.log_hyperparameters({"rate": 1e-4})
    trackers.log({"loss": 0.5}, step=3)
    trackers.log({"loss": 0.4}, step=4)
    trackers.log_summary({"best": 0.4})
    trackers.finish()


ALL = [
    ("hyperparameters", {"rate": 1e-4}),
    ("log", 3, {"loss": 0.5}),
    ("log", 4, {"loss": 0.4}),
    ("summary", {"best": 0.4}),
    ("finish",),
]


def test_all_trackers_hear_everything_with_its_step():
    first, second = Listening("id1"), Listening()
    trackers = Several({"wandb": first, "tensorboard": second})
    tell_all(trackers)
    assert first.heard == second.heard == ALL
    assert trackers.run_ids == {"wandb": "id1"}


def test_a_tracker_that_fails_is_dropped_with_one_line(capsys):
    broken, good = Listening(fails_at="log"), Listening()
    tell_all(Several({"wandb": broken, "mlflow": good}))
    assert good.heard == ALL and broken.heard == ALL[:1]
    assert capsys.readouterr().err == (
        "tracker=wandb: ConnectionError: the service is down; training goes on without it\n"
    )


def test_an_unknown_tracker_is_refused(tmp_path):
    with pytest.raises(InputError, match="tracker=tensorbord: .*; fix: --tracker=tensorboard"):
        open_trackers(["tensorbord"], tmp_path)


@pytest.mark.parametrize("name", ["tensorboard", "wandb", "mlflow"])
def test_a_package_that_is_not_there_is_named(name, tmp_path, monkeypatch):
    from calibjax.training.trackers import PACKAGES

    monkeypatch.setitem(sys.modules, PACKAGES[name], None)
    with pytest.raises(InputError, match=f"fix: pip install {PACKAGES[name]}"):
        open_trackers([name], tmp_path)


def test_tensorboard_files_hold_the_scalars(tmp_path):
    pytest.importorskip("tensorboardX")
    tell_all(open_trackers(["tensorboard"], tmp_path))
    written = list((tmp_path / "tensorboard").glob("events*"))
    assert written and b"loss" in written[0].read_bytes()
