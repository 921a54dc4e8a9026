"""GGUF checkpoints: the checked header, dequantised tensors, q and k rows put back in order."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from calibjax.backbone import config as configs
from calibjax.backbone import fused, weights
from calibjax.backbone.gguf_header import Header, TensorInfo, read_header
from calibjax.backbone.safetensors_file import check_finite
from calibjax.backbone.tokenizer import Tokenizer
from calibjax.errors import InputError, input_error

# Of joined rows, when dequantising: 16 of them stay within a cache of some megabytes.
_VALUES_PER_ROW = 1 << 16
# Architectures whose converter turns the rows of q and k from rotate-half order into pairs.
_PERMUTED = ("llama", "granite")
_ROPE, _SHORT, _LONG = "rope_freqs.weight", "rope_factors_short.weight", "rope_factors_long.weight"


def open_checkpoint(path: Path) -> tuple[weights.Checkpoint, dict[str, Any]]:
    """The checkpoint and its metadata (which hold the tokenizer)."""
    header = read_header(path)
    config = _config(path, header)

    def read(name: str) -> np.ndarray:
        value = read_tensor(path, name, header.tensors[name])
        order = _row_order(config, name)
        return value if order is None else value[order]

    checkpoint = weights.Checkpoint(
        config=config,
        table=weights.GGUF,
        shapes={name: info.shape for name, info in header.tensors.items()},
        read=read,
        where=str(path),
        ignored=frozenset({_ROPE, _SHORT, _LONG}),
    )
    if config.model_type == "phi3":
        whole = {m: names for m, names in fused.GGUF_MODULES.items() if _is_whole(header, m)}
        checkpoint = fused.split(checkpoint, whole)
    return checkpoint, header.fields


def open_tokenizer(path: Path, fields: Mapping[str, Any], *, trusted: bool) -> Tokenizer:
    """The tokenizer in a file's metadata; errors name the file."""
    try:
        return Tokenizer.from_gguf(fields, name=str(path), trusted=trusted)
    except InputError as error:
        raise InputError(str(error) if str(path) in str(error) else f"{path}: {error}") from None


def read_tensor(path: Path, name: str, info: TensorInfo) -> np.ndarray:
    """The tensor as float32, dequantised by the gguf package; InputError if it is not finite."""
    import gguf

    kind = gguf.GGMLQuantizationType(info.kind)
    raw = np.memmap(path, np.uint8, "r", offset=info.offset, shape=(info.num_bytes,))
    # A plain view, short rows joined: gguf takes 16 rows at a time, and every slice (of a memmap
    # object above all) costs as much as some thousand values.
    rows = raw.view(np.ndarray).reshape(math.prod(info.shape[:-1]), -1)
    most = max(1, _VALUES_PER_ROW // info.shape[-1])
    rows = rows.reshape(len(rows) // math.gcd(len(rows), 1 << most.bit_length() - 1), -1)
    try:
        # Scales of a damaged file may overflow; the check below says which tensor it was.
        with np.errstate(over="ignore", invalid="ignore"):
            value = gguf.dequantize(rows, kind)
    except NotImplementedError as error:
        raise input_error(
            f"{path}: {name}", kind.name, "a type that the gguf package dequantises"
        ) from error
    value = value.reshape(info.shape)
    check_finite(value, f"{path}: {name} at byte {info.offset}")
    return value


def _is_whole(header: Header, module: str) -> bool:
    """Whether a module holds several projections; files differ, and `ffn_up` may be either."""
    stem = f"{weights.GGUF.stem}0."
    if module == "ffn_up":
        return f"{stem}ffn_gate.weight" not in header.tensors
    return f"{stem}{module}.weight" in header.tensors


def _config(path: Path, header: Header) -> configs.DecoderConfig:
    names = header.tensors.keys()
    biased = {p for p, n in weights.GGUF.block.items() if f"{weights.GGUF.stem}0.{n}.bias" in names}
    divisors: tuple[float, ...] = ()
    for stored in (_ROPE, _SHORT):
        if stored in names:
            divisors = tuple(read_tensor(path, stored, header.tensors[stored]).reshape(-1).tolist())
            if min(divisors) <= 0:
                fix = "convert it again"
                raise InputError(f"{path}: {stored}: expected positive divisors; fix: {fix}")
    return configs.from_gguf(
        header.fields,
        tied=weights.GGUF.name("lm_head.kernel", None) not in names,
        rope_divisors=divisors,
        biased=frozenset(p.rpartition(".")[2] for p in biased),
        where=str(path),
        places=header.places,
    )


def _row_order(config: configs.DecoderConfig, name: str) -> np.ndarray | None:
    if config.model_type not in _PERMUTED:
        return None
    if ".attn_q." in name:
        return weights.rotate_half_rows(config.num_heads, config.head_dim)
    if ".attn_k." in name:
        return weights.rotate_half_rows(config.num_kv_heads, config.head_dim)
    return None
