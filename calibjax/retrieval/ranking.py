"""What both retrievers share: the passages in id order, and exact top-k with ties by id."""

import hashlib
from collections.abc import Iterable, Sequence

import numpy as np

from calibjax import errors
from calibjax.records import Hits, Passage


def by_id(passages: Iterable[Passage]) -> dict[str, Passage]:
    """Passages in id order, equal repeats once.

    In this order the index of a passage breaks ties as its id does. Raises InputError when one id
    stands for two texts.
    """
    found: dict[str, Passage] = {}
    for passage in passages:
        if found.setdefault(passage.id, passage) != passage:
            raise errors.input_error(
                "id", passage.id, "one text per passage id", "make the ids of the corpus unique"
            )
    return dict(sorted(found.items()))


def joined(passage: Passage) -> str:
    """Title and body, the text that is indexed."""
    return f"{passage.title} {passage.text}".strip()


def content_key(passages: Iterable[Passage], *settings: object) -> str:
    """Hash of the passages and of all settings that the index depends on."""
    digest = hashlib.sha256(repr(settings).encode())
    for passage in passages:
        for part in (passage.id, passage.title, passage.text):
            data = part.encode("utf-8", "surrogatepass")
            digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()[:32]


def top_k(scores_N: np.ndarray, k: int) -> np.ndarray:
    """Indices of the k largest scores, best first, equal scores in index order."""
    if k < len(scores_N):
        # Everything tied with the k-th largest stays in, so that the index decides between ties.
        threshold = np.partition(scores_N, len(scores_N) - k)[len(scores_N) - k]
        candidates = np.flatnonzero(scores_N >= threshold)
    else:
        candidates = np.arange(len(scores_N))
    order = np.argsort(-scores_N[candidates], kind="stable")
    return candidates[order[:k]]


def empty_hits(num_queries: int, k: int) -> Hits:
    """Hits of `num_queries` queries with nothing found yet."""
    ids = [[""] * k for _ in range(num_queries)]
    return Hits(ids, np.zeros((num_queries, k), np.float32), np.zeros((num_queries, k), bool))


def fill_hits(hits: Hits, row: int, ids: Sequence[str], scores: np.ndarray) -> None:
    """Writes results, best first, into row `row` of the hits."""
    found = len(ids)
    hits.ids[row][:found] = ids  # type: ignore[index]  # lists, made by empty_hits
    hits.scores[row, :found] = scores
    hits.valid[row, :found] = True


def check_k(k: int) -> None:
    """Raises InputError unless k is a positive integer."""
    if not isinstance(k, (int, np.integer)) or k < 1:
        raise errors.input_error("k", k, "an integer >= 1", "k=5")
