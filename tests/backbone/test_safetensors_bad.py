"""Twenty-four malformed safetensors files: each refused by name, quickly, and none half loaded."""

import json
import struct

import numpy as np
import pytest

from calibjax.backbone.safetensors_file import SafetensorsFile
from calibjax.errors import InputError


def _file(header, data=b"", *, length=None):
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(raw) if length is None else length) + raw + data


def _entry(shape=(2,), offsets=(0, 8), dtype="F32"):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


GOOD = _file({"a": _entry()}, np.ones(2, np.float32).tobytes())
NAN = np.array([1.0, np.nan], np.float32).tobytes()
TWICE = b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},'
TWICE += b'"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}'
BAD = {
    "four_bytes": b"\x01\x02\x03\x04",
    "only_a_length": struct.pack("<Q", 0),
    "header_longer_than_file": _file({"a": _entry()}, b"\0" * 8, length=10**6),
    "header_of_2_63_bytes": _file({"a": _entry()}, b"\0" * 8, length=2**63),
    "header_cut": GOOD[:20],
    "data_cut": GOOD[:-3],
    "trailing_bytes": GOOD + b"xx",
    "not_utf8": _file(b'{"\xff\xfe":1}'),
    "not_json": _file(b"{a:1}"),
    "a_list": _file([1, 2]),
    "nested_100_deep": _file(b"[" * 100 + b"]" * 100),
    "name_twice": _file(TWICE, b"\0" * 8),
    "entry_is_text": _file({"a": "F32"}),
    "no_shape": _file({"a": {"dtype": "F32", "data_offsets": [0, 8]}}, b"\0" * 8),
    "unknown_dtype": _file({"a": _entry(dtype="F33")}, b"\0" * 8),
    "negative_shape": _file({"a": _entry(shape=(-2,))}, b"\0" * 8),
    "fractional_shape": _file({"a": _entry(shape=(2.0,))}, b"\0" * 8),
    "shape_overflows": _file({"a": _entry(shape=(2**40, 2**40))}, b"\0" * 8),
    "size_mismatch": _file({"a": _entry(shape=(3,))}, b"\0" * 8),
    "offsets_reversed": _file({"a": _entry(offsets=(8, 0))}, b"\0" * 8),
    "offsets_past_the_end": _file({"a": _entry(offsets=(0, 80), shape=(20,))}, b"\0" * 8),
    "overlap": _file({"a": _entry(), "b": _entry(offsets=(4, 12))}, b"\0" * 12),
    "hole": _file({"a": _entry(), "b": _entry(offsets=(12, 20))}, b"\0" * 20),
    "not_finite": _file({"a": _entry()}, NAN),
}


@pytest.mark.parametrize("name", BAD)
def test_malformed_files_are_refused_by_name(name, tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_bytes(BAD[name])
    with pytest.raises(InputError, match="model.safetensors"):
        file = SafetensorsFile(path)
        for tensor in file.shapes:
            file.read(tensor)


def test_the_well_formed_twin_is_read(tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_bytes(GOOD)
    file = SafetensorsFile(path)
    assert file.shapes == {"a": (2,)}
    np.testing.assert_array_equal(file.read("a"), [1.0, 1.0])
    assert len(BAD) == 24


def test_a_header_of_100000_tensors_is_quick_to_refuse_or_read(tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_bytes(_file({f"t{i}": _entry(shape=(0,), offsets=(0, 0)) for i in range(100000)}))
    assert len(SafetensorsFile(path).shapes) == 100000
