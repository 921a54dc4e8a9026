"""Nine features of a query from scores that retrieval has already produced; no model call.

Every list may be short, empty, tied, negative or constant: each feature then has a defined, finite
value. Source: RegimeAbstain, features 1-9.
"""

import functools
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from calibjax.errors import input_error

HOP1 = ("hop1_max", "hop1_margin", "hop1_top3", "hop1_H", "hop1_lift")
HOP2 = ("hop2_max", "hop2_margin", "hop2_H")
QUERY_LEN = "query_len"
HOP2_MISSING = "hop2_missing"
NAMES = (*HOP1, *HOP2, QUERY_LEN)

# Hits of a list that are looked at: lift and entropy are defined on the best 50.
TOP = 50
# faiss marks a missing hit by the score +-3.4e38 (the largest float32); beyond it is no score.
_MISSING = 3.4e38


@dataclass(frozen=True, slots=True)
class Features:
    """Feature values float64 [n, d] (of one query: [d]) and their names.

    lift_bad: the mean score is not positive, so that the lift is undefined and set to 0.
    hop2_missing: no bridge query was asked. Where this holds for some queries only, their hop-2
    values are 0 and a column `hop2_missing` tells them apart.
    """

    values: np.ndarray
    names: tuple[str, ...]
    lift_bad: np.ndarray
    hop2_missing: np.ndarray

    def column(self, name: str) -> np.ndarray:
        """One feature by name, [n]."""
        return self.values[..., self.names.index(name)]

    def take(self, rows: np.ndarray) -> "Features":
        """Some of the queries (a mask or places)."""
        flags = self.lift_bad[rows], self.hop2_missing[rows]
        return Features(self.values[rows], self.names, *flags)

    def without(self, name: str) -> "Features":
        """All features but one."""
        kept = [place for place, other in enumerate(self.names) if other != name]
        names = tuple(self.names[place] for place in kept)
        return Features(self.values[:, kept], names, self.lift_bad, self.hop2_missing)


@dataclass(frozen=True, slots=True)
class ScoreLists:
    """The best 50 scores of each query, float64 [n, 50], best first, 0 where `valid` is False."""

    scores: np.ndarray
    valid: np.ndarray


def features(
    hop1_scores: Any,
    hop2_scores: Any = None,
    question: str | Sequence[str] | None = None,
    *,
    hop2_ids: Any = None,
    entropy: str = "share",
    temperature: float = 1.0,
) -> Features:
    """Features 1-9 of many queries, or of one.

    hop1_scores: a list of scores per query (any order, any length, any real scale), or a matrix;
    one flat list is one query. hop2_scores: for each query its lists of scores, one per bridge
    query (None or no list: not asked); all None drops features 6-8. hop2_ids: passage ids of the
    same shape; a passage found twice then counts once, with its best score. question: text, for
    its length in white-space separated words; None drops feature 9. Scores of +-3.4e38 (faiss)
    count as missing hits.

    entropy: "share" normalises by the sum of the scores, negatives as 0; "softmax" of scores over
    `temperature`. Raises InputError naming the query of a score that is not a finite number.

    >>> features([0.9, 0.5, 0.4], question="who was it").values.round(3).tolist()
    [0.9, 0.4, 0.6, 0.95, 1.5, 3.0]
    """
    if entropy not in ("share", "softmax"):
        raise input_error("entropy", entropy, "share or softmax")
    if not temperature > 0:
        raise input_error("temperature", temperature, "a number > 0")
    single = _is_single(hop1_scores, question)
    if single:
        hop1_scores, question = [hop1_scores], None if question is None else [str(question)]
        hop2_scores = None if hop2_scores is None else [hop2_scores]
        hop2_ids = None if hop2_ids is None else [hop2_ids]
    made = batch_features(
        score_lists(hop1_scores),
        pooled_lists(hop2_scores, hop2_ids, len(hop1_scores)),
        question,
        softmax=temperature if entropy == "softmax" else None,
    )
    return _first(made) if single else made


def batch_features(
    hop1: ScoreLists,
    hop2: tuple[ScoreLists, np.ndarray] | None,
    question: Sequence[str] | None,
    *,
    softmax: float | None = None,
) -> Features:
    """`features` of prepared lists; hop2 comes with the flags of the queries that lack it."""
    n = len(hop1.scores)
    first, bad = _list_features(hop1, softmax)
    columns = [first]
    names: tuple[str, ...] = HOP1
    missing = np.ones(n, bool)
    if hop2 is not None and not hop2[1].all():
        missing = hop2[1]
        second, _ = _list_features(hop2[0], softmax)
        columns.append(np.where(missing[:, None], 0.0, second[:, [0, 1, 3]]))
        names += HOP2
    if question is not None:
        columns.append(np.array([[query_length(text)] for text in question], np.float64))
        names += (QUERY_LEN,)
    if hop2 is not None and missing.any() and not missing.all():
        columns.append(missing[:, None].astype(np.float64))
        names += (HOP2_MISSING,)
    return Features(np.concatenate(columns, axis=1), names, bad, missing)


def query_length(text: str) -> int:
    """White-space separated words after Unicode NFC."""
    return len(unicodedata.normalize("NFC", text).split())


def score_lists(scores: Any, name: str = "hop1_scores") -> ScoreLists:
    """The best 50 scores of each query. Raises InputError naming the row of a bad score."""
    matrix = _matrix(scores, name)
    valid = np.abs(matrix) < _MISSING
    ordered = -np.sort(np.where(valid, -matrix, np.inf), axis=1)[:, :TOP]
    ordered = np.pad(ordered, ((0, 0), (0, TOP - ordered.shape[1])), constant_values=-np.inf)
    valid = ordered > -np.inf
    return ScoreLists(np.where(valid, ordered, 0.0), valid)


def pooled_lists(
    lists: Any, ids: Any, n: int, name: str = "hop2_scores"
) -> tuple[ScoreLists, np.ndarray] | None:
    """All lists of a query as one, and which queries have none; None when no query has any."""
    if lists is None:
        return None
    if len(lists) != n:
        raise input_error(f"len({name})", len(lists), f"{n} queries, as in hop1_scores")
    missing = np.array([each is None or len(each) == 0 for each in lists], bool)
    if missing.all():
        return None
    pooled = [
        [] if absent else _pool(each, None if ids is None else ids[row], name, row)
        for row, (each, absent) in enumerate(zip(lists, missing))
    ]
    return score_lists(pooled, name), missing


def _pool(lists: Any, ids: Any, name: str, row: int) -> list[float]:
    """Scores of one query's lists together; with ids the best score of each passage."""
    lists = [lists] if np.ndim(lists[0]) == 0 else lists
    if ids is None:
        return [score for scores in lists for score in scores]
    ids = [ids] if ids and isinstance(ids[0], (str, int)) else ids
    if [len(each) for each in ids] != [len(each) for each in lists]:
        shapes = "{} ids for {} scores".format(*([len(x) for x in part] for part in (ids, lists)))
        raise input_error(f"hop2_ids[{row}]", shapes, f"one id for each score of {name}[{row}]")
    best: dict[Any, float] = {}
    for names, scores in zip(ids, lists):
        for key, score in zip(names, scores):
            best[key] = max(score, best.get(key, -np.inf))
    return list(best.values())


def _matrix(scores: Any, name: str) -> np.ndarray:
    """Scores [n, longest list], -inf where a list is shorter."""
    try:
        matrix = np.asarray(scores, np.float64)
    except (TypeError, ValueError):
        return _ragged(scores, name)
    if matrix.ndim != 2:
        return _ragged(scores, name)
    good = np.isfinite(matrix)
    if not good.all():
        row, place = (int(i[0]) for i in np.nonzero(~good))
        fix = "mend or drop the query"
        raise input_error(f"{name}[{row}]", matrix[row, place], "finite numbers", fix)
    return matrix


def _ragged(scores: Any, name: str) -> np.ndarray:
    """Lists of any length as a matrix with -inf behind their ends."""
    width = max((0 if each is None else len(each) for each in scores), default=0)
    matrix = np.full((len(scores), max(width, 1)), -np.inf)
    for row, each in enumerate(scores):
        if each is None or not len(each):
            continue
        try:
            values = np.asarray(each, np.float64)
        except (TypeError, ValueError):
            values = np.full(len(each), np.nan)
        if values.ndim != 1 or not np.isfinite(values).all():
            bad = next(s for s in each if not isinstance(s, (int, float)) or not np.isfinite(s))
            raise input_error(f"{name}[{row}]", bad, "finite numbers", "mend or drop the query")
        matrix[row, : len(values)] = values
    return matrix


def _list_features(lists: ScoreLists, softmax: float | None) -> tuple[np.ndarray, np.ndarray]:
    """max, margin, top3, entropy, lift [n, 5] of each list and where the lift is undefined [n]."""
    n = len(lists.scores)
    if not n:
        return np.zeros((0, 5)), np.zeros(0, bool)
    # Powers of two, so that a process that meets many batch sizes compiles few programs.
    rows = ((0, (1 << (n - 1).bit_length()) - n), (0, 0))
    with jax.enable_x64(True):
        values, bad = list_features(
            np.pad(lists.scores, rows), np.pad(lists.valid, rows), softmax=softmax
        )
    return np.asarray(values)[:n], np.asarray(bad)[:n]


@functools.partial(jax.jit, static_argnames="softmax")
def list_features(
    scores_NK: Any, valid_NK: Any, *, softmax: float | None = None
) -> tuple[jax.Array, jax.Array]:
    """max, margin, top3, normalised entropy, lift (N, 5), and whether the lift is undefined (N,).

    scores_NK: real scores, best first, the valid ones in front. Pure; any float dtype.
    """
    scores_NK, valid_NK = jnp.asarray(scores_NK), jnp.asarray(valid_NK)
    s = jnp.where(valid_NK, scores_NK, 0)
    count_N = jnp.sum(valid_NK, axis=1).astype(s.dtype)
    best = s[:, 0]
    second = jnp.where(count_N > 1, s[:, min(1, s.shape[1] - 1)], 0)
    top3 = jnp.sum(s[:, :3], axis=1) / jnp.clip(count_N, 1, 3)
    mean = jnp.sum(s, axis=1) / jnp.maximum(count_N, 1)
    bad = ~(mean > 0)
    lift = jnp.where(bad, 0, best / jnp.where(bad, 1, mean))
    entropy = _normalised_entropy(_shares(s, valid_NK, softmax), count_N)
    return jnp.stack([best, best - second, top3, entropy, lift], axis=1), bad


def _shares(s_NK: jax.Array, valid_NK: jax.Array, softmax: float | None) -> jax.Array:
    """Each hit's share of the mass; all 0 where there is none."""
    if softmax is None:
        mass = jnp.maximum(s_NK, 0)
    else:
        mass = jnp.where(valid_NK, jnp.exp((s_NK - s_NK[:, :1]) / softmax), 0)
    # Divided by the largest first: sums of the smallest floats lose all their digits.
    mass = mass / jnp.where(mass[:, :1] > 0, mass[:, :1], 1)
    total = jnp.sum(mass, axis=1, keepdims=True)
    return mass / jnp.where(total > 0, total, 1)


def _normalised_entropy(shares_NK: jax.Array, count_N: jax.Array) -> jax.Array:
    """Entropy over ln(number of hits), in [0, 1]; 0 for one hit or none."""
    terms = shares_NK * jnp.log(jnp.where(shares_NK > 0, shares_NK, 1))
    scale = jnp.log(jnp.maximum(count_N, 2))
    return jnp.where(count_N > 1, jnp.clip(-jnp.sum(terms, axis=1) / scale, 0, 1), 0)


def _is_single(scores: Any, question: Any) -> bool:
    """Whether this is the one list of one query."""
    if question is not None:
        return isinstance(question, str)
    if isinstance(scores, np.ndarray) or hasattr(scores, "ndim"):
        return scores.ndim == 1
    return all(np.ndim(s) == 0 and s is not None for s in scores)


def _first(made: Features) -> Features:
    return Features(made.values[0], made.names, made.lift_bad[0], made.hop2_missing[0])
