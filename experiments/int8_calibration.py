"""What int8 weights do to a forecaster's calibration, as one JSON object.

    python -m experiments.int8_calibration --data=runs/quickstart/supervision_validation.jsonl \\
        --train=runs/quickstart/supervision_train.jsonl

The forecaster (--forecaster, or one trained here on --train with float32 weights) scores the
labelled rows of --data with the decoder it was trained on and with that decoder in int8. Figures
are paired, their intervals from a bootstrap over questions: int8 minus float32.
"""

import json
import time
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.stats
from absl import app, flags

from calibjax import metrics as m
from calibjax.backbone import load_decoder
from calibjax.backbone.load import Decoder
from calibjax.data import supervision
from calibjax.errors import input_error
from calibjax.forecaster import Forecaster
from calibjax.forecaster.presets import PRESETS
from calibjax.records import SupervisionRow
from experiments import _bench

DATA = flags.DEFINE_string("data", None, "Labelled rows of questions that were not trained on.")
TRAIN = flags.DEFINE_string("train", None, "Labelled rows to train a forecaster on first.")
FORECASTER = flags.DEFINE_string("forecaster", None, "A trained one instead (Forecaster.save).")
STEPS = flags.DEFINE_integer("steps", 24, "Steps of training with --train.", lower_bound=2)
REPLICATES = flags.DEFINE_integer("replicates", 2000, "Of the bootstrap.", lower_bound=1)

METRICS = {
    "ece": m.expected_calibration_error,
    "brier": m.brier_score,
    "log_loss": m.log_loss,
    "auroc": m.auroc,
}


def decoders() -> tuple[Decoder, Decoder]:
    """The same one with float32 and with int8 weights."""
    small = load_decoder(_bench.BACKBONE.value, quantize="int8")
    return _bench.backbone(), _bench.first_blocks(small, 2) if _bench.SMOKE.value else small


def rows_of(path: str | None, name: str) -> list[SupervisionRow]:
    if path is None:
        raise input_error(name, path, "labelled rows", f"--{name}=runs/quickstart/...jsonl")
    return list(supervision.read_file(path, name=name).rows)


def trained(decoder: Decoder) -> Forecaster:
    if FORECASTER.value:
        return Forecaster.load(FORECASTER.value, backbone=decoder)
    steps = 2 if _bench.SMOKE.value else STEPS.value
    preset = replace(PRESETS["fixed"], steps=steps, warmup_steps=steps // 10)
    forecaster = Forecaster(decoder, preset, key=jax.random.key(0))
    forecaster.fit(rows_of(TRAIN.value, "train"))
    return forecaster


def scored(forecaster: Forecaster, rows: list[SupervisionRow]) -> tuple[np.ndarray, float]:
    """Forecasts at the rows' own temperatures, and seconds per row once all is compiled."""
    queries, temperatures = [row.query for row in rows], [row.temperature for row in rows]
    forecaster.score(queries, [[row] for row in rows], temperatures)
    start = time.perf_counter()
    confidence = forecaster.score(queries, [[row] for row in rows], temperatures)[:, 0]
    return confidence, (time.perf_counter() - start) / len(rows)


def three(metric: Any) -> Any:
    """Float32, int8 and their difference."""

    def all_three(full, small, correct, weight):
        a, b = (metric(p, correct, weight=weight) for p in (full, small))
        return jnp.stack([a, b, b - a])

    return all_three


def compared(
    full: np.ndarray, small: np.ndarray, rows: list[SupervisionRow]
) -> dict[str, dict[str, Any]]:
    arrays = {"full": full, "small": small, "correct": np.float32([row.label for row in rows])}
    found = m.bootstrap(
        {name: three(metric) for name, metric in METRICS.items()},
        arrays,
        key=jax.random.key(0),
        num_replicates=REPLICATES.value,
        cluster=np.array([row.question_id for row in rows]),
    )
    sides = ("float32", "int8", "difference")
    return {
        name: {
            side: {
                field: float(np.asarray(getattr(interval, field))[i])
                for field in ("estimate", "low", "high")
            }
            for i, side in enumerate(sides)
        }
        for name, interval in found.items()
    }


def main(argv: list[str]) -> None:
    if len(argv) > 1:
        raise app.UsageError(f"unexpected arguments: {argv[1:]}")
    plain, small = decoders()
    rows = rows_of(DATA.value, "data")
    forecaster = trained(plain)
    quantised = forecaster.with_preset()
    quantised.decoder = small
    full_p, full_seconds = scored(forecaster, rows)
    small_p, small_seconds = scored(quantised, rows)
    change = np.abs(small_p - full_p)
    report = {
        "name": "int8_calibration",
        "backbone": plain.source,
        "n": len(rows),
        "questions": len({row.question_id for row in rows}),
        "metrics": compared(full_p, small_p, rows),
        "probability_change": {"mean": float(change.mean()), "max": float(change.max())},
        "rank_correlation": float(scipy.stats.spearmanr(full_p, small_p).statistic),
        "seconds_per_row": {"float32": full_seconds, "int8": small_seconds},
        "bytes": {
            name: sum(leaf.nbytes for leaf in jax.tree.leaves(decoder.module))
            for name, decoder in (("float32", plain), ("int8", small))
        },
    }
    print(json.dumps(report, allow_nan=False))


if __name__ == "__main__":
    app.run(main)
