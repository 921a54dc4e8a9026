"""Experiment trackers behind four methods; metrics.jsonl is always written beside them.

A tracker is a convenience: one that fails says so once and training goes on.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from calibjax.errors import closest, input_error
from calibjax.progress import say

# Tracker -> the package it needs.
PACKAGES = {"tensorboard": "tensorboardX", "wandb": "wandb", "mlflow": "mlflow"}


class Tracker(Protocol):
    """What a tracker does. Values are numbers by name; `step` counts from 0."""

    run_id: str | None

    def log_hyperparameters(self, values: Mapping[str, Any]) -> None: ...

    def log(self, values: Mapping[str, float], *, step: int) -> None: ...

    def log_summary(self, values: Mapping[str, float]) -> None: ...

    def finish(self) -> None: ...


def open_trackers(
    names: Sequence[str], directory: Path, *, run_ids: Mapping[str, str] | None = None
) -> "Several":
    """The trackers called `names`, with files in `directory`.

    run_ids: of an earlier attempt (`Several.run_ids`), so that the same run goes on. Raises
    InputError for an unknown name or a package that is not installed.
    """
    made: dict[str, Tracker] = {}
    for name in names:
        if name not in PACKAGES:
            near = closest(name, PACKAGES)
            fix = f"--tracker={near}" if near else None
            raise input_error("tracker", name, ", ".join(PACKAGES), fix)
        kinds: dict[str, Any] = {"tensorboard": _TensorBoard, "wandb": _WandB, "mlflow": _MLflow}
        try:
            made[name] = kinds[name](directory, (run_ids or {}).get(name))
        except ImportError:
            package = PACKAGES[name]
            expected = f"a tracker whose package is installed ({package} is not)"
            raise input_error("tracker", name, expected, f"pip install {package}") from None
    return Several(made)


class Several:
    """Hands every call to all trackers; drops one at its first failure, with one line."""

    def __init__(self, trackers: Mapping[str, Tracker]) -> None:
        self._trackers = dict(trackers)
        self.run_ids = {name: t.run_id for name, t in trackers.items() if t.run_id}

    def log_hyperparameters(self, values: Mapping[str, Any]) -> None:
        """What the run was started with."""
        self._each("log_hyperparameters", values)

    def log(self, values: Mapping[str, float], *, step: int) -> None:
        """Numbers of a step."""
        self._each("log", values, step=step)

    def log_summary(self, values: Mapping[str, float]) -> None:
        """What came out in the end."""
        self._each("log_summary", values)

    def finish(self) -> None:
        """Flushes and closes."""
        self._each("finish")

    def _each(self, method: str, *arguments: Any, **options: Any) -> None:
        for name, tracker in list(self._trackers.items()):
            try:
                getattr(tracker, method)(*arguments, **options)
            except Exception as error:  # whatever a service or its client may raise
                del self._trackers[name]
                say(f"tracker={name}: {type(error).__name__}: {error}; training goes on without it")


class _TensorBoard:
    run_id: str | None = None

    def __init__(self, directory: Path, run_id: str | None) -> None:
        from tensorboardX import SummaryWriter

        self._writer = SummaryWriter(str(directory / "tensorboard"))

    def log_hyperparameters(self, values: Mapping[str, Any]) -> None:
        text = "\n".join(f"    {name} = {value}" for name, value in values.items())
        self._writer.add_text("hyperparameters", text)

    def log(self, values: Mapping[str, float], *, step: int) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def log_summary(self, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(f"summary/{name}", value)

    def finish(self) -> None:
        self._writer.close()


class _WandB:
    def __init__(self, directory: Path, run_id: str | None) -> None:
        import wandb

        self._run = wandb.init(dir=str(directory), id=run_id, resume="allow", project="calibjax")
        self.run_id: str | None = self._run.id

    def log_hyperparameters(self, values: Mapping[str, Any]) -> None:
        self._run.config.update(dict(values), allow_val_change=True)

    def log(self, values: Mapping[str, float], *, step: int) -> None:
        self._run.log(dict(values), step=step)

    def log_summary(self, values: Mapping[str, float]) -> None:
        self._run.summary.update(dict(values))

    def finish(self) -> None:
        self._run.finish()


class _MLflow:
    def __init__(self, directory: Path, run_id: str | None) -> None:
        import mlflow

        self._mlflow = mlflow
        self.run_id: str | None = mlflow.start_run(run_id=run_id).info.run_id

    def log_hyperparameters(self, values: Mapping[str, Any]) -> None:
        self._mlflow.log_params(dict(values))

    def log(self, values: Mapping[str, float], *, step: int) -> None:
        self._mlflow.log_metrics(dict(values), step=step)

    def log_summary(self, values: Mapping[str, float]) -> None:
        self._mlflow.log_metrics(dict(values))

    def finish(self) -> None:
        self._mlflow.end_run()
