"""Figures of each kind of question: where failures are, and which scores see them coming."""

from typing import Any

import numpy as np

from calibjax import metrics
from calibjax.abstention.fitting import Regime
from calibjax.abstention.resampling import dense_rank

# Test rows below which a kind of question gets no figures of its own.
_MIN_ROWS = 5


def by_type(regime: Regime) -> dict[str, Any] | None:
    """For each `type` of question: n, n_test, success_rate and feature means over all rows, and
    AUC-AC of every signal over its test rows. None where no row has a type.

    features: mean of each over the rows that fail and over those that succeed (None: no such row).
    """
    types = np.array([example.type or "" for example in regime.examples])
    names, counts = np.unique(types[regime.test & (types != "")], return_counts=True)
    shown = [str(name) for name, count in zip(names, counts) if count >= _MIN_ROWS]
    return {name: _of_type(regime, types == name) for name in shown} or None


def _of_type(regime: Regime, rows: np.ndarray) -> dict[str, Any]:
    success = regime.success
    outcomes = {"failures": rows & (success == 0), "successes": rows & (success == 1)}
    return {
        "n": int(rows.sum()),
        "n_test": int((rows & regime.test).sum()),
        "success_rate": float(success[rows].mean()),
        "success_rate_test": float(success[rows & regime.test].mean()),
        "auc_ac": {
            name: _area(signal.score, success, rows & regime.test)
            for name, signal in regime.signals.items()
        },
        "features": {
            name: {key: _mean(regime.features.column(name)[part]) for key, part in outcomes.items()}
            for name in regime.features.names
        },
    }


def _area(score: np.ndarray, success: np.ndarray, rows: np.ndarray) -> float:
    # A mask, not a selection: all types of a regime share one program.
    rank = dense_rank(score).astype(np.float32)
    labels = success.astype(np.float32)
    return float(metrics.area_under_accuracy_coverage(rank, labels, where=rows))


def _mean(values: np.ndarray) -> float | None:
    return float(values.mean()) if len(values) else None
