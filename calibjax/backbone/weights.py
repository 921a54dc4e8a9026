"""From a checkpoint's tensors to our parameters: names, orders, shapes, types."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from calibjax.backbone.config import DecoderConfig
from calibjax.backbone.decoder import block_numbers, parameter_shapes
from calibjax.errors import InputError, input_error

_MOST_NAMES = 8
# Tensors that are read at a time, each with a float32 copy of its own; no more than cores.
_MOST_READERS = min(4, os.cpu_count() or 1)


@dataclass(frozen=True)
class NameTable:
    """A format's names: `top` of the module itself, `stem`, number and `block` of a block."""

    top: Mapping[str, str]
    stem: str
    block: Mapping[str, str]

    def name(self, path: str, number: int | None) -> str:
        """The checkpoint's name of one of our paths (of block `number`, counted from 0)."""
        if number is None:
            return _renamed(self.top, path)
        return f"{self.stem}{number}." + _renamed(self.block, path)

    def without_prefix(self, prefix: str) -> "NameTable":
        """The table of files whose names lack `prefix`."""
        top = {ours: name.removeprefix(prefix) for ours, name in self.top.items()}
        return NameTable(top, self.stem.removeprefix(prefix), self.block)


def _renamed(table: Mapping[str, str], path: str) -> str:
    owner, leaf = path.rsplit(".", 1) if "." in path else (path, "kernel")
    return f"{table[owner]}.{'bias' if leaf == 'bias' else 'weight'}"


HUGGING_FACE = NameTable(
    top={"embedding": "model.embed_tokens", "norm": "model.norm", "lm_head": "lm_head"},
    stem="model.layers.",
    block={
        "attention_norm": "input_layernorm",
        "attention.q_proj": "self_attn.q_proj",
        "attention.k_proj": "self_attn.k_proj",
        "attention.v_proj": "self_attn.v_proj",
        "attention.o_proj": "self_attn.o_proj",
        "mlp_norm": "post_attention_layernorm",
        "mlp.gate_proj": "mlp.gate_proj",
        "mlp.up_proj": "mlp.up_proj",
        "mlp.down_proj": "mlp.down_proj",
    },
)

GGUF = NameTable(
    top={"embedding": "token_embd", "norm": "output_norm", "lm_head": "output"},
    stem="blk.",
    block={
        "attention_norm": "attn_norm",
        "attention.q_proj": "attn_q",
        "attention.k_proj": "attn_k",
        "attention.v_proj": "attn_v",
        "attention.o_proj": "attn_output",
        "mlp_norm": "ffn_norm",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
    },
)


@dataclass(frozen=True)
class Checkpoint:
    """Tensors of a checkpoint before any is read.

    shapes: by the format's own names, [out, in] for projections. read(name) gives a finite floating
    array of that shape. ignored: names that may be there and are not needed.
    """

    config: DecoderConfig
    table: NameTable
    shapes: Mapping[str, tuple[int, ...]]
    read: Callable[[str], np.ndarray]
    where: str
    ignored: frozenset[str] = frozenset()


def assemble(checkpoint: Checkpoint, dtype: Any) -> Iterator[tuple[str, np.ndarray]]:
    """Our paths and their arrays in `dtype`, one at a time.

    Raises InputError that lists the missing, unknown or misshapen tensors before reading any.
    """
    config = checkpoint.config
    blocks_named = sum(name.startswith(checkpoint.table.stem) for name in checkpoint.shapes)
    if config.num_layers > blocks_named:
        raise input_error(
            f"{checkpoint.where}: number of blocks",
            config.num_layers,
            f"at most {blocks_named}, the number of tensors that belong to blocks",
        )
    sources = {
        path: _source_names(checkpoint, path) for path in parameter_shapes(checkpoint.config)
    }
    _check_names(checkpoint, [name for names in sources.values() for name in names])
    _check_shapes(checkpoint, sources)
    # NumPy lets go of the interpreter while it dequantises and transposes.
    with ThreadPoolExecutor(_MOST_READERS) as pool:
        for path, shape in parameter_shapes(config).items():
            whole = np.empty(shape, dtype)
            rows = whole if path.startswith("blocks.") else whole[None]
            fill = partial(_fill, checkpoint, path.endswith(".kernel"))
            pairs = zip(rows, sources[path], strict=True)
            for filled in [pool.submit(fill, *pair) for pair in pairs]:
                filled.result()
            yield path, whole


def _fill(checkpoint: Checkpoint, transposed: bool, row: np.ndarray, name: str) -> None:
    # Projections are stored [out, in] in every known format, ours [in, out].
    value = checkpoint.read(name)
    row[...] = value.T if transposed else value


def _source_names(checkpoint: Checkpoint, path: str) -> list[str]:
    """The checkpoint's tensors that make up one of our parameters, in the order of its rows."""
    room, _, inner = path.partition(".")
    numbers = block_numbers(checkpoint.config).get(room)
    if numbers is None:
        return [checkpoint.table.name(path, None)]
    return [checkpoint.table.name(inner, number) for number in numbers]


def _check_names(checkpoint: Checkpoint, expected: list[str]) -> None:
    missing = [name for name in expected if name not in checkpoint.shapes]
    wanted = set(expected) | checkpoint.ignored
    unknown = [name for name in checkpoint.shapes if name not in wanted]
    faults = []
    if missing:
        faults.append(f"{len(missing)} tensors missing: {listed(missing)}")
    if unknown:
        names = listed(map(repr, unknown))
        faults.append(f"{len(unknown)} tensors that the configuration has no place for: {names}")
    if faults:
        fix = "use the weights and the configuration of one model"
        raise InputError(f"{checkpoint.where}: {'; '.join(faults)}; fix: {fix}")


def _check_shapes(checkpoint: Checkpoint, sources: Mapping[str, list[str]]) -> None:
    faults = []
    for path, shape in parameter_shapes(checkpoint.config).items():
        inner = shape[1:] if path.startswith("blocks.") else shape
        expected = inner[::-1] if path.endswith(".kernel") else inner
        for name in sources[path]:
            found = checkpoint.shapes[name]
            if found != expected:
                faults.append(f"{name} has shape {list(found)}, expected {list(expected)}")
    if faults:
        raise InputError(
            f"{checkpoint.where}: {listed(faults, ', ')}; fix: is config.json of this model?"
        )


def listed(names: Iterable[str], separator: str = ", ") -> str:
    """The first few names, and how many more there are."""
    names = list(names)
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return separator.join(names[:_MOST_NAMES]) + more


def interleaved_rows(num_heads: int, head_dim: int) -> np.ndarray:
    """Row order that GGUF's llama converter applies: rotate-half halves become neighbouring pairs.

    `num_heads` is that of the projection itself: the key-value heads for k.
    """
    rows = np.arange(num_heads * head_dim).reshape(num_heads, 2, head_dim // 2)
    return rows.swapaxes(1, 2).reshape(-1)


def rotate_half_rows(num_heads: int, head_dim: int) -> np.ndarray:
    """The inverse of `interleaved_rows`: from GGUF's order back to the rotate-half order."""
    return np.argsort(interleaved_rows(num_heads, head_dim))
