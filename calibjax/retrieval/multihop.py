"""Two hops: the question's own hits, the hits of its bridge queries, and one pool of candidates."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from calibjax.protocols import Retriever


class HitList(NamedTuple):
    """Hits of one query, best first."""

    ids: list[str]
    scores: list[float]


def hit_lists(queries: Sequence[str], retriever: Retriever, depth: int) -> list[HitList]:
    """The valid hits of each query, at most `depth`."""
    if not queries:
        return []
    hits = retriever.search(list(queries), depth)
    return [
        HitList([key for key, ok in zip(ids, valid) if ok], scores[valid].tolist())
        for ids, scores, valid in zip(hits.ids, np.asarray(hits.scores), hits.valid)
    ]


def second_hop(
    bridges: Sequence[Sequence[str]], retriever: Retriever, depth: int
) -> list[list[HitList]]:
    """Hit lists of each question's bridge queries, one list a query, from one search."""
    found = iter(hit_lists([query for queries in bridges for query in queries], retriever, depth))
    return [[next(found) for _ in queries] for queries in bridges]


def candidate_pool(
    hop1: HitList, hop2: Sequence[HitList], *, size: int, from_hop1: int = 10
) -> HitList:
    """The best `size` of the question's first hits and all hits of its bridges.

    A passage counts with its best score; ties go by id. Scores of different queries are compared as
    they are, which for cosines is meaningful and for BM25 a convention.
    """
    best = dict(zip(hop1.ids[:from_hop1], hop1.scores[:from_hop1]))
    for hits in hop2:
        for key, score in zip(hits.ids, hits.scores):
            best[key] = max(score, best.get(key, -np.inf))
    order = sorted(best, key=lambda key: (-best[key], key))[:size]
    return HitList(order, [best[key] for key in order])


def blend(judge: Sequence[float], ann: Sequence[float], alpha: float) -> np.ndarray:
    """judge / 2 + alpha * min-max of the retrieval scores; judge in [0, 2]. [n]

    Equal retrieval scores have no spread and add nothing.

    >>> blend([2, 1, 0], [0.1, 0.5, 0.3], 0.1).round(3).tolist()
    [1.0, 0.6, 0.05]
    """
    scores = np.asarray(ann, np.float64)
    spread = np.ptp(scores) if len(scores) else 0.0
    scaled = (scores - scores.min()) / spread if spread > 0 else np.zeros(len(scores))
    return np.asarray(judge, np.float64) / 2 + alpha * scaled


def judged_order(pool: HitList, judge: Sequence[float], alpha: float) -> HitList:
    """The pool by blended score; ties by retrieval score, then by id.

    With alpha 0 this is the judge's order with ties by retrieval score.
    """
    final = blend(judge, pool.scores, alpha)
    order = sorted(
        range(len(pool.ids)), key=lambda i: (-final[i], -pool.scores[i], pool.ids[i])
    )
    return HitList([pool.ids[i] for i in order], [float(final[i]) for i in order])
