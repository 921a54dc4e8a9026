"""Dense retrieval: inner product of encoded queries and passages, exact, by faiss."""

import io
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from calibjax import errors, progress, storage
from calibjax.records import Hits, Passage
from calibjax.retrieval import ranking
from calibjax.training import signals

_FORMAT = 1  # of the cached vectors; part of their key
_SPARE = 16  # hits asked for beyond k, so that ties at the cut are seen
_AT_ONCE = 512  # passages between two signs of progress
_NPY_MAGIC = b"\x93NUMPY"


class TextEncoder(Protocol):
    """Texts to vectors. With an attribute `sha256` that names its weights, vectors are cached."""

    def encode(self, texts: Sequence[Any]) -> np.ndarray: ...


class DenseRetriever:
    """Ranks passages by the inner product of their vector with the query's.

    Vectors are used as the encoder returns them: the score is a cosine only if it normalises.
    `query_encoder` is for models with two towers (default: the same encoder), `pairs` for towers
    that read a passage as a pair (title, text), such as those of MedCPT and DPR. With `cache_dir`
    the passage vectors are stored there under a hash of passages and weights, and read back the
    next time. `num_empty` counts passages without text: they are kept in `passages` and never
    found.
    """

    def __init__(
        self,
        passages: Iterable[Passage],
        encoder: TextEncoder,
        *,
        query_encoder: TextEncoder | None = None,
        pairs: bool = False,
        cache_dir: str | Path | None = None,
    ):
        self.passages = ranking.by_id(passages)
        self._query_encoder = query_encoder or encoder
        filled = {i: p for i, p in self.passages.items() if ranking.joined(p)}
        self._ids = list(filled)
        self.num_empty = len(self.passages) - len(filled)
        self._vectors_ND = _passage_vectors(list(filled.values()), encoder, pairs, cache_dir)
        self._index = _faiss_index(self._vectors_ND) if filled else None

    def search(self, queries: Sequence[str], k: int) -> Hits:
        """The k best passages of each query; ties go by passage id. Empty queries find nothing."""
        ranking.check_k(k)
        hits = ranking.empty_hits(len(queries), k)
        rows = [row for row, query in enumerate(queries) if query.strip()]
        if self._index is None or not rows:
            return hits
        vectors = _checked(self._query_encoder.encode([queries[row] for row in rows]), len(rows))
        if vectors.shape[1] != self._vectors_ND.shape[1]:
            raise errors.input_error(
                "query_encoder", vectors.shape[1], f"vectors of width {self._vectors_ND.shape[1]}"
            )
        for row, query_D, candidates in zip(rows, vectors, self._candidates(vectors, k)):
            # faiss sums in an order that depends on the batch and the place in the index; summed
            # in float64 and rounded once, equal passages tie and a batch changes nothing.
            scores = (self._vectors_ND[candidates].astype(np.float64) @ query_D).astype(np.float32)
            order = ranking.top_k(scores, k)
            best = candidates[order]
            ranking.fill_hits(hits, row, [self._ids[i] for i in best], scores[order])
        return hits

    def _candidates(self, vectors_QD: np.ndarray, k: int) -> list[np.ndarray]:
        """Per query, indices in rising order that hold its k best and all that tie with them."""
        total = len(self._ids)
        size = min(total, k + _SPARE)
        while True:
            scores_QK, found_QK = self._index.search(vectors_QD, size)  # type: ignore[union-attr]
            cut = scores_QK[:, min(k, size) - 1]
            slack = 1e-5 * np.abs(scores_QK).max(axis=1)  # far above faiss' rounding error
            if size == total or np.all(scores_QK[:, -1] < cut - slack):
                return [np.sort(found) for found in found_QK]
            size = min(total, 4 * size)


def _passage_vectors(
    passages: Sequence[Passage], encoder: TextEncoder, pairs: bool, cache_dir: str | Path | None
) -> np.ndarray:
    """Vectors [N, D] of the passages, from the cache when it has them."""
    if not passages:
        return np.zeros((0, 0), np.float32)
    weights = getattr(encoder, "sha256", None)
    directory = None
    if cache_dir is not None and weights is not None:
        kind = "dense-pairs" if pairs else "dense"
        key = ranking.content_key(passages, kind, _FORMAT, weights)
        directory = Path(cache_dir) / f"dense-{key}"
        vectors = _read_vectors(directory, len(passages))
        if vectors is not None:
            return vectors
    texts = [(p.title, p.text) if pairs else ranking.joined(p) for p in passages]
    vectors = _encode(texts, encoder)
    if directory is not None:
        _write_vectors(directory, vectors, str(weights))
    return vectors


def _encode(texts: Sequence[Any], encoder: TextEncoder) -> np.ndarray:
    parts = []
    with progress.bar(len(texts), "encode passages", "passages") as advance:
        for start in range(0, len(texts), _AT_ONCE):
            signals.check()
            part = texts[start : start + _AT_ONCE]
            parts.append(_checked(encoder.encode(part), len(part)))
            advance(len(part))
    return np.concatenate(parts)


def _checked(vectors: np.ndarray, count: int) -> np.ndarray:
    """Encoder output as finite, contiguous float32 [count, D]."""
    vectors = np.ascontiguousarray(vectors, np.float32)
    if vectors.ndim != 2 or len(vectors) != count:
        raise errors.input_error("encoder", vectors.shape, f"vectors of shape [{count}, D]")
    if not np.isfinite(vectors).all():
        raise errors.input_error("encoder", "NaN or infinity", "finite vectors", "check weights")
    return vectors


def _faiss_index(vectors_ND: np.ndarray) -> Any:
    import faiss

    index = faiss.IndexFlatIP(vectors_ND.shape[1])
    index.add(vectors_ND)
    return index


def _write_vectors(directory: Path, vectors: np.ndarray, weights: str) -> None:
    """vectors.npy, then the manifest that vouches for it."""
    directory.mkdir(parents=True, exist_ok=True)
    buffer = io.BytesIO()
    np.save(buffer, vectors, allow_pickle=False)
    storage.write_bytes(directory / "vectors.npy", buffer.getvalue())
    manifest = {
        "encoder": weights,
        "shape": list(vectors.shape),
        "sha256": storage.sha256_file(directory / "vectors.npy"),
    }
    storage.write_json(directory / "manifest.json", manifest)


def _read_vectors(directory: Path, count: int) -> np.ndarray | None:
    """The stored vectors; None when there are none or they are not what the manifest says.

    Raises InputError when vectors.npy is another kind of file, such as a pickle.
    """
    path = directory / "vectors.npy"
    if not path.exists():
        return None
    with open(path, "rb") as file:
        if file.read(len(_NPY_MAGIC)) != _NPY_MAGIC:
            raise errors.input_error(
                str(path), "not a NumPy file", "an array of numbers", f"rm -r {directory}"
            )
    try:
        manifest = json.loads((directory / "manifest.json").read_text())
        if manifest["sha256"] != storage.sha256_file(path) or manifest["shape"][0] != count:
            return None
        return _checked(np.load(path, allow_pickle=False), count)
    except (OSError, ValueError, KeyError, TypeError, IndexError):
        return None
