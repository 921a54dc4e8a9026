"""Weights, tokenizers and forecasters that do not fit: exit 2, one line with both sides, no trace.

The lines name files of the test's own directory, so they are given here and not in a snapshot.
"""

import json
import shutil
from pathlib import Path

import jax
import pytest

from calibjax.backbone import load_decoder
from calibjax.forecaster import Forecaster
from tests.backbone import checkpoints
from tests.labelled import small_preset
from tests.launch.command import Done, run
from tests.launch.test_bad_inputs import ASKED, SUPERVISED, lines


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> Path:
    """Two small backbones `a` and `b`, and a forecaster of `a` in two layouts."""
    place = tmp_path_factory.mktemp("models")
    fields = checkpoints.config()
    for seed, name in enumerate("ab"):
        checkpoints.save(place / name, fields, checkpoints.tensors(fields, seed))
    preset = small_preset(lora_rank=2)
    forecaster = Forecaster(load_decoder(place / "a"), preset, key=jax.random.key(0))
    forecaster.save(place / "forecaster")
    forecaster.save_peft(place / "peft")
    (place / "q.jsonl").write_bytes(ASKED)
    return place


def refused(command: str, tmp_path: Path, *flags: str) -> str:
    """The one line of a command that must leave no run directory behind."""
    done: Done = run(command, *flags, f"--out={tmp_path / 'out'}")
    assert done.code == 2, done.err
    said = [line for line in done.err.splitlines() if not line.startswith("load: ")]
    assert len(said) == 1, done.err
    assert not (tmp_path / "out").exists()
    return said[0]


def label(models: Path, tmp_path: Path, reader: Path) -> str:
    data = ["--dataset=own", f"--path={models / 'q.jsonl'}"]
    return refused("label", tmp_path, *data, f"--reader={reader}")


def answer(models: Path, tmp_path: Path, forecaster: Path, backbone: str) -> str:
    data = ["--dataset=own", f"--path={models / 'q.jsonl'}"]
    model = [f"--forecaster={forecaster}", f"--backbone={models / backbone}"]
    return refused("answer", tmp_path, *data, *model)


def test_a_missing_shard_is_named(models, tmp_path):
    fields = checkpoints.config()
    path = checkpoints.save_sharded(tmp_path / "m", fields, checkpoints.tensors(fields))
    (path / "model-00002-of-00002.safetensors").unlink()
    line = label(models, tmp_path, path)
    assert "model-00002-of-00002.safetensors" in line


def test_a_pickle_is_never_opened(models, tmp_path):
    path = shutil.copytree(models / "a", tmp_path / "m")
    (path / "model.safetensors").rename(path / "pytorch_model.bin")
    line = label(models, tmp_path, path)
    assert "pytorch_model.bin" in line and "save_pretrained" in line


def test_cut_weights_are_named(models, tmp_path):
    path = shutil.copytree(models / "a", tmp_path / "m")
    data = (path / "model.safetensors").read_bytes()
    (path / "model.safetensors").write_bytes(data[: len(data) // 2])
    assert "model.safetensors" in label(models, tmp_path, path)


def test_a_tokenizer_with_more_ids_than_the_embedding_has_rows(models, tmp_path):
    fields = checkpoints.config(vocab_size=200)
    path = checkpoints.save(tmp_path / "m", fields, checkpoints.tensors(fields))
    line = label(models, tmp_path, path)
    assert "200" in line and "258" in line or "259" in line


def test_a_reader_without_a_chat_template_is_refused_before_it_reads(models, tmp_path):
    path = shutil.copytree(models / "a", tmp_path / "m")
    (path / "chat_template.jinja").unlink(missing_ok=True)
    settings = json.loads((path / "tokenizer_config.json").read_text())
    settings.pop("chat_template", None)
    (path / "tokenizer_config.json").write_text(json.dumps(settings))
    line = label(models, tmp_path, path)
    assert "expected a chat template; fix: add chat_template.jinja" in line


@pytest.mark.parametrize("layout", ["forecaster", "peft"])
def test_a_forecaster_of_another_backbone_is_refused_with_both_hashes(models, tmp_path, layout):
    line = answer(models, tmp_path, models / layout, "b")
    hashes = [load_decoder(models / name).sha256 for name in "ab"]
    assert all(sha256 in line for sha256 in hashes)
    assert f"; fix: --backbone={models / 'a'}" in line


def test_an_adapter_without_our_head_gets_no_head_made_up(models, tmp_path):
    path = shutil.copytree(models / "peft", tmp_path / "peft")
    (path / "calibjax_head.safetensors").unlink()
    line = answer(models, tmp_path, path, "a")
    assert "calibjax_head.safetensors" in line and "; fix: copy" in line


@pytest.mark.parametrize(
    "place, state", [("missing", "there is none"), ("q.jsonl", "found a file")]
)
def test_a_forecaster_that_is_not_there(models, tmp_path, place, state):
    line = answer(models, tmp_path, models / place, "a")
    assert line == (
        f"forecaster={models / place}: expected a directory with a forecaster; {state};"
        " fix: --forecaster=RUN/checkpoint, the RUN being the --out of launch.train"
    )


def test_resuming_training_needs_the_data_and_the_backbone_of_the_run(models, tmp_path):
    data, out = tmp_path / "rows.jsonl", tmp_path / "train"
    data.write_bytes(lines([SUPERVISED | {"question_id": f"q{n}"} for n in range(6)]))
    flags = [f"--data={data}", f"--backbone={models / 'a'}", "--steps=2", f"--out={out}"]
    done = run("train", *flags, "--config.lora_rank=2")
    assert done.code == 0, done.err
    fix = "or --overwrite, or another --out"
    again = [*flags, "--config.lora_rank=2", "--resume"]
    other = run("train", *again, f"--backbone={models / 'b'}")
    assert other.code == 2 and other.err.splitlines()[-1].endswith(fix)
    assert f"backbone={models / 'b'}: expected {models / 'a'} as in" in other.err
    # The same name, other weights in it.
    moved = shutil.copytree(models / "b", tmp_path / "b")
    kept = shutil.copytree(models / "a", tmp_path / "a")
    shutil.rmtree(models / "a")
    moved.rename(models / "a")
    try:
        other = run("train", *again)
        assert other.code == 2
        assert "backbone=sha256:" in other.err and other.err.splitlines()[-1].endswith(fix)
    finally:
        shutil.rmtree(models / "a")
        kept.rename(models / "a")
    data.write_bytes(lines([SUPERVISED | {"question_id": f"r{n}"} for n in range(6)]))
    other = run("train", *again)
    assert other.code == 2
    assert "rows=sha256:" in other.err and other.err.splitlines()[-1].endswith(fix)
