"""The supervision set on disk: exact round trip, verified shards, replaced as a whole."""

import json
import socket
from pathlib import Path

import numpy as np
import pytest

from calibjax.data import supervision
from calibjax.errors import InputError
from calibjax.records import SupervisionRow

tfds = pytest.importorskip("tensorflow_datasets")


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("the network was asked")

    monkeypatch.setattr(socket.socket, "connect", refuse)


def make_rows(n: int, seed: int = 0) -> list[SupervisionRow]:
    rng = np.random.default_rng(seed)
    rows = []
    for i in range(n):
        verdicts = tuple(int(v) for v in rng.integers(0, 2, size=10))
        rows.append(
            SupervisionRow(
                question_id=f"q{i // 3}",
                passage_id=f"p{i}",
                query="Write about é\u2028 and \x85",
                title="" if i % 2 else "<|im_end|>",
                text="text " * 20,
                guidance="",
                temperature=float(rng.uniform(1, 2)),  # all 53 bits
                decisions=tuple(f"d{j}" if j % 3 else "" for j in range(10)),
                verdicts=verdicts,
                label=sum(verdicts) / 10,
            )
        )
    return rows


def shard(directory: Path) -> Path:
    (path,) = directory.glob("*.array_record-*")
    return path


def test_rows_come_back_exactly_and_in_order(tmp_path):
    rows = make_rows(40)
    supervision.build(rows, tmp_path / "out" / "supervision")
    assert supervision.load(tmp_path / "out" / "supervision") == rows


def test_the_directory_is_an_ordinary_tfds_data_set_with_a_manifest(tmp_path):
    rows, target = make_rows(7), tmp_path / "supervision"
    supervision.build(rows, target)
    source = tfds.builder_from_directory(str(target)).as_data_source("train")
    assert len(source) == 7 and source[2]["verdicts"].tolist() == list(rows[2].verdicts)
    manifest = json.loads((target / "manifest.json").read_text())
    assert manifest["n"] == 7
    assert {entry["rows"] for entry in manifest["shards"].values()} == {7}
    assert [path.name for path in tmp_path.iterdir()] == ["supervision"]


def test_large_sets_are_cut_into_shards_that_add_up(tmp_path, monkeypatch):
    monkeypatch.setattr(supervision, "ROWS_PER_SHARD", 10)
    rows = make_rows(25)
    supervision.build(rows, tmp_path / "s")
    manifest = json.loads((tmp_path / "s" / "manifest.json").read_text())
    assert len(manifest["shards"]) == 3
    assert sum(entry["rows"] for entry in manifest["shards"].values()) == 25
    assert supervision.load(tmp_path / "s") == rows


def test_building_again_replaces_the_set(tmp_path):
    supervision.build(make_rows(9), tmp_path / "s")
    supervision.build(make_rows(4, seed=1), tmp_path / "s")
    assert supervision.load(tmp_path / "s") == make_rows(4, seed=1)
    assert [path.name for path in tmp_path.iterdir()] == ["s"]


def test_a_build_that_fails_leaves_the_old_set_and_nothing_else(tmp_path, monkeypatch):
    supervision.build(make_rows(3), tmp_path / "s")

    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(supervision.manifest, "write", full)
    with pytest.raises(OSError, match="No space left"):
        supervision.build(make_rows(8), tmp_path / "s")
    monkeypatch.undo()
    assert supervision.load(tmp_path / "s") == make_rows(3)
    assert [path.name for path in tmp_path.iterdir()] == ["s"]


def test_a_replacement_killed_between_its_renames_loses_nothing(tmp_path):
    supervision.build(make_rows(3), tmp_path / "s")
    (tmp_path / "s").rename(tmp_path / ".s.old")  # as after the first rename
    assert supervision.load(tmp_path / "s") == make_rows(3)
    assert [path.name for path in tmp_path.iterdir()] == ["s"]


@pytest.mark.parametrize("place", [0, 0.5, 1])
def test_a_damaged_shard_is_named_with_the_command_that_rebuilds_it(tmp_path, place):
    supervision.build(make_rows(5), tmp_path / "run" / "supervision")
    path = shard(tmp_path / "run" / "supervision")
    raw = bytearray(path.read_bytes())
    raw[int(place * (len(raw) - 1))] ^= 1
    path.write_bytes(raw)
    with pytest.raises(InputError) as error:
        supervision.load(tmp_path / "run" / "supervision")
    message = str(error.value)
    assert message.startswith(f"data={path}: shard is damaged")
    assert f"launch.label --resume --out={tmp_path / 'run'}" in message and "\n" not in message


def test_a_cut_or_missing_shard_and_an_unfinished_set_are_refused(tmp_path):
    target = tmp_path / "s"
    with pytest.raises(InputError, match="no such directory"):
        supervision.load(target)
    supervision.build(make_rows(5), target)
    path = shard(target)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(InputError, match="shard is damaged"):
        supervision.load(target)
    path.unlink()
    with pytest.raises(InputError, match="shard is missing"):
        supervision.load(target)
    (target / "manifest.json").unlink()
    with pytest.raises(InputError, match="was never finished"):
        supervision.load(target)


def replaced(row: SupervisionRow, **change) -> SupervisionRow:
    return SupervisionRow(**{**{f: getattr(row, f) for f in row.__slots__}, **change})


BAD = [
    ({"label": 1.3}, "label=1.3: expected a number in [0,1]"),
    ({"label": float("nan")}, "label=nan: expected a number in [0,1]"),
    ({"temperature": 0.0}, "temperature=0.0: expected a number above 0"),
    ({"decisions": ("a",) * 9}, "found 9 decisions, 10 verdicts"),
    ({"verdicts": (2,) * 10}, "verdicts: expected 0, 1"),
    ({"verdicts": (1,) * 10, "label": 0.5}, "label=0.5: expected the share of right decisions"),
]


@pytest.mark.parametrize("change, message", BAD)
def test_a_row_that_cannot_be_right_is_not_written(tmp_path, change, message):
    rows = [*make_rows(2), replaced(make_rows(1)[0], **change)]
    with pytest.raises(InputError) as error:
        supervision.build(rows, tmp_path / "s")
    assert message in str(error.value) and str(error.value).startswith("rows[2].")
    assert list(tmp_path.iterdir()) == []


def test_an_empty_set_is_not_written(tmp_path):
    with pytest.raises(InputError, match="at least one labelled row"):
        supervision.build([], tmp_path / "s")


def as_json(row: SupervisionRow) -> dict:
    return {field: getattr(row, field) for field in row.__slots__}


def test_rows_made_elsewhere_are_read_and_bad_ones_set_aside(tmp_path):
    good = make_rows(12)
    lines = [json.dumps(as_json(row)) for row in good]
    base = as_json(good[0])
    bad = [
        base | {"label": 1.3},
        base | {"temperature": "hot"},
        base | {"temperature": 0},
        base | {"decisions": base["decisions"][:9]},
        base | {"label": True},
        base | {"text": None},
        base | {"verdicts": [True] * 10},
    ]
    lines += [json.dumps(row) for row in bad]
    lines.append(lines[0].replace('"label": ', '"label": NaN, "x": '))
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    parsed = supervision.read_file(path)
    assert parsed.rows == good
    assert [rejected.line for rejected in parsed.rejected] == list(range(13, 21))
    assert parsed.rejected[1].reason == 'temperature="hot": expected a number'


def test_a_file_with_one_usable_row_is_refused(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(as_json(make_rows(1)[0])) + "\n", encoding="utf-8")
    with pytest.raises(InputError, match="kept 1 row"):
        supervision.read_file(path)
