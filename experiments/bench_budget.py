"""Speed of the budget protocol against NumPy loops, as one JSON object.

    python -m experiments.bench_budget --repeats=3

The study: 20 routers x 19 budgets x 1000 splits x 3 rules on 1000 questions, in one jitted program,
against a loop that sorts and counts (on a few splits, scaled up). The trees: scores of a boosted
router from our arrays against scikit-learn's. Both sides run in this process, in turn; figures are
medians in seconds, `compile` is the first call minus a later one.
"""

import json
import platform
from typing import Any

import jax
import numpy as np
import sklearn
from absl import app
from sklearn.ensemble import GradientBoostingRegressor

from calibjax import metrics
from calibjax.routing import trees
from experiments import bench_metrics as base

RULES = ("quantile", "exact", "dkw1")


def study_case(n: int, routers: int, num_splits: int, peer_splits: int) -> dict[str, Any]:
    """All frontiers; agreement is the largest difference of an accuracy to the loop's.

    The loop does the exact frontier and two of the three rules.
    """
    score, with_evidence = base.load_rows(n, routers)
    without = (np.random.default_rng(2).random(n) < 0.4).astype(np.float32)
    splits = metrics.random_splits(
        n, key=jax.random.key(0), num_splits=num_splits, calibration=0.5, test=0.5
    )
    rules = ("quantile", "dkw1")
    counts = {
        rule: [metrics.budget_count(n // 2, b, rule=rule) for b in base.BUDGETS] for rule in rules
    }

    def ours():
        return metrics.frontier_study(
            score, without, with_evidence, base.BUDGETS, splits, rules=RULES
        )

    def peer():
        return base.peer_frontiers(score, without, with_evidence, splits, peer_splits, counts)

    timing = base.measure(ours, peer, base.REPEATS.value)
    study, expected = ours(), peer()
    got = [study.exact, *(study.deployable[rule].accuracy for rule in rules)]
    gaps = [np.abs(np.asarray(g)[:, :peer_splits] - e).max() for g, e in zip(got, expected)]
    name = f"study_n{n}_r{routers}_b{len(base.BUDGETS)}_s{num_splits}"
    share = peer_splits / num_splits
    return base.case(name, timing, float(max(gaps)), share, judged=True)


def intervals_case(n: int, routers: int, num_splits: int, replicates: int) -> dict[str, Any]:
    """The same study with resampled questions; no peer offers it."""
    score, without = base.load_rows(n, routers)
    with_evidence = np.roll(without, 7)
    key = jax.random.key(0)
    splits = metrics.random_splits(n, key=key, num_splits=num_splits)

    def ours():
        return metrics.frontier_study(
            score,
            without,
            with_evidence,
            base.BUDGETS,
            splits,
            rules=RULES,
            key=key,
            num_replicates=replicates,
        )

    timing = base.measure(ours, lambda: None, base.REPEATS.value)
    made = base.case(f"study_with_intervals_n{n}", timing, None)
    return made | {"peer": None, "ratio": None}


def trees_case(n: int) -> dict[str, Any]:
    """Scores of 100 trees of depth 3; agreement is the largest difference of a score."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, 16))
    u = rng.integers(-1, 2, n).astype(float)
    model = GradientBoostingRegressor(n_estimators=100, max_depth=3, random_state=0)
    model.fit(x[:400], u[:400])
    ours = trees.from_sklearn(model, x[:1])
    timing = base.measure(
        lambda: trees.score(ours, x), lambda: model.predict(x), base.REPEATS.value
    )
    difference = np.abs(trees.score(ours, x) - model.predict(x)).max()
    return base.case(f"trees_n{n}", timing, float(difference))


def main(argv: list[str]) -> None:
    if len(argv) > 1:
        raise app.UsageError(f"unexpected arguments: {argv[1:]}")
    smoke = base.SMOKE.value
    cases = [
        study_case(1000, *((3, 20, 1) if smoke else (20, 1000, 5))),
        intervals_case(200, *((3, 20, 20) if smoke else (12, 200, 2000))),
        trees_case(1000 if smoke else 10_000),
    ]
    versions: dict[str, Any] = {"python": platform.python_version()}
    versions |= {library.__name__: library.__version__ for library in (jax, np, sklearn)}
    device = f"{jax.devices()[0].device_kind}, {jax.device_count()} device(s)"
    report = {"name": "bench_budget", "device": device, "versions": versions, "cases": cases}
    print(json.dumps(report, allow_nan=False))


if __name__ == "__main__":
    app.run(main)
