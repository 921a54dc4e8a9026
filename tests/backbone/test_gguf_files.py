"""GGUF: the same model as its Hugging Face twin, in every type, and its damaged forms by name."""

import gguf
import numpy as np
import pytest

from calibjax.backbone import gguf_file, gguf_header, load_decoder, weights
from calibjax.errors import InputError
from tests.backbone import checkpoints, numpy_reference

QUANTISABLE = ["F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"]
OTHER_TYPES = [
    *("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "TQ1_0", "TQ2_0", "MXFP4", "NVFP4"),
    *("IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ1_S", "IQ1_M", "IQ4_NL", "IQ4_XS"),
]


def _features(path, ids=(5, 9, 200, 31)):
    return load_decoder(path).features([list(ids)], [len(ids)])[0]


def test_row_order_of_keys_uses_the_key_value_heads():
    np.testing.assert_array_equal(weights.interleaved_rows(2, 4), [0, 2, 1, 3, 4, 6, 5, 7])
    for heads, size in ((2, 4), (3, 8), (1, 64)):
        there, back = weights.interleaved_rows(heads, size), weights.rotate_half_rows(heads, size)
        np.testing.assert_array_equal(there[back], np.arange(heads * size))


@pytest.mark.parametrize(
    "overrides",
    [
        {},
        {"tie_word_embeddings": True, "head_dim": 16},
        {"model_type": "qwen2"},
        checkpoints.FAMILIES["granite"],
        checkpoints.FAMILIES["phi3"],
        checkpoints.FAMILIES["phi4_mini"],
    ],
)
def test_a_gguf_file_equals_the_reference(overrides, tmp_path):
    fields = checkpoints.config(**overrides)
    tensors = checkpoints.tensors(fields)
    ours = _features(checkpoints.save_gguf(tmp_path / "m.gguf", fields, tensors))
    expected = numpy_reference.features(fields, tensors, [5, 9, 200, 31])
    assert np.linalg.norm(ours - expected) <= 2e-5 * np.linalg.norm(expected)


def test_a_gguf_file_of_phi3_may_have_its_projections_apart(tmp_path):
    fields = checkpoints.config(**checkpoints.FAMILIES["phi3_window"])
    tensors = checkpoints.tensors(fields)
    apart = {name: value for name, value in tensors.items() if "qkv" not in name}
    apart = {name: value for name, value in apart.items() if "gate_up" not in name}
    for name, value in tensors.items():
        stem = name.rpartition(".")[0].rpartition(".")[0]
        if "qkv" in name:
            parts = zip("qkv", np.split(value, np.cumsum([32, 16])))
            apart |= {f"{stem}.{letter}_proj.weight": part for letter, part in parts}
        elif "gate_up" in name:
            parts = zip(("gate", "up"), np.split(value, 2))
            apart |= {f"{stem}.{which}_proj.weight": part for which, part in parts}
    ids = list(range(3, 33))  # more than the window
    ours, theirs = (
        _features(checkpoints.save_gguf(tmp_path / name, fields, named), ids)
        for name, named in (("apart.gguf", apart), ("fused.gguf", tensors))
    )
    np.testing.assert_array_equal(ours, theirs)
    expected = numpy_reference.features(fields, tensors, ids)
    assert np.linalg.norm(ours - expected) <= 2e-5 * np.linalg.norm(expected)


@pytest.mark.parametrize("kind", QUANTISABLE)
def test_quantised_tensors_are_dequantised_before_the_rows_are_reordered(kind, tmp_path):
    fields = checkpoints.config(hidden_size=64, intermediate_size=64)
    tensors = checkpoints.tensors(fields)
    rounded = {name: _rounded(kind, value) for name, value in tensors.items()}
    ours = _features(checkpoints.save_gguf(tmp_path / "m.gguf", fields, tensors, kind=kind))
    expected = numpy_reference.features(fields, rounded, [5, 9, 200, 31])
    assert np.linalg.norm(ours - expected) <= 2e-5 * np.linalg.norm(expected)


def _rounded(kind, value):
    if value.ndim != 2:
        return value
    number = gguf.GGMLQuantizationType[kind]
    return gguf.dequantize(gguf.quantize(value, number), number)


@pytest.mark.parametrize("kind", OTHER_TYPES)
def test_types_that_only_dequantise_are_read_too(kind, tmp_path):
    """Random blocks: whatever they mean, shape and values must be the package's own."""
    number = gguf.GGMLQuantizationType[kind]
    block, size = gguf.GGML_QUANT_SIZES[number]
    rng = np.random.default_rng(0)
    # Bytes below 0x40 keep half-precision scales finite.
    # As many rows as are joined, six times over, and one that is not.
    num_rows = 6 * 128 + (kind == OTHER_TYPES[0])
    raw = rng.integers(0, 0x40, (num_rows, size * (512 // block)), np.uint8)
    path = tmp_path / "t.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tensor("token_embd.weight", raw, raw_dtype=number)
    _finish(writer)
    header = gguf_header.read_header(path)
    info = header.tensors["token_embd.weight"]
    assert info.shape == (num_rows, 512)
    value = gguf_file.read_tensor(path, "token_embd.weight", info)
    assert value.dtype == np.float32 and np.abs(value).max() > 0
    np.testing.assert_array_equal(value, gguf.dequantize(raw, number).reshape(num_rows, 512))


def test_a_type_that_cannot_be_dequantised_is_refused(tmp_path):
    path = tmp_path / "t.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tensor("x.weight", np.ones((2, 4), np.int32))
    _finish(writer)
    info = gguf_header.read_header(path).tensors["x.weight"]
    with pytest.raises(InputError, match="x.weight=I32: expected a type that"):
        gguf_file.read_tensor(path, "x.weight", info)


def test_rope_factors_come_from_the_file(tmp_path):
    """Llama 3 scaling is stored as one divisor a pair."""
    scaled = checkpoints.config(rope_scaling=checkpoints.LLAMA3_SCALING)
    tensors = checkpoints.tensors(scaled)
    plain = numpy_reference.frequencies(checkpoints.config(), 8)
    factors = (plain / numpy_reference.frequencies(scaled, 8)).astype(np.float32)
    path = checkpoints.save_gguf(
        tmp_path / "m.gguf", scaled, tensors, extra={"rope_freqs.weight": factors}
    )
    ids = list(range(40, 90))
    expected = numpy_reference.features(scaled, tensors, ids)
    assert np.linalg.norm(_features(path, ids) - expected) <= 2e-5 * np.linalg.norm(expected)
    unscaled = numpy_reference.features(checkpoints.config(), tensors, ids)
    assert np.linalg.norm(unscaled - expected) > 1e-2 * np.linalg.norm(expected)


def test_metadata_comes_back_as_plain_values(tmp_path):
    path = checkpoints.save_gguf(
        tmp_path / "m.gguf", checkpoints.config(), checkpoints.tensors(checkpoints.config())
    )
    fields = gguf_header.read_header(path).fields
    theirs = gguf.GGUFReader(path).fields
    assert {k: theirs[k].contents() for k in fields} == fields


def test_missing_and_unknown_tensors_are_listed(tmp_path):
    fields = checkpoints.config()
    tensors = checkpoints.tensors(fields)
    del tensors["model.layers.1.mlp.up_proj.weight"]
    extra = {"blk.7.attn_q.weight": np.ones((2, 2), np.float32)}
    path = checkpoints.save_gguf(tmp_path / "m.gguf", fields, tensors, extra=extra)
    message = r"m.gguf: 1 tensors missing: blk.1.ffn_up.weight; 1 tensors.*'blk.7.attn_q.weight'"
    with pytest.raises(InputError, match=message):
        load_decoder(path)


def test_values_that_are_not_finite_are_named(tmp_path):
    fields = checkpoints.config()
    tensors = checkpoints.tensors(fields)
    tensors["model.layers.0.mlp.up_proj.weight"][3, 4] = np.inf
    path = checkpoints.save_gguf(tmp_path / "m.gguf", fields, tensors)
    with pytest.raises(InputError, match=r"blk.0.ffn_up.weight.*1 values.*first at \[3, 4\]"):
        load_decoder(path)


def _finish(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
