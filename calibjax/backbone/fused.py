"""Checkpoints that store several projections as one matrix (Phi-3 and Phi-4), taken apart."""

import dataclasses
import itertools
from typing import NamedTuple

import numpy as np

from calibjax.backbone import lora
from calibjax.backbone.config import DecoderConfig
from calibjax.backbone.weights import Checkpoint
from calibjax.errors import input_error

# The stored module of a block, and our projections in the order of its rows.
MODULES = {
    "self_attn.qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "mlp.gate_up_proj": ("gate_proj", "up_proj"),
}


class _Rows(NamedTuple):
    """Rows of a stored tensor."""

    name: str
    start: int
    stop: int


def row_bounds(config: DecoderConfig, names: tuple[str, ...]) -> list[tuple[int, int]]:
    """(first, last + 1) rows of each projection when their matrices [out, in] are stacked."""
    sizes = lora.projection_sizes(config)
    ends = list(itertools.accumulate(sizes[name][1] for name in names))
    return list(zip([0, *ends], ends))


def split(checkpoint: Checkpoint) -> Checkpoint:
    """The same checkpoint as if every projection were stored by itself.

    Raises InputError naming a fused tensor whose rows are not those of its projections.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    places: dict[str, _Rows] = {}
    for stored, shape in checkpoint.shapes.items():
        module = next((m for m in MODULES if stored.endswith(f".{m}.weight")), None)
        if module is None:
            shapes[stored] = shape
            continue
        names = MODULES[module]
        bounds = row_bounds(checkpoint.config, names)
        if shape[:1] != bounds[-1][1:]:
            expected = f"{bounds[-1][1]} rows, those of {', '.join(names)} together"
            raise input_error(f"{checkpoint.where}: shape of {stored}", list(shape), expected)
        for name, (start, stop) in zip(names, bounds):
            part = stored.replace(module.rpartition(".")[2], name)
            shapes[part] = (stop - start, *shape[1:])
            places[part] = _Rows(stored, start, stop)

    def read(name: str) -> np.ndarray:
        if name not in places:
            return checkpoint.read(name)
        stored, start, stop = places[name]
        return checkpoint.read(stored)[start:stop]

    return dataclasses.replace(checkpoint, shapes=shapes, read=read)
