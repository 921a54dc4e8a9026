"""Which groups make up which training step: a function of (seed, epoch, step) alone, in a training
of given length.

Nothing is carried from step to step, so a resumed run, or one on another number of processes, sees
the same batches in the same order.
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from calibjax.backbone.packed import Packed
from calibjax.data.batching import BatchPlan, Group, bucket_edges, bucket_of, collate, reach_of
from calibjax.records import SupervisionRow
from calibjax.training.mesh import TOKENS_PER_PROGRAM


class Batch(NamedTuple):
    """Tokens of a batch with its labelled rows: M rows (temperatures) per document.

    temperature_BNM: float32 user temperatures; label_BNM: float32 soft labels in [0, 1]; mask_BNM:
    bool, False on padding; row_BNM: int32 row numbers, -1 on padding.
    """

    packed: Packed
    temperature_BNM: np.ndarray
    label_BNM: np.ndarray
    mask_BNM: np.ndarray
    row_BNM: np.ndarray


class Loader:
    """Batches of labelled groups by number.

    batch_size: groups per batch. One batch of an epoch may hold fewer, padded by mask.
    steps: batches that will be trained on; the more, the more lengths are worth a program each.
    multiple, tokens_per_program: as `training.mesh` says for the devices.
    """

    def __init__(
        self,
        groups: Sequence[Group],
        rows: Sequence[SupervisionRow],
        *,
        batch_size: int,
        steps: int = 0,
        seed: int = 0,
        multiple: int = 16,
        tokens_per_program: int = TOKENS_PER_PROGRAM,
    ):
        self.groups = list(groups)
        self.seed = seed
        self.batch_size = batch_size
        lengths = [group.length for group in self.groups]
        epochs = max(1.0, steps / math.ceil(len(lengths) / batch_size))
        price = tokens_per_program / epochs
        self.edges = bucket_edges(lengths, multiple=multiple, price=price)
        # Groups of a shorter bucket may fill up a batch of a longer one.
        self.reach = {
            edge: reach_of(group for group in self.groups if group.length <= edge)
            for edge in self.edges
        }
        self.num_documents = max(len(group.suffixes) for group in self.groups)
        self.num_rows = max(len(rows_n) for group in self.groups for rows_n in group.rows)
        self._temperature = np.array([row.temperature for row in rows], np.float32)
        self._label = np.array([row.label for row in rows], np.float32)
        # All steps of an epoch read one plan.
        self._cached_epoch = lru_cache(maxsize=2)(self.epoch)
        self.batches_per_epoch = len(self._cached_epoch(0))

    def epoch(self, epoch: int) -> list[BatchPlan]:
        """All batches of an epoch: groups shuffled, dealt to their buckets, batches shuffled.

        What does not fill a batch of a bucket goes to the next longer one, so that one batch of the
        epoch at most holds fewer groups than the others.
        """
        random = np.random.default_rng((self.seed, epoch))
        dealt: dict[int, list[int]] = {edge: [] for edge in self.edges}
        for number in random.permutation(len(self.groups)).tolist():
            dealt[bucket_of(self.groups[number], self.edges)].append(number)
        plans: list[BatchPlan] = []
        left: list[int] = []
        size = self.batch_size
        for edge in self.edges:
            numbers, reach = left + dealt[edge], self.reach[edge]
            whole = len(numbers) if edge == self.edges[-1] else len(numbers) // size * size
            left = numbers[whole:]
            plans += [
                BatchPlan(edge, size, tuple(numbers[start : min(start + size, whole)]), reach)
                for start in range(0, whole, size)
            ]
        return [plans[i] for i in random.permutation(len(plans))]

    def plan(self, number: int) -> BatchPlan:
        """Batch `number`, counted over all epochs."""
        epoch, index = divmod(number, self.batches_per_epoch)
        return self._cached_epoch(epoch)[index]

    def batch(self, number: int) -> Batch:
        """Arrays of batch `number`, counted over all epochs."""
        plan = self.plan(number)
        packed = collate(self.groups, plan, num_documents=self.num_documents)
        row_BNM = np.full((self.batch_size, self.num_documents, self.num_rows), -1, np.int32)
        for b, group in enumerate(plan.groups):
            for n, rows in enumerate(self.groups[group].rows):
                row_BNM[b, n, : len(rows)] = rows
        mask_BNM = row_BNM >= 0
        # Padding takes the values of row 0: real ones, so that nothing out of range is computed.
        index = np.maximum(row_BNM, 0)
        return Batch(packed, self._temperature[index], self._label[index], mask_BNM, row_BNM)
