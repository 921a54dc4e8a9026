"""Speed of abstention against loops over NumPy and scikit-learn, as one JSON object.

    python -m experiments.bench_abstain --repeats=3

Cases: features of 10,000 queries x 50 scores, one query's features and score, the RCS fit, and the
whole evaluation of five regimes (10 signals and more, 2000 replicates, ablation, transfer). Both
sides run in this process, in turn; figures are medians of the repeats, in seconds. Where
`peer_share` is below 1 the peer ran that share of the work and its time is scaled up.
"""

import json
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import numpy as np
import sklearn
from absl import app, flags
from sklearn.linear_model import LogisticRegression

from calibjax.abstention import RCS, features
from calibjax.abstention.examples import Example, load_examples
from calibjax.abstention.fitting import Settings, fit_regime
from calibjax.abstention.study import judge_regime

PATH = flags.DEFINE_string("path", None, "Abstain examples to draw queries from.")
REPEATS = flags.DEFINE_integer("repeats", 3, "Interleaved repeats of each case.", lower_bound=1)
SMOKE = flags.DEFINE_bool("smoke", False, "A few seconds in all: smaller cases, same code.")

DEPTH = 50
# Sizes and success of the published regimes: rows, and how much the first score tells.
REGIMES = ((1000, 2.0), (1000, 1.5), (1000, 0.6), (1000, 0.8), (2000, 1.5))


def synthetic(n: int, slope: float, seed: int) -> list[Example]:
    """n queries of 50 scores and three bridge lists; success follows the first score."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=n)
    success = rng.random(n) < 1 / (1 + np.exp(-slope * x))
    rest = np.sort(rng.uniform(0.1, 0.5, (n, DEPTH - 1)), axis=1)[:, ::-1]
    hop1 = np.concatenate([0.6 + 0.05 * x[:, None], rest], axis=1)
    hop2 = rng.uniform(0.1, 0.6, (n, 3, DEPTH))
    words = rng.integers(5, 25, n)
    return [
        Example(
            id=f"q{i}",
            hop1_scores=tuple(np.sort(hop1[i])[::-1].tolist()),
            success=float(success[i]),
            question=" ".join(["word"] * int(words[i])),
            hop2_scores=tuple(map(tuple, hop2[i].tolist())),
        )
        for i in range(n)
    ]


def drawn(n: int, slope: float, seed: int) -> list[Example]:
    """Queries of --path, drawn with replacement and renamed, or synthetic ones."""
    if PATH.value is None:
        return synthetic(n, slope, seed)
    known = load_examples(PATH.value).examples
    rows = np.random.default_rng(seed).integers(0, len(known), n)
    return [replace(known[row], id=f"q{i}", split=None) for i, row in enumerate(rows.tolist())]


# Peer: what one writes without this library.


def peer_list(scores: list[float]) -> list[float]:
    s = np.sort(np.asarray(scores))[::-1][:DEPTH]
    p = np.clip(s, 0, None) / max(np.clip(s, 0, None).sum(), 1e-12)
    entropy = -np.sum(p * np.log(p + 1e-12)) / np.log(len(s))
    return [s[0], s[0] - s[1], s[:3].mean(), entropy, s[0] / s.mean()]


def peer_features(examples: list[Example]) -> np.ndarray:
    rows = []
    for example in examples:
        pooled = [score for scores in example.hop2_scores or () for score in scores]
        second = peer_list(pooled) if pooled else []
        row = peer_list(list(example.hop1_scores)) + [second[i] for i in (0, 1, 3) if second]
        rows.append([*row, len(str(example.question).split())])
    return np.array(rows)


def peer_area(y: np.ndarray, score: np.ndarray) -> float:
    ordered = y[np.argsort(-score, kind="stable")]
    return float(np.mean(np.cumsum(ordered) / np.arange(1, len(y) + 1)))


def peer_evaluation(x: np.ndarray, y: np.ndarray, columns: int, replicates: int) -> None:
    """Fits and bootstraps of one regime: `columns` scores, one area a replicate each."""
    half = len(y) // 2
    z = (x - x[:half].mean(0)) / np.where(x[:half].std(0) > 0, x[:half].std(0), 1)
    for drop in range(x.shape[1]):
        LogisticRegression(C=1e4, max_iter=1000).fit(np.delete(z, drop, 1)[:half], y[:half])
    rng = np.random.default_rng(0)
    for _ in range(replicates):
        rows = rng.integers(half, len(y), len(y) - half)
        for column in range(columns):
            peer_area(y[rows], z[rows, column % x.shape[1]])


def measure(ours: Callable, peer: Callable, repeats: int) -> dict[str, float]:
    """Medians of both, run in turn; the first call of ours is timed apart."""
    start = time.perf_counter()
    ours()
    first = time.perf_counter() - start
    times: dict[str, list[float]] = {"ours": [], "peer": []}
    for _ in range(repeats):
        for name, call in (("ours", ours), ("peer", peer)):
            start = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - start)
    medians = {name: statistics.median(values) for name, values in times.items()}
    return medians | {"compile": max(0.0, first - medians["ours"])}


def feature_cases(n: int, repeats: int) -> list[dict[str, Any]]:
    examples = drawn(n, 1.5, 0)
    hop1 = [list(e.hop1_scores) for e in examples]
    hop2 = [e.hop2_scores for e in examples]
    texts = [str(e.question) for e in examples]
    made = features(hop1, hop2, texts)
    gap = float(np.abs(made.values - peer_features(examples)).max())
    both = measure(
        lambda: features(hop1, hop2, texts), lambda: peer_features(examples), repeats
    )
    success = np.array([e.success for e in examples])
    rcs = RCS.fit(made, success)
    z = rcs.standardise(made)
    peer = LogisticRegression(C=1e4, tol=1e-10, max_iter=1000, solver="newton-cholesky")
    off = float(np.abs(peer.fit(z, success).coef_[0] - rcs.coefficients).max())
    fit = measure(lambda: RCS.fit(made, success), lambda: peer.fit(z, success), repeats)
    one = measure(
        lambda: [rcs.score(features(hop1[i], hop2[i], texts[i])) for i in range(100)],
        lambda: [peer.predict_proba(peer_features([examples[i]])) for i in range(100)],
        repeats,
    )
    return [
        case(f"features_n{n}", "s", both, gap, judged=True),
        case(f"rcs_fit_n{n}", "s", fit, off, judged=False),
        case("one_query_x100", "s", one, gap, judged=True),
    ]


def evaluation_case(repeats: int, replicates: int, share: float) -> dict[str, Any]:
    sizes = REGIMES if not SMOKE.value else tuple((n // 5, a) for n, a in REGIMES[:2])
    regimes = [drawn(n, slope, seed) for seed, (n, slope) in enumerate(sizes)]
    settings = Settings(replicates=replicates)

    def ours() -> list[dict[str, Any]]:
        fitted = {str(i): fit_regime(examples, settings) for i, examples in enumerate(regimes)}
        return [
            judge_regime(r, settings, {k: o.rcs for k, o in fitted.items() if k != name})
            for name, r in fitted.items()
        ]

    prepared = [
        (peer_features(examples), np.array([e.success for e in examples])) for examples in regimes
    ]
    # Signals, ablations and transferred fits are the columns that are resampled.
    columns = 12 + 9 + len(regimes) - 1

    def peer() -> None:
        for x, y in prepared:
            peer_evaluation(x, y, columns, max(1, round(share * replicates)))

    found = measure(ours, peer, repeats)
    made = case(f"evaluation_{len(regimes)}_regimes", "s", found, None, judged=True)
    made["peer"] /= share
    made["ratio"] = made["peer"] / made["ours"]
    return made | {"peer_share": share, "replicates": replicates}


def case(name: str, unit: str, found: dict[str, float], agreement: Any, judged: bool) -> dict:
    return {
        "case": name,
        "unit": unit,
        "ours": found["ours"],
        "peer": found["peer"],
        "ratio": found["peer"] / found["ours"],
        "compile": found["compile"],
        "agreement": agreement,
        "judged": judged,
    }


def main(argv: list[str]) -> None:
    repeats = 1 if SMOKE.value else REPEATS.value
    cases = feature_cases(500 if SMOKE.value else 10_000, repeats)
    replicates, share = (50, 0.5) if SMOKE.value else (2000, 0.02)
    cases.append(evaluation_case(repeats, replicates, share))
    device = jax.devices()[0]
    versions = {"jax": jax.__version__, "numpy": np.__version__, "sklearn": sklearn.__version__}
    result = {
        "name": "abstain",
        "device": f"{device.platform} {device.device_kind} {platform.processor()}".strip(),
        "versions": versions,
        "cases": cases,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    app.run(main)
