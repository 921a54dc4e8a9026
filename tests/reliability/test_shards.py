"""Every damage to a supervision set is found before the first step; a killed build leaves none."""

import dataclasses
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from calibjax.data import supervision
from calibjax.errors import InputError
from tests.labelled import make_rows
from tests.launch.command import ROOT, environment

pytestmark = pytest.mark.faults


def some_rows():
    """200 rows whose numbers float32 holds exactly."""
    rows = make_rows(num_questions=40, docs=5)
    return [
        dataclasses.replace(row, temperature=1.5, label=number % 5 / 4)
        for number, row in enumerate(rows)
    ]


ROWS = some_rows()


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A set in several shards."""
    target = tmp_path_factory.mktemp("run") / "supervision"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(supervision, "ROWS_PER_SHARD", 50)
        supervision.build(ROWS, target)
    assert len(shards(target)) == 4
    assert supervision.load(target) == ROWS
    return target


@pytest.fixture
def target(written, tmp_path):
    shutil.copytree(written, tmp_path / "supervision")
    return tmp_path / "supervision"


def shards(target):
    return sorted(target.rglob("*.array_record*"))


def refused(target, match):
    with pytest.raises(InputError, match=match) as caught:
        supervision.load(target)
    assert "launch.label --resume" in str(caught.value)
    return str(caught.value)


def test_any_flipped_bit_is_found_and_its_shard_is_named(target):
    rng = np.random.default_rng(16)
    for _ in range(20):
        victim = shards(target)[int(rng.integers(4))]
        good = victim.read_bytes()
        data = bytearray(good)
        data[int(rng.integers(len(data)))] ^= 1 << int(rng.integers(8))
        victim.write_bytes(data)
        assert str(victim) in refused(target, "shard is damaged")
        victim.write_bytes(good)
    assert supervision.load(target) == ROWS


def test_any_cut_is_found_and_its_shard_is_named(target):
    rng = np.random.default_rng(17)
    for _ in range(20):
        victim = shards(target)[int(rng.integers(4))]
        good = victim.read_bytes()
        victim.write_bytes(good[: int(rng.integers(len(good)))])
        assert str(victim) in refused(target, "shard is damaged")
        victim.write_bytes(good)


def test_missing_swapped_added_shards_and_an_edited_manifest_are_found(target):
    first, second, *_ = shards(target)
    good = first.read_bytes()
    first.unlink()
    assert str(first) in refused(target, "shard is missing")
    first.write_bytes(second.read_bytes())
    assert str(first) in refused(target, "shard is damaged")
    first.write_bytes(good)
    extra = first.with_name(first.name.replace("00000-of", "00009-of"))
    extra.write_bytes(good)
    # A file that the manifest does not know is never read.
    try:
        assert supervision.load(target) == ROWS
    except InputError as error:
        assert str(extra) in str(error)
    extra.unlink()
    listing = json.loads((target / "manifest.json").read_text())
    entry = next(iter(listing["shards"].values()))
    entry["sha256"] = entry["sha256"][::-1]
    (target / "manifest.json").write_text(json.dumps(listing))
    refused(target, "shard is damaged")


def test_a_killed_build_leaves_no_set_and_the_next_one_is_the_same(tmp_path, written):
    script = (
        "from tests.reliability.test_shards import some_rows, supervision\n"
        "print('ready', flush=True)\n"
        "supervision.ROWS_PER_SHARD = 50\n"
        f"supervision.build(some_rows(), {str(tmp_path / 's')!r})\n"
    )
    rng, struck = random.Random(5), 0
    for _ in range(20):
        if struck == 5:
            break
        process = subprocess.Popen(
            [sys.executable, "-c", script],
            cwd=ROOT,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        with process:
            assert process.stdout.readline() == b"ready\n"
            time.sleep(rng.uniform(0.0, 0.3))
            if process.poll() is None:
                struck += 1
                os.killpg(process.pid, signal.SIGKILL)
            else:  # it was faster; the next one starts from nothing again
                shutil.rmtree(tmp_path / "s")
    assert struck >= 3
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(supervision, "ROWS_PER_SHARD", 50)
        supervision.build(ROWS, tmp_path / "s")
    assert supervision.load(tmp_path / "s") == ROWS
    assert [path.name for path in tmp_path.iterdir()] == ["s"]
    listings = [json.loads((p / "manifest.json").read_text()) for p in (tmp_path / "s", written)]
    assert listings[0]["shards"] == listings[1]["shards"]
