"""BERT checkpoints in Hugging Face directories: configuration, weights, pooling settings."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np

from calibjax.backbone import huggingface
from calibjax.backbone.bert import ACTIVATIONS, BertConfig, Pooling, parameter_shapes
from calibjax.errors import InputError, input_error
from calibjax.reading import textfiles

_TOP = {
    "word_embedding": "embeddings.word_embeddings.weight",
    "position_embedding": "embeddings.position_embeddings.weight",
    "type_embedding": "embeddings.token_type_embeddings.weight",
    "embedding_norm": "embeddings.LayerNorm",
    "pooler": "pooler.dense",
    "classifier": "classifier",
}
_BLOCK = {
    "q_proj": "attention.self.query",
    "k_proj": "attention.self.key",
    "v_proj": "attention.self.value",
    "o_proj": "attention.output.dense",
    "attention_norm": "attention.output.LayerNorm",
    "up_proj": "intermediate.dense",
    "down_proj": "output.dense",
    "output_norm": "output.LayerNorm",
}
_LEAVES = {"kernel": "weight", "scale": "weight", "bias": "bias"}
# Saved beside the encoder by other heads and older versions; not needed.
_UNUSED = ("cls.", "pooler.", "embeddings.position_ids")
_LISTED = 8


class Settings(NamedTuple):
    """How a sentence-transformers directory turns hidden states into a vector.

    pooling is None when the checkpoint does not say (a cross-encoder, or no such configuration).
    """

    pooling: Pooling | None
    normalize: bool
    max_length: int
    lower: bool


class _Tensors:
    """A directory's tensors under the names of a bare BertModel."""

    def __init__(self, directory: Path) -> None:
        self._files = huggingface.open_tensors(directory)
        self._stored = {_bare_name(name): name for name in self._files}
        self.shapes = {
            name: self._files[stored].shapes[stored] for name, stored in self._stored.items()
        }

    def read(self, name: str) -> np.ndarray:
        stored = self._stored[name]
        return self._files[stored].read(stored).astype(np.float32)


def read_checkpoint(directory: Path) -> tuple[BertConfig, dict[str, np.ndarray]]:
    """Configuration and float32 arrays by the paths of `bert.parameter_shapes`.

    Raises InputError that lists missing, unknown or misshapen tensors before reading any.
    """
    tensors = _Tensors(directory)
    labels = tensors.shapes.get("classifier.weight", (0,))[0]
    where = str(directory / "config.json")
    config = read_config(huggingface.read_config(directory), where, num_labels=labels)
    sources = {path: _source_names(path, config) for path in parameter_shapes(config)}
    _check(tensors, sources, config, str(directory))
    return config, {path: _assemble(tensors, path, names) for path, names in sources.items()}


def read_config(fields: Mapping[str, Any], where: str, *, num_labels: int = 0) -> BertConfig:
    """BertConfig of a config.json; InputError for what this port does not compute."""
    for name, allowed, default in (
        ("model_type", ("bert",), None),
        ("hidden_act", ACTIVATIONS, "gelu"),
        ("position_embedding_type", ("absolute",), "absolute"),
    ):
        if (value := fields.get(name, default)) not in allowed:
            raise input_error(f"{where}: {name}", repr(value), " or ".join(map(repr, allowed)))
    config = BertConfig(
        vocab_size=_integer(fields, "vocab_size", where),
        hidden_size=_integer(fields, "hidden_size", where),
        intermediate_size=_integer(fields, "intermediate_size", where),
        num_layers=_integer(fields, "num_hidden_layers", where),
        num_heads=_integer(fields, "num_attention_heads", where),
        max_positions=_integer(fields, "max_position_embeddings", where),
        num_types=_integer(fields, "type_vocab_size", where),
        norm_eps=float(fields.get("layer_norm_eps", 1e-12)),
        activation=fields.get("hidden_act", "gelu"),
        num_labels=num_labels,
    )
    if config.hidden_size % config.num_heads:
        raise input_error(
            f"{where}: num_attention_heads", config.num_heads, f"a divisor of {config.hidden_size}"
        )
    return config


def read_settings(directory: Path, max_positions: int) -> Settings:
    """Pooling, normalisation and length limit of the directory's own configuration files."""
    transformer = _object(directory / "sentence_bert_config.json")
    limits = [max_positions, transformer.get("max_seq_length")]
    if limits[1] is None:
        limits[1] = _object(directory / "tokenizer_config.json").get("model_max_length")
    max_length = min(int(limit) for limit in limits if limit)
    lower = bool(transformer.get("do_lower_case", False))
    modules = directory / "modules.json"
    if not modules.is_file():
        return Settings(None, False, max_length, lower)
    kinds = [
        (str(entry.get("type", "")).rsplit(".", 1)[-1], entry.get("path", ""))
        for entry in cast(list, textfiles.read_json(modules, name="modules"))
    ]
    pooling = None
    for kind, folder in kinds:
        if kind == "Pooling":
            pooling = _pooling(directory / folder / "config.json")
        elif kind not in ("Transformer", "Normalize"):
            expected = "Transformer, Pooling and Normalize modules only"
            raise input_error(str(modules), kind, expected)
    return Settings(pooling, any(kind == "Normalize" for kind, _ in kinds), max_length, lower)


def _pooling(path: Path) -> Pooling:
    fields = _object(path)
    named = fields.get("pooling_mode")
    modes = [named] if isinstance(named, str) else []
    modes += [name.removeprefix("pooling_mode_") for name, on in fields.items() if on is True]
    known: dict[tuple, Pooling] = {
        ("mean_tokens",): "mean",
        ("mean",): "mean",
        ("cls_token",): "cls",
        ("cls",): "cls",
    }
    found = known.get(tuple(mode for mode in modes if mode != "include_prompt"))
    if found is None:
        raise input_error(str(path), ", ".join(modes) or "no mode", "mean or cls", "pooling='mean'")
    return found


def _object(path: Path) -> Mapping[str, Any]:
    """The JSON object of a file; empty when there is none."""
    if not path.is_file():
        return {}
    fields = textfiles.read_json(path, name=path.stem)
    if not isinstance(fields, dict):
        raise input_error(str(path), type(fields).__name__, "a JSON object")
    return fields


def _integer(fields: Mapping[str, Any], name: str, where: str) -> int:
    value = fields.get(name)
    if type(value) is not int or not 0 < value < 2**31:
        raise input_error(f"{where}: {name}", repr(value), "a positive integer")
    return value


def _bare_name(name: str) -> str:
    """A tensor's name without the prefix of a bigger model, norms as they are called today."""
    name = name.removeprefix("bert.")
    for old, new in ((".gamma", ".weight"), (".beta", ".bias")):
        if name.endswith(f"LayerNorm{old}"):
            name = name.removesuffix(old) + new
    return name


def _source_names(path: str, config: BertConfig) -> list[str]:
    """The checkpoint's tensors that make up one of our parameters, in the order of its rows."""
    owner, _, leaf = path.removeprefix("blocks.").partition(".")
    suffix = f".{_LEAVES[leaf]}" if leaf else ""
    if not path.startswith("blocks."):
        return [_TOP[owner] + suffix]
    layers = range(config.num_layers)
    return [f"encoder.layer.{layer}.{_BLOCK[owner]}{suffix}" for layer in layers]


def _check(
    tensors: _Tensors, sources: Mapping[str, list[str]], config: BertConfig, where: str
) -> None:
    wanted = {name for names in sources.values() for name in names}
    missing = sorted(wanted - set(tensors.shapes))
    unknown = sorted(n for n in tensors.shapes if n not in wanted and not n.startswith(_UNUSED))
    wrong = []
    for path, shape in parameter_shapes(config).items():
        inner = shape[1:] if path.startswith("blocks.") else shape
        expected = inner[::-1] if path.endswith(".kernel") else inner
        wrong += [
            f"{name} has shape {list(tensors.shapes[name])}, expected {list(expected)}"
            for name in sources[path]
            if tensors.shapes.get(name, expected) != expected
        ]
    faults = [("missing", missing), ("unknown", unknown), ("misshapen", wrong)]
    texts = [f"{len(names)} tensors {kind}: {_listed(names)}" for kind, names in faults if names]
    if texts:
        fix = "use the weights and the config.json of one BERT model"
        raise InputError(f"{where}: {'; '.join(texts)}; fix: {fix}")


def _assemble(tensors: _Tensors, path: str, names: list[str]) -> np.ndarray:
    values = [tensors.read(name) for name in names]
    if path.endswith(".kernel"):
        values = [value.T for value in values]
    return np.stack(values) if path.startswith("blocks.") else np.ascontiguousarray(values[0])


def _listed(names: Iterable[str]) -> str:
    names = list(names)
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(names[:_LISTED]) + more
