"""The whole protocol in one call equals the single functions on the rows of each split."""

import jax
import numpy as np
import pytest

from calibjax import metrics as m
from calibjax.errors import InputError
from tests.metrics import oracle

N, ROUTERS, SPLITS = 60, 3, 4
BUDGETS = (0.1, 0.29, 0.5, 1.0)
RULES = ("quantile", "exact", "predictive")
KEY = jax.random.key(0)


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    scores = rng.random((ROUTERS, N)).astype(np.float32)
    scores[1:] = np.round(scores[1:], 1)  # ties
    without = (rng.random(N) < 0.4).astype(float)
    return scores, without, (rng.random(N) < 0.6).astype(float)


@pytest.fixture(scope="module")
def splits():
    return m.random_splits(N, key=KEY, num_splits=SPLITS)


@pytest.fixture(scope="module")
def study(data, splits):
    return m.frontier_study(
        *data, BUDGETS, splits, rules=RULES, key=jax.random.key(1), num_replicates=100
    )


def test_each_cell_equals_the_frontiers_of_that_split(data, splits, study):
    scores, without, with_evidence = data
    for s in range(SPLITS):
        calibration, test = splits.calibration[s], splits.test[s]
        outcomes = without[test], with_evidence[test]
        np.testing.assert_allclose(study.never[s], outcomes[0].mean(), rtol=1e-6)
        np.testing.assert_allclose(study.always[s], outcomes[1].mean(), rtol=1e-6)
        for i, budget in enumerate(BUDGETS):
            best = oracle.exact_frontier(outcomes[1] - outcomes[0], *outcomes, budget)
            np.testing.assert_allclose(study.oracle[s, i], best, atol=1e-6)
            flat = oracle.exact_frontier(np.zeros(test.sum()), *outcomes, budget)
            np.testing.assert_allclose(study.random[s, i], flat, atol=1e-6)
            for r in range(ROUTERS):
                own = scores[r][calibration], scores[r][test]
                exact = oracle.exact_frontier(own[1], *outcomes, budget)
                np.testing.assert_allclose(study.exact[r, s, i], exact, atol=1e-6)
                for rule in RULES:
                    expected = oracle.deployable(*own, *outcomes, budget, rule)
                    for field, value in expected.items():
                        got = getattr(study.deployable[rule], field)[r, s, i]
                        np.testing.assert_allclose(got, value, atol=2e-6, err_msg=field)


def test_estimates_are_means_over_splits_inside_their_intervals(study):
    np.testing.assert_allclose(study.exact_interval.estimate, study.exact.mean(1), atol=1e-6)
    for rule, figures in study.intervals.items():
        for name, interval in figures.items():
            found = study.deployable[rule]
            expected = getattr(found, name).mean(1)
            if name == "harm_used":  # of all questions that got evidence, whatever their split
                with np.errstate(invalid="ignore"):  # a budget of 0 gives it to none
                    expected = np.asarray(found.harm_all).mean(1) / np.asarray(found.usage).mean(1)
            np.testing.assert_allclose(interval.estimate, expected, atol=1e-6)
            assert not (interval.low > interval.estimate + 1e-6).any()
            assert not (interval.high < interval.estimate - 1e-6).any()


def test_budgets_zero_and_one_are_never_and_always(data, splits):
    ends = m.frontier_study(*data, (0.0, 1.0), splits, rules=("quantile",))
    np.testing.assert_allclose(ends.exact[:, :, 0], np.broadcast_to(ends.never, (3, 4)), atol=1e-6)
    np.testing.assert_allclose(ends.exact[:, :, 1], np.broadcast_to(ends.always, (3, 4)), atol=1e-6)


def test_scores_fitted_anew_in_each_split_have_their_own_axis(data, splits, study):
    scores = np.broadcast_to(data[0][:, None], (ROUTERS, SPLITS, N))
    again = m.frontier_study(scores, *data[1:], BUDGETS, splits, rules=("quantile",))
    for a, b in zip(again.deployable["quantile"], study.deployable["quantile"]):
        np.testing.assert_allclose(a, b, atol=1e-6)


def test_work_in_pieces_gives_the_same_figures(data, splits, study, monkeypatch):
    # Two splits at a time: the last piece is filled up with splits without rows.
    from calibjax.metrics import study as module

    three = m.Splits(splits.calibration[:3], splits.test[:3])
    monkeypatch.setattr(module, "BLOCK", 2 * 5 * N)
    pieces = m.frontier_study(*data, BUDGETS, three, rules=("quantile",))
    for a, b in zip(pieces.deployable["quantile"], study.deployable["quantile"]):
        np.testing.assert_allclose(a, b[:, :3], atol=1e-6)


def test_splits_are_disjoint_seeded_and_keep_clusters_whole():
    cluster = np.arange(40) // 4
    splits = m.random_splits(40, key=KEY, num_splits=5, cluster=cluster)
    again = m.random_splits(40, key=KEY, num_splits=3, cluster=cluster)
    assert not (splits.calibration & splits.test).any()
    for mask, longer in zip(again, splits):
        assert (mask == longer[:3]).all()
        assert (mask.sum(1) == 12).all()  # three of ten clusters
        assert (mask == mask[:, ::4].repeat(4, axis=1)).all()
    with pytest.raises(InputError, match="at most 1"):
        m.random_splits(10, key=KEY, num_splits=1, calibration=0.6, test=0.6)


def test_a_threshold_takes_the_best_rows_so_the_exact_gap_is_zero(study):
    for rule in RULES:
        assert study.exact_gap[rule].shape == study.exact.shape
        np.testing.assert_allclose(study.exact_gap[rule], 0, atol=1e-6)


def test_intervals_of_missed_and_harm_used_are_about_the_means_over_splits(study):
    for rule in RULES:
        frontier, found = study.deployable[rule], study.intervals[rule]
        means = {name: np.asarray(getattr(frontier, name)).mean(axis=1) for name in found}
        np.testing.assert_allclose(found["missed"].estimate, means["missed"], atol=2e-6)
        used = means["usage"]
        pooled = np.where(used > 0, means["harm_all"] / np.where(used > 0, used, 1), np.nan)
        np.testing.assert_allclose(found["harm_used"].estimate, pooled, atol=2e-6)
        for name in ("missed", "harm_used"):
            ends = found[name]
            known = ~np.isnan(np.asarray(ends.low))
            assert (ends.low <= ends.estimate)[known].all()
            assert (ends.estimate <= ends.high)[known].all()


def test_violation_rates_and_their_errors():
    violated = np.zeros((2, 4, 1), bool)
    violated[:, :2] = True  # both routers on the same two splits
    rate = m.violation_rate(violated)
    assert rate.rate.tolist() == [[0.5], [0.5]] and rate.overall.tolist() == [0.5]
    # Four splits, not eight independent cells.
    assert float(rate.overall_standard_error[0]) == pytest.approx(0.25)
    # .5 -+ 1.96 * .25, within [0, 1]; at 68.27 % one standard error.
    assert float(rate.overall_low[0]) == pytest.approx(0.0100, abs=1e-4)
    assert float(rate.overall_high[0]) == pytest.approx(0.9900, abs=1e-4)
    one = m.violation_rate(violated, confidence_level=0.6827)
    assert float(one.overall_high[0]) == pytest.approx(0.75, abs=1e-4)
    single = m.violation_rate(violated[:, :1])
    assert np.isnan(single.overall_low[0]) and np.isnan(single.overall_high[0])


@pytest.mark.parametrize(
    "change, text",
    [
        (dict(scores=np.zeros((2, 7))), "scores.shape"),
        (dict(scores=np.full((1, N), np.nan)), r"scores\[0\]\[row 0\]=nan"),
        (dict(budgets=(1.5,)), "budgets=1.5"),
        (dict(num_replicates=10, key=None), "key=None"),
    ],
)
def test_bad_input_is_refused(data, splits, change, text):
    options = {"scores": data[0], "budgets": BUDGETS, **change}
    scores, budgets = options.pop("scores"), options.pop("budgets")
    with pytest.raises(InputError, match=text):
        m.frontier_study(scores, *data[1:], budgets, splits, **options)
