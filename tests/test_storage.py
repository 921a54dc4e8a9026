"""Files appear whole or not at all; growing logs are whole lines at every moment."""

import json
import math
import os
import random

import numpy as np
import pytest

from calibjax import storage
from calibjax.errors import InputError
from calibjax.reading import textfiles
from calibjax.records import Passage


def test_a_failed_write_leaves_the_old_file_and_no_temporary(tmp_path, monkeypatch):
    path = tmp_path / "a.json"
    storage.write_text(path, "old")
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError(28, "full")))
    with pytest.raises(OSError):
        storage.write_text(path, "new")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["a.json"]


def test_the_bytes_are_on_disk_before_the_name_is(tmp_path, monkeypatch):
    calls = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda fd: (calls.append("fsync"), fsync(fd)))
    monkeypatch.setattr(os, "replace", lambda *names: (calls.append("replace"), replace(*names)))
    storage.write_bytes(tmp_path / "a", b"x")
    assert calls == ["fsync", "replace", "fsync"]


def test_json_holds_null_for_nan_and_lists_for_arrays(tmp_path):
    value = {
        "nan": math.nan,
        "inf": [np.inf, np.float32(0.5)],
        "array": np.arange(3, dtype=np.int32),
        "record": Passage("p", "t", "x"),
        0.5: np.bool_(True),
        "path": tmp_path,
    }
    storage.write_json(tmp_path / "a.json", value)
    read = json.loads((tmp_path / "a.json").read_text())
    assert read == {
        "nan": None,
        "inf": [None, 0.5],
        "array": [0, 1, 2],
        "record": {"id": "p", "title": "t", "text": "x"},
        "0.5": True,
        "path": str(tmp_path),
    }


def test_a_log_cut_at_any_byte_loses_at_most_the_row_that_was_cut(tmp_path):
    path = tmp_path / "log.jsonl"
    rows = [{"id": number, "text": "ü\u2028" * (number % 5)} for number in range(12)]
    with storage.JsonlLog(path) as log:
        for each in rows:
            log.append(each)
    data = path.read_bytes()
    for size in range(len(data) + 1):
        path.write_bytes(data[:size])
        whole = data[:size].count(b"\n")
        # Cut right before its line feed, a row is still whole.
        whole += size < len(data) and data[size : size + 1] == b"\n"
        storage.JsonlLog(path).close()
        records = textfiles.read_records(path)
        assert [each.data for each in records.rows] == rows[:whole]
        assert not records.rejected


def test_a_log_goes_on_after_a_repair(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_bytes(b'{"a": 1}\n{"a": 2')
    with storage.JsonlLog(path) as log:
        log.append({"a": 3})
    assert path.read_bytes() == b'{"a": 1}\n{"a": 3}\n'


def test_a_row_that_does_not_fit_leaves_no_part_of_itself(tmp_path):
    """A full disk gives a short write first, then an error; RLIMIT_FSIZE takes the same path."""
    import resource
    import signal

    path = tmp_path / "log.jsonl"
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        with storage.JsonlLog(path) as log:
            log.append({"a": "x" * 50})
            size = path.stat().st_size
            resource.setrlimit(resource.RLIMIT_FSIZE, (size + 20, hard))
            with pytest.raises(OSError):
                log.append({"a": "y" * 50})
            assert path.stat().st_size == size
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
            log.append({"a": "z"})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)
    assert [each.data["a"][0] for each in textfiles.read_records(path).rows] == ["x", "z"]


def test_random_text_comes_back_as_it_was(tmp_path):
    rng = random.Random(5)
    texts = ["".join(chr(rng.randrange(1, 0xD800)) for _ in range(50)) for _ in range(100)]
    with storage.JsonlLog(tmp_path / "a.jsonl") as log:
        for text in texts:
            log.append({"text": text})
    records = textfiles.read_records(tmp_path / "a.jsonl")
    assert [each.data["text"] for each in records.rows] == texts


def test_caches_go_where_the_environment_says(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("CALIBJAX_CACHE", raising=False)
    assert storage.cache_dir() == tmp_path / "home" / ".cache" / "calibjax"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "shared"))
    assert storage.cache_dir() == tmp_path / "shared" / "calibjax"
    monkeypatch.setenv("CALIBJAX_CACHE", str(tmp_path / "named"))
    assert storage.cache_dir() == tmp_path / "named"
    monkeypatch.setenv("CALIBJAX_CACHE", os.devnull)
    with pytest.raises(InputError, match="fix: export CALIBJAX_CACHE="):
        storage.cache_dir()


def test_equal_values_have_equal_hashes():
    assert storage.sha256_json({"a": 1, "b": (2.0,)}) == storage.sha256_json({"b": [2.0], "a": 1})
    assert storage.sha256_json({"a": 1}) != storage.sha256_json({"a": "1"})
