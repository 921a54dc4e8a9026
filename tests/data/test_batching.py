import itertools

import numpy as np
import pytest

from calibjax.data.batching import (
    Group,
    bucket_edges,
    collate,
    make_groups,
    padding_share,
    plan_passes,
)
from calibjax.training.mesh import TOKENS_PER_PROGRAM

RNG = np.random.default_rng(0)


def ids(n: int) -> tuple[int, ...]:
    return tuple(RNG.integers(0, 99, n).tolist())


def test_rows_of_one_query_share_a_group_and_equal_pairs_a_document():
    a, b, x, y = ids(5), ids(6), ids(3), ids(4)
    groups = make_groups([a, b, a, a], [x, x, y, x], max_documents=5)
    assert [group.prefix for group in groups] == [a, b]
    documents = dict(zip(groups[0].suffixes, groups[0].rows))
    assert documents == {y: (2,), x: (0, 3)}
    assert groups[1].rows == ((1,),)


def test_every_row_is_in_exactly_one_group_and_no_group_is_too_large():
    prefixes = [ids(4) for _ in range(3)]
    which = [prefixes[i] for i in RNG.integers(0, 3, 40)]
    groups = make_groups(which, [ids(int(n)) for n in RNG.integers(1, 50, 40)], max_documents=5)
    rows = sorted(row for group in groups for document in group.rows for row in document)
    assert rows == list(range(40))
    assert max(len(group.suffixes) for group in groups) <= 5
    for prefix in prefixes:
        lengths = [group.length for group in groups if group.prefix == prefix]
        assert max(lengths) <= min(lengths) + 50


@pytest.mark.parametrize("price", [TOKENS_PER_PROGRAM, 60.0])
def test_edges_cover_all_lengths_at_the_least_cost(price):
    lengths = [5, 17, 18, 40, 41, 100, 300, 310]
    counts = [200, 300, 1, 30, 40, 20, 50, 3]
    lengths = np.repeat(lengths, counts).tolist()

    def cost(edges):
        padded = [min((edge for edge in edges if edge >= n), default=np.inf) for n in lengths]
        return sum(padded) + price * len(edges)

    candidates = sorted({-(-n // 16) * 16 for n in lengths})
    choices = itertools.chain.from_iterable(
        itertools.combinations(candidates, k) for k in range(1, len(candidates) + 1)
    )
    assert cost(bucket_edges(lengths, price=price)) == min(map(cost, choices))


def test_edges_are_multiples_and_few():
    lengths = RNG.integers(1, 3000, 5000)
    edges = bucket_edges(lengths, multiple=128, price=0)
    assert len(edges) == 8 and all(edge % 128 == 0 for edge in edges)
    assert edges[-1] >= lengths.max()


def test_a_small_job_compiles_once():
    assert len(bucket_edges([100, 150, 200])) == 1


def test_passes_hold_every_group_once_within_their_budget():
    lengths = RNG.integers(1, 300, 90).tolist()
    groups = [Group(ids(5), (ids(n),), ((i,),)) for i, n in enumerate(lengths)]
    plans = plan_passes(groups, tokens_per_pass=1024)
    assert sorted(number for plan in plans for number in plan.groups) == list(range(90))
    for plan in plans:
        assert len(plan.groups) <= plan.batch_size
        assert plan.batch_size == 1 or plan.batch_size * plan.length <= 1024
        assert all(groups[number].length <= plan.length for number in plan.groups)


def test_collate_places_every_token_once():
    group = Group(ids(4), (ids(3), ids(2)), ((0,), (1,)))
    plan = plan_passes([group], 64)[0]
    assert plan_passes([group], 64, multiple=128)[0].length == 128
    packed = collate([group], plan, num_documents=3)
    first, second = group.suffixes
    assert packed.tokens_BT[0, :9].tolist() == [*group.prefix, *first, *second]
    # Both documents start at position 4, where the prefix ends.
    assert packed.positions_BT[0, :9].tolist() == [0, 1, 2, 3, 4, 5, 6, 4, 5]
    assert packed.segments_BT[0].tolist() == [0] * 4 + [1] * 3 + [2] * 2 + [-1] * (plan.length - 9)
    assert packed.last_BN[0].tolist() == [6, 8, 0]


def test_padding_share_counts_what_is_computed_for_nothing():
    groups = [Group(ids(10), (ids(6),), ((0,),)), Group(ids(4), (ids(4),), ((1,),))]
    plans = plan_passes(groups, tokens_per_pass=16)
    # Two rows of 16 tokens for 16 + 8 real ones.
    assert padding_share(groups, plans) == 0.25
