"""Every field of every preset against one table of what the paper prints and its code does."""

import dataclasses

import jax
import pytest

from calibjax.backbone.lora import projection_sizes
from calibjax.errors import InputError
from calibjax.forecaster import METHODS, PRESETS
from calibjax.forecaster.model import ForecastModel, split_model
from calibjax.forecaster.presets import get_preset
from tests.tiny import tiny_config

# paper: Table 2 and sections 3.2, 3.3; code: the authors' trainers for soft labels.
TABLE = {
    #                       paper            code             fixed
    "head":                ("linear",        "mlp",           "mlp"),
    "num_outputs":         (1,               2,               1),
    "last_bias":           (True,            False,           True),
    "fourier":             ("paper",         "code",          "fixed"),
    "num_frequencies":     (6,               6,               6),
    "t_min":               (1.0,             1.0,             1.0),
    "t_max":               (2.0,             2.0,             2.0),
    "layer":               (-2,              -2,              -2),
    "bos":                 ("single",        "double",        "single"),
    "lora_rank":           (8,               8,               8),
    "lora_alpha":          (16.0,            32.0,            16.0),
    "lora_targets":        ("q_proj|v_proj", "q_proj|v_proj", "q_proj|v_proj"),
    "lora_dropout":        (0.1,             0.1,             0.1),
    "adapter_at_guidance": (False,           True,            False),
    "group_by":            ("row",           "row",           "question"),
    "batch_size":          (4,               2,               4),
    "accumulation":        (1,               2,               1),
    "clip_norm":           (1.0,             1.0,             1.0),
    "balanced_classes":    (False,           True,            False),
    "standardize":         (False,           False,           True),
    "ridge_start":         (False,           False,           True),
}  # fmt: skip

# Fields that the published recipes fix and that `fixed` chooses by measurement.
RECIPE = {
    "learning_rate":       (1e-4,            1e-4),
    "steps":               (10_000,          20_000),
    "schedule":            ("linear",        "cosine"),
    "warmup_steps":        (500,             0),
    "weight_decay":        (0.01,            0.0),
    "head_warmup_steps":   (0,               0),
}  # fmt: skip


@pytest.mark.parametrize("field", TABLE)
def test_presets_are_as_tabulated(field):
    got = tuple(getattr(PRESETS[name], field) for name in ("paper", "code", "fixed"))
    assert got == TABLE[field]


@pytest.mark.parametrize("field", RECIPE)
def test_published_recipes_are_as_tabulated(field):
    assert tuple(getattr(PRESETS[name], field) for name in ("paper", "code")) == RECIPE[field]


def num_parameters(preset: str, method: str, hidden_size: int) -> dict[str, int]:
    def build():
        made = get_preset(preset, method)
        return split_model(ForecastModel(made, hidden_size, None, jax.random.key(0)))[1]

    params = jax.eval_shape(build)
    return {
        name: sum(leaf.size for leaf in jax.tree.leaves(part)) for name, part in params.items()
    }


def test_parameter_counts_of_the_code_preset_at_8b():
    counts = num_parameters("code", "calibrag", 4096)
    assert counts == {"temperature_kernel": 49_152, "head": 1_090_112}


def test_parameter_counts_of_the_other_heads():
    assert num_parameters("paper", "calibrag", 4096)["head"] == 4097
    assert num_parameters("fixed", "calibrag", 4096)["head"] == 1_090_112 - 64 + 1
    assert num_parameters("fixed", "calibrag_multi", 4096)["head"] == 1_090_112 + 9 * 64 + 11
    assert "temperature_kernel" not in num_parameters("fixed", "calibrag_no_temperature", 4096)


def test_adapter_parameters_at_8b_leave_out_the_block_that_gets_no_gradient():
    # The published count, 3,407,872, has all 32 blocks; the last never feeds the feature.
    config = tiny_config(
        hidden_size=4096, num_heads=32, num_kv_heads=8, head_dim=128, num_layers=32
    )
    sizes = projection_sizes(config)
    per_block = sum(8 * sum(sizes[name]) for name in ("q_proj", "v_proj"))
    assert per_block * 32 == 3_407_872
    assert per_block * 31 == 3_301_376


def test_methods_change_what_they_name_and_nothing_else():
    base = PRESETS["fixed"]
    assert get_preset("fixed") == base
    assert get_preset("fixed", "calibrag_multi") == dataclasses.replace(base, num_outputs=11)
    without = dataclasses.replace(base, fourier=None)
    assert get_preset("fixed", "calibrag_no_temperature") == without


def test_wrong_names_are_answered_with_the_nearest():
    with pytest.raises(InputError, match="preset=fixd: .*did you mean fixed"):
        get_preset("fixd")
    with pytest.raises(InputError, match="method=calibrag_mult: .*did you mean calibrag_multi"):
        get_preset("fixed", "calibrag_mult")
    assert "calibrag" in METHODS
