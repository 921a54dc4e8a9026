"""Prompts into batches of few shapes: sorted by length, padded to bucket sizes."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

# Rows that one decoding step works on: enough to keep the matrix units busy, few enough that
# waiting for the longest answer of a batch costs little.
MAX_ROWS = 64
# Prompt tokens of one prefill; bounds the memory of its attention scores.
MAX_TOKENS = 8192


class Batch(NamedTuple):
    """Prompts `indices` padded to one shape; rows beyond len(indices) repeat the first prompt."""

    indices: list[int]
    tokens_BT: np.ndarray
    lengths_B: np.ndarray


def bucket_length(length: int) -> int:
    """The padded length: multiples of 32 up to 128, of 64 up to 512, then of 256 tokens.

    Each length is a compilation of seconds; a finer grid would save less than that.
    """
    multiple = 32 if length <= 128 else 64 if length <= 512 else 256
    return -(-length // multiple) * multiple


def plan(prompts: Sequence[Sequence[int]], *, num_samples: int = 1, pad_id: int = 0) -> list[Batch]:
    """Batches of prompts (token ids), longest first, so that memory runs short early or never.

    A batch holds at most `MAX_ROWS` samples and `MAX_TOKENS` prompt tokens; its number of rows is
    that limit or a power of two below it, so n prompts need few compiled programs.
    """
    order = sorted(range(len(prompts)), key=lambda index: -len(prompts[index]))
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
