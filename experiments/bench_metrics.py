"""Speed of the evaluation library against loops over scikit-learn and NumPy, as one JSON object.

    python -m experiments.bench_metrics --repeats=3

Both sides run in this process, in turn; figures are medians of the repeats, in seconds. `compile`
is the first call minus a later one. Where `peer_share` is below 1 the peer ran that share of the
work and its time is scaled up, since all of it would take minutes.
"""

import json
import platform
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy
import sklearn
from absl import app, flags
from sklearn.metrics import brier_score_loss, roc_auc_score

from calibjax import metrics as m

PATH = flags.DEFINE_string(
    "path", None, "Predictions (JSON lines with confidence and correct) to draw rows from."
)
REPEATS = flags.DEFINE_integer("repeats", 3, "Interleaved repeats of each case.", lower_bound=1)
SMOKE = flags.DEFINE_bool("smoke", False, "A few seconds in all: smaller cases, same code.")

ROUTERS, NUM_BINS = 8, 15
EDGES = np.arange(1, NUM_BINS) / NUM_BINS
BUDGETS = tuple(round(0.05 * k, 2) for k in range(1, 20))


def load_rows(n: int, routers: int) -> tuple[np.ndarray, np.ndarray]:
    """Scores (routers, n) in [0, 1] and labels (n,): from --path, else synthetic and calibrated."""
    rng = np.random.default_rng(0)
    if PATH.value is None:
        score = rng.random(n)
        correct = (rng.random(n) < score).astype(np.float32)
    else:
        with open(PATH.value) as file:
            rows = [json.loads(line) for line in file if line.strip()]
        drawn = rng.integers(0, len(rows), n)
        score = np.array([row["confidence"] for row in rows], float)[drawn]
        correct = np.array([row["correct"] for row in rows], float)[drawn].round()
    # Without ties: the peer breaks them by row order, which ours averages.
    logit = np.log(np.clip(score, 1e-3, 1 - 1e-3)) - np.log1p(-np.clip(score, 1e-3, 1 - 1e-3))
    noisy = logit + rng.normal(0, 0.5, (routers, n))
    return (1 / (1 + np.exp(-noisy))).astype(np.float32), correct.astype(np.float32)


# Peer: what one writes without this library.


def peer_ece(y: np.ndarray, p: np.ndarray) -> float:
    gap = np.bincount(np.searchsorted(EDGES, p), weights=y - p, minlength=NUM_BINS)
    return np.abs(gap).sum() / len(p)


def peer_area(y: np.ndarray, p: np.ndarray) -> float:
    ordered = y[np.argsort(-p, kind="stable")]
    return np.mean(np.cumsum(ordered) / np.arange(1, len(p) + 1))


PEER = {"auroc": roc_auc_score, "ece": peer_ece, "brier": brier_score_loss, "auc_ac": peer_area}


def per_router(fn: Callable) -> Callable:
    def metric(score, correct, weight):
        return jax.vmap(lambda s: fn(s, correct, weight=weight), in_axes=1)(score)

    return metric


OURS = {
    "auroc": per_router(m.auroc),
    "ece": per_router(m.expected_calibration_error),
    "brier": per_router(m.brier_score),
    "auc_ac": per_router(m.area_under_accuracy_coverage),
}


def peer_bootstrap(names: list[str], score, correct, replicates: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    out = {name: np.empty((replicates, len(score))) for name in names}
    for b in range(replicates):
        rows = rng.integers(0, len(correct), len(correct))
        y = correct[rows]
        for r, column in enumerate(score):
            p = column[rows]
            for name in names:
                out[name][b, r] = PEER[name](y, p)
    return out


def disagreement(names: list[str], score, correct, details) -> float:
    """Largest difference of a replicate when the peer gets the very rows that ours drew."""
    from calibjax.metrics._resampling import make_plan, row_weights

    plan, worst = make_plan(len(correct)), 0.0
    for b in range(3):
        counts = np.asarray(row_weights(plan, jax.random.key(0), b))
        rows = np.repeat(np.arange(len(correct)), counts)
        for name in names:
            for r, column in enumerate(score):
                value = PEER[name](correct[rows], column[rows].astype(float))
                worst = max(worst, abs(value - float(details[name].replicates[b, r])))
    return worst


def measure(ours: Callable, peer: Callable, repeats: int) -> dict[str, float]:
    """Medians of both, run in turn; the first call of ours is timed apart."""
    start = time.perf_counter()
    jax.block_until_ready(ours())
    first = time.perf_counter() - start
    times: dict[str, list[float]] = {"ours": [], "peer": []}
    for _ in range(repeats):
        for name, call in (("ours", ours), ("peer", peer)):
            start = time.perf_counter()
            jax.block_until_ready(call())
            times[name].append(time.perf_counter() - start)
    medians = {name: float(np.median(values)) for name, values in times.items()}
    return {**medians, "compile": max(0.0, first - medians["ours"])}


def case(name: str, timing: dict, agreement: float | None, share: float = 1.0, judged=False):
    peer = timing["peer"] / share
    return {
        "case": name,
        "unit": "s",
        "ours": timing["ours"],
        "peer": peer,
        "ratio": peer / timing["ours"],
        "agreement": agreement,
        "judged": judged,
        "compile": timing["compile"],
        "peer_share": share,
    }


def bootstrap_case(name: str, names: list[str], n: int, replicates: int, peer_replicates: int):
    score, correct = load_rows(n, ROUTERS)
    arrays = {"score": jnp.asarray(score.T), "correct": jnp.asarray(correct)}
    functions = {key: OURS[key] for key in names}

    def ours():
        return m.bootstrap_details(
            functions, arrays, key=jax.random.key(0), num_replicates=replicates
        )

    timing = measure(
        ours, lambda: peer_bootstrap(names, score, correct, peer_replicates), REPEATS.value
    )
    agreement = disagreement(names, score, correct, ours())
    judged = name == "bootstrap_n1000"
    return case(name, timing, agreement, peer_replicates / replicates, judged)


def peer_frontiers(score, without, with_evidence, splits: m.Splits, num_splits: int, counts):
    """Exact, deployable and conservative accuracy of each router, split and budget."""
    out = np.empty((3, len(score), num_splits, len(BUDGETS)))
    for s in range(num_splits):
        test, calibration = splits.test[s], splits.calibration[s]
        base, u = without[test].mean(), (with_evidence - without)[test]
        for r, column in enumerate(score):
            held_out, own = column[test], np.sort(column[calibration])[::-1]
            gains = np.concatenate([[0], np.cumsum(u[np.argsort(-held_out, kind="stable")])])
            for i, budget in enumerate(BUDGETS):
                exact = gains[int(budget * len(u) + 1e-9)]
                out[0, r, s, i] = base + exact / len(u)
                for j, rule in enumerate(("quantile", "dkw1"), start=1):
                    k = counts[rule][i]
                    tau = own[k - 1] if k else np.inf
                    out[j, r, s, i] = base + u[held_out >= tau].sum() / len(u)
    return out


def frontier_case(n: int, routers: int, num_splits: int, peer_splits: int):
    score, with_evidence = load_rows(n, routers)
    without = (np.random.default_rng(2).random(n) < 0.4).astype(np.float32)
    splits = m.random_splits(
        n, key=jax.random.key(0), num_splits=num_splits, calibration=0.5, test=0.5
    )
    rules = ("quantile", "dkw1")
    counts = {r: [m.budget_count(n // 2, b, rule=r) for b in BUDGETS] for r in rules}

    def ours():
        return m.frontier_study(score, without, with_evidence, BUDGETS, splits, rules=rules)

    def peer():
        return peer_frontiers(score, without, with_evidence, splits, peer_splits, counts)

    timing = measure(ours, peer, REPEATS.value)
    study, expected = ours(), peer()
    got = [study.exact, *(study.deployable[rule].accuracy for rule in rules)]
    difference = max(
        np.abs(np.asarray(g)[:, :peer_splits] - e).max() for g, e in zip(got, expected)
    )
    return case("frontiers_n1000", timing, float(difference), peer_splits / num_splits)


def growth_case(n: int):
    score, correct = load_rows(n, 1)
    device = jnp.asarray(score[0]), jnp.asarray(correct)
    everything = jax.jit(
        lambda s, y: (
            m.auroc(s, y),
            m.expected_calibration_error(s, y),
            m.brier_score(s, y),
            m.area_under_accuracy_coverage(s, y),
        )
    )

    def peer():
        return [fn(correct, score[0]) for fn in PEER.values()]

    timing = measure(lambda: everything(*device), peer, REPEATS.value)
    difference = max(abs(float(a) - b) for a, b in zip(everything(*device), peer()))
    return case(f"four_metrics_n{n}", timing, difference)


def main(argv: list[str]) -> None:
    if len(argv) > 1:
        raise app.UsageError(f"unexpected arguments: {argv[1:]}")
    smoke = SMOKE.value
    replicates, share = (100, 0.1) if smoke else (2000, 1.0)
    every = list(PEER)
    cases = [bootstrap_case("bootstrap_n1000", every, 1000, replicates, int(replicates * share))]
    some = max(1, replicates // 50)
    for name in every:
        cases.append(bootstrap_case(f"bootstrap_{name}_n1000", [name], 1000, replicates, some))
    if not smoke:
        cases.append(bootstrap_case("bootstrap_n10000", every, 10_000, replicates, some // 2))
    cases.append(frontier_case(1000, *((3, 20, 1) if smoke else (20, 1000, 5))))
    cases += [growth_case(n) for n in ((1000, 10_000) if smoke else (10**3, 10**4, 10**5, 10**6))]
    versions: dict[str, Any] = {"python": platform.python_version()}
    versions |= {lib.__name__: lib.__version__ for lib in (jax, np, scipy, sklearn)}
    device = f"{jax.devices()[0].device_kind}, {jax.device_count()} device(s)"
    report = {"name": "bench_metrics", "device": device, "versions": versions, "cases": cases}
    print(json.dumps(report, allow_nan=False))


if __name__ == "__main__":
    app.run(main)
