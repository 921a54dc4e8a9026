"""Hugging Face directories: config.json and safetensors, in one file or sharded by an index."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from calibjax import textfiles
from calibjax.backbone import config as configs
from calibjax.backbone import fused, weight_files, weights
from calibjax.backbone.safetensors_file import SafetensorsFile
from calibjax.errors import InputError, input_error

_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_LISTED = 8


def open_checkpoint(directory: Path, *, tie_missing_head: bool = False) -> weights.Checkpoint:
    """The checkpoint of a decoder directory.

    tie_missing_head: read the embedding as output projection when the configuration says that they
    are not tied and the file has no output projection (it is refused otherwise).
    """
    fields = read_config(directory)
    files = open_tensors(directory)
    shapes = {name: files[name].shapes[name] for name in files}
    # Checkpoints of the model without its head lack the prefix.
    table = weights.HUGGING_FACE
    if not any(name.startswith("model.") for name in shapes):
        table = table.without_prefix("model.")
    config = configs.from_huggingface(fields, str(directory / "config.json"))
    head = table.name("lm_head.kernel", None)
    if not config.tie_embeddings and head not in shapes:
        if not tie_missing_head:
            raise input_error(
                f"{directory}: {head}",
                "absent",
                "an output projection, for config.json says tie_word_embeddings=false",
                "get the missing file, or allow the embedding in its place with tie_missing_head",
            )
        config = dataclasses.replace(config, tie_embeddings=True)
    # Tied checkpoints may repeat the embedding as head; old ones store the rotary frequencies.
    ignored = {name for name in shapes if name.endswith("rotary_emb.inv_freq")}
    if config.tie_embeddings:
        ignored.add(head)

    def read(name: str) -> np.ndarray:
        return files[name].read(name)

    checkpoint = weights.Checkpoint(config, table, shapes, read, str(directory), frozenset(ignored))
    return fused.split(checkpoint) if config.model_type == "phi3" else checkpoint


def read_config(directory: Path) -> Mapping[str, Any]:
    """The JSON object of `config.json`."""
    path = directory / "config.json"
    weight_files.check_weight_file(path)
    fields = textfiles.read_json(path, name="config")
    if not isinstance(fields, dict):
        raise input_error(str(path), type(fields).__name__, "a JSON object")
    return fields


def open_tensors(directory: Path) -> dict[str, SafetensorsFile]:
    """Which open file holds each tensor, by tensor name. Nothing outside `directory` is opened."""
    if (directory / _SINGLE).exists():
        file = SafetensorsFile(directory / _SINGLE)
        return {name: file for name in file.shapes}
    if (directory / _INDEX).exists():
        return _open_shards(directory, _read_index(directory / _INDEX))
    pickles = weight_files.pickles_in(directory)
    if pickles:
        raise weight_files.pickle_error(pickles[0])
    raise input_error(str(directory), "no weights", f"{_SINGLE} or {_INDEX}")


def weight_paths(directory: Path) -> list[Path]:
    """The files that `open_tensors` reads, in a fixed order."""
    if (directory / _SINGLE).exists():
        return [directory / _SINGLE]
    return [directory / name for name in sorted(set(_read_index(directory / _INDEX).values()))]


def _read_index(path: Path) -> dict[str, str]:
    """Tensor name -> name of a file beside the index."""
    weight_files.check_weight_file(path)
    index = textfiles.read_json(path, name="index")
    names = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(names, dict) or not names:
        raise input_error(f"{path}: weight_map", names, "tensor names to file names")
    for tensor, file in names.items():
        if not isinstance(file, str) or not _is_plain(file):
            raise input_error(
                f"{path}: {tensor}", repr(file), "the name of a .safetensors file beside the index"
            )
    return names


def _is_plain(name: str) -> bool:
    plain = not any(mark in name for mark in "/\\:\0") and not name.startswith(".")
    return plain and name.endswith(".safetensors")


def _open_shards(directory: Path, index: dict[str, str]) -> dict[str, SafetensorsFile]:
    absent = [file for file in sorted(set(index.values())) if not (directory / file).exists()]
    if absent:
        lost = sorted(tensor for tensor, file in index.items() if file in absent)
        more = f" and {len(lost) - _LISTED} more" if len(lost) > _LISTED else ""
        raise InputError(
            f"{directory}: shard {', '.join(absent)} is absent, and with it {len(lost)} tensors: "
            f"{', '.join(lost[:_LISTED])}{more}; fix: download the missing file"
        )
    shards = {file: SafetensorsFile(directory / file) for file in sorted(set(index.values()))}
    owners: dict[str, SafetensorsFile] = {}
    for file, shard in shards.items():
        for tensor in shard.shapes:
            if tensor in owners:
                raise input_error(
                    f"{directory}: {tensor}",
                    f"in both {owners[tensor].path.name} and {file}",
                    "every tensor in one shard",
                )
            if index.get(tensor) != file:
                raise input_error(
                    f"{directory / file}: {tensor}", "not in the index", "what the index lists"
                )
            owners[tensor] = shard
    lost = sorted(tensor for tensor in index if tensor not in owners)
    if lost:
        where = f"{directory / index[lost[0]]}: {lost[0]}"
        raise input_error(where, "absent", "the tensor that the index puts there")
    return owners
