"""Ahead-of-time compilation of a small backbone: bytes by hand, products by formula, a misfit."""

import json
import math
import os

import pytest

from calibjax.backbone.config import DecoderConfig
from calibjax.backbone.decoder import parameter_shapes
from calibjax.perf import aot
from tests.launch.command import run

SMALL = dict(
    vocab_size=256, hidden_size=64, intermediate_size=128, num_layers=4, num_heads=8,
    num_kv_heads=4, head_dim=8, max_positions=512, tie_embeddings=False,
)  # fmt: skip


def case(task, axes, **changes):
    sizes = dict(groups=2, tokens=64, documents=2) | changes
    return aot.Case(task, "small", SMALL, axes, **sizes)


@pytest.fixture(scope="module")
def fits():
    """One process a case, as the command does it."""
    whole, divided = dict(data=4, fsdp=1, tensor=1), dict(data=1, fsdp=4, tensor=1)
    return {
        ("train", "data"): aot.compile_apart(case("train", whole, remat="none"), os.environ),
        ("score", "fsdp"): aot.compile_apart(case("score", divided), os.environ),
    }


def test_bytes_of_the_backbone_are_those_of_its_shards(fits):
    shapes = parameter_shapes(DecoderConfig(**SMALL))
    total = 2 * sum(math.prod(shape) for shape in shapes.values())
    assert fits["train", "data"].backbone_bytes == total
    norms = 2 * sum(math.prod(s) for path, s in shapes.items() if path.endswith("scale"))
    assert fits["score", "fsdp"].backbone_bytes == norms + (total - norms) // 4


def test_collectives_are_those_of_the_layout(fits):
    assert set(fits["train", "data"].collectives) == {"all-reduce"}
    # Three blocks of seven kernels.
    assert fits["score", "fsdp"].collectives["all-gather"] >= 3 * 7


def test_products_are_those_of_the_formula(fits):
    """The adapter and the head come on top: a few per cent of a real backbone, more of this one."""
    for (task, _), fit in fits.items():
        ratio = fit.flops_per_token / fit.formula_per_token
        assert 1.0 <= ratio < (1.6 if task == "train" else 1.3)


def test_recomputation_is_counted():
    axes = dict(data=1, fsdp=1, tensor=1)
    none, full = (
        aot.compile_case(case("train", axes, remat=remat)) for remat in ("none", "full")
    )
    assert full.flops_per_token > 1.2 * none.flops_per_token
    assert none.formula_per_token == full.formula_per_token


def test_published_sizes_have_their_published_numbers_of_parameters():
    for name, billions in (("llama-3.1-8b", 8.03), ("llama-3.1-70b", 70.55)):
        shapes = parameter_shapes(DecoderConfig(**aot.MODELS[name]))
        count = sum(math.prod(shape) for shape in shapes.values())
        assert count == pytest.approx(billions * 1e9, rel=1e-3)
    # All blocks but the last, kernels only.
    flops = aot.formula(DecoderConfig(**aot.MODELS["llama-3.1-8b"]), "score", 0)
    assert flops == pytest.approx(2 * 6.979e9 * 31 / 32, rel=1e-3)


def test_wrong_flags_are_refused(tmp_path):
    out = f"--out={tmp_path / 'out'}"
    for flags, message in (
        (["--aot", "--model=llama-3.1-8"], "model=llama-3.1-8: expected llama-3.1-8b"),
        (["--aot", "--accelerator=h20"], "fix: --accelerator=h200"),
        (["--aot", "--devices=0"], "devices=0: expected positive integers"),
        ([], "expected either --name or --aot"),
        (["--name=metric"], "fix: --name=metrics"),
    ):
        done = run("bench", *flags, out)
        assert done.code == 2 and message in done.err.splitlines()[-1], done
    assert not (tmp_path / "out").exists()


def test_a_misfit_is_one_line_and_the_report_is_there(tmp_path, monkeypatch):
    from calibjax.errors import InputError
    from launch import _aot
    from launch._run_directory import open_run

    monkeypatch.setitem(aot.ACCELERATORS, "toy", 1e5)
    one = case("score", dict(data=1, fsdp=1, tensor=1))
    with open_run(str(tmp_path / "out"), seed=0, command=["bench"], depends_on={}) as out:
        with pytest.raises(InputError) as caught:
            _aot.run(out, [one], "toy")
    assert "accelerator=toy: " in str(caught.value) and "GB a device of" in str(caught.value)
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["cases"][0]["fits"] is False
