"""Intervals from a normal approximation: the published values, and their ends."""

import numpy as np
import pytest

from calibjax import metrics


def test_wilson_intervals_are_the_published_ones():
    # Newcombe 1998, table I: 81 of 263, and 0 of 20.
    found = metrics.wilson_interval(81 / 263, 263, 0.95)
    assert found == pytest.approx((0.2553, 0.3662), abs=5e-5)
    assert metrics.wilson_interval(0, 20, 0.95) == pytest.approx((0.0, 0.1611), abs=5e-5)


@pytest.mark.parametrize("share", [0.0, 1 / 3, 1.0])
def test_a_share_is_inside_its_interval_and_that_inside_0_and_1(share):
    low, high = metrics.wilson_interval(share, 3, 0.999)
    assert 0 <= low <= share <= high <= 1


def test_normal_intervals_are_the_quantiles_of_the_level():
    low, high = metrics.normal_interval(np.array([0.0, 2.0]), np.array([1.0, 0.5]), 0.95)
    # Tables of the normal distribution give 1.95996 for 95 %.
    np.testing.assert_allclose(high, [1.95996, 2.97998], atol=1e-5)
    np.testing.assert_allclose(low, [-1.95996, 1.02002], atol=1e-5)


@pytest.mark.parametrize("level", [0.0, 1.0, 95, float("nan")])
def test_a_level_that_is_none_is_refused(level):
    with pytest.raises(ValueError, match="level="):
        metrics.normal_interval(0.0, 1.0, level)
