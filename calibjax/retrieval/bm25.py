"""BM25 with the idf and term weights of Lucene, over title and body joined."""

import io
import sys
import warnings
import zipfile
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse

from calibjax import errors, storage
from calibjax.records import Hits, Passage
from calibjax.retrieval import ranking, words

_FORMAT = 1  # of the cached index; part of its key
_SCORES_AT_ONCE = 2**24  # float32 scores held in memory while searching: 64 MB


class _Index(NamedTuple):
    """Term weights by word: row w holds weight `data` of passage `passages` from `starts[w]` on."""

    vocabulary: list[str]
    data: np.ndarray
    passages: np.ndarray
    starts: np.ndarray


class BM25Retriever:
    """Lexical retriever over passages.

    idf = ln(1 + (N - df + .5) / (df + .5)), weight = tf / (tf + k1 (1 - b + b len / mean len)).
    Words: lower case, NFC, no stop words, no stemming; `tokenizer="cjk"` for scripts without
    spaces. With `cache_dir` the index is stored there under a hash of passages and settings, and
    read back the next time. `num_empty` counts passages without a word: they are kept in
    `passages` and never found.
    """

    def __init__(
        self,
        passages: Iterable[Passage],
        *,
        k1: float = 1.2,
        b: float = 0.75,
        tokenizer: str = "plain",
        cache_dir: str | Path | None = None,
    ):
        if tokenizer not in words.TOKENIZERS:
            raise errors.input_error("tokenizer", tokenizer, "plain or cjk")
        if not k1 >= 0:
            raise errors.input_error("k1", k1, "a number >= 0", "k1=1.2")
        if not 0 <= b <= 1:
            raise errors.input_error("b", b, "a number in [0, 1]", "b=0.75")
        self.passages = ranking.by_id(passages)
        self._plain = tokenizer == "plain"
        self._split = words.splitter(tokenizer)
        texts = [ranking.joined(passage) for passage in self.passages.values()]
        self._warn_of_spaceless("passages", texts)
        settings = ("bm25", _FORMAT, k1, b, tokenizer)
        index = _cached(cache_dir, self.passages.values(), settings)
        if index is None:
            index = _build([self._split(text) for text in texts], k1, b)
            _store(cache_dir, self.passages.values(), settings, index)
        self._word_ids = {word: i for i, word in enumerate(index.vocabulary)}
        self._weights_VN = scipy.sparse.csr_array(
            (index.data, index.passages, index.starts),
            shape=(len(index.vocabulary), len(self.passages)),
        )
        self._found = np.unique(index.passages)
        self._ids = list(self.passages)
        self.num_empty = len(self._ids) - len(self._found)

    def search(self, queries: Sequence[str], k: int) -> Hits:
        """The k best passages of each query; ties go by passage id.

        Passages that share no word with the query come last with score 0. A query that matches
        nothing at all has no valid hit.
        """
        ranking.check_k(k)
        self._warn_of_spaceless("queries", queries)
        hits = ranking.empty_hits(len(queries), k)
        step = max(1, _SCORES_AT_ONCE // max(1, len(self.passages)))
        for start in range(0, len(queries), step):
            scores_QN = self._scores(queries[start : start + step])
            for row, scores_N in enumerate(scores_QN, start):
                if scores_N.any():
                    best = self._found[ranking.top_k(scores_N[self._found], k)]
                    ranking.fill_hits(hits, row, [self._ids[i] for i in best], scores_N[best])
        return hits

    def _scores(self, queries: Sequence[str]) -> np.ndarray:
        """Scores of all passages: float32 [queries, passages]."""
        counts = [Counter(self._split(query)) for query in queries]
        # Sorted, so that a sum has the same order, and the same last bit, in every run.
        known = [
            sorted((self._word_ids[word], n) for word, n in c.items() if word in self._word_ids)
            for c in counts
        ]
        starts = np.cumsum([0] + [len(row) for row in known])
        word_ids = np.array([w for row in known for w, _ in row], np.int32)
        repeats = np.array([n for row in known for _, n in row], np.float32)
        shape = (len(queries), len(self._word_ids))
        query_QV = scipy.sparse.csr_array((repeats, word_ids, starts), shape=shape)
        return (query_QV @ self._weights_VN).toarray()

    def _warn_of_spaceless(self, what: str, texts: Iterable[str]) -> None:
        if self._plain and any(words.is_mostly_spaceless(text) for text in texts):
            warnings.warn(
                f"{what} in a script without spaces between words: the plain tokenizer takes a"
                ' sentence for one word and finds nothing; fix: tokenizer="cjk"',
                stacklevel=3,
            )


def _build(tokens: list[list[str]], k1: float, b: float) -> _Index:
    """The index of the passages' words; the vocabulary is sorted, the same in every run."""
    vocabulary = sorted({word for passage in tokens for word in passage})
    if not vocabulary:
        nothing = np.zeros(0, np.int32)
        return _Index([], np.zeros(0, np.float32), nothing, np.zeros(1, np.int32))
    word_ids = {word: i for i, word in enumerate(vocabulary)}
    model = _import_bm25s().BM25(k1=k1, b=b, method="lucene", backend="numpy", csc_backend="scipy")
    encoded = [[word_ids[word] for word in passage] for passage in tokens]
    model.index((encoded, word_ids), create_empty_token=False, show_progress=False)
    scores = model.scores
    return _Index(vocabulary, scores["data"], scores["indices"], scores["indptr"])


def _import_bm25s() -> Any:
    """bm25s without its use of JAX.

    When it can import jax, bm25s runs `jax.lax.top_k` at import. That starts the accelerator, and a
    later `jax.distributed.initialize` fails. We select the top k ourselves, so jax is hidden from
    it for the time of the import.
    """
    if "bm25s" in sys.modules:
        return sys.modules["bm25s"]
    hidden = {name: sys.modules.get(name) for name in ("jax", "jax.lax")}
    try:
        sys.modules.update({name: None for name in hidden})  # type: ignore[misc]
        import bm25s
    finally:
        for name, module in hidden.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module
    return bm25s


def _cached(
    cache_dir: str | Path | None, passages: Iterable[Passage], settings: tuple
) -> _Index | None:
    """The stored index, or None when there is none or it is damaged."""
    if cache_dir is None:
        return None
    try:
        # Opened here: np.load does not close a file that it cannot read.
        with (
            open(_path(cache_dir, passages, settings), "rb") as file,
            np.load(file, allow_pickle=False) as arrays,
        ):
            text = arrays["vocabulary"].tobytes().decode("utf-8", "surrogatepass")
            vocabulary = text.split("\n") if text else []
            return _Index(vocabulary, arrays["data"], arrays["passages"], arrays["starts"])
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None


def _store(
    cache_dir: str | Path | None, passages: Iterable[Passage], settings: tuple, index: _Index
) -> None:
    if cache_dir is None:
        return
    path = _path(cache_dir, passages, settings)
    vocabulary = "\n".join(index.vocabulary).encode("utf-8", "surrogatepass")
    buffer = io.BytesIO()
    np.savez(
        buffer,
        vocabulary=np.frombuffer(vocabulary, np.uint8),
        data=index.data,
        passages=index.passages,
        starts=index.starts,
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    storage.write_bytes(path, buffer.getvalue())


def _path(cache_dir: str | Path, passages: Iterable[Passage], settings: tuple) -> Path:
    return Path(cache_dir) / f"bm25-{ranking.content_key(passages, *settings)}.npz"
