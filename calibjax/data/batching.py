"""A query with several of its documents as one row of tokens, in padded batches of few lengths.

The prefix (system, instruction, query) stands once at the start of the row, the documents follow it
one after the other; `backbone.packed` keeps them from seeing each other. Batches hold rows of one
bucket of lengths, so a program is compiled once per bucket and little is computed on padding.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from calibjax.backbone.attention import Reach
from calibjax.backbone.packed import Packed
from calibjax.training.mesh import TOKENS_PER_PROGRAM

_MOST_LENGTHS = 8


@dataclass(frozen=True, slots=True)
class Group:
    """prefix: token ids; suffixes: token ids per document; rows[n]: row numbers of document n."""

    prefix: tuple[int, ...]
    suffixes: tuple[tuple[int, ...], ...]
    rows: tuple[tuple[int, ...], ...]

    @property
    def length(self) -> int:
        """Tokens of the group."""
        return len(self.prefix) + sum(map(len, self.suffixes))


class BatchPlan(NamedTuple):
    """One batch before its arrays exist: padded row length, groups per batch, which ones, and what
    their tokens see."""

    length: int
    batch_size: int
    groups: tuple[int, ...]
    reach: Reach | None = None


def make_groups(
    prefixes: Sequence[tuple[int, ...]],
    suffixes: Sequence[tuple[int, ...]],
    *,
    max_documents: int,
) -> list[Group]:
    """Groups of rows with equal prefix, at most `max_documents` documents each.

    Row i is (prefixes[i], suffixes[i]); equal pairs (the same query and document at several
    temperatures) become one document with several rows. A query with more documents is dealt out to
    groups of about equal length.
    """
    by_prefix: dict[tuple[int, ...], dict[tuple[int, ...], list[int]]] = {}
    for row, (prefix, suffix) in enumerate(zip(prefixes, suffixes)):
        by_prefix.setdefault(prefix, {}).setdefault(suffix, []).append(row)
    groups = []
    for prefix, documents in by_prefix.items():
        num_parts = -(-len(documents) // max_documents)
        parts: list[list[tuple[int, ...]]] = [[] for _ in range(num_parts)]
        for suffix in sorted(documents, key=len, reverse=True):
            open_parts = [part for part in parts if len(part) < max_documents]
            min(open_parts, key=lambda part: sum(map(len, part))).append(suffix)
        for part in parts:
            rows = tuple(tuple(documents[suffix]) for suffix in part)
            groups.append(Group(prefix, tuple(part), rows))
    return groups


def bucket_edges(
    lengths: Iterable[int], *, multiple: int = 16, price: float = TOKENS_PER_PROGRAM
) -> tuple[int, ...]:
    """Padded lengths (multiples of `multiple`) that cover `lengths`, at most eight of them.

    The exact minimum of padded tokens plus `price` for each.
    """
    rounded = [-(-length // multiple) * multiple for length in lengths]
    edges, counts = np.unique(rounded, return_counts=True)
    covered = [0, *np.cumsum(counts).tolist()]
    # best[j]: (cost, edges chosen) to cover the j smallest edges, the last of them chosen.
    best: list[tuple[float, tuple[int, ...]]] = [(0, ())] + [(np.inf, ())] * len(edges)
    answer = best[-1]
    for _ in range(_MOST_LENGTHS):
        best = [(np.inf, ())] + [
            min(
                (
                    best[i][0] + edge * (covered[j] - covered[i]) + price,
                    (*best[i][1], edge),
                )
                for i in range(j)
            )
            for j, edge in enumerate(edges.tolist(), start=1)
        ]
        answer = min(answer, best[-1])
    return answer[1]


def bucket_of(group: Group, edges: tuple[int, ...]) -> int:
    """The smallest edge that holds the group."""
    return next(edge for edge in edges if edge >= group.length)


def plan_passes(
    groups: Sequence[Group],
    tokens_per_pass: int,
    shards: int = 1,
    *,
    multiple: int = 16,
    tokens_per_program: int = TOKENS_PER_PROGRAM,
) -> list[BatchPlan]:
    """Batches over all groups, each of about `tokens_per_pass` tokens, the longest rows first.

    shards: devices that divide a batch; each gets as many tokens, and the same number of groups.
    multiple: of padded lengths. tokens_per_program: what one more length has to save.
    """
    lengths = (group.length for group in groups)
    edges = bucket_edges(lengths, multiple=multiple, price=tokens_per_program)
    members: dict[int, list[int]] = {edge: [] for edge in edges}
    for number, group in enumerate(groups):
        members[bucket_of(group, edges)].append(number)
    plans = []
    for edge in sorted(members, reverse=True):
        numbers = members[edge]
        reach = reach_of(groups[number] for number in numbers)
        # At most the power of two above what there is, so that small calls share programs.
        most = 1 << (-(-len(numbers) // shards) - 1).bit_length()
        size = shards * min(max(1, tokens_per_pass // edge), most)
        for start in range(0, len(numbers), size):
            plans.append(BatchPlan(edge, size, tuple(numbers[start : start + size]), reach))
    return plans


def reach_of(groups: Iterable[Group], *, multiple: int = 64) -> Reach:
    """Bounds that hold for all these groups, rounded up so that few programs differ by them."""
    lengths = [(len(group.prefix), max(map(len, group.suffixes))) for group in groups]
    return Reach(*(-(-max(column) // multiple) * multiple for column in zip(*lengths)))


def collate(groups: Sequence[Group], plan: BatchPlan, *, num_documents: int) -> Packed:
    """NumPy arrays of one planned batch, padded to its size, length and `num_documents`."""
    shape = (plan.batch_size, plan.length)
    packed = Packed(
        np.zeros(shape, np.int32),
        np.zeros(shape, np.int32),
        np.full(shape, -1, np.int32),
        np.zeros((plan.batch_size, num_documents), np.int32),
        plan.reach,
    )
    for b, number in enumerate(plan.groups):
        group = groups[number]
        start, origin = 0, 0
        for segment, ids in enumerate((group.prefix, *group.suffixes)):
            end = start + len(ids)
            packed.tokens_BT[b, start:end] = ids
            packed.positions_BT[b, start:end] = np.arange(origin, origin + len(ids))
            packed.segments_BT[b, start:end] = segment
            if segment:
                packed.last_BN[b, segment - 1] = end - 1
            start, origin = end, len(group.prefix)
    return packed


def padding_share(groups: Sequence[Group], plans: Sequence[BatchPlan]) -> float:
    """Share of the computed tokens that are padding."""
    useful = sum(groups[number].length for plan in plans for number in plan.groups)
    return 1.0 - useful / sum(plan.batch_size * plan.length for plan in plans)
