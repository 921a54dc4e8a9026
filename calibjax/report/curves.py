"""The data behind the plots, in float64 on the host: used once, so nothing is compiled for it."""

from typing import Any

import numpy as np

from calibjax.metrics import wilson_interval

CURVE_POINTS = 200


def reliability_bins(
    confidence: np.ndarray, correct: np.ndarray, num_bins: int, level: float
) -> list[dict[str, Any]]:
    """One entry a bin of equal width, empty ones too, right edge included as in the ECE.

    `accuracy_low` and `accuracy_high` are the Wilson interval, which takes rows as independent.
    """
    edges = np.arange(1, num_bins) / num_bins
    bins = np.searchsorted(edges, confidence, side="left")
    counts = np.bincount(bins, minlength=num_bins)
    sums = [np.bincount(bins, weights=x, minlength=num_bins) for x in (confidence, correct)]
    rows = []
    for place, count in enumerate(counts.tolist()):
        mean, accuracy = (float(x[place]) / count if count else None for x in sums)
        low, high = (None, None) if accuracy is None else wilson_interval(accuracy, count, level)
        rows.append(
            {
                "lower": place / num_bins,
                "upper": (place + 1) / num_bins,
                "count": count,
                "confidence": mean,
                "accuracy": accuracy,
                "accuracy_low": low,
                "accuracy_high": high,
            }
        )
    return rows


def accuracy_coverage(confidence: np.ndarray, correct: np.ndarray) -> dict[str, list[float]]:
    """Expected accuracy of the k most confident rows (ties in random order), at most 200 points.

    Both ends, k = 1 and k = n, are among the points.
    """
    n = len(confidence)
    order = np.argsort(-confidence, kind="stable")
    score, right = confidence[order], np.concatenate([[0.0], np.cumsum(correct[order])])
    chosen = np.unique(np.linspace(1, n, min(n, CURVE_POINTS)).round().astype(np.int64))
    # The block of equal scores that holds row k covers the rows after `start` up to `end`.
    start = np.searchsorted(-score, -score[chosen - 1], side="left")
    end = np.searchsorted(-score, -score[chosen - 1], side="right")
    inside = (right[end] - right[start]) * (chosen - start) / (end - start)
    accuracy = (right[start] + inside) / chosen
    return {"coverage": (chosen / n).tolist(), "accuracy": accuracy.tolist()}
