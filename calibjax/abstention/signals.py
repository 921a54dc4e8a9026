"""Confidence signals to compare RCS with; every one is oriented higher = more confident."""

from typing import NamedTuple

import numpy as np
from scipy import optimize

from calibjax.abstention.score_features import QUERY_LEN, Features, ScoreLists

CONFORMAL_TARGETS = ("positives", "negatives", "selection")
_LOG_T = (-5.0, 5.0)
_CLIP = 1e-7  # as in metrics.log_loss


class Signal(NamedTuple):
    """Scores [n] to rank by, and the probability of full success [n] where the signal is one."""

    score: np.ndarray
    probability: np.ndarray | None = None


class TemperatureFit(NamedTuple):
    """Temperature of the softmax over hop-1 scores; at_bound: the search ended at its edge."""

    temperature: float
    at_bound: bool


def untrained_signals(features: Features) -> dict[str, Signal]:
    """random, entropy, max_score, margin, lift and, with questions, query_len_inv.

    random is a constant: ties are averaged everywhere, so it gets the expectation of a random
    ranking without a draw. entropy is minus the normalised entropy.
    """
    found = {
        "random": Signal(np.zeros(len(features.values))),
        "entropy": Signal(-features.column("hop1_H")),
        "max_score": Signal(features.column("hop1_max")),
        "margin": Signal(features.column("hop1_margin")),
        "lift": Signal(features.column("hop1_lift")),
    }
    if QUERY_LEN in features.names:
        found["query_len_inv"] = Signal(1 / np.maximum(features.column(QUERY_LEN), 1))
    return found


def max_softmax(lists: ScoreLists, temperature: float) -> np.ndarray:
    """max softmax(scores / T) of each list, [n]; 1 for one hit, 0 for none."""
    gap = (lists.scores - lists.scores[:, :1]) / temperature
    mass = np.where(lists.valid, np.exp(np.minimum(gap, 0.0)), 0.0).sum(axis=1)
    return np.where(mass > 0, 1 / np.where(mass > 0, mass, 1), 0.0)


def fit_temperature(lists: ScoreLists, success: np.ndarray) -> TemperatureFit:
    """T in [e^-5, e^5] that minimises the log loss of full success under `max_softmax`.

    The loss may have several minima in T: a grid first, then a bounded search around its best.
    """

    def loss(log_t: float) -> float:
        p = np.clip(max_softmax(lists, np.exp(log_t)), _CLIP, 1 - _CLIP)
        return float(-np.mean(success * np.log(p) + (1 - success) * np.log1p(-p)))

    grid = np.linspace(*_LOG_T, 101)
    losses = [loss(log_t) for log_t in grid]
    best = int(np.argmin(losses))
    low, high = grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]
    found = optimize.minimize_scalar(loss, bounds=(low, high), method="bounded")
    log_t = found.x if found.fun < losses[best] else grid[best]
    # The bounded search never reaches its ends exactly.
    at_bound = bool(min(log_t - _LOG_T[0], _LOG_T[1] - log_t) < 1e-3)
    return TemperatureFit(float(np.exp(log_t)), at_bound)


def conformal_confidence(
    score: np.ndarray, tune_score: np.ndarray, tune_success: np.ndarray, target: str
) -> np.ndarray:
    """Split-conformal confidence of each row, in [0, 1], from p-values against the tune rows.

    positives: (1 + successes at or below the score) / (1 + successes): accepting it at >= alpha
    keeps a new success with probability 1 - alpha. negatives: 1 - (1 + failures at or above) /
    (1 + failures); selection: the same over all rows (Jin and Candes 2023). Monotone in the score,
    so they rank as it does, up to the tune rows' resolution.
    """
    positives = np.sort(tune_score[tune_success == 1])
    negatives = np.sort(tune_score[tune_success == 0])
    if target == "positives":
        below = np.searchsorted(positives, score, side="right")
        return (1 + below) / (1 + len(positives))
    above = len(negatives) - np.searchsorted(negatives, score, side="left")
    count = len(negatives) if target == "negatives" else len(tune_score)
    return 1 - (1 + above) / (1 + count)
