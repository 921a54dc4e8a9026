"""Prompts into batches of few shapes: sorted by length, padded to bucket sizes."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

# Rows that one decoding step works on: enough to keep the matrix units busy, few enough that
# waiting for the longest answer of a batch costs little.
MAX_ROWS = 64
# Prompt tokens of one prefill; bounds the memory of its attention scores.
MAX_TOKENS = 8192
# Tokens that prompts of a batch begin with are computed once, in multiples of this.
_COMMON = 16


class Batch(NamedTuple):
    """Prompts `indices` padded to one shape; rows beyond len(indices) repeat the first prompt."""

    indices: list[int]
    tokens_BT: np.ndarray
    lengths_B: np.ndarray


def bucket_length(length: int) -> int:
    """The padded length: multiples of 32 up to 256, of 64 up to 512, then of 256 tokens.

    Each length is a compilation of seconds; a finer grid would save less than that.
    """
    multiple = 32 if length <= 256 else 64 if length <= 512 else 256
    return -(-length // multiple) * multiple


def common_tokens(tokens_BT: np.ndarray, lengths_B: np.ndarray) -> int:
    """How many tokens all rows begin with, fewer than any row has, a multiple of 16.

    Counted so coarsely, the rest of a bucket's rows is again as long as a bucket.
    """
    if len(tokens_BT) == 1:
        return 0
    shortest = int(lengths_B.min()) - 1
    same_T = (tokens_BT[:, :shortest] == tokens_BT[:1, :shortest]).all(axis=0)
    return int(np.cumprod(same_T, dtype=int).sum()) // _COMMON * _COMMON


def distinct_rows(batch: Batch) -> tuple[np.ndarray, np.ndarray]:
    """Places of the different prompts of a batch, and which of them each row is.

    As many places as a power of two, or all rows.
    """
    whole_BT = np.concatenate([batch.lengths_B[:, None], batch.tokens_BT], axis=1)
    _, first_U, row_B = np.unique(whole_BT, axis=0, return_index=True, return_inverse=True)
    places_U = padded_to_power_of_two(first_U)
    if len(places_U) >= len(whole_BT):
        return np.arange(len(whole_BT)), np.arange(len(whole_BT))
    return places_U, row_B.reshape(-1)


def padded_to_power_of_two(rows: np.ndarray) -> np.ndarray:
    """Rows with the first repeated, so that few sizes, hence few compiled programs, occur."""
    size = 1 << (len(rows) - 1).bit_length()
    return np.concatenate([rows, np.repeat(rows[:1], size - len(rows))])


def plan(prompts: Sequence[Sequence[int]], *, num_samples: int = 1, pad_id: int = 0) -> list[Batch]:
    """Batches of prompts (token ids), longest first, so that memory runs short early or never.

    A batch holds at most `MAX_ROWS` samples and `MAX_TOKENS` prompt tokens; its number of rows is
    that limit or a power of two below it, so n prompts need few compiled programs.
    """
    # Equal prompts side by side: one prefill serves those that share a batch.
    order = sorted(range(len(prompts)), key=lambda i: (-len(prompts[i]), tuple(prompts[i])))
    batches = []
    while order:
        length = bucket_length(len(prompts[order[0]]))
        limit = max(1, min(MAX_ROWS // num_samples, MAX_TOKENS // length))
        indices, order = order[:limit], order[limit:]
        rows = min(limit, 1 << (len(indices) - 1).bit_length())
        batches.append(_padded(prompts, indices, rows, length, pad_id))
    return batches


def _padded(
    prompts: Sequence[Sequence[int]], indices: list[int], rows: int, length: int, pad_id: int
) -> Batch:
    filled = indices + [indices[0]] * (rows - len(indices))
    tokens_BT = np.full((rows, length), pad_id, np.int32)
    for row, index in enumerate(filled):
        tokens_BT[row, : len(prompts[index])] = prompts[index]
    lengths_B = np.array([len(prompts[index]) for index in filled], np.int32)
    return Batch(indices, tokens_BT, lengths_B)
