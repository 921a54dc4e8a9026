"""Forecasters in PEFT's layout: the same forecasts after a round trip, and never a made-up head."""

import json
import shutil

import jax
import numpy as np
import pytest

from calibjax.errors import InputError
from calibjax.forecaster import Forecaster
from calibjax.forecaster.interchange import DESCRIPTION, HEAD
from tests.forecaster.test_score import DECODER, DOCUMENTS, QUERIES, make
from tests.tiny import tiny_decoder


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    directory = tmp_path_factory.mktemp("peft") / "forecaster"
    make().save_peft(directory)
    return directory


@pytest.fixture
def copy(saved, tmp_path):
    return shutil.copytree(saved, tmp_path / "copy")


def other():
    return Forecaster(DECODER, key=jax.random.key(99))


@pytest.mark.parametrize(
    "preset, method",
    [("fixed", "calibrag"), ("code", "calibrag_multi"), ("paper", "calibrag_no_temperature")],
)
def test_forecasts_survive_the_round_trip_bit_by_bit(preset, method, tmp_path):
    made = make(preset, method)
    made.save_peft(tmp_path / "there")
    again = other().load_peft(tmp_path / "there")
    assert (again.preset, again.method) == (made.preset, made.method)
    np.testing.assert_array_equal(
        again.score(QUERIES, DOCUMENTS), made.score(QUERIES, DOCUMENTS)
    )


def test_the_card_names_the_base_model_and_the_library(saved):
    card = (saved / "README.md").read_text()
    assert card.startswith('---\nbase_model: "tiny"\nlibrary_name: peft\n')
    assert "sha256 `tiny0`" in card and "load_peft" in card


def test_a_stretched_adapter_of_another_rank_is_taken_over_with_its_scale(copy):
    """PEFT may have made it anew with rank-stabilised scale; saving it here keeps what it does."""
    path = copy / "adapter_config.json"
    settings = json.loads(path.read_text()) | {"use_rslora": True, "lora_alpha": 4.0}
    path.write_text(json.dumps(settings))
    loaded = other().load_peft(copy)
    assert loaded.model.adapter.scale == pytest.approx(4.0 / 8**0.5)
    assert loaded.preset.lora_alpha == pytest.approx(4.0 * 8**0.5)
    loaded.save(copy / "native")
    again = Forecaster.load(copy / "native", backbone=DECODER)
    np.testing.assert_array_equal(
        again.score(QUERIES, DOCUMENTS), loaded.score(QUERIES, DOCUMENTS)
    )


@pytest.mark.parametrize("name", [DESCRIPTION, HEAD])
def test_without_the_head_nothing_is_loaded(copy, name):
    (copy / name).unlink()
    forecaster = other()
    before = forecaster.score(QUERIES, DOCUMENTS)
    with pytest.raises(InputError, match=f"{name}=absent: expected the forecaster's head.*copy"):
        forecaster.load_peft(copy)
    np.testing.assert_array_equal(forecaster.score(QUERIES, DOCUMENTS), before)


def test_another_decoder_is_refused_with_both_hashes(saved):
    forecaster = Forecaster(tiny_decoder(seed=1), key=jax.random.key(0))
    with pytest.raises(InputError, match="sha256 tiny1.*sha256 tiny0"):
        forecaster.load_peft(saved)


def test_a_damaged_head_is_refused(copy):
    data = bytearray((copy / HEAD).read_bytes())
    data[-3] ^= 1
    (copy / HEAD).write_bytes(data)
    with pytest.raises(InputError, match=f"{HEAD}: differs from {DESCRIPTION}"):
        other().load_peft(copy)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 2}, "expected a description in format 1"),
        ({"preset": {"name": "x"}}, "expected a known preset"),
    ],
)
def test_descriptions_of_another_kind_are_refused(copy, change, message):
    path = copy / DESCRIPTION
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(InputError, match=message):
        other().load_peft(copy)


def test_a_head_of_another_preset_is_refused(copy):
    path = copy / DESCRIPTION
    described = json.loads(path.read_text())
    described["preset"]["head"] = "linear"
    path.write_text(json.dumps(described))
    with pytest.raises(InputError, match="params/head/.*expected the tensors of the preset's head"):
        other().load_peft(copy)


def test_a_head_alone_and_a_foreign_directory_are_refused(tmp_path):
    frozen = make()
    frozen.model.adapter = None
    with pytest.raises(InputError, match="lora_rank=.*an adapter to write.*Forecaster.save"):
        frozen.save_peft(tmp_path / "new")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("all of it")
    with pytest.raises(InputError, match="expected a new directory"):
        make().save_peft(tmp_path / "mine")


def test_saving_again_replaces_the_earlier_one(copy):
    made = make(seed=5)
    made.save_peft(copy)
    np.testing.assert_array_equal(
        other().load_peft(copy).score(QUERIES, DOCUMENTS), made.score(QUERIES, DOCUMENTS)
    )
