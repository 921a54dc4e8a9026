"""Benchmarks, and whether a big backbone fits: --aot compiles its steps without its weights.

--aot lowers and compiles the train and the score step of a backbone on simulated devices, from
shapes alone, and prints bytes a device, collectives a step and FLOPs a token. It ends with exit
code 2 and one line where a step would not fit the accelerator. --name runs a script of experiments/
and keeps its JSON in OUT/report.json.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from absl import flags

from launch import _main

AOT = flags.DEFINE_boolean("aot", False, "compile ahead of time, from shapes alone")
NAME = flags.DEFINE_string("name", None, "a benchmark: metrics for experiments/bench_metrics.py")
ARGUMENTS = flags.DEFINE_string("arguments", "", "flags for the benchmark, as on its command line")
MODEL = flags.DEFINE_list(
    "model", ["llama-3.1-8b", "llama-3.1-70b"], "backbones of --aot: llama-3.1-8b, llama-3.1-70b"
)
TASK = flags.DEFINE_list("task", ["train", "score"], "steps of --aot: train, score")
DEVICES = flags.DEFINE_list("devices", ["8", "64", "256"], "numbers of devices of --aot")
MESH = flags.DEFINE_string(
    "mesh", "auto", "devices by axis, such as data=8,fsdp=8, in place of --devices"
)
ACCELERATOR = flags.DEFINE_string("accelerator", "h100", "what a step must fit, such as tpu-v5e")
DTYPE = flags.DEFINE_enum("dtype", "bfloat16", ["float32", "bfloat16"], "type of the backbone")
REMAT = flags.DEFINE_enum(
    "remat",
    "full",
    ["none", "dots", "save_qkv_context_mlp", "save_qkv_context", "full"],
    "what the backward pass recomputes",
)
GROUPS = flags.DEFINE_integer("groups", 4, "rows of a batch a device holds", lower_bound=1)
TOKENS = flags.DEFINE_integer("tokens", 1024, "tokens a row, padding included", lower_bound=16)

EXAMPLES = (
    "python -m launch.bench --aot --out=runs/aot",
    "python -m launch.bench --aot --model=llama-3.1-70b --mesh=fsdp=64 --accelerator=tpu-v5e"
    " --out=runs/aot70",
    "python -m launch.bench --name=metrics --arguments=--smoke --out=runs/bench",
)


def main() -> None:
    from calibjax.errors import input_error

    if AOT.value == bool(NAME.value):
        raise input_error("name", NAME.value or "", "either --name or --aot", "--aot")
    with _main.open_out(main) as out:
        if AOT.value:
            from launch import _aot

            _aot.run(out, _aot.cases(flags.FLAGS), str(ACCELERATOR.value))
        else:
            _benchmark(out, str(NAME.value))


def _benchmark(out: Any, name: str) -> None:
    """Runs a script of experiments/; its last line is a JSON object."""
    from calibjax import storage
    from calibjax.errors import closest, input_error

    folder = Path(__file__).resolve().parent.parent / "experiments"
    known = sorted(path.stem.removeprefix("bench_") for path in folder.glob("bench_*.py"))
    if name not in known:
        near = closest(name, known)
        fix = f"--name={near}" if near else None
        raise input_error("name", name, ", ".join(known), fix)
    command = [sys.executable, "-m", f"experiments.bench_{name}", *ARGUMENTS.value.split()]
    with out.stage("bench"):
        done = subprocess.run(
            command, cwd=folder.parent, stdout=subprocess.PIPE, text=True, env=os.environ
        )
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: exit code {done.returncode}")
    print(done.stdout, end="")
    storage.write_json(out.path / "report.json", json.loads(done.stdout.splitlines()[-1]))


if __name__ == "__main__":
    _main.run(main, examples=EXAMPLES)
