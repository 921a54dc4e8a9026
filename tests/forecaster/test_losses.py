import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calibjax.forecaster import losses
from calibjax.forecaster.heads import probability

RNG = np.random.default_rng(0)


def test_one_logit_and_two_logits_give_the_same_loss():
    two = jnp.asarray(RNG.normal(size=(20, 2)), jnp.float32)
    one = (two[:, :1] - two[:, 1:]).astype(jnp.float32)
    label = jnp.asarray(RNG.random(20), jnp.float32)
    np.testing.assert_allclose(
        losses.soft_log_loss(two, label), losses.soft_log_loss(one, label), atol=1e-6
    )
    np.testing.assert_allclose(probability(two), probability(one), atol=1e-6)


def test_column_zero_is_the_class_right():
    assert probability(jnp.array([[3.0, -3.0]]))[0] > 0.99


def test_soft_loss_is_the_bernoulli_log_loss():
    z = jnp.asarray(RNG.normal(size=(20, 1)) * 3, jnp.float32)
    b = jnp.asarray(RNG.random(20), jnp.float32)
    f = 1 / (1 + np.exp(-np.asarray(z[:, 0], np.float64)))
    want = -b * np.log(f) - (1 - b) * np.log(1 - f)
    # float32 softplus against float64 logarithms.
    np.testing.assert_allclose(losses.soft_log_loss(z, b), want, atol=2e-6)


def test_extreme_logits_stay_finite():
    z = jnp.array([[1e4], [-1e4]])
    loss, grad = jax.value_and_grad(lambda z: losses.soft_log_loss(z, jnp.ones(2)).sum())(z)
    assert np.isfinite(loss) and np.isfinite(grad).all()


def test_the_loss_is_lowest_at_the_mean_label():
    label = jnp.asarray(RNG.random(50), jnp.float32)
    grid = jnp.linspace(0.01, 0.99, 99)
    logits = jnp.log(grid) - jnp.log1p(-grid)
    mean = [float(losses.soft_log_loss(jnp.full((50, 1), z), label).mean()) for z in logits]
    assert float(grid[int(np.argmin(mean))]) == pytest.approx(float(label.mean()), abs=0.01)


def test_masked_rows_count_for_nothing():
    logits = jnp.asarray(RNG.normal(size=(6, 1)), jnp.float32)
    label = jnp.asarray(RNG.random(6), jnp.float32)
    mask = jnp.array([True, True, False, True, False, False])
    masked = losses.soft_cross_entropy(logits, label, mask)
    kept = losses.soft_cross_entropy(logits[mask], label[mask], jnp.ones(3, bool))
    assert masked.weight == 3
    np.testing.assert_allclose(masked.sum, kept.sum, atol=1e-6)


def test_nan_on_a_masked_row_reaches_neither_loss_nor_gradient():
    logits = jnp.array([[0.3], [jnp.nan]])
    mask = jnp.array([True, False])

    def loss(logits):
        return losses.soft_cross_entropy(logits, jnp.array([0.5, 0.5]), mask).sum

    assert np.isfinite(loss(logits)) and np.isfinite(jax.grad(loss)(logits)[0])


def test_adding_parts_gives_the_mean_over_rows_not_of_means():
    # 2 rows of mean 4.0 and 8 rows of mean 1.0: 1.6, not 2.5.
    parts = [losses.Total(jnp.float32(8), jnp.float32(rows)) for rows in (2, 8)]
    whole = jax.tree.map(lambda *x: sum(x), *parts)
    assert float(whole.sum / whole.weight) == pytest.approx(1.6)


@pytest.mark.parametrize(
    "label, want", [(0.0, 0), (0.25, 2), (0.35, 4), (0.05, 0), (0.15, 2), (0.2, 2), (1.0, 10)]
)
def test_label_classes_round_half_to_even(label, want):
    # 0.35 * 10 is 3.5 in float32 and goes to 4; 0.25 -> 2.5 goes to 2, 0.05 -> 0.5 to 0.
    assert int(losses.label_class(jnp.float32(label))) == want


def test_any_number_of_draws_has_a_class():
    shares = jnp.asarray([k / 7 for k in range(8)], jnp.float32)
    assert np.asarray(losses.label_class(shares)).tolist() == [0, 1, 3, 4, 6, 7, 9, 10]


def test_class_loss_is_the_weighted_cross_entropy():
    logits = jnp.asarray(RNG.normal(size=(5, 11)), jnp.float32)
    label = jnp.asarray([0.0, 0.1, 0.5, 1.0, 1.0], jnp.float32)
    weight_C = jnp.asarray(RNG.random(11), jnp.float32)
    total = losses.class_cross_entropy(logits, label, jnp.ones(5, bool), weight_C)
    log_p = np.asarray(jax.nn.log_softmax(logits))
    class_ = [0, 1, 5, 10, 10]
    want = -sum(float(weight_C[c]) * log_p[i, c] for i, c in enumerate(class_))
    assert float(total.sum) == pytest.approx(want, rel=1e-5)
    assert float(total.weight) == pytest.approx(sum(float(weight_C[c]) for c in class_), rel=1e-5)


def test_class_weights_balance_what_is_there_and_ignore_what_is_not():
    labels = np.array([0.0, 0.0, 0.0, 1.0], np.float32)
    weight = losses.class_weights(labels, balanced=True)
    assert weight[0] == pytest.approx(4 / 33) and weight[10] == pytest.approx(4 / 11)
    assert weight[1:10].sum() == 0
    assert (losses.class_weights(labels, balanced=False) == 1).all()


def test_the_multi_class_read_out_is_the_expected_value():
    logits = jnp.asarray(RNG.normal(size=(4, 11)) * 5, jnp.float32)
    p = np.asarray(jax.nn.softmax(logits), np.float64)
    np.testing.assert_allclose(probability(logits), p @ (np.arange(11) / 10), atol=1e-6)
    assert ((probability(logits) >= 0) & (probability(logits) <= 1)).all()


def test_entropy_floor_is_the_least_possible_loss():
    labels = np.array([0.0, 1.0, 0.5, 0.2])
    want = (np.log(2) - 0.2 * np.log(0.2) - 0.8 * np.log(0.8)) / 4
    assert losses.entropy_floor(labels) == pytest.approx(want)
