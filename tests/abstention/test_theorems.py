"""Both theorems of RegimeAbstain on synthetic regimes.

1: a score can gain something iff success depends on the features. 2: no feature is best everywhere.
"""

import numpy as np
import pytest

from calibjax import metrics
from calibjax.abstention import RCS
from calibjax.abstention.examples import column, example_features, half_of
from calibjax.abstention.resampling import resample
from calibjax.abstention.signals import Signal
from calibjax.abstention.study import random_area_sd
from tests.abstention.data import make_examples


def judge(driver):
    """Paired replicates of RCS, of RCS without a feature, and of single features."""
    examples = make_examples(500, 1, driver=driver)
    made, success = example_features(examples), column(examples, lambda e: e.success)
    tune = half_of([e.id for e in examples], 0)

    def fitted(some):
        rcs = RCS.fit(some.take(tune), success[tune])
        return Signal(rcs.logit(some)[~tune], rcs.score(some)[~tune])

    others = {
        "random": np.zeros((~tune).sum()),
        "max_score": made.column("hop1_max")[~tune],
        "query_len_inv": -made.column("query_len")[~tune],
        "without query_len": fitted(made.without("query_len")).score,
        "without hop1_max": fitted(made.without("hop1_max")).score,
    }
    # Intervals from 200 replicates are rough; the effects asked for are several standard errors.
    drawn = resample({"rcs": fitted(made)}, others, success[~tune], seed=0, replicates=200)
    return drawn, success[~tune]


def area(drawn, name):
    place = drawn.columns.index(name)
    return drawn.areas.estimate[0, place], drawn.areas.replicates[:, 0, place]


def difference(drawn, a, b):
    """Estimate, low, high of a minus b."""
    (one, ones), (two, twos) = area(drawn, a), area(drawn, b)
    return one - two, *np.quantile(ones - twos, [0.025, 0.975])


@pytest.fixture(scope="module")
def judged():
    """Regimes by what drives success, all with the same shapes, so that programs are shared."""
    return {driver: judge(driver) for driver in ("none", "hop1", "length")}


def test_without_information_nothing_is_gained(judged):
    drawn, success = judged["none"]
    _, low, high = difference(drawn, "rcs", "random")
    assert low < 0 < high
    assert abs(area(drawn, "rcs")[0] - success.mean()) < 3 * random_area_sd(success)


def test_with_information_something_is(judged):
    for driver in ("hop1", "length"):
        assert difference(judged[driver][0], "rcs", "random")[1] > 0


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
    # Complementarity: what one regime cannot do without is worth nothing in the other.
    (hop1, _), (length, _) = judged["hop1"], judged["length"]
    assert difference(length, "without query_len", "rcs")[2] < 0
    assert abs(difference(hop1, "without query_len", "rcs")[0]) < 0.02
    assert abs(difference(length, "without hop1_max", "rcs")[0]) < 0.02
    assert difference(hop1, "max_score", "query_len_inv")[1] > 0
    assert difference(length, "query_len_inv", "max_score")[1] > 0


def test_the_spread_of_a_random_order_is_that_of_its_closed_form():
    rng = np.random.default_rng(0)
    y = (rng.random(40) < 0.4).astype(float)
    draws = [
        float(np.mean(np.cumsum(rng.permutation(y)) / np.arange(1, 41))) for _ in range(4000)
    ]
    # The standard error of a standard deviation from 4000 draws is about 1.1 %.
    assert random_area_sd(y) == pytest.approx(np.std(draws), rel=0.05)
