"""The benchmark that is prepared for an accelerator runs, at toy sizes, on this machine."""

import json
import subprocess
import sys

from tests.launch.command import ROOT, environment


def test_every_part_of_it_gives_figures():
    command = [sys.executable, "-m", "experiments.bench_gpu", "--tiny", "--peak_tflops=1"]
    done = subprocess.run(
        [*command, "--cases=attention,8b,prefix,programs"],
        cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=1800,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert not found["left_out"]
    cases = found["cases"]
    attention = [case for case in cases if case["case"] == "attention"]
    assert len(attention) == 2 and all(case["xla"]["finite"] for case in attention)
    assert all("error" in case["cudnn"] for case in attention)  # there is no cuDNN here
    others = [case for case in cases if case["case"] != "attention"]
    names = ["score_8b", "train_8b", "prefix_1b", "prefix_1b", *["score_1b", "train_1b"] * 2]
    assert [case["case"] for case in others] == names
    programs = [case["program"] for case in others if "program" in case]
    assert programs == [name for name in ("unrolled", "cublas") for _ in range(2)]
    for case in others:
        assert case["useful_tokens_per_second"] > 0 and 0 < case["mfu"] < 1
