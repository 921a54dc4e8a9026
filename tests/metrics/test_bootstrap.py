"""The bootstrap: its weights, its pairing, undefined replicates, and intervals by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from calibjax import metrics as m
from calibjax.errors import InputError
from calibjax.metrics._resampling import make_plan, row_weights, scale_bits

KEY = jax.random.key(0)


def mean(y, weight):
    return jnp.sum(weight * y) / jnp.sum(weight)


def auroc(score, correct, weight):
    return m.auroc(score, correct, weight=weight)


def ece(score, correct, weight):
    return m.expected_calibration_error(score, correct, weight=weight)


def area(score, correct, weight):
    return m.area_under_accuracy_coverage(score, correct, weight=weight)


def mass(score, correct, weight):
    return m.expected_calibration_error(score, correct, binning="mass", weight=weight)


def weights(plan, count=64):
    draw = jax.jit(jax.vmap(lambda b: row_weights(plan, KEY, b)))
    return np.asarray(draw(jnp.arange(count)))


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    score = np.round(rng.random(40), 1).astype(np.float32)
    return {"score": score, "correct": (rng.random(40) < score).astype(np.float32)}


def test_interval_of_a_mean_by_hand():
    got = m.bootstrap({"mean": mean}, {"y": np.arange(100.0)}, key=KEY)["mean"]
    assert float(got.estimate) == 49.5 and got.n_valid == 2000
    # 49.5 +- 1.96 * 2.887; Monte-Carlo error of a quantile at 2000 replicates is about .15.
    assert float(got.low) == pytest.approx(43.8, abs=0.4)
    assert float(got.high) == pytest.approx(55.2, abs=0.4)


def test_constant_rows_and_a_single_row_give_an_interval_of_no_width():
    for y in (np.full(30, 10000.0), np.array([3.0])):
        got = m.bootstrap({"mean": mean}, {"y": y}, key=KEY, num_replicates=100)["mean"]
        assert float(got.low) == float(got.high) == y[0]


def test_fewer_replicates_are_a_prefix_of_more(rows):
    def run(count):
        functions = {"auroc": auroc, "ece": ece}
        return m.bootstrap_details(functions, rows, key=KEY, num_replicates=count)

    short, long = run(100), run(200)
    for name in short:
        # The same replicates; a matrix product of another width may round differently.
        np.testing.assert_allclose(
            short[name].replicates, long[name].replicates[:100], rtol=1e-5, atol=1e-6
        )


def test_replicates_equal_metrics_of_really_resampled_rows(rows):
    functions = {"auroc": auroc, "ece": ece, "area": area, "mass": mass}
    details = m.bootstrap_details(functions, rows, key=KEY, num_replicates=30)
    for b, counts in enumerate(weights(make_plan(40), 30)):
        index = np.repeat(np.arange(40), counts)
        drawn = {name: column[index] for name, column in rows.items()}
        ones = np.ones(40, np.float32)
        for name, fn in functions.items():
            np.testing.assert_allclose(
                details[name].replicates[b], fn(**drawn, weight=ones), rtol=1e-5, atol=2e-6
            )


def test_identical_methods_differ_by_exactly_nothing(rows):
    details = m.bootstrap_details({"a": auroc, "b": auroc}, rows, key=KEY, num_replicates=200)
    again = m.bootstrap_details({"c": auroc}, rows, key=KEY, num_replicates=200)
    for other in (details["b"], again["c"]):
        difference = m.paired_difference(details["a"], other)
        assert float(difference.low) == float(difference.high) == 0
    with pytest.raises(InputError, match="replicates.shape"):
        m.paired_difference(
            details["a"],
            m.bootstrap_details({"a": auroc}, rows, key=KEY, num_replicates=100)["a"],
        )


def test_paired_difference_is_narrower_than_unpaired(rows):
    noisy = {**rows, "score": rows["score"] + 0.01 * np.arange(40, dtype=np.float32) % 0.03}
    a = m.bootstrap_details({"x": auroc}, rows, key=KEY, num_replicates=300)["x"]
    b = m.bootstrap_details({"x": auroc}, noisy, key=KEY, num_replicates=300)["x"]
    other = m.bootstrap_details({"x": auroc}, noisy, key=jax.random.key(1), num_replicates=300)
    paired, unpaired = m.paired_difference(a, b), m.paired_difference(a, other["x"])
    assert paired.high - paired.low < 0.5 * (unpaired.high - unpaired.low)
    assert paired.low <= paired.estimate <= paired.high


def test_many_methods_in_one_call_equal_one_by_one(rows):
    scores = np.stack([rows["score"], rows["score"][::-1]], axis=1)

    def both(scores, correct, weight):
        return jax.vmap(lambda s: m.auroc(s, correct, weight=weight), in_axes=1)(scores)

    arrays = {"scores": scores, "correct": rows["correct"]}
    got = m.bootstrap({"x": both}, arrays, key=KEY, num_replicates=100)["x"]
    for r in range(2):
        alone = m.bootstrap(
            {"x": auroc},
            {"score": scores[:, r], "correct": rows["correct"]},
            key=KEY,
            num_replicates=100,
        )["x"]
        for field in ("estimate", "low", "high"):
            np.testing.assert_allclose(
                getattr(got, field)[r], getattr(alone, field), rtol=1e-5, atol=1e-6
            )


def test_undefined_replicates_are_counted_and_too_many_void_the_interval():
    correct = np.zeros(20, np.float32)
    correct[0] = 1
    arrays = {"score": np.arange(20.0), "correct": correct}
    got = m.bootstrap({"auroc": auroc}, arrays, key=KEY)["auroc"]
    # (1 - 1/20)^20 = 35.8 % of the replicates miss the only positive; 3 standard errors are 3.2 %.
    assert abs(int(got.n_valid) / 2000 - (1 - 0.95**20)) < 0.033
    assert np.isnan(got.low) and np.isnan(got.high) and not np.isnan(got.estimate)


def test_nan_replicates_are_dropped_from_the_quantiles():
    replicates = jnp.concatenate([jnp.arange(95.0), jnp.full(5, jnp.nan)])
    low, high = m.percentile_interval(replicates, confidence_level=0.5)
    assert (float(low), float(high)) == (23.5, 70.5)


def test_every_replicate_draws_n_rows_uniformly():
    drawn = weights(make_plan(50), 4000)
    assert (drawn.sum(1) == 50).all()
    # Each row's mean count is 1 with standard error sqrt(.98 / 4000) = .0157.
    assert np.abs(drawn.mean(0) - 1).max() < 5 * 0.0157
    assert drawn.var(0).mean() == pytest.approx(0.98, abs=0.02)


def test_random_bits_scale_to_indices_as_64_bit_arithmetic_would():
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 2**32, 5000, dtype=np.uint64)
    bits[:2] = 0, 2**32 - 1
    for size in (1, 3, 1000, 65536, 10**6, 2**31 - 1):
        got = scale_bits(jnp.asarray(bits.astype(np.uint32)), jnp.uint32(size))
        assert (np.asarray(got, np.uint64) == bits * size >> 32).all()


def test_clusters_are_drawn_whole():
    cluster = np.array(["a", "b", "a", "c", "b", "a"])
    drawn = weights(make_plan(6, cluster=cluster))
    for label in "abc":
        assert (np.ptp(drawn[:, cluster == label], axis=1) == 0).all()
    assert (drawn[:, [0, 1, 3]].sum(1) == 3).all()


def test_strata_keep_their_size_with_and_without_clusters():
    strata = np.array([0, 1, 0, 1, 1, 0, 1, 1])
    drawn = weights(make_plan(8, stratify=strata))
    assert (drawn[:, strata == 0].sum(1) == 3).all() and (drawn[:, strata == 1].sum(1) == 5).all()
    cluster = np.array([0, 1, 0, 2, 2, 3, 1, 4])
    drawn = weights(make_plan(8, cluster=cluster, stratify=strata))
    heads = [0, 5]  # first rows of the clusters 0 and 3, which are stratum 0
    assert (drawn[:, heads].sum(1) == 2).all()
    with pytest.raises(InputError, match="one stratum for all rows of a cluster"):
        make_plan(4, cluster=[0, 0, 1, 1], stratify=[0, 1, 0, 0])


def test_clusters_widen_the_interval_of_copied_rows():
    y = np.repeat(np.arange(25.0), 4)
    alone = m.bootstrap({"y": mean}, {"y": y}, key=KEY, num_replicates=500)["y"]
    whole = m.bootstrap(
        {"y": mean}, {"y": y}, key=KEY, num_replicates=500, cluster=np.repeat(np.arange(25), 4)
    )["y"]
    # Four copies of each question: the honest interval is twice as wide.
    ratio = (whole.high - whole.low) / (alone.high - alone.low)
    assert 1.7 < float(ratio) < 2.3


@pytest.mark.parametrize("traced", [False, True])
def test_masked_rows_are_as_good_as_removed(rows, traced):
    where = np.arange(40) % 3 > 0
    hidden = {k: np.where(where, v, np.nan).astype(np.float32) for k, v in rows.items()}

    def run(where):
        return m.bootstrap({"x": auroc}, hidden, key=KEY, num_replicates=50, where=where)["x"]

    got = jax.jit(run)(jnp.asarray(where)) if traced else run(where)
    kept = {name: column[where] for name, column in rows.items()}
    expected = m.bootstrap({"x": auroc}, kept, key=KEY, num_replicates=50)["x"]
    for a, b in zip(got, expected):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_row_weights_travel_with_their_row():
    y, weight = np.arange(10.0), np.arange(10) % 3
    got = m.bootstrap({"y": mean}, {"y": y}, key=KEY, num_replicates=50, weight=weight)["y"]
    assert float(got.estimate) == pytest.approx(np.average(y, weights=weight))


def test_functions_without_weights_or_traces_run_on_gathered_rows(rows):
    def plain(score, correct):
        return float(np.mean(score * correct))

    def numpy_only(score, correct, weight):
        return np.average(np.asarray(score) * np.asarray(correct), weights=np.asarray(weight))

    def traced(score, correct, weight):
        return mean(score * correct, weight)

    with pytest.warns(RuntimeWarning, match="slow"):
        slow = m.bootstrap({"x": plain}, rows, key=KEY, num_replicates=20)["x"]
    fast = m.bootstrap({"x": traced}, rows, key=KEY, num_replicates=20)["x"]
    for a, b in zip(slow, fast):
        np.testing.assert_allclose(a, b, rtol=1e-5)
    with pytest.warns(RuntimeWarning, match="slow"):
        weighted = m.bootstrap({"x": numpy_only}, rows, key=KEY, num_replicates=20)["x"]
    np.testing.assert_allclose(weighted.high, fast.high, rtol=1e-5)


@pytest.mark.parametrize(
    "change, text",
    [
        (dict(num_replicates=-1), "num_replicates=-1"),
        (dict(confidence_level=1.0), "confidence_level=1.0"),
        (dict(metrics={}), "metrics"),
        (dict(arrays={}), "arrays"),
        (dict(arrays={"y": np.zeros(3), "z": np.zeros(2)}), "same number of rows"),
        (dict(cluster=[1, 2]), r"len\(cluster\)=2"),
        (dict(stratify=[[1, 2, 3]]), "one label a row"),
        (dict(weight=[1, -1, 1]), "row 1"),
    ],
)
def test_bad_options_are_refused(change, text):
    good = dict(metrics={"y": mean}, arrays={"y": np.zeros(3)})
    with pytest.raises(InputError, match=text):
        m.bootstrap(**{**good, **change}, key=KEY)


def test_bca_agrees_with_scipy_on_a_skewed_mean():
    y = np.random.default_rng(0).exponential(size=60)
    result = m.bootstrap_details({"y": mean}, {"y": y}, key=KEY, num_replicates=4000)["y"]
    got = m.bca_interval(mean, {"y": y.astype(np.float32)}, result)
    reference = stats.bootstrap((y,), np.mean, n_resamples=4000, rng=0).confidence_interval
    assert bool(got.is_bca)
    # Two independent sets of 4000 replicates: their quantiles differ by about .01.
    assert float(got.low) == pytest.approx(reference.low, abs=0.03)
    assert float(got.high) == pytest.approx(reference.high, abs=0.03)
    assert got.high > result.high  # BCa leans to the long tail


def test_null_reference_of_a_constant_half_is_the_mean_deviation_of_a_binomial():
    null = m.ece_null_reference(np.full(100, 0.5), key=KEY)
    k = np.arange(101)
    deviations = stats.binom.pmf(k, 100, 0.5) * np.abs(k / 100 - 0.5)
    # Standard error of a mean of 2000 draws with deviation .03.
    assert float(null.mean) == pytest.approx(deviations.sum(), abs=4 * 0.03 / 2000**0.5)
    edge = stats.binom.ppf(0.975, 100, 0.5) / 100 - 0.5
    assert float(null.quantile) == pytest.approx(edge, abs=0.01)  # one step of the binomial


def test_null_reference_matches_a_simulation_and_respects_masks_and_bins():
    rng = np.random.default_rng(0)
    p = rng.beta(4, 2, 514).astype(np.float32)
    for binning in ("width", "mass"):
        null = m.ece_null_reference(p, key=KEY, num_bins=10, binning=binning, num_draws=500)
        y = (rng.random((150, 514)) < p).astype(np.float32)
        draws = [
            float(m.expected_calibration_error(p, row, num_bins=10, binning=binning)) for row in y
        ]
        # Means of 500 and 150 draws with deviation .011.
        assert float(null.mean) == pytest.approx(np.mean(draws), abs=4 * 0.011 / 115**0.5)
        assert 0.035 < float(null.mean) < 0.055
    padded = m.ece_null_reference(
        np.concatenate([p, np.full(86, np.nan, np.float32)]),
        key=KEY,
        where=np.arange(600) < 514,
        num_draws=500,
    )
    plain = m.ece_null_reference(p, key=KEY, num_draws=500)
    assert float(padded.mean) == pytest.approx(float(plain.mean), abs=1e-5)


def test_no_replicates_give_estimates_without_intervals():
    rows = {"y": np.arange(9.0)}
    got = m.bootstrap_details({"y": mean}, rows, key=KEY, num_replicates=0)["y"]
    assert float(got.estimate) == 4.0 and int(got.n_valid) == 0 and got.replicates.shape == (0,)
    assert np.isnan(got.low) and np.isnan(got.high)
    with pytest.warns(RuntimeWarning, match="slow"):
        slow = m.bootstrap({"y": lambda y: y.mean()}, rows, key=KEY, num_replicates=0)["y"]
    assert float(slow.estimate) == 4.0 and np.isnan(slow.low)
