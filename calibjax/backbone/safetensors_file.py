"""Reading one safetensors file: header checked strictly, values checked to be finite."""

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from calibjax.backbone.weight_files import check_weight_file
from calibjax.errors import InputError, input_error
from calibjax.reading import strictjson

_MAX_HEADER = 100_000_000
_DTYPES = {
    "F64": np.dtype(np.float64),
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
}


class SafetensorsFile:
    """Names, shapes and values of a file's tensors. `shapes` maps every name to its shape."""

    def __init__(self, path: Path) -> None:
        self.path = path
        header = read_header(path)
        self.metadata = header.pop("__metadata__", {})
        # The library checks offsets, overlaps, holes and sizes, and reads from here on.
        self._file = _open(path)
        self.shapes = {name: tuple(entry["shape"]) for name, entry in header.items()}
        self._dtypes = {name: entry["dtype"] for name, entry in header.items()}

    def read(self, name: str) -> np.ndarray:
        """The tensor in its own type; InputError naming it unless that is floating and finite."""
        if self._dtypes[name] not in _DTYPES:
            expected = ", ".join(_DTYPES)
            raise input_error(f"{self.path}: {name}", self._dtypes[name], f"one of {expected}")
        value = self._file.get_tensor(name)
        check_finite(value, f"{self.path}: {name}")
        return value


def check_finite(value: np.ndarray, where: str) -> None:
    """Raises InputError with the number and the first place of values that are NaN or infinite."""
    finite = np.isfinite(value)
    if finite.all():
        return
    wrong = np.argwhere(~finite)
    raise input_error(
        where, f"{len(wrong)} values NaN or infinite, first at {wrong[0].tolist()}", "finite values"
    )


def read_header(path: Path) -> dict[str, Any]:
    """The JSON header: tensor name -> {dtype, shape, data_offsets}, no name twice."""
    check_weight_file(path)
    size = path.stat().st_size
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(size - 8, _MAX_HEADER):
            raise input_error(
                f"{path}: header length at byte 0",
                length,
                f"at most {max(size - 8, 0)}, the bytes that follow",
                "download the file again",
            )
        raw = file.read(length)
    try:
        header = strictjson.parse_object(raw)
    except strictjson.RowFault as fault:
        raise InputError(f"{path}: header at byte 8: {fault}; fix: save the file again") from None
    for name, entry in header.items():
        if name != "__metadata__":
            _check_entry(path, name, entry)
    return header


def _check_entry(path: Path, name: str, entry: Any) -> None:
    shape = entry.get("shape") if isinstance(entry, dict) else None
    whole = isinstance(shape, list) and all(type(n) is int and n >= 0 for n in shape)
    if not whole or not isinstance(entry.get("dtype"), str):
        raise input_error(f"{path}: {name!r}", entry, "an object with dtype, shape, data_offsets")


def _open(path: Path) -> Any:
    import safetensors

    try:
        return safetensors.safe_open(path, framework="numpy")
    except safetensors.SafetensorError as error:
        raise InputError(f"{path}: {error}; fix: download or save the file again") from error
