"""A run goes on with another number of devices: same batches, same numbers to rounding."""

import json

import numpy as np
import pytest

from tests.reliability import train_runs as runs

pytestmark = pytest.mark.faults


def test_eight_devices_then_two_then_one(tmp_path):
    flags, cache = runs.inputs(tmp_path), tmp_path / "cache"
    one, out, again = tmp_path / "one", tmp_path / "out", tmp_path / "again"
    runs.finish([*flags, f"--out={one}"], cache)
    layouts = (("8", "data=8", 12), ("2", "fsdp=2", 25), ("1", "data=1", runs.STEPS))
    for devices, mesh, until in layouts:
        argv = [*flags, f"--mesh={mesh}", f"--out={out}", "--resume"]
        with runs.start(argv, cache, JAX_NUM_CPU_DEVICES=devices) as process:
            if until < runs.STEPS:
                runs.wait_until(lambda: len(runs.steps(out)) >= until, process)
                process.terminate()
            _, err = process.communicate(timeout=900)
        assert process.returncode == (143 if until < runs.STEPS else 0), err
    ours, theirs = runs.steps(out), runs.steps(one)
    assert [row["batch"] for row in ours] == [row["batch"] for row in theirs]
    # Step 0 differs by the order of float32 sums; Adam then lets the runs drift apart slowly.
    for key in ("loss", "grad_norm"):
        np.testing.assert_allclose(ours[0][key], theirs[0][key], rtol=1e-5)
    np.testing.assert_allclose(
        [row["loss"] for row in ours], [row["loss"] for row in theirs], rtol=1e-4
    )
    meshes = [json.loads((path / "run.json").read_text()) for path in (out, one)]
    assert len(meshes[0]["attempts"]) == 3

    argv = [*flags, "--mesh=data=8", f"--out={again}"]
    runs.finish(argv, cache, JAX_NUM_CPU_DEVICES="8")
    first = runs.steps(again)
    # The same layout twice gives the same bits.
    assert first[:12] == ours[:12]


def test_more_devices_than_there_are_is_refused_in_one_line(tmp_path):
    flags, cache = runs.inputs(tmp_path), tmp_path / "cache"
    err = runs.finish([*flags, "--mesh=data=16", f"--out={tmp_path / 'out'}"], cache, code=2)
    assert err.splitlines()[-1] == (
        "mesh=data=16: expected at most 1 devices, found sizes for 16; fix: --mesh=data=1"
    )
    assert not (tmp_path / "out").exists()


def test_another_backbone_does_not_continue_a_run(tmp_path):
    from tests.backbone import checkpoints as backbones

    flags, cache = runs.inputs(tmp_path), tmp_path / "cache"
    short = [flag for flag in flags if not flag.startswith(("--steps", "--config.num_eval"))]
    short += ["--steps=2", "--config.num_evaluations=1", f"--out={tmp_path / 'out'}"]
    runs.finish(short, cache)
    fields = backbones.config()
    backbones.save(tmp_path / "backbone", fields, backbones.tensors(fields, seed=1))
    err = runs.finish([*short, "--resume"], cache, code=2).splitlines()[-1]
    assert err.startswith("backbone=") and "run.json" in err
