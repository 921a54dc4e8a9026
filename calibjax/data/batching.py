"""Groups of token sequences that share a prefix, in padded batches of few shapes.

A group is one query with up to `max_documents` of its documents: the prefix (system, instruction,
query) is held once and each document is a suffix. Batches hold groups of one bucket, so that a
program is compiled once per bucket and little is computed on padding.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np


@dataclass(frozen=True, slots=True)
class Group:
    """prefix: token ids; suffixes: token ids per document; rows[n]: row numbers of document n."""

    prefix: tuple[int, ...]
    suffixes: tuple[tuple[int, ...], ...]
    rows: tuple[tuple[int, ...], ...]


class Tokens(NamedTuple):
    """int32 arrays of one batch; length 0 marks a padded document."""

    prefix_BP: np.ndarray
    prefix_lengths_B: np.ndarray
    suffix_BNS: np.ndarray
    suffix_lengths_BN: np.ndarray


class BatchPlan(NamedTuple):
    """One batch before its arrays exist: bucket edges and the numbers of its groups."""

    prefix_edge: int
    suffix_edge: int
    groups: tuple[int, ...]


def make_groups(
    prefixes: Sequence[tuple[int, ...]],
    suffixes: Sequence[tuple[int, ...]],
    *,
    max_documents: int,
) -> list[Group]:
    """Groups of rows with equal prefix, in order of appearance.

    Row i is (prefixes[i], suffixes[i]); equal pairs (the same query and document at several
    temperatures) become one document with several rows. Within a query documents are sorted by
    length before they are cut into groups, so that long ones pad each other alone.
    """
    by_prefix: dict[tuple[int, ...], dict[tuple[int, ...], list[int]]] = {}
    for row, (prefix, suffix) in enumerate(zip(prefixes, suffixes)):
        by_prefix.setdefault(prefix, {}).setdefault(suffix, []).append(row)
    groups = []
    for prefix, documents in by_prefix.items():
        order = sorted(documents, key=len)
        for start in range(0, len(order), max_documents):
            part = order[start : start + max_documents]
            rows = tuple(tuple(documents[suffix]) for suffix in part)
            groups.append(Group(prefix, tuple(part), rows))
    return groups


def round_up(length: int) -> int:
    """The padded length for `length` tokens: steps of 16, wider ones beyond 128 tokens."""
    step = 16
    while length > 8 * step:
        step *= 2
    return -(-length // step) * step


def bucket_edges(lengths: Iterable[int], max_buckets: int) -> tuple[int, ...]:
    """At most `max_buckets` padded lengths that cover `lengths` with the fewest padded tokens."""
    edges, counts = np.unique([round_up(length) for length in lengths], return_counts=True)
    total = np.cumsum(counts)
    # best[j] = (cost, chosen edges) of covering edges[0..j] with edges[j] the last one chosen.
    best = [(int(edges[j] * total[j]), (int(edges[j]),)) for j in range(len(edges))]
    answer = best[-1]
    for _ in range(max_buckets - 1):
        best = [
            min(
                [best[j]]
                + [
                    (best[i][0] + int(edges[j] * (total[j] - total[i])), best[i][1] + (int(edges[j]),))
                    for i in range(j)
                ]
            )
            for j in range(len(edges))
        ]
        answer = min(answer, best[-1])
    return answer[1]


class Buckets(NamedTuple):
    """The padded lengths in use."""

    prefix: tuple[int, ...]
    suffix: tuple[int, ...]


def choose_buckets(groups: Sequence[Group], *, max_prefix: int = 2, max_suffix: int = 4) -> Buckets:
    """Bucket edges for these groups; each pair of edges costs one compilation."""
    return Buckets(
        bucket_edges([len(group.prefix) for group in groups], max_prefix),
        bucket_edges([_longest(group) for group in groups], max_suffix),
    )


def bucket_of(group: Group, buckets: Buckets) -> tuple[int, int]:
    """The smallest edges that hold the group."""
    prefix = next(edge for edge in buckets.prefix if edge >= len(group.prefix))
    return prefix, next(edge for edge in buckets.suffix if edge >= _longest(group))


def collate(
    groups: Sequence[Group], plan: BatchPlan, *, batch_size: int, num_documents: int
) -> Tokens:
    """Arrays of one planned batch, padded to `batch_size` groups of `num_documents` documents."""
    tokens = Tokens(
        np.zeros((batch_size, plan.prefix_edge), np.int32),
        # Padded groups keep one token, so that attention has something to look at.
        np.ones(batch_size, np.int32),
        np.zeros((batch_size, num_documents, plan.suffix_edge), np.int32),
        np.zeros((batch_size, num_documents), np.int32),
    )
    for b, number in enumerate(plan.groups):
        group = groups[number]
        tokens.prefix_BP[b, : len(group.prefix)] = group.prefix
        tokens.prefix_lengths_B[b] = len(group.prefix)
        for n, suffix in enumerate(group.suffixes):
            tokens.suffix_BNS[b, n, : len(suffix)] = suffix
            tokens.suffix_lengths_BN[b, n] = len(suffix)
    return tokens


class Pass(NamedTuple):
    """A planned forward pass and the shape it is padded to."""

    plan: BatchPlan
    batch_size: int
    num_documents: int


def plan_passes(groups: Sequence[Group], tokens_per_pass: int) -> list[Pass]:
    """Passes over all groups, longest bucket first, each of about `tokens_per_pass` tokens."""
    if not groups:
        return []
    buckets = choose_buckets(groups)
    members: dict[tuple[int, int], list[int]] = {}
    for number, group in enumerate(groups):
        members.setdefault(bucket_of(group, buckets), []).append(number)
    passes = []
    for (prefix, suffix), numbers in sorted(members.items(), reverse=True):
        num_documents = max(len(groups[number].suffixes) for number in numbers)
        size = max(1, tokens_per_pass // (prefix + num_documents * suffix))
        # A power of two above what there is: small calls share the programs of other small calls.
        size = min(size, 1 << (len(numbers) - 1).bit_length())
        for start in range(0, len(numbers), size):
            part = tuple(numbers[start : start + size])
            passes.append(Pass(BatchPlan(prefix, suffix, part), size, num_documents))
    return passes


def padding_share(groups: Sequence[Group], passes: Sequence[Pass]) -> float:
    """Share of the computed tokens that are padding."""
    useful = sum(
        len(groups[number].prefix) + sum(map(len, groups[number].suffixes))
        for each in passes
        for number in each.plan.groups
    )
    computed = sum(
        size * (plan.prefix_edge + documents * plan.suffix_edge)
        for plan, size, documents in passes
    )
    return 1.0 - useful / computed


def _longest(group: Group) -> int:
    return max(len(suffix) for suffix in group.suffixes)
