"""Utility of evidence and its shares."""

import jax
import numpy as np
import pytest

from calibjax import routing


def test_utility_is_the_difference_of_the_arms_and_counts_add_to_n():
    without, with_evidence = [0, 1, 1, 0, 0.5], [1, 0, 1, 0, 0.75]
    u = routing.utility(without, with_evidence)
    np.testing.assert_array_equal(u, [1, -1, 0, 0, 0.25])
    found = routing.shares(u, num_replicates=50)
    shares = [float(part.estimate) for part in found[:3]]
    np.testing.assert_allclose(shares, [0.2, 0.4, 0.4], rtol=1e-6)
    # Shares of five rows in float32.
    assert abs(sum(shares) - 1) < 1e-6
    assert abs(float(found.mean.estimate) - 0.05) < 1e-6


def test_utility_runs_inside_a_trace():
    u = jax.jit(routing.utility)(np.float32([0, 1]), np.float32([1, 0]))
    np.testing.assert_array_equal(u, [1, -1])


@pytest.mark.parametrize("wrong", [[0, 1.2], [0, np.nan], [-0.1, 0]])
def test_an_outcome_outside_the_unit_interval_is_named(wrong):
    with pytest.raises(ValueError, match=r"correct_with=.*\[0, 1\]"):
        routing.utility([0, 1], wrong)


def test_arms_of_other_lengths_are_refused():
    with pytest.raises(ValueError, match="both outcomes of the same rows"):
        routing.utility([0, 1], [1])


def test_two_equal_runs_of_an_arm_show_no_harm_and_two_coin_flips_do():
    flips = np.random.default_rng(0).integers(0, 2, (2, 400))
    same = routing.shares(routing.utility(flips[0], flips[0]), num_replicates=50)
    assert float(same.harmful.estimate) == float(same.beneficial.estimate) == 0.0
    noisy = routing.shares(routing.utility(*flips), num_replicates=50)
    # P(1 then 0) = 1/4; four standard errors at n = 400 are .087.
    assert abs(float(noisy.harmful.estimate) - 0.25) < 0.087


def test_rows_of_one_question_are_resampled_together():
    u = np.repeat([1.0, -1.0] * 10, 20)
    alone = routing.shares(u, num_replicates=200)
    together = routing.shares(u, num_replicates=200, cluster=np.repeat(np.arange(20), 20))
    width = [float(part.harmful.high - part.harmful.low) for part in (alone, together)]
    # Twenty questions say less than four hundred rows: sqrt(20) times less here.
    assert width[1] > 3 * width[0]
