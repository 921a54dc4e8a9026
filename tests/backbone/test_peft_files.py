"""Adapters in PEFT's layout: names, round trip, and what every fault is called."""

import json

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from calibjax.backbone import lora, peft_files
from calibjax.errors import InputError
from tests.tiny import tiny_config

CONFIG = tiny_config()


def trained(config=CONFIG, **options):
    adapter = lora.Adapter(config, key=jax.random.key(1), **options)
    for number, name in enumerate(adapter.targets):
        pair = getattr(adapter, name)
        pair.b[...] = jax.random.normal(jax.random.key(number), pair.b.shape, "float32")
    return adapter


def write(directory, adapter, config=CONFIG):
    peft_files.write_adapter(directory, adapter, config, base_model="some/base")
    return directory


def changed(directory, **settings):
    path = directory / peft_files.CONFIG
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))


def rewritten(directory, change):
    path = directory / peft_files.WEIGHTS
    save_file({k: np.ascontiguousarray(v) for k, v in change(load_file(path)).items()}, path)


def same(a, b):
    assert (a.targets, a.rank, a.scale, a.dropout) == (b.targets, b.rank, b.scale, b.dropout)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"targets": ".*", "rank": 3, "alpha": 5.0, "rslora": True, "dropout": 0.1},
        {"targets": "k_proj|up_proj"},
    ],
)
def test_an_adapter_comes_back_bit_by_bit(options, tmp_path):
    adapter = trained(**options)
    same(peft_files.read_adapter(write(tmp_path, adapter), CONFIG), adapter)


def test_names_orders_and_settings_are_those_of_peft(tmp_path):
    adapter = trained()
    tensors = load_file(write(tmp_path, adapter) / peft_files.WEIGHTS)
    stem = "base_model.model.model.layers.1.self_attn.v_proj"
    a, b = tensors[f"{stem}.lora_A.weight"], tensors[f"{stem}.lora_B.weight"]
    assert (a.shape, b.shape) == ((8, 32), (16, 8)) and len(tensors) == 2 * 2 * 2
    np.testing.assert_array_equal(a.T, adapter.v_proj.a[...][1])
    np.testing.assert_array_equal(b.T, adapter.v_proj.b[...][1])
    settings = json.loads((tmp_path / peft_files.CONFIG).read_text())
    assert settings["target_modules"] == ["q_proj", "v_proj"]
    # Block L = 3 has no adapter, so that PEFT must not make one up.
    assert settings["layers_to_transform"] == [0, 1]
    assert (settings["r"], settings["lora_alpha"], settings["bias"]) == (8, 16.0, "none")
    assert settings["base_model_name_or_path"] == "some/base"


def test_fused_projections_share_one_pair_of_matrices(tmp_path):
    """q and v of rank 8 as one qkv pair of rank 16: what each adds stays what it was."""
    config = tiny_config(model_type="phi3")
    adapter = trained(config)
    again = peft_files.read_adapter(write(tmp_path, adapter, config), config)
    assert again.targets == ("q_proj", "k_proj", "v_proj") and again.rank == 16
    for name in again.targets:
        pair = getattr(again, name)
        found = again.scale * np.matmul(pair.a[...], pair.b[...])
        wanted = np.zeros_like(found)
        if name in adapter.targets:
            pair = getattr(adapter, name)
            wanted = adapter.scale * np.matmul(pair.a[...], pair.b[...])
        np.testing.assert_allclose(found, wanted, atol=1e-6)


def test_blocks_without_matrices_stay_as_they_are_and_the_last_is_left_out(tmp_path):
    adapter = trained()

    def change(tensors):
        kept = {k: v for k, v in tensors.items() if "layers.0." not in k}
        return kept | {k.replace("layers.1.", "layers.2."): v for k, v in kept.items()}

    rewritten(write(tmp_path, adapter), change)
    again = peft_files.read_adapter(tmp_path, CONFIG)
    for name in again.targets:
        pair, old = getattr(again, name), getattr(adapter, name)
        np.testing.assert_array_equal(pair.b[...][0], 0.0)
        np.testing.assert_array_equal(pair.b[...][1], old.b[...][1])


def test_names_over_a_bare_model_and_with_the_adapters_name_are_understood(tmp_path):
    adapter = trained()

    def change(tensors):
        return {
            k.replace("model.model.model.", "model.model.").replace("_A.", "_A.default."): v
            for k, v in tensors.items()
        }

    rewritten(write(tmp_path, adapter), change)
    same(peft_files.read_adapter(tmp_path, CONFIG), adapter)


def test_settings_that_peft_adds_with_time_do_not_matter(tmp_path):
    adapter = trained()
    changed(write(tmp_path, adapter), peft_version="9.9", eva_config=None, modules_to_save=[])
    same(peft_files.read_adapter(tmp_path, CONFIG), adapter)


A1 = "base_model.model.model.layers.1.self_attn.q_proj.lora_A.weight"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"peft_type": "IA3"}, "peft_type='IA3': expected 'LORA'"),
        ({"use_dora": True}, "use_dora=True: expected False"),
        ({"bias": "all"}, "bias='all': expected 'none'"),
        ({"fan_in_fan_out": True}, "fan_in_fan_out=True"),
        ({"rank_pattern": {"q_proj": 4}}, "rank_pattern="),
        ({"modules_to_save": ["score"]}, "modules_to_save=.*'score'.*forecaster's own head"),
        ({"r": 4}, r"lora_A.weight=shape \[8, 32\]: expected \[4, 32\], for .* says r=4"),
        ({"r": "8"}, "r='8': expected a positive integer"),
        ({"lora_alpha": float("nan")}, "lora_alpha"),
        ({"lora_dropout": 2.0}, "dropout=2.0"),
    ],
)
def test_settings_that_are_not_computed_are_named(settings, message, tmp_path):
    changed(write(tmp_path, trained()), **settings)
    with pytest.raises(InputError, match=message):
        peft_files.read_adapter(tmp_path, CONFIG)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t | {A1: t[A1].T}, rf"{A1}=shape \[32, 8\]: expected \[8, 32\]"),
        (lambda t: t | {A1: np.full((8, 32), np.nan, np.float32)}, f"{A1}=256 values NaN"),
        (lambda t: {k: v for k, v in t.items() if k != A1}, "lora_B.weight=alone"),
        (lambda t: {k.replace("layers.1", "layers.7"): v for k, v in t.items()}, "layers.7"),
        (lambda t: {k.replace("q_proj", "x_proj"): v for k, v in t.items()}, "x_proj.*fix: was"),
        (lambda t: t | {"base_model.model.score.weight": np.ones((1, 2))}, "1 tensors without a"),
        (lambda t: {}, "no tensors"),
        (
            lambda t: {k.replace(".1.", ".2."): v for k, v in t.items() if ".1." in k},
            "only block 2: expected blocks before the last one",
        ),
    ],
)
def test_tensors_that_do_not_fit_are_named(change, message, tmp_path):
    rewritten(write(tmp_path, trained()), change)
    with pytest.raises(InputError, match=message):
        peft_files.read_adapter(tmp_path, CONFIG)


def test_missing_and_pickled_files_are_named(tmp_path):
    directory = write(tmp_path, trained())
    (directory / peft_files.WEIGHTS).rename(directory / "adapter_model.bin")
    with pytest.raises(InputError, match="adapter_model.bin: is a pickle, which is never opened"):
        peft_files.read_adapter(directory, CONFIG)
    (directory / peft_files.CONFIG).unlink()
    with pytest.raises(InputError, match="adapter_config.json=absent"):
        peft_files.read_adapter(directory, CONFIG)
