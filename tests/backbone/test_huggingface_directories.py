"""Hugging Face directories: what is accepted, and what every fault is called."""

import json
import re
import sys

import numpy as np
import pytest
from safetensors.numpy import save_file

from calibjax.backbone import config as configs
from calibjax.backbone import huggingface, load_decoder
from calibjax.errors import InputError
from tests.backbone import checkpoints, numpy_reference


@pytest.fixture
def fields():
    return checkpoints.config()


@pytest.fixture
def tensors(fields):
    return checkpoints.tensors(fields)


def _refused(directory, message, **options):
    with pytest.raises(InputError, match=message):
        load_decoder(directory, **options)


def test_shards_and_one_file_are_the_same_model(tmp_path, fields, tensors):
    one = load_decoder(checkpoints.save(tmp_path / "one", fields, tensors))
    three = load_decoder(checkpoints.save_sharded(tmp_path / "three", fields, tensors, 3))
    ids = [[4, 50, 200]]
    np.testing.assert_array_equal(one.features(ids, [3]), three.features(ids, [3]))
    assert re.fullmatch("[0-9a-f]{64}", one.sha256) and one.sha256 != three.sha256
    assert one.tokenizer.vocab_size == 259 and one.source == str(tmp_path / "one")


def test_names_without_the_model_prefix_are_understood(tmp_path, fields, tensors):
    bare = {name.removeprefix("model."): value for name, value in tensors.items()}
    decoder = load_decoder(checkpoints.save(tmp_path, fields, bare))
    expected = numpy_reference.features(fields, tensors, [1, 2, 3])
    ours = decoder.features([[1, 2, 3]], [3])[0]
    assert np.linalg.norm(ours - expected) <= 2e-5 * np.linalg.norm(expected)


def test_half_precision_files_load_into_any_type(tmp_path, fields, tensors):
    import ml_dtypes

    halved = {name: value.astype(ml_dtypes.bfloat16) for name, value in tensors.items()}
    directory = checkpoints.save(tmp_path, fields, halved)
    for dtype in ("float32", "bfloat16"):
        module = load_decoder(directory, dtype=dtype).module
        kernel = module.last_block.mlp.up_proj.kernel[...]
        assert kernel.dtype == dtype
        expected = halved["model.layers.2.mlp.up_proj.weight"].T.astype(np.float32)
        np.testing.assert_array_equal(kernel.astype("float32"), expected)
    _refused(directory, "dtype=int8: expected one of float32, bfloat16", dtype="int8")


def test_tied_models_need_no_head_and_ignore_a_repeated_one(tmp_path):
    fields = checkpoints.config(tie_word_embeddings=True)
    tensors = checkpoints.tensors(fields)
    repeated = tensors | {"lm_head.weight": tensors["model.embed_tokens.weight"].copy()}
    ids, lengths = [[9, 8, 7]], [3]
    results = [
        load_decoder(checkpoints.save(tmp_path / name, fields, t)).next_token_logits(ids, lengths)
        for name, t in (("without", tensors), ("with", repeated))
    ]
    np.testing.assert_array_equal(*results)
    expected = numpy_reference.logits(fields, tensors, ids[0])[-1]
    np.testing.assert_allclose(results[0][0], expected, atol=1e-4)


def test_an_untied_model_without_a_head_is_refused_unless_asked(tmp_path, fields, tensors):
    del tensors["lm_head.weight"]
    directory = checkpoints.save(tmp_path, fields, tensors)
    _refused(directory, r"lm_head.weight=absent: .*tie_word_embeddings=false.*tie_missing_head")
    decoder = load_decoder(directory, tie_missing_head=True)
    tied = fields | {"tie_word_embeddings": True}
    expected = numpy_reference.logits(tied, tensors, [3, 4])[-1]
    np.testing.assert_allclose(decoder.next_token_logits([[3, 4]], [2])[0], expected, atol=1e-4)


def test_a_missing_shard_lists_the_tensors_that_are_lost(tmp_path, fields, tensors):
    directory = checkpoints.save_sharded(tmp_path, fields, tensors)
    (directory / "model-00002-of-00002.safetensors").unlink()
    lost = sorted(tensors)[1::2]
    message = f"shard model-00002-of-00002.safetensors is absent, and with it {len(lost)} tensors: "
    _refused(directory, re.escape(message + ", ".join(lost[:8])))


def test_missing_unknown_and_misshapen_tensors_are_named(tmp_path, fields, tensors):
    less = {n: v for n, v in tensors.items() if n != "model.layers.0.self_attn.q_proj.weight"}
    name = "model.layers.0.self_attn.q_proj.weight"
    _refused(checkpoints.save(tmp_path / "a", fields, less), f"1 tensors missing: {name}")
    more = tensors | {"../../x": np.ones(1, np.float32)}
    _refused(checkpoints.save(tmp_path / "b", fields, more), r"no place for: '../../x'")
    turned = tensors | {"model.layers.1.mlp.down_proj.weight": np.ones((48, 32), np.float32)}
    message = r"model.layers.1.mlp.down_proj.weight has shape \[48, 32\], expected \[32, 48\]"
    _refused(checkpoints.save(tmp_path / "c", fields, turned), message)


def test_a_configuration_with_other_blocks_than_the_file_is_refused(tmp_path, fields, tensors):
    fewer = fields | {"num_hidden_layers": 2}
    _refused(checkpoints.save(tmp_path / "a", fewer, tensors), r"no place for: 'model.layers.2")
    more = fields | {"num_hidden_layers": 2**20}
    _refused(checkpoints.save(tmp_path / "b", more, tensors), "number of blocks=1048576")


def test_fused_projections_of_another_size_are_named(tmp_path):
    fields = checkpoints.config(**checkpoints.FAMILIES["phi3"])
    wrong = checkpoints.tensors(fields | {"num_key_value_heads": 4})
    directory = checkpoints.save(tmp_path, fields, wrong)
    with pytest.raises(InputError, match=r"0.self_attn.qkv_proj.weight=\[96, 32\]: expected 64 r"):
        load_decoder(directory)


def test_a_gguf_file_of_a_fused_model_is_refused_with_the_way_out():
    fields = {"general.architecture": "phi3"}
    with pytest.raises(InputError, match="'phi3': expected one of.*load the Hugging Face direct"):
        configs.from_gguf(fields, tied=True)


def test_values_that_are_not_finite_are_named(tmp_path, fields, tensors):
    for value, name in ((np.nan, "nan"), (-np.inf, "inf")):
        bad = {n: v.copy() for n, v in tensors.items()}
        bad["model.norm.weight"][5] = value
        directory = checkpoints.save(tmp_path / name, fields, bad)
        _refused(directory, r"model.norm.weight=1 values NaN or infinite, first at \[5\]")


def test_whole_numbers_are_no_weights(tmp_path, fields, tensors):
    tensors["model.norm.weight"] = np.ones(32, np.int32)
    directory = checkpoints.save(tmp_path, fields, tensors)
    _refused(directory, "model.norm.weight=I32: expected one of F64")


def test_a_tokenizer_with_more_ids_than_rows_is_refused(tmp_path):
    fields = checkpoints.config(vocab_size=200)
    directory = checkpoints.save(tmp_path, fields, checkpoints.tensors(fields))
    _refused(directory, "259 token ids: expected at most 200")


STAND_INS = {
    "empty": (b"", "is empty"),
    "pointer": (b"version https://git-lfs.github.com/v1\n", "is a Git LFS pointer.*lfs pull"),
    "page": (b"<!DOCTYPE html><html>Sign in</html>", "is a web page"),
    "zip": (b"PK\x03\x04" + b"\0" * 40, "is a pickle.*fix: convert"),
    "pickle": (b"\x80\x02}q\x00." + b"\0" * 40, "is a pickle"),
    "cut": (b"\xff\x00", "header length"),
}


@pytest.mark.parametrize("name", STAND_INS)
def test_stand_ins_for_weights_are_recognised(name, tmp_path, fields):
    content, message = STAND_INS[name]
    checkpoints.save_tokenizer(tmp_path, fields)
    (tmp_path / "model.safetensors").write_bytes(content)
    _refused(tmp_path, f"model.safetensors: {message}")


@pytest.mark.parametrize("name", ["pytorch_model.bin", "consolidated.00.pth", "model.pt"])
def test_pickles_are_refused_with_the_way_out(name, tmp_path, fields):
    checkpoints.save_tokenizer(tmp_path, fields)
    (tmp_path / name).write_bytes(b"\x80\x02}q\x00.")
    _refused(tmp_path, rf"{name}: is a pickle, which is never opened; fix: .*save_pretrained")


def test_a_directory_without_weights_or_configuration_says_what_is_missing(tmp_path, fields):
    _refused(tmp_path, "config.json=absent")
    checkpoints.save_tokenizer(tmp_path, fields)
    _refused(tmp_path, "no weights: expected model.safetensors or model.safetensors.index.json")
    (tmp_path / "config.json").write_text('{"model_type": "llama",')
    _refused(tmp_path, "config.json.*JSON")


@pytest.mark.parametrize(
    "file",
    ["../x.safetensors", "/etc/passwd", "sub/x.safetensors", "..", "a\\b.safetensors", "x.bin", 7],
)
def test_an_index_names_only_files_beside_it(file, tmp_path, fields, tensors):
    directory = checkpoints.save_sharded(tmp_path / "model", fields, tensors)
    save_file({"stray": np.ones(1, np.float32)}, tmp_path / "x.safetensors")
    path = directory / "model.safetensors.index.json"
    index = json.loads(path.read_text())["weight_map"]
    name = sorted(index)[0]
    checkpoints.write_index(directory, index | {name: file})
    with _OpenedOutside(directory) as opened:
        _refused(directory, rf"{re.escape(name)}=.*: expected the name of a .safetensors file")
    assert opened.paths == []


def test_an_index_and_its_shards_must_agree(tmp_path, fields, tensors):
    directory = checkpoints.save_sharded(tmp_path / "a", fields, tensors)
    path = directory / "model.safetensors.index.json"
    index = json.loads(path.read_text())["weight_map"]
    first, second = sorted(set(index.values()))
    name = next(n for n, file in index.items() if file == first)
    checkpoints.write_index(directory, {n: f for n, f in index.items() if n != name})
    _refused(directory, f"{re.escape(name)}=not in the index")
    checkpoints.write_index(directory, index | {"model.extra": first})
    _refused(directory, "model.extra=absent: expected the tensor that the index puts there")
    part = {n: tensors[n] for n, file in index.items() if file == second}
    save_file(part | {name: tensors[name]}, directory / second)
    checkpoints.write_index(directory, index)
    _refused(directory, f"{re.escape(name)}=in both {first} and {second}")
    for text in ("[]", '{"weight_map": {}}', '{"weight_map": []}', "{"):
        path.write_text(text)
        _refused(directory, "index")


def test_only_the_needed_files_are_opened(tmp_path, fields, tensors):
    directory = checkpoints.save(tmp_path / "model", fields, tensors)
    with _OpenedOutside(directory) as opened:
        files = huggingface.open_tensors(directory)
        files["model.norm.weight"].read("model.norm.weight")
    assert opened.paths == []


class _OpenedOutside:
    """Collects the files opened outside a directory (Python's own opens; the library opens one)."""

    _current = None

    def __init__(self, directory):
        self.directory = str(directory.resolve())
        self.paths = []

    def __enter__(self):
        if not hasattr(_OpenedOutside, "_hooked"):
            sys.addaudithook(_OpenedOutside._audit)
            _OpenedOutside._hooked = True
        _OpenedOutside._current = self
        return self

    def __exit__(self, *_):
        _OpenedOutside._current = None

    @staticmethod
    def _audit(event, arguments):
        current = _OpenedOutside._current
        if event == "open" and current is not None and isinstance(arguments[0], str):
            if not arguments[0].startswith((current.directory, sys.prefix, sys.base_prefix)):
                current.paths.append(arguments[0])
