"""Inputs small enough to do by hand, and inputs on which public tools have failed."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calibjax import metrics as m

# float32 results of a dozen additions: a few units of 6e-8.
CLOSE = dict(rel=1e-6, abs=1e-6)


def close(value, **more):
    return pytest.approx(value, **{**CLOSE, **more})


def ece(p, y, **options):
    return float(m.expected_calibration_error(p, y, **options))


@pytest.mark.parametrize("num_bins", [10, 15])
def test_a_confidence_of_one_shares_the_last_bin(num_bins):
    assert ece([0.95, 1.0], [1, 0], num_bins=num_bins) == close(0.475)


@pytest.mark.parametrize("norm, value", [("l1", 0.29), ("l2", 0.291833), ("max", 0.316667)])
def test_three_norms_of_the_calibration_error(norm, value):
    got = ece([0.25, 0.25, 0.55, 0.75, 0.75], [0, 0, 1, 1, 1], num_bins=2, norm=norm)
    assert got == close(value)


@pytest.mark.parametrize("norm", ["l1", "l2", "max"])
def test_perfect_hard_predictions_have_error_zero_as_a_float(norm):
    value = m.expected_calibration_error([0, 1, 0, 1], [0, 1, 0, 1], norm=norm)
    assert value == 0 and value.dtype == jnp.float32


def test_event_and_top_label_calibration_differ():
    assert ece([0.2, 0.8], [0, 0], num_bins=10) == close(0.5)
    assert ece([0.2, 0.8], [0, 0], num_bins=10, mode="top_label") == close(0.3)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_scores_on_the_edges_fall_on_the_side_that_closes_the_bin(dtype):
    p = (np.arange(11) / 10).astype(dtype)
    sides = {"right": [0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9], "left": [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 9]}
    with jax.enable_x64(dtype is np.float64):
        for closed, bins in sides.items():
            details = m.expected_calibration_error_details(p, p * 0, num_bins=10, closed=closed)
            assert details.bin_weight.tolist() == np.bincount(bins, minlength=10).tolist()


@pytest.mark.parametrize("num_bins", range(2, 51, 3))
def test_every_edge_of_every_bin_count_is_the_rounded_fraction(num_bins):
    from calibjax.metrics.calibration import width_bins

    # Repeated to one length for all bin counts, which then share what is compiled.
    k = np.resize(np.arange(num_bins + 1), 51)
    edges = jnp.asarray((k / num_bins).astype(np.float32))
    assert width_bins(edges, num_bins, "right").tolist() == np.maximum(k - 1, 0).tolist()
    assert width_bins(edges, num_bins, "left").tolist() == np.minimum(k, num_bins - 1).tolist()


def test_neighbouring_decimals_do_not_share_a_bin():
    assert ece([0.2, 0.3], [1, 0], num_bins=10) == close(0.55)
    assert ece([0.2, 0.8], [1, 0], num_bins=2) == close(0.8)
    details = m.expected_calibration_error_details([0, 0.5, 1], [0, 0, 0], num_bins=2)
    assert details.bin_weight.tolist() == [2, 1]


def test_tied_scores_share_one_mass_bin():
    details = m.expected_calibration_error_details(
        [0.8] * 10, [1, 0] * 5, num_bins=10, binning="mass"
    )
    assert float(details.ece) == close(0.3) and int(details.nonempty_bins) == 1


def test_mass_bins_of_eleven_scores_are_three_three_three_two():
    p = np.linspace(0.05, 0.95, 11)
    details = m.expected_calibration_error_details(p, p * 0, num_bins=4, binning="mass")
    assert details.bin_weight.tolist() == [3, 3, 3, 2]


def test_more_mass_bins_than_rows_puts_each_score_alone():
    p = [0.1, 0.4, 0.7]
    details = m.expected_calibration_error_details(p, [0, 1, 1], num_bins=10, binning="mass")
    assert int(details.nonempty_bins) == 3 and float(details.ece) == close((0.1 + 0.6 + 0.3) / 3)


def test_the_most_confident_mass_bin_is_counted():
    p = np.repeat([0.9, 0.99], 100)
    y = np.concatenate([np.arange(100) < 90, np.zeros(100)])
    assert ece(p, y, num_bins=2, binning="mass", norm="l2") == close(0.7000357)


def test_mean_confidence_stands_for_a_bin_and_not_its_centre():
    assert ece([1.0], [1], num_bins=10) == 0


def test_half_precision_scores_are_counted_beyond_2048():
    p, y = np.full(5000, 0.75, np.float16), np.arange(5000) % 2
    assert ece(p, y, num_bins=10) == close(0.25)


def test_brier_score_by_hand():
    assert float(m.brier_score([1, 1, 1], [1, 1, 1])) == 0
    assert float(m.brier_score([0.4], [1])) == close(0.36)
    y = np.arange(200) < 121  # base rate .605
    assert float(m.brier_score(np.full(200, 0.605), y)) == close(0.605 * 0.395)
    assert float(m.brier_score(np.ones(200), y)) == close(0.395)
    assert float(m.brier_skill(np.full(200, 0.605), y)) == close(0, abs=1e-5)
    assert np.isnan(m.brier_skill([0.5, 0.5], [1, 1]))


def test_log_loss_is_clipped_on_both_sides():
    assert float(m.log_loss([0.0], [1])) == close(16.118095)
    assert float(m.log_loss([1.0], [0])) == close(16.118095)
    assert float(m.log_loss([1.0, 0.0], [1, 0])) == close(1e-7)
    assert float(m.log_loss([0.5], [0.3])) == close(np.log(2))


def test_auroc_by_hand():
    s, y = [0.1, 0.4, 0.4, 0.8], [0, 0, 1, 1]
    assert float(m.auroc(s, y)) == close(0.875)
    assert float(m.auroc(s, y, weight=[1, 2, 1, 1])) == close(0.8333333)
    assert float(m.auroc([0.5] * 6, [0, 1, 0, 1, 1, 0])) == 0.5
    assert float(m.auroc([20.0, 25.0, 30.0], [0, 1, 1])) == 1
    assert float(m.auroc([-np.inf, 0.0, np.inf], [0, 1, 1])) == 1


def test_auroc_of_many_rows_does_not_overflow():
    n = 131072
    assert float(m.auroc(np.arange(n), np.arange(n) >= n // 2)) == 1


def test_auroc_of_one_class_is_nan_with_a_warning_outside_jit_and_without_inside():
    with pytest.warns(RuntimeWarning, match="one class"):
        assert np.isnan(m.auroc([0.1, 0.2], [1, 1]))
    assert np.isnan(jax.jit(m.auroc)(jnp.array([0.1, 0.2]), jnp.array([1, 1])))
    both = jax.vmap(m.auroc, in_axes=(None, 0))(jnp.array([0.1, 0.2]), jnp.array([[1, 1], [0, 1]]))
    assert np.isnan(both[0]) and both[1] == 1


def test_scores_that_bfloat16_cannot_tell_apart_are_ties():
    s = jnp.array([0.901, 0.903], jnp.bfloat16)
    assert float(m.auroc(s, [0, 1])) == 0.5


def test_accuracy_coverage_by_hand():
    s, y = [4, 3, 2, 1], [1, 1, 0, 0]
    assert float(m.area_under_accuracy_coverage(s, y)) == close(0.791667)
    assert float(m.area_under_accuracy_coverage(s, y, area="trapz")) == close(0.854167)
    assert float(m.area_under_accuracy_coverage([1] * 5, [1, 1, 0, 1, 0])) == close(0.6)
    assert float(m.area_under_accuracy_coverage([3, 2, 1], [1, 1, 1])) == close(1)
    details = m.area_under_accuracy_coverage_details(s, y)
    assert float(details.aurc) == close(1 - 0.791667)
    assert float(details.augrc) == close((0 + 0 + 1 + 2) / 4 / 4)
    assert float(details.gain) == close(1)


def test_gain_without_spread_is_nan():
    for y in ([1, 1, 1], [0, 0, 0]):
        assert np.isnan(m.normalized_accuracy_coverage_gain([3, 2, 1], y))


@pytest.mark.parametrize("rate, value", [(0.605, 0.909), (0.379, 0.747), (0.855, 0.989)])
def test_oracle_area_tends_to_the_closed_form(rate, value):
    y = np.arange(2000) < round(2000 * rate)
    area = float(m.area_under_accuracy_coverage(-np.arange(2000), y))
    assert area == pytest.approx(rate + rate * np.log(1 / rate), abs=2e-3)  # finite n: 1/n terms
    assert round(rate + rate * np.log(1 / rate), 3) == value


CWAR = {(1, 0, 1, 1): [0.25, 1 / 3, 0.5, 0.0], (0, 1, 1, 1): [0.25, 1 / 3, 0.5, 1.0]}


@pytest.mark.parametrize("y", list(CWAR))
def test_confident_wrong_answer_rate_is_not_monotone_in_the_threshold(y):
    s = [0.9, 0.8, 0.7, 0.6]
    for tau, value in zip([0.6, 0.7, 0.8, 0.9], CWAR[y]):
        assert float(m.confident_wrong_answer_rate(s, y, tau).rate) == close(value)
    for k, value in zip([4, 3, 2, 1], CWAR[y]):
        assert float(m.cwar_at_coverage(s, y, k / 4)) == close(value)


def test_an_empty_confident_set_has_no_rate_unless_asked():
    empty = m.confident_wrong_answer_rate([0.5], [1], np.inf)
    assert np.isnan(empty.rate) and empty.count == 0
    assert m.confident_wrong_answer_rate([0.5], [1], np.inf, empty="zero").rate == 0
    assert np.isnan(m.accuracy_at_coverage([0.5, 0.4], [1, 0], 0.4))


@pytest.mark.parametrize("coverage, n, k", [(0.29, 200, 58), (0.7, 10, 7), ("0.1", 10, 1)])
def test_coverage_is_the_floor_of_the_decimal_literal(coverage, n, k):
    s, y = np.arange(n), np.zeros(n)
    for value in (coverage, np.float32(coverage)):
        assert m.accuracy_at_coverage_details(s, y, value).kept == k


@pytest.mark.parametrize(
    "y, rule, tau, coverage",
    [
        ([1, 0, 1, 1], "first", 0.6, 1.0),
        ([1, 0, 1, 1], "suffix", 0.9, 0.25),
        ([0, 1, 1, 1], "first", 0.6, 1.0),
        ([0, 1, 1, 1], "suffix", np.inf, 0.0),
    ],
)
def test_cwar_thresholds_by_hand(y, rule, tau, coverage):
    result = m.cwar_threshold([0.9, 0.8, 0.7, 0.6], y, 0.3, rule=rule)
    assert float(result.tau) == close(tau) and float(result.coverage) == close(coverage)
    assert bool(result.feasible) == np.isfinite(tau)


@pytest.mark.parametrize(
    "n, alpha, rank", [(19, 0.1, 18), (8, 0.1, None), (39, 0.7, 12), (99, 0.1, 90), (50, 0.1, 46)]
)
def test_conformal_rank_is_exact(n, alpha, rank):
    threshold, feasible = m.conformal_threshold(np.arange(1, n + 1), alpha=alpha)
    assert float(threshold) == (np.inf if rank is None else rank)
    assert bool(feasible) == (rank is not None)


def test_quantile_index_is_not_rounded_up():
    from calibjax.metrics._counts import kceil, kfloor

    # The inverted CDF at q picks sorted value ceil(q n) - 1: .07 * 100 is 7, not 7.000000000000001.
    assert np.arange(100)[kceil(0.07, 100) - 1] == 6
    assert (kfloor(0.29, 200), kceil(0.3, 40)) == (58, 12)


def test_a_tie_block_is_never_split_by_a_budget():
    s = [0.9, 0.5, 0.5, 0.2]
    details = m.budget_threshold_details(s, 2)
    assert float(details.threshold) == close(0.9) and float(details.usage) == 0.25
    random = m.budget_threshold_details(s, 2, tie="random")
    assert float(random.accept_tie) == 0.5 and float(random.tie_score) == 0.5
    assert float(m.budget_threshold(s, 0)) == np.inf
    assert float(m.budget_threshold(s, 4)) == close(0.2)


def test_a_threshold_below_every_score_uses_everything_and_violates_the_budget():
    s = np.linspace(0.2, 0.9, 40)
    # A constant calibration score of .2 lets the naive threshold be .2 at budget 1 only; force it.
    out = m.deployable_frontier([0.2, 0.1], s, np.zeros(40), np.ones(40), 0.5)
    assert float(out.threshold) == close(0.2) and float(out.usage) == 1 and bool(out.violated)


def test_frontiers_by_hand():
    s, without, with_evidence = [0.9, 0.8, 0.7, 0.6], [0, 1, 0, 0], [1, 0, 1, 0]
    assert float(m.exact_frontier(s, without, with_evidence, 0.5)) == close(0.25)
    assert float(m.exact_frontier([1] * 4, without, with_evidence, 0.5)) == close(0.375)
    out = m.deployable_frontier(s, s, without, with_evidence, 0.5)
    expected = dict(threshold=0.8, usage=0.5, harm_all=0.25, harm_used=0.5, benefit_all=0.25)
    for field, value in expected.items():
        assert float(getattr(out, field)) == close(value), field
    assert not bool(out.violated)


NAIVE_EXACT_DKW = {
    100: [(10, 5, 0, 0), (25, 18, 12, 11), (50, 42, 37, 36), (75, 68, 62, 61)],
    200: [(20, 13, 2, 0), (50, 40, 32, 30), (100, 88, 82, 80)],
    500: [(50, 39, 22, 19), (125, 109, 97, 94), (250, 232, 222, 219), (375, 359, 347, 344)],
    1000: [(100, 85, 61, 57), (250, 228, 211, 207), (500, 474, 461, 457)],
}


@pytest.mark.parametrize("n", list(NAIVE_EXACT_DKW))
def test_budget_counts_of_four_rules(n):
    for budget, counts in zip([0.1, 0.25, 0.5, 0.75], NAIVE_EXACT_DKW[n]):
        got = [m.budget_count(n, budget, rule=r) for r in ("quantile", "exact", "dkw1", "dkw2")]
        assert tuple(got) == counts


@pytest.mark.parametrize("n, counts", [(100, (16, 39)), (500, (104, 225)), (1000, (219, 464))])
def test_predictive_budget_counts(n, counts):
    got = [m.budget_count(n, b, rule="predictive", num_new=n) for b in (0.25, 0.5)]
    assert tuple(got) == counts


@pytest.mark.parametrize(
    "n, one, two",
    [(100, 0.1224, 0.1358), (200, 0.0865, 0.0960), (500, 0.0547, 0.0607), (1000, 0.0387, 0.0429)],
)
def test_dkw_margins(n, one, two):
    assert m.dkw_margin(n) == pytest.approx(one, abs=5e-5)
    assert m.dkw_margin(n, sides=2) == pytest.approx(two, abs=5e-5)


@pytest.mark.parametrize(
    "n, num_new, budget, rates",
    [
        (500, 500, 0.5, (0.475, 0.115, 0.033)),
        (100, 100, 0.5, (0.444, 0.101, 0.023)),
        (1000, 1000, 0.5, (0.482, 0.114, 0.037)),
        (500, 1000, 0.25, (0.476, 0.075, 0.006)),
    ],
)
def test_expected_violation_of_three_rules(n, num_new, budget, rates):
    got = [m.expected_violation(n, num_new, budget, rule=r) for r in ("quantile", "exact", "dkw1")]
    assert got == pytest.approx(list(rates), abs=5e-4)


def test_percentile_interval_takes_half_of_alpha_on_each_side():
    replicates = jnp.arange(1001.0)
    ends = [float(x) for x in m.percentile_interval(replicates, confidence_level=0.95)]
    assert ends == [25, 975]
    ends = [float(x) for x in m.percentile_interval(replicates, confidence_level=0.9)]
    assert ends == [50, 950]


@pytest.mark.parametrize("binning", ["width", "mass"])
def test_no_rows_give_nan_and_a_count_of_zero(binning):
    for p, y, where in (([], [], None), ([0.5, 0.2], [1, 0], [False, False])):
        details = m.expected_calibration_error_details(p, y, binning=binning, where=where)
        assert np.isnan(details.ece) and details.n_valid == 0
