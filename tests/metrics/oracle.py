"""The definitions once more, in plain float64 NumPy loops: slow and written independently."""

from fractions import Fraction

import numpy as np
from scipy import stats


def expand(weight, *columns):
    """Rows repeated `weight` times (whole numbers)."""
    index = np.repeat(np.arange(len(weight)), np.asarray(weight, int))
    return [np.asarray(column)[index] for column in columns]


def width_bin(p, num_bins, closed="right"):
    """Bin of each p by exact comparison with k / num_bins, both as decimal literals."""
    out = []
    for value in p:
        value = Fraction(str(value))
        edges = [Fraction(k, num_bins) for k in range(1, num_bins)]
        passed = [value > e if closed == "right" else value >= e for e in edges]
        out.append(sum(passed))
    return np.array(out, int)


def mass_bin(p, num_bins):
    n = len(p)
    below = [int(np.sum(p < value)) for value in p]
    return np.array([min(num_bins - 1, num_bins * r // n) for r in below], int)


def calibration(p, y, bins):
    """l1, l2, max and the debiased squared l2 error for given bins."""
    n = len(p)
    l1 = l2 = largest = debiased = 0.0
    for b in set(bins):
        rows = bins == b
        size, accuracy = rows.sum(), y[rows].mean()
        gap = abs(accuracy - p[rows].mean())
        l1 += size / n * gap
        l2 += size / n * gap**2
        largest = max(largest, gap)
        if size >= 2:
            debiased += size / n * (gap**2 - accuracy * (1 - accuracy) / (size - 1))
    return l1, np.sqrt(l2), largest, debiased


def top_label(p, y):
    positive = p >= 0.5
    return np.where(positive, p, 1 - p), np.where(positive, y, 1 - y)


def brier(p, y):
    return np.mean((p - y) ** 2)


def log_loss(p, y, clip=1e-7):
    p = np.clip(p, clip, 1 - clip)
    return -np.mean(y * np.log(p) + (1 - y) * np.log(1 - p))


def auroc(s, y):
    """Over all pairs, soft labels as part right and part wrong."""
    won = total = 0.0
    for i in range(len(s)):
        for j in range(len(s)):
            pair = y[i] * (1 - y[j])
            total += pair
            won += pair * ((s[i] > s[j]) + 0.5 * (s[i] == s[j]))
    return won / total if total else np.nan


def curve(s, y):
    """Expected accuracy of the top k, k = 1..n, ties in random order."""
    order = np.argsort(-s, kind="stable")
    s, y = s[order], y[order]
    out = []
    for k in range(1, len(s) + 1):
        block = s == s[k - 1]
        first = int(np.argmax(block))
        out.append((y[:first].sum() + y[block].mean() * (k - first)) / k)
    return np.array(out)


def auc_ac(s, y):
    return curve(s, y).mean()


def trapezoid(s, y):
    """One point a distinct score, the first accuracy copied to coverage 0."""
    x, accuracy = [0.0], []
    for value in np.unique(s)[::-1]:
        rows = s >= value
        x.append(rows.mean())
        accuracy.append(y[rows].mean())
    return np.trapezoid([accuracy[0]] + accuracy, x)


def augrc(s, y):
    n = len(s)
    k = np.arange(1, n + 1)
    return np.mean((1 - curve(s, y)) * k / n)


def accuracy_at(s, y, coverage):
    k = int(Fraction(str(coverage)) * len(s))
    return curve(s, y)[k - 1] if k else np.nan


def cwar(s, y, threshold):
    kept = s >= threshold
    return (1 - y[kept]).mean() if kept.any() else np.nan


def cwar_threshold(s, y, target, rule, delta=0.1, n_min=60, grid=None):
    taus = np.unique(s)[::-1] if grid is None else np.sort(np.asarray(grid))[::-1]
    chosen = np.inf
    for tau in taus:
        kept = s >= tau
        m, errors = int(kept.sum()), int((1 - y[kept]).sum())
        if m == 0:
            continue
        if rule == "certified":
            if m < n_min:
                continue
            bound = stats.beta.ppf(1 - delta, errors + 1, m - errors) if errors < m else 1.0
            good = bound <= target
        else:
            good = Fraction(errors, m) <= Fraction(str(target))
        if good:
            chosen = tau
        elif rule != "first":
            break
    return chosen


def budget_threshold(s, count):
    fitting = [tau for tau in np.unique(s) if (s >= tau).sum() <= count]
    return min(fitting) if fitting else np.inf


def budget_count(n, budget, rule, alpha=0.05, num_new=None):
    rho = Fraction(str(budget))
    if rule == "quantile":
        return int(rho * n)
    if rule in ("dkw1", "dkw2"):
        margin = np.sqrt(np.log(int(rule[-1]) / alpha) / (2 * n))
        return max(0, int(np.floor(n * (float(budget) - margin))))
    best = 0
    for k in range(1, n + 1):
        if rule == "exact":
            risk = stats.binom.cdf(k - 1, n, float(budget))
        else:
            risk = stats.betabinom.sf(int(rho * num_new), num_new, k, n - k + 1)
        if risk <= alpha:
            best = k
    return best


def conformal(values, alpha):
    k = (len(values) + 1) * (1 - Fraction(str(alpha)))
    k = int(np.ceil(k))
    return np.inf if k > len(values) else np.sort(values)[k - 1]


def exact_frontier(s, without, with_evidence, budget):
    n = len(s)
    k = int(Fraction(str(budget)) * n)
    if k == 0:
        return without.mean()
    return without.mean() + k / n * curve(s, with_evidence - without)[k - 1]


def deployable(calibration, s, without, with_evidence, budget, rule="quantile", alpha=0.05):
    count = budget_count(len(calibration), budget, rule, alpha, len(s))
    tau = budget_threshold(calibration, count)
    used, u = s >= tau, with_evidence - without
    return {
        "accuracy": np.where(used, with_evidence, without).mean(),
        "usage": used.mean(),
        "transfer_error": used.mean() - float(budget),
        "violated": used.sum() > int(Fraction(str(budget)) * len(s)),
        "harm_all": (used & (u < 0)).mean(),
        "harm_used": (u[used] < 0).mean() if used.any() else np.nan,
        "benefit_all": (used & (u > 0)).mean(),
        "missed": (~used & (u > 0)).mean(),
        "threshold": tau,
    }


def kappa(a, b):
    classes = np.union1d(a, b)
    rate = np.mean(a == b)
    chance = sum(np.mean(a == c) * np.mean(b == c) for c in classes)
    return (rate - chance) / (1 - chance) if chance < 1 else np.nan
