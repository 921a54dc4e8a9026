"""Hostile and damaged GGUF files: refused by file, field and byte, at once and in little memory."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from calibjax.backbone import gguf_header
from calibjax.errors import InputError
from tests.backbone import checkpoints, gguf_damage


@pytest.mark.parametrize("name", gguf_damage.CRAFTED)
def test_crafted_headers_are_refused_by_file_field_and_byte(name, tmp_path):
    path = tmp_path / "bad.gguf"
    path.write_bytes(gguf_damage.CRAFTED[name])
    with pytest.raises(InputError, match=rf"{re.escape(str(path))}: .+ at byte \d+: "):
        gguf_header.read_header(path)


def test_the_well_formed_twin_is_read(tmp_path):
    path = tmp_path / "good.gguf"
    path.write_bytes(gguf_damage.GOOD)
    header = gguf_header.read_header(path)
    assert header.fields == {"a": 1} and header.tensors["t"].shape == (8,)
    assert len(gguf_damage.CRAFTED) >= 24


@pytest.mark.faults
@pytest.mark.parametrize("start", range(0, 2000, 500))
def test_no_mutation_hangs_crashes_or_slips_through(start, tmp_path):
    fields = checkpoints.config(hidden_size=16, intermediate_size=16, num_hidden_layers=2)
    checkpoints.save_gguf(tmp_path / "good.gguf", fields, checkpoints.tensors(fields))
    assert 30_000 < (tmp_path / "good.gguf").stat().st_size < 70_000
    command = [sys.executable, "-m", "tests.backbone.gguf_damage", str(tmp_path)]
    done = subprocess.run(
        [*command, str(start), str(start + 500)],
        capture_output=True,
        text=True,
        # 20 seconds for each hundred files, and the imports.
        timeout=160,
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == 0, done.stderr[-2000:]
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(rows) == 500
    for row in rows:
        assert row["seconds"] < 1.0 and row["grown_mb"] < 300, row
        if row["error"]:
            assert row["error"] == "InputError", row
            assert f"bad{row['seed']}.gguf" in row["message"], row
        else:
            assert row["finite"], row
    refused = sum(bool(row["error"]) for row in rows)
    assert 250 < refused < 500
