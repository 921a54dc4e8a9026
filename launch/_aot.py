"""`launch.bench --aot`: which cases the flags ask for, their table, and whether they fit."""

import os
from typing import Any

from calibjax.errors import InputError, closest, input_error


def cases(flags: Any) -> list[Any]:
    """A `perf.aot.Case` for every model, number of devices and task."""
    from calibjax.backbone.config import DecoderConfig
    from calibjax.backbone.load import num_parameters
    from calibjax.perf import aot
    from calibjax.training.mesh import default_axes, parse_axes

    for name, values, known in (
        ("model", flags.model, aot.MODELS),
        ("task", flags.task, ("train", "score")),
        ("accelerator", [flags.accelerator], aot.ACCELERATORS),
    ):
        for value in values:
            if value not in known:
                near = closest(value, known)
                fix = f"--{name}={near}" if near else None
                raise input_error(name, value, ", ".join(known), fix)
    made = []
    for model in flags.model:
        if flags.mesh == "auto":
            parameters = num_parameters(DecoderConfig(**aot.MODELS[model]))
            layouts = [default_axes(parameters, _number(text)) for text in flags.devices]
        else:
            layouts = [parse_axes(flags.mesh)]
        made += [
            aot.Case(
                task, model, aot.MODELS[model], axes, flags.dtype, flags.remat, flags.groups,
                flags.tokens,
            )  # fmt: skip
            for axes in layouts
            for task in flags.task
        ]
    return made


def _number(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise input_error("devices", text, "positive integers", "--devices=8,64,256")
    return int(text)


def run(out: Any, found: list[Any], accelerator: str) -> None:
    """Compiles every case, writes the report, and raises InputError for the first misfit."""
    from calibjax import storage
    from calibjax.perf import aot

    limit = aot.USABLE * aot.ACCELERATORS[accelerator]
    rows, misfits = [], []
    for case in found:
        name = f"{case.model} {case.task} {_shown(case.axes)}"
        with out.stage(name):
            fit = aot.compile_apart(case, os.environ)
        rows.append({"case": case._asdict(), **fit._asdict(), "fits": fit.total_bytes <= limit})
        if fit.total_bytes > limit:
            misfits.append((name, fit.total_bytes))
        storage.write_json(out.path / "report.json", {"accelerator": accelerator, "cases": rows})
    text = _table(rows, accelerator, limit)
    storage.write_text(out.path / "report.md", text)
    print(text)
    if misfits:
        name, needed = misfits[0]
        raise InputError(
            f"accelerator={accelerator}: {name} needs {needed / 1e9:.1f} GB a device of"
            f" {limit / 1e9:.1f} GB; fix: more devices on fsdp or tensor, --remat=full, fewer"
            " --groups or --tokens"
        )


def _table(rows: list[dict[str, Any]], accelerator: str, limit: float) -> str:
    from calibjax.report import tables

    header = [
        "Backbone", "Step", "Mesh", "Backbone GB", "Trained GB", "Temporaries GB", "Total GB",
        "Fits", "Collectives a step", "GFLOP a token", "Formula",
    ]  # fmt: skip
    grid = [
        [
            row["case"]["model"],
            row["case"]["task"],
            _shown(row["case"]["axes"]),
            *(
                f"{row[f'{part}_bytes'] / 1e9:.2f}"
                for part in ("backbone", "trained", "temporary", "total")
            ),
            "yes" if row["fits"] else "no",
            ", ".join(f"{n} {kind}" for kind, n in row["collectives"].items()) or "none",
            f"{row['flops_per_token'] / 1e9:.2f}",
            f"{row['formula_per_token'] / 1e9:.2f}",
        ]
        for row in rows
    ]
    case = rows[0]["case"]
    notes = [
        f"Bytes a device in {case['dtype']}; remat={case['remat']}; {case['groups']} rows of"
        f" {case['tokens']} tokens a device. {accelerator}: {limit / 1e9:.1f} GB usable.",
        "Temporaries are those of a float32 program on CPU devices, an upper bound. The formula is"
        " 2N + a for scoring and 4N + 3a for training, with N the kernels of all blocks but the"
        " last; what the backward pass recomputes comes on top.",
    ]
    return "\n\n".join(["# Ahead of time", tables.markdown_grid(header, grid), *notes]) + "\n"


def _shown(axes: dict[str, int]) -> str:
    return ",".join(f"{name}={size}" for name, size in axes.items() if size > 1) or "data=1"
