import numpy as np

from calibjax.data.batching import Group, padding_share
from calibjax.data.loader import Loader
from tests.labelled import make_row


def make_loader(
    seed: int = 42, num_groups: int = 23, batch_size: int = 4, steps: int = 0
) -> Loader:
    rng = np.random.default_rng(1)
    groups, rows = [], []
    for g in range(num_groups):
        documents = []
        for n in range(int(rng.integers(1, 4))):
            numbers = []
            for _ in range(1 + (g + n) % 2):
                numbers.append(len(rows))
                label, t = rng.random(), rng.uniform(1, 2)
                rows.append(make_row(f"q{g}", f"p{n}", "q", "text", float(t), float(label)))
            documents.append((tuple(range(int(rng.integers(20, 900)))), tuple(numbers)))
        suffixes, numbers_N = zip(*documents)
        groups.append(Group((1, 2, 3), suffixes, numbers_N))
    return Loader(groups, rows, batch_size=batch_size, steps=steps, seed=seed)


def test_a_long_training_compiles_more_lengths_and_computes_less_padding():
    few, many = (make_loader(num_groups=9, steps=steps) for steps in (2, 1000))
    assert len(few.edges) < len(many.edges)
    padding_few, padding_many = (padding_share(x.groups, x.epoch(0)) for x in (few, many))
    assert padding_many < padding_few


def epoch_rows(loader: Loader, epoch: int) -> list[list[int]]:
    start = epoch * loader.batches_per_epoch
    batches = [loader.batch(start + i) for i in range(loader.batches_per_epoch)]
    return [batch.row_BNM[batch.mask_BNM].tolist() for batch in batches]


def test_an_epoch_visits_every_row_once():
    loader = make_loader()
    num_rows = sum(len(rows) for group in loader.groups for rows in group.rows)
    for epoch in range(3):
        seen = sorted(row for batch in epoch_rows(loader, epoch) for row in batch)
        assert seen == list(range(num_rows))


def test_order_depends_on_seed_and_epoch_and_is_repeatable():
    orders = [epoch_rows(make_loader(seed), epoch) for seed in (42, 7) for epoch in (0, 1)]
    for i in range(4):
        for j in range(i):
            assert orders[i] != orders[j]
    again = [epoch_rows(make_loader(seed), epoch) for seed in (42, 7) for epoch in (0, 1)]
    assert again == orders


def test_a_batch_is_the_same_whatever_was_read_before():
    read_through = make_loader()
    for number in range(2 * read_through.batches_per_epoch):
        last = read_through.batch(number)
    fresh = make_loader().batch(2 * read_through.batches_per_epoch - 1)
    for a, b in zip(last.packed, fresh.packed):
        np.testing.assert_array_equal(a, b)
    for a, b in zip(last[1:], fresh[1:]):
        np.testing.assert_array_equal(a, b)


def test_batches_have_one_shape_per_bucket_and_padding_is_masked():
    loader = make_loader()
    shapes = set()
    for number in range(loader.batches_per_epoch):
        batch = loader.batch(number)
        shapes.add(batch.packed.tokens_BT.shape)
        assert batch.label_BNM.shape == batch.mask_BNM.shape == (4, 3, 2)
        assert ((batch.temperature_BNM >= 1) & (batch.temperature_BNM <= 2)).all()
        # A row is there if and only if its document is.
        present = (batch.row_BNM >= 0).any(axis=2)
        np.testing.assert_array_equal(present, batch.packed.last_BN > 0)
    assert shapes == {(4, edge) for edge in loader.edges}


def test_one_batch_of_an_epoch_at_most_is_not_full_and_none_reaches_too_little():
    loader = make_loader()
    for epoch in range(3):
        plans = loader.epoch(epoch)
        sizes = sorted(len(plan.groups) for plan in plans)
        assert sizes[1:] == [loader.batch_size] * (len(plans) - 1)
        for plan in plans:
            for group in (loader.groups[number] for number in plan.groups):
                assert group.length <= plan.length
                assert len(group.prefix) <= plan.reach.prefix
                assert max(map(len, group.suffixes)) <= plan.reach.own
    assert len({plan.reach for plan in plans}) <= len(loader.edges)


def test_labels_and_temperatures_are_those_of_the_rows():
    rows = [make_row("q", f"p{i}", "q", "text", 1 + i / 10, i / 10) for i in range(4)]
    groups = [Group((1,), ((2,), (3, 3)), ((0,), (1, 2))), Group((4,), ((5,),), ((3,),))]
    batch = Loader(groups, rows, batch_size=2).batch(0)
    for row in range(4):
        place = batch.row_BNM == row
        assert batch.label_BNM[place] == np.float32(rows[row].label)
        assert batch.temperature_BNM[place] == np.float32(rows[row].temperature)
