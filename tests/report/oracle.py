"""The figures of report.json again, in float64 NumPy and scikit-learn, straight from the page.

Shares no code with calibjax; loops where a loop is the clearest.
"""

import math

import numpy as np
from sklearn.metrics import roc_auc_score


def ece_width(p, y, num_bins):
    edges = np.arange(1, num_bins) / num_bins
    bins = np.searchsorted(edges, p, side="left")
    return sum(abs((y - p)[bins == b].sum()) for b in range(num_bins)) / len(p)


def ece_mass(p, y, num_bins):
    below = np.array([(p < value).sum() for value in p])
    bins = np.minimum(num_bins - 1, num_bins * below // len(p))
    return sum(abs((y - p)[bins == b].sum()) for b in range(num_bins)) / len(p)


def log_loss(p, y):
    q = np.clip(p, 1e-7, 1 - 1e-7)
    return float(np.mean(-(y * np.log(q) + (1 - y) * np.log(1 - q))))


def skill(p, y):
    rate = y.mean()
    if rate in (0.0, 1.0):
        return None
    return 1 - log_loss(p, y) / -(rate * math.log(rate) + (1 - rate) * math.log(1 - rate))


def auroc(p, y):
    """A soft row counts as a positive of weight y and a negative of weight 1 - y."""
    if y.sum() == 0 or y.sum() == len(y):
        return None
    labels = np.r_[np.ones(len(y)), np.zeros(len(y))]
    weights = np.r_[y, 1 - y]
    return roc_auc_score(labels, np.r_[p, p], sample_weight=weights)


def auc_ac(p, y):
    """Mean over k of the expected accuracy of the k most confident rows, ties at random."""
    total, right, accuracies = 0, 0.0, []
    for value in sorted(set(p), reverse=True):
        block = y[p == value]
        for k in range(1, len(block) + 1):
            accuracies.append((right + block.mean() * k) / (total + k))
        total, right = total + len(block), right + block.sum()
    return float(np.mean(accuracies))


def figures(confidence, correct, answered, num_bins=15, num_mass_bins=10):
    """All figures by name; None where undefined."""
    p, y = np.asarray(confidence, float), np.asarray(correct, float)
    answered = np.asarray(answered, bool)
    rows = {"": (p, np.where(answered, y, 0.0)), "_answered": (p[answered], y[answered])}
    out = {}
    for suffix, (p, y) in rows.items():
        empty = len(p) == 0
        out["ece" + suffix] = None if empty else ece_width(p, y, num_bins)
        out["ece_mass" + suffix] = None if empty else ece_mass(p, y, num_mass_bins)
        out["brier" + suffix] = None if empty else float(np.mean((p - y) ** 2))
        out["log_loss" + suffix] = None if empty else log_loss(p, y)
        out["log_loss_skill" + suffix] = None if empty else skill(p, y)
        out["auroc" + suffix] = None if empty else auroc(p, y)
        out["auc_ac" + suffix] = None if empty else auc_ac(p, y)
        out["accuracy" + suffix] = None if empty else float(y.mean())
    out["no_answer_rate"] = float(1 - answered.mean())
    out["no_answer_rate_answered"] = 0.0 if answered.any() else None
    return out
