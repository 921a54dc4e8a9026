"""What to do with a confidence: answer, abstain, escalate, or pay for a second retrieval pass."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from calibjax.abstention.rcs import RCS
from calibjax.abstention.score_features import features
from calibjax.errors import input_error
from calibjax.records import Hits

ANSWER, ABSTAIN, ESCALATE = "answer", "abstain", "escalate"


def check_below(below: str, pipelines: Sequence[str] | None = None) -> str:
    """`abstain` or `escalate:NAME`, where NAME is one of `pipelines` if these are known."""
    name = below.removeprefix(f"{ESCALATE}:")
    if below == ABSTAIN or (below.startswith(f"{ESCALATE}:") and name):
        if below == ABSTAIN or pipelines is None or name in pipelines:
            return below
        raise input_error("below", below, f"escalate: and one of {', '.join(pipelines)}")
    raise input_error("below", below, "abstain or escalate:NAME", "--below=abstain")


def decide(confidence: Any, tau: float, *, below: str = ABSTAIN) -> np.ndarray:
    """`answer` where confidence >= tau, else `below`, an array of texts [n].

    >>> decide([0.9, 0.2], 0.5).tolist()
    ['answer', 'abstain']
    """
    check_below(below)
    return np.where(np.asarray(confidence, np.float64) >= tau, ANSWER, below)


def gate(
    rcs: RCS, hits: Hits, questions: Sequence[str], *, tau: float, below: str = ABSTAIN
) -> tuple[np.ndarray, np.ndarray]:
    """Confidence [n] and decision [n] of search results, before any model has seen them.

    hits: hop-1 results of the questions; for an RCS that knows hop-2 features these count as
    missing.
    """
    lists = [scores[valid].tolist() for scores, valid in zip(hits.scores, hits.valid)]
    confidence = rcs.score(features(lists, question=list(questions)))
    return confidence, decide(confidence, tau, below=below)


class Rescue(NamedTuple):
    """A dearer pass on the flagged queries only, counted; `lost`: it broke what was right.

    coverage: share of queries that are not flagged; cost: summed over the flagged queries;
    n_unknown: flagged queries whose second outcome is not known (counted as unchanged).
    """

    n: int
    n_failures: int
    n_flagged: int
    flagged_failures: int
    recovered: int
    lost: int
    net: int
    n_unknown: int
    coverage: float
    cost: float
    cost_per_query: float
    success_before: float
    success_after: float


def rescue(
    confidence: Any, success: Any, rescue_success: Any, rescue_cost: Any = None, *, tau: float
) -> Rescue:
    """Second pass for queries below tau. rescue_success, rescue_cost: [n], NaN where not known.

    >>> rescue([0.9, 0.2, 0.1], [1, 0, 1], [0, 1, 0], tau=0.5)[4:7]
    (1, 1, 0)
    """
    success = np.asarray(success, np.float64)
    second = np.asarray(rescue_success, np.float64)
    flagged = np.asarray(confidence, np.float64) < tau
    known = flagged & ~np.isnan(second)
    after = np.where(known, second, success)
    n = len(success)
    cost = np.ones(n) if rescue_cost is None else np.asarray(rescue_cost, np.float64)
    total = float(np.nansum(np.where(flagged, cost, 0.0)))
    recovered = int((known & (success == 0) & (second == 1)).sum())
    lost = int((known & (success == 1) & (second == 0)).sum())
    return Rescue(
        n=n,
        n_failures=int((success == 0).sum()),
        n_flagged=int(flagged.sum()),
        flagged_failures=int((flagged & (success == 0)).sum()),
        recovered=recovered,
        lost=lost,
        net=recovered - lost,
        n_unknown=int((flagged & ~known).sum()),
        coverage=float(1 - flagged.mean()) if n else float("nan"),
        cost=total,
        cost_per_query=total / n if n else float("nan"),
        success_before=float(success.mean()) if n else float("nan"),
        success_after=float(after.mean()) if n else float("nan"),
    )


def run_rescue(
    ids: Sequence[str],
    confidence: Any,
    tau: float,
    second_pass: Callable[[list[str]], tuple[Sequence[float], Sequence[float]]],
) -> tuple[np.ndarray, np.ndarray]:
    """Calls `second_pass` with the ids below tau; its successes and costs by row, NaN elsewhere."""
    flagged = np.flatnonzero(np.asarray(confidence, np.float64) < tau)
    success, cost = np.full(len(ids), np.nan), np.full(len(ids), np.nan)
    if len(flagged):
        found = second_pass([ids[place] for place in flagged.tolist()])
        success[flagged], cost[flagged] = found
    return success, cost
