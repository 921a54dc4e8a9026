"""Forecasters on disk: a directory that a training run or `Forecaster.save` wrote."""

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
from flax import nnx

from calibjax import storage
from calibjax.backbone.load import Decoder
from calibjax.errors import InputError, input_error
from calibjax.forecaster.model import split_model
from calibjax.forecaster.presets import Preset
from calibjax.training.checkpoint import (
    CheckpointError,
    Checkpoints,
    find_fault,
    read_arrays,
    read_manifest,
    write_arrays,
)

if TYPE_CHECKING:
    from calibjax.forecaster.forecaster import Forecaster


def describe(forecaster: "Forecaster") -> dict[str, Any]:
    """What a manifest says of a forecaster, beside its arrays."""
    decoder = forecaster.decoder
    return {
        "method": forecaster.method,
        "preset": dataclasses.asdict(forecaster.preset),
        "backbone": {"source": decoder.source, "sha256": decoder.sha256},
    }


def save(forecaster: "Forecaster", path: str | os.PathLike) -> None:
    """Write a forecaster to directory `path`, which must not hold anything else."""
    path = Path(path)
    if path.exists() and any(path.iterdir()) and not (path / "manifest.json").is_file():
        raise input_error("path", path, "a new directory, or a saved forecaster to replace")
    _, params, constants = split_model(forecaster.model)
    info = describe(forecaster)
    write_arrays(path, {"params": params, "constants": constants}, info=info)
    storage.write_text(path / "README.md", card(info))


def load(path: str | os.PathLike, backbone: Decoder | str) -> "Forecaster":
    """See `Forecaster.load`."""
    from calibjax.backbone import load_decoder
    from calibjax.forecaster.forecaster import Forecaster

    directory = _find(Path(path))
    manifest = read_manifest(directory)
    decoder = load_decoder(backbone) if isinstance(backbone, str) else backbone
    check_backbone(directory, manifest["backbone"], decoder)
    # The saved preset is already the method's variant.
    forecaster = Forecaster(decoder, Preset(**manifest["preset"]), key=jax.random.key(0))
    forecaster.method = manifest["method"]
    graphdef, params, constants = split_model(forecaster.model)
    arrays, _ = read_arrays(directory, {"params": params, "constants": constants})
    forecaster.model = nnx.merge(graphdef, arrays["params"], arrays["constants"])
    return forecaster


def _find(path: Path) -> Path:
    """The verified directory that holds the arrays: `path`, or the best step of a run under it."""
    if not path.is_dir():
        raise input_error("forecaster", path, "a directory written by train or Forecaster.save")
    if (path / "manifest.json").is_file():
        fault = find_fault(path)
        if fault:
            raise CheckpointError(f"forecaster={path}: {fault}")
        return path
    for directory in (path / "checkpoint", path):
        if Checkpoints(directory).steps():
            return Checkpoints(directory).best()
    raise input_error("forecaster", path, "a directory with manifest.json or checkpoint steps")


def check_backbone(directory: Path, trained_on: Mapping[str, Any], decoder: Decoder) -> None:
    if trained_on["sha256"] != decoder.sha256:
        raise InputError(
            f"backbone={decoder.source} (sha256 {decoder.sha256}): expected the weights that"
            f" {directory} was trained on, {trained_on['source']} (sha256 {trained_on['sha256']});"
            f" fix: --backbone={trained_on['source']}"
        )


def card(info: Mapping[str, Any], *, loaded_by: str | None = None) -> str:
    """README.md of a saved forecaster; loaded_by: the line of Python that loads it."""
    preset, backbone = info["preset"], info["backbone"]
    if loaded_by is None:
        loaded_by = f'forecaster = Forecaster.load("PATH", backbone="{backbone["source"]}")'
    return f"""# A calibjax forecaster

Forecasts the probability that a user at a given temperature decides correctly after reading a
document for a query. Method `{info["method"]}`, preset `{preset["name"]}`, LoRA rank
{preset["lora_rank"]} on `{preset["lora_targets"]}`; temperatures from {preset["t_min"]} to
{preset["t_max"]}.

It needs the decoder it was trained on: `{backbone["source"]}`, sha256 `{backbone["sha256"]}`.

```python
from calibjax.forecaster import Forecaster

{loaded_by}
forecaster.score(["query"], [[{{"title": "Title", "text": "Text"}}]])
```

Its probabilities hold for questions, documents and users like those it was trained with; measure
them again (`python -m launch.evaluate`) before relying on them elsewhere.
"""
