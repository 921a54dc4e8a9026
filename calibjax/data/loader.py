"""Which groups make up which training step: a function of (seed, epoch, step) alone.

Nothing is carried from step to step, so a resumed run, or one on another number of processes, sees
the same batches in the same order.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from calibjax.data.batching import (
    BatchPlan,
    Buckets,
    Group,
    Tokens,
    bucket_of,
    choose_buckets,
    collate,
)
from calibjax.records import SupervisionRow


class Batch(NamedTuple):
    """Tokens of a batch with its labelled rows: M rows (temperatures) per document.

    temperature_BNM: float32 user temperatures; label_BNM: float32 soft labels in [0, 1]; mask_BNM:
    bool, False on padding; row_BNM: int32 row numbers, -1 on padding.
    """

    tokens: Tokens
    temperature_BNM: np.ndarray
    label_BNM: np.ndarray
    mask_BNM: np.ndarray
    row_BNM: np.ndarray


class Loader:
    """Batches of labelled groups by number.

    batch_size: groups per batch. The last batch of a bucket may hold fewer, padded by mask.
    """

    def __init__(
        self,
        groups: Sequence[Group],
        rows: Sequence[SupervisionRow],
        *,
        batch_size: int,
        seed: int = 0,
        buckets: Buckets | None = None,
    ):
        self.groups = list(groups)
        self.seed = seed
        self.batch_size = batch_size
        self.buckets = choose_buckets(self.groups) if buckets is None else buckets
        self.num_documents = max(len(group.suffixes) for group in self.groups)
        self.num_rows = max(len(rows_n) for group in self.groups for rows_n in group.rows)
        self._temperature = np.array([row.temperature for row in rows], np.float32)
        self._label = np.array([row.label for row in rows], np.float32)
        self.batches_per_epoch = len(self.epoch(0))
        # An epoch's plan is the same for all of its steps.
        self._cached_epoch = lru_cache(maxsize=2)(self.epoch)

    def epoch(self, epoch: int) -> list[BatchPlan]:
        """All batches of an epoch: groups shuffled, dealt to their buckets, full batches first out."""
        order = np.random.default_rng((self.seed, epoch)).permutation(len(self.groups))
        waiting: dict[tuple[int, int], list[int]] = {}
        plans = []
        for number in order:
            edges = bucket_of(self.groups[number], self.buckets)
            queue = waiting.setdefault(edges, [])
            queue.append(int(number))
            if len(queue) == self.batch_size:
                plans.append(BatchPlan(*edges, tuple(queue)))
                queue.clear()
        plans += [BatchPlan(*edges, tuple(rest)) for edges, rest in waiting.items() if rest]
        return plans

    def plan(self, number: int) -> BatchPlan:
        """Batch `number`, counted over all epochs."""
        epoch, index = divmod(number, self.batches_per_epoch)
        return self._cached_epoch(epoch)[index]

    def batch(self, number: int) -> Batch:
        """Arrays of batch `number`, counted over all epochs."""
        return self.arrays(self.plan(number))

    def arrays(self, plan: BatchPlan) -> Batch:
        """Arrays of a planned batch; all batches share batch_size, documents and rows per document."""
        shape = (self.batch_size, self.num_documents, self.num_rows)
        tokens = collate(
            self.groups, plan, batch_size=self.batch_size, num_documents=self.num_documents
        )
        row_BNM = np.full(shape, -1, np.int32)
        for b, number in enumerate(plan.groups):
            for n, rows in enumerate(self.groups[number].rows):
                row_BNM[b, n, : len(rows)] = rows
        mask_BNM = row_BNM >= 0
        # Padding takes the values of row 0: real ones, so that nothing outside a range is computed.
        index = np.maximum(row_BNM, 0)
        return Batch(tokens, self._temperature[index], self._label[index], mask_BNM, row_BNM)
