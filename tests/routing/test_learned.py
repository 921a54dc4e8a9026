"""Learned routers against scikit-learn, their storage, and what they refuse."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.ensemble import GradientBoostingClassifier, GradientBoostingRegressor
from sklearn.linear_model import LogisticRegression, Ridge

from calibjax import routing
from calibjax.routing import learned, trees


def _data(n=150, d=6, decimals=1, seed=0):
    """Coarse features, so that many rows lie on the thresholds of the trees."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, d)).round(decimals)
    u = np.sign(x[:, 0] + 0.5 * rng.normal(size=n)) * (rng.random(n) < 0.6)
    return x, u


@pytest.mark.parametrize("target", learned.TARGETS)
def test_trees_score_as_the_library_does(target):
    x, u = _data()
    settings = dict(n_estimators=100, max_depth=3, learning_rate=0.1, random_state=0)
    if target == "utility":
        peer = GradientBoostingRegressor(**settings).fit(x, u)
        expected = peer.predict
    else:
        peer = GradientBoostingClassifier(**settings).fit(x, u > 0)
        expected = peer.decision_function
    router = routing.BURGBM(target).fit(x, u)
    # New rows and rows at the very thresholds, which float32 rounding would send the other way.
    cuts = np.unique([tree.tree_.threshold for tree in peer.estimators_[:, 0]][0])
    on_cuts = np.tile(cuts[:, None], (1, x.shape[1]))
    for rows in (x, _data(seed=1)[0], on_cuts, np.nextafter(on_cuts, 9)):
        np.testing.assert_allclose(router.score(rows), expected(rows), rtol=0, atol=1e-9)


def test_trees_run_inside_a_float32_program():
    x, u = _data()
    router = routing.BURGBM().fit(x, u)
    single = jax.tree.map(lambda a: jnp.asarray(a, jnp.asarray(a).dtype), router.trees)
    got = jax.jit(trees.apply)(single, jnp.asarray(x, jnp.float32))
    assert got.dtype == jnp.float32
    # A hundred float32 additions of terms below .1.
    np.testing.assert_allclose(got, router.score(x), rtol=0, atol=2e-6)


@pytest.mark.parametrize("threshold", [0.1, 1 / 3, -2.7, 1e-40, 3.0])
def test_a_float32_threshold_decides_every_float32_feature_alike(threshold):
    cut = trees.float32_at_most(threshold)
    near = np.float32(threshold)
    around = [np.nextafter(near, np.float32(s)) for s in (-np.inf, np.inf)] + [near]
    for value in around:
        assert (value <= cut) == (float(value) <= threshold)


def test_equal_rows_tie_to_the_last_bit_in_any_batch():
    x, u = _data()
    for router in (routing.BURGBM().fit(x, u), routing.BURLinear().fit(x, u)):
        alone = [router.score(x[i : i + 1])[0] for i in range(5)]
        np.testing.assert_array_equal(router.score(np.tile(x[:5], (7, 1)))[-5:], alone)


def test_linear_routers_are_ridge_and_logistic_regression_on_z_scores():
    x, u = _data()
    x[:, 3] = 7.0  # never varies
    z = np.delete(x, 3, axis=1)
    z = (z - z.mean(axis=0)) / z.std(axis=0)
    ridge = routing.BURLinear("utility").fit(x, u)
    np.testing.assert_allclose(
        ridge.score(x), Ridge(alpha=1.0).fit(z, u).predict(z), atol=1e-9, rtol=0
    )
    assert ridge.weights[3] == 0
    logistic = routing.BURLinear("benefit").fit(x, u)
    expected = LogisticRegression(max_iter=1000).fit(z, u > 0).decision_function(z)
    # Two runs of an iterative solver, one with a column more.
    np.testing.assert_allclose(logistic.score(x), expected, atol=1e-2, rtol=0)


@pytest.mark.parametrize("target", learned.TARGETS)
@pytest.mark.parametrize("kind", [routing.BURLinear, routing.BURGBM])
def test_a_saved_router_scores_the_same_to_the_last_bit(kind, target, tmp_path):
    x, u = _data(60)
    router = kind(target).fit(x, u)
    learned.save(router, tmp_path / "r.json", features=[f"x{i}" for i in range(x.shape[1])])
    again = learned.load(tmp_path / "r.json")
    assert type(again) is kind and again.target == target
    np.testing.assert_array_equal(again.score(x), router.score(x))


@pytest.mark.parametrize("kind", [routing.BURLinear, routing.BURGBM])
def test_no_benefit_at_all_in_training_leaves_nothing_to_rank(kind):
    x, _ = _data(20)
    assert np.ptp(kind("benefit").fit(x, np.zeros(20)).score(x)) == 0
    assert np.ptp(kind("utility").fit(x, np.zeros(20)).score(x)) == 0


def test_what_cannot_be_fitted_is_refused():
    with pytest.raises(ValueError, match="train rows=1.*at least 2"):
        routing.BURGBM().fit(np.ones((1, 2)), [1.0])
    with pytest.raises(ValueError, match="finite numbers"):
        routing.BURLinear().fit([[1.0, np.nan], [0.0, 1.0]], [1.0, 0.0])
    with pytest.raises(ValueError, match="target=gain"):
        routing.BURGBM("gain")


def test_a_damaged_file_is_no_router(tmp_path):
    (tmp_path / "r.json").write_text('{"kind": "gbm", "target": "utility"}')
    with pytest.raises(ValueError, match="a router written by this library"):
        learned.load(tmp_path / "r.json")
