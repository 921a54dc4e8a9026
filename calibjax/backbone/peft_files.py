"""LoRA adapters in the layout of Hugging Face PEFT: adapter_config.json and safetensors.

PEFT stores A as [R, in] and B as [out, R] under the checkpoint's module names. Where a checkpoint
fuses projections (Phi-3), one pair of matrices adapts them all: ours are stacked when written.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging

from calibjax import storage, textfiles
from calibjax.backbone import fused, lora, weight_files, weights
from calibjax.backbone.config import DecoderConfig
from calibjax.backbone.lora import Adapter
from calibjax.backbone.metadata import Fields
from calibjax.backbone.safetensors_file import SafetensorsFile, check_finite
from calibjax.errors import InputError, input_error

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"

# As PEFT names them over AutoModelForCausalLM; over AutoModel one "model." is missing, and files
# of old versions hold the adapter's name.
_NAME = re.compile(
    r"base_model\.model\.(?:model\.)?layers\.(\d{1,6})\.(\w+\.\w+)"
    r"\.lora_([AB])(?:\.default)?\.weight"
)
# Settings that change what an adapter computes, and the only values that are computed here.
_PLAIN = {
    "peft_type": ("LORA",),
    "bias": ("none",),
    "use_dora": (False,),
    "fan_in_fan_out": (False,),
    "lora_bias": (False,),
    "rank_pattern": ({},),
    "alpha_pattern": ({},),
    "modules_to_save": ([],),
    "trainable_token_indices": ([],),
}


class _Tensor(NamedTuple):
    """A stored matrix: which of the two ("A" or "B") of which module in which block (from 0)."""

    name: str
    block: int
    module: str
    letter: str


def modules(config: DecoderConfig) -> dict[str, tuple[str, ...]]:
    """The checkpoint's modules of a block, and our projections in the order of their rows."""
    stored = fused.MODULES if config.model_type == "phi3" else {}
    apart = set(lora.PROJECTIONS) - {name for names in stored.values() for name in names}
    table = weights.HUGGING_FACE.block
    ours = {path.rpartition(".")[2]: module for path, module in table.items()}
    return {**stored, **{ours[name]: (name,) for name in lora.PROJECTIONS if name in apart}}


def write_adapter(
    directory: Path, adapter: Adapter, config: DecoderConfig, *, base_model: str
) -> None:
    """Write both files. base_model: what PEFT shall load the adapter onto.

    `layers_to_transform` leaves out block L, which has no adapter.
    """
    chosen = {
        module: [name for name in names if name in adapter.targets]
        for module, names in modules(config).items()
    }
    chosen = {module: names for module, names in chosen.items() if names}
    # Every module gets the rank of the largest stack, so that one scale holds for all.
    stacked = max(map(len, chosen.values()))
    tensors: dict[str, np.ndarray] = {}
    for module in chosen:
        for block in range(config.num_layers - 1):
            stem = f"base_model.model.{weights.HUGGING_FACE.stem}{block}.{module}"
            a, b = _stored_pair(adapter, config, module, block, stacked)
            tensors |= {f"{stem}.lora_A.weight": a, f"{stem}.lora_B.weight": b}
    for name, value in tensors.items():
        check_finite(value, name)
    settings = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base_model,
        "r": stacked * adapter.rank,
        "lora_alpha": adapter.alpha * (stacked**0.5 if adapter.rslora else stacked),
        "lora_dropout": adapter.dropout,
        "use_rslora": adapter.rslora,
        "target_modules": sorted(module.rpartition(".")[2] for module in chosen),
        "layers_to_transform": list(range(config.num_layers - 1)),
        "layers_pattern": "layers",
        "bias": "none",
        "fan_in_fan_out": False,
        "use_dora": False,
        "init_lora_weights": True,
        "inference_mode": True,
        "modules_to_save": None,
        "rank_pattern": {},
        "alpha_pattern": {},
    }
    directory.mkdir(parents=True, exist_ok=True)
    storage.write_bytes(directory / WEIGHTS, to_safetensors(tensors))
    storage.write_json(directory / CONFIG, settings)


def to_safetensors(tensors: Mapping[str, np.ndarray]) -> bytes:
    """The bytes of a safetensors file that PyTorch's loaders accept as their own."""
    import safetensors.numpy

    return safetensors.numpy.save(dict(tensors), metadata={"format": "pt"})


def _stored_pair(
    adapter: Adapter, config: DecoderConfig, module: str, block: int, stacked: int
) -> tuple[np.ndarray, np.ndarray]:
    """float32 A [stacked x R, in] and B [out, stacked x R] of one module of one block."""
    names, rank = modules(config)[module], adapter.rank
    bounds = fused.row_bounds(config, names)
    size_in = lora.projection_sizes(config)[names[0]][0]
    a = np.zeros((stacked * rank, size_in), np.float32)
    b = np.zeros((bounds[-1][1], stacked * rank), np.float32)
    place = 0
    for name, (start, stop) in zip(names, bounds):
        if name in adapter.targets:
            pair = getattr(adapter, name)
            a[place : place + rank] = np.asarray(pair.a[...][block]).T
            b[start:stop, place : place + rank] = np.asarray(pair.b[...][block]).T
            place += rank
    return a, b


def read_adapter(directory: Path, config: DecoderConfig) -> Adapter:
    """The adapter in a PEFT directory, for a decoder of this shape.

    Blocks without matrices get zeros; block L's are left out, as the feature is read before it.
    Raises InputError naming file and tensor or setting for what does not fit or is not computed.
    """
    settings = _read_settings(directory / CONFIG)
    if not (directory / WEIGHTS).exists() and (pickles := weight_files.pickles_in(directory)):
        raise weight_files.pickle_error(pickles[0])
    file = SafetensorsFile(directory / WEIGHTS)
    rank = settings.integer("r", 8)
    stored = list(_stored(file, config, rank))
    layout = modules(config)
    names = {name for tensor in stored for name in layout[tensor.module]}
    adapter = Adapter(
        config,
        key=jax.random.key(0),
        rank=rank,
        alpha=settings.number("lora_alpha", 8),
        dropout=_dropout(settings),
        targets="|".join(names),
        rslora=settings.flag("use_rslora", False),
    )
    values = {
        (name, letter): np.zeros(getattr(getattr(adapter, name), letter).shape, np.float32)
        for name in names
        for letter in "ab"
    }
    for tensor in stored:
        value = file.read(tensor.name).astype(np.float32)
        parts = layout[tensor.module]
        for name, (start, stop) in zip(parts, fused.row_bounds(config, parts)):
            part = value if tensor.letter == "A" else value[start:stop]
            values[name, tensor.letter.lower()][tensor.block] = part.T
    for (name, letter), value in values.items():
        getattr(getattr(adapter, name), letter)[...] = jnp.asarray(value)
    return adapter


def _read_settings(path: Path) -> Fields:
    weight_files.check_weight_file(path)
    fields = textfiles.read_json(path, name="adapter")
    if not isinstance(fields, dict):
        raise input_error(str(path), type(fields).__name__, "a JSON object")
    reader = Fields(fields, str(path))
    for name, allowed in _PLAIN.items():
        value = reader.get(name, allowed[0])
        if value not in allowed and value != ():
            fix = "keep the forecaster's own head" if name == "modules_to_save" else None
            raise reader.error(name, value, repr(allowed[0]), fix)
    return reader


def _dropout(settings: Fields) -> float:
    value: Any = settings.get("lora_dropout", 0.0)
    return 0.0 if value == 0 else settings.number("lora_dropout")


def _stored(file: SafetensorsFile, config: DecoderConfig, rank: int) -> Iterator[_Tensor]:
    """The file's matrices that the features need, names and shapes checked."""
    layout, sizes = modules(config), lora.projection_sizes(config)
    found: dict[tuple[int, str, str], _Tensor] = {}
    unknown = []
    for name in file.shapes:
        match = _NAME.fullmatch(name)
        if match is None or match[2] not in layout or int(match[1]) >= config.num_layers:
            unknown.append(name)
            continue
        tensor = _Tensor(name, int(match[1]), match[2], match[3])
        found[tensor[1:]] = tensor
    if unknown:
        fix = "was it trained on this model, and LoRA on projections of its blocks alone?"
        raise InputError(
            f"{file.path}: {len(unknown)} tensors without a place in this decoder: "
            f"{weights.listed(unknown)}; fix: {fix}"
        )
    if not found:
        raise input_error(str(file.path), "no tensors", "lora_A and lora_B of some projection")
    for (block, module, letter), tensor in found.items():
        if (block, module, "A" if letter == "B" else "B") not in found:
            raise input_error(f"{file.path}: {tensor.name}", "alone", "both lora_A and lora_B")
        names = layout[module]
        size_out = fused.row_bounds(config, names)[-1][1]
        expected = (rank, sizes[names[0]][0]) if letter == "A" else (size_out, rank)
        if file.shapes[tensor.name] != expected:
            raise input_error(
                f"{file.path}: {tensor.name}",
                f"shape {list(file.shapes[tensor.name])}",
                f"{list(expected)}, for {CONFIG} says r={rank}",
            )
    last = config.num_layers - 1
    if any(tensor.block == last for tensor in found.values()):
        logging.warning("%s: block %d's adapter is left out: no feature needs it", file.path, last)
    if all(tensor.block == last for tensor in found.values()):
        raise input_error(str(file.path), f"only block {last}", "blocks before the last one")
    return (tensor for tensor in found.values() if tensor.block != last)
