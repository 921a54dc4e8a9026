"""Forecasters in Hugging Face PEFT's layout: its two files for the adapter, ours for the head.

PEFT reads adapter_config.json and adapter_model.safetensors and passes over the others. Without
calibjax.json and calibjax_head.safetensors nothing is loaded: a head is never made up.
"""

import dataclasses
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from calibjax import storage, textfiles
from calibjax.backbone import peft_files, weights
from calibjax.backbone.lora import Adapter
from calibjax.backbone.safetensors_file import SafetensorsFile, check_finite
from calibjax.errors import InputError, input_error
from calibjax.forecaster.model import split_model
from calibjax.forecaster.presets import Preset
from calibjax.forecaster.saving import card, check_backbone, describe
from calibjax.trees import named_leaves, with_leaves

if TYPE_CHECKING:
    from calibjax.forecaster.forecaster import Forecaster

FORMAT_VERSION = 1
DESCRIPTION = "calibjax.json"
HEAD = "calibjax_head.safetensors"
_ADAPTER = "params/adapter/"


def save_peft(forecaster: "Forecaster", path: str | os.PathLike) -> None:
    """See `Forecaster.save_peft`."""
    path, adapter = Path(path), forecaster.model.adapter
    if adapter is None:
        fix = "Forecaster.save keeps a head alone"
        raise input_error("lora_rank", forecaster.preset.lora_rank, "an adapter to write", fix)
    if path.exists() and any(path.iterdir()) and not (path / DESCRIPTION).is_file():
        raise input_error("path", path, "a new directory, or one that save_peft wrote")
    path.mkdir(parents=True, exist_ok=True)
    # Written last, so that a save that was cut short has none and is refused.
    (path / DESCRIPTION).unlink(missing_ok=True)
    decoder = forecaster.decoder
    peft_files.write_adapter(path, adapter, decoder.config, base_model=decoder.source)
    head = {name: np.asarray(leaf) for name, leaf in _head_leaves(forecaster).items()}
    for name, value in head.items():
        check_finite(value, name)
    storage.write_bytes(path / HEAD, peft_files.to_safetensors(head))
    info = describe(forecaster)
    storage.write_text(path / "README.md", _card(info))
    sha256 = storage.sha256_file(path / HEAD)
    storage.write_json(path / DESCRIPTION, {"format": FORMAT_VERSION, **info, "head": sha256})


def load_peft(forecaster: "Forecaster", path: str | os.PathLike) -> None:
    """See `Forecaster.load_peft`."""
    from calibjax.forecaster.forecaster import Forecaster

    path, decoder = Path(path), forecaster.decoder
    if not path.is_dir():
        raise input_error("path", path, "a directory that save_peft wrote")
    description = _read_description(path)
    check_backbone(path, description["backbone"], decoder)
    adapter = peft_files.read_adapter(path, decoder.config)
    preset = _with_adapter(_preset(path, description), adapter)
    loaded = Forecaster(decoder, preset, key=jax.random.key(0))
    loaded.method = description["method"]
    loaded.model.adapter = nnx.data(adapter)
    head = _read_head(path / HEAD, description["head"], _head_leaves(loaded))
    graphdef, params, constants = split_model(loaded.model)
    tree = {"params": params, "constants": constants}
    tree = with_leaves(tree, named_leaves(tree) | head)
    forecaster.preset, forecaster.method = preset, loaded.method
    forecaster.model = nnx.merge(graphdef, tree["params"], tree["constants"])


def _head_leaves(forecaster: "Forecaster") -> dict[str, jax.Array]:
    """Everything that is saved but the adapter, by name."""
    _, params, constants = split_model(forecaster.model)
    leaves = named_leaves({"params": params, "constants": constants})
    return {name: leaf for name, leaf in leaves.items() if not name.startswith(_ADAPTER)}


def _read_description(path: Path) -> Mapping[str, Any]:
    for name in (DESCRIPTION, HEAD):
        if not (path / name).is_file():
            raise input_error(
                f"{path}: {name}",
                "absent",
                "the forecaster's head beside the adapter",
                f"copy {DESCRIPTION} and {HEAD} from where save_peft wrote them",
            )
    found = textfiles.read_json(path / DESCRIPTION, name="path")
    known = isinstance(found, dict) and found.get("format") == FORMAT_VERSION
    if not known or not {"method", "preset", "backbone", "head"} <= set(found):
        expected = f"a description in format {FORMAT_VERSION}"
        raise input_error(str(path / DESCRIPTION), "another kind of file", expected)
    return found


def _preset(path: Path, description: Mapping[str, Any]) -> Preset:
    try:
        return Preset(**description["preset"])
    except TypeError as error:
        fix = "load it with the version of calibjax that wrote it"
        raise input_error(f"{path / DESCRIPTION}: preset", error, "a known preset", fix) from None


def _with_adapter(preset: Preset, adapter: Adapter) -> Preset:
    """The preset that makes an adapter of this shape and scale: PEFT may have been given others."""
    # A preset has no rank-stabilised scale; the same number as a plain alpha.
    adapter.alpha, adapter.rslora = adapter.scale * adapter.rank, False
    return dataclasses.replace(
        preset,
        lora_rank=adapter.rank,
        lora_alpha=adapter.alpha,
        lora_dropout=adapter.dropout,
        lora_targets="|".join(adapter.targets),
    )


def _read_head(
    path: Path, sha256: str, template: Mapping[str, jax.Array]
) -> dict[str, jax.Array]:
    if storage.sha256_file(path) != sha256:
        raise InputError(f"{path}: differs from {DESCRIPTION}; fix: copy both files again")
    file = SafetensorsFile(path)
    if set(file.shapes) != set(template):
        wrong = sorted(set(file.shapes) ^ set(template))
        raise input_error(str(path), weights.listed(wrong), "the tensors of the preset's head")
    for name, leaf in template.items():
        if file.shapes[name] != leaf.shape:
            raise input_error(f"{path}: {name}", list(file.shapes[name]), f"{list(leaf.shape)}")
    return {name: jnp.asarray(file.read(name), jnp.float32) for name in template}


def _card(info: Mapping[str, Any]) -> str:
    """The model card, with the front matter that the hub reads."""
    source = json.dumps(info["backbone"]["source"])
    front = (
        f"---\nbase_model: {source}\nlibrary_name: peft\npipeline_tag: text-ranking\n"
        "tags:\n- calibjax\n- lora\n---\n\n"
    )
    loaded_by = (
        f"decoder = load_decoder({source})\n"
        f'forecaster = Forecaster(decoder, key=jax.random.key(0)).load_peft("PATH")'
    )
    body = card(info, loaded_by=loaded_by)
    imports = "import jax\n\nfrom calibjax.backbone import load_decoder\n"
    return front + body.replace("```python\n", f"```python\n{imports}") + _FEATURES


_FEATURES = f"""
PyTorch's PEFT loads the adapter (`PeftModel.from_pretrained(base, "PATH")`). The feature that the
head in `{HEAD}` reads is `hidden_states[-2]` at the last token of the prompt, without final norm.
"""
