"""Both theorems of RegimeAbstain on synthetic regimes.

1: a score can gain something iff success depends on the features. 2: no feature is best everywhere.
"""

import numpy as np
import pytest

from calibjax import metrics
from calibjax.abstention.fitting import Settings, fit_regime
from calibjax.abstention.study import judge_regime, random_area_sd
from tests.abstention.data import make_examples

# Intervals from 200 replicates are rough; the effects asked for are several standard errors.
SETTINGS = Settings(replicates=200)


@pytest.fixture(scope="module")
def judged():
    """Regimes by what drives success, all with the same shapes, so that programs are shared."""
    drivers = ("none", "hop1", "length")
    regimes = {d: fit_regime(make_examples(500, 1, driver=d), SETTINGS) for d in drivers}
    return {driver: judge_regime(regime, SETTINGS) for driver, regime in regimes.items()}


def test_without_information_nothing_is_gained(judged):
    cell = judged["none"]["comparisons"]["rcs-random"]["auc_ac"]
    assert cell["low"] < 0 < cell["high"]
    area, base = judged["none"]["signals"]["rcs"]["auc_ac"], judged["none"]["base"]
    assert abs(area["estimate"] - base["success_rate"]) < 3 * base["auc_ac_random_sd"]


def test_the_bayes_score_of_no_information_is_the_constant():
    y = (np.random.default_rng(0).random(400) < 0.6).astype(float)
    area = metrics.area_under_accuracy_coverage(np.full(400, 0.6), y)
    assert area == pytest.approx(y.mean(), abs=1e-6)


@pytest.mark.parametrize("low, high", [(0.5, 0.7), (0.2, 0.9), (0.4, 0.4)])
def test_planted_structure_gives_the_gain_of_its_closed_form(low, high):
    # phi is 0 or 1 with probability 1/2, P(y=1|phi) = low or high. The accuracy at coverage c is
    # high up to 1/2 and then (high/2 + low (c - 1/2)) / c; its area is
    # (low + high)/2 + (high - low)/2 ln 2. So the gain over random is (high - low)/2 ln 2, which
    # is 0 just when I(y; phi) = 0.
    n = 20000
    phi = np.repeat([1.0, 0.0], n // 2)
    y = np.zeros(n)
    y[: round(high * n / 2)] = 1
    y[n // 2 : n // 2 + round(low * n / 2)] = 1
    area = float(metrics.area_under_accuracy_coverage(phi, y))
    # Soft counts make the ranking exact; what is left is the sum over k against its integral.
    assert area - y.mean() == pytest.approx((high - low) / 2 * np.log(2), abs=2e-4)


def test_each_regime_needs_its_own_feature(judged):
    hop1, length = judged["hop1"]["ablation"], judged["length"]["ablation"]
    # Complementarity: what one regime cannot do without is worth nothing in the other.
    assert length["query_len"]["high"] < 0 < 0.03 - hop1["query_len"]["delta"]
    assert abs(hop1["query_len"]["delta"]) < 0.02
    assert abs(length["hop1_max"]["delta"]) < 0.02
    best = {
        name: max(("max_score", "query_len_inv"), key=lambda s: part["signals"][s]["gain"])
        for name, part in judged.items()
        if name != "none"
    }
    assert best == {"hop1": "max_score", "length": "query_len_inv"}


def test_the_spread_of_a_random_order_is_that_of_its_closed_form():
    rng = np.random.default_rng(0)
    y = (rng.random(40) < 0.4).astype(float)
    draws = [
        float(np.mean(np.cumsum(rng.permutation(y)) / np.arange(1, 41))) for _ in range(4000)
    ]
    # The standard error of a standard deviation from 4000 draws is about 1.1 %.
    assert random_area_sd(y) == pytest.approx(np.std(draws), rel=0.05)
