import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calibjax.errors import InputError
from calibjax.forecaster import fourier_features

# float32 phases of up to 800 rad carry about 5e-5 rad of rounding.
TOLERANCE = 1e-4
GRID = np.arange(1.0, 2.0 + 1e-9, 0.02)


def reference(t: float, variant: str) -> np.ndarray:
    """The three formulas, written out in float64."""
    waves = []
    for i in range(6):
        if variant == "paper":
            phase = 2 ** (i + 1) * 2 * np.pi * t
        elif variant == "code":
            phase = 2**i * 2 * np.pi * t
        else:
            phase = 2**i * np.pi * (t - 1.0)
        waves.append((np.sin(phase), np.cos(phase)))
    pairs = np.array(waves)
    return pairs.T.ravel() if variant == "code" else pairs.ravel()


@pytest.mark.parametrize("variant", ["paper", "code", "fixed"])
def test_features_follow_the_formula(variant):
    got = fourier_features(GRID, variant=variant)
    want = np.stack([reference(t, variant) for t in GRID])
    assert got.shape == (len(GRID), 12) and got.dtype == jnp.float32
    # The grid itself is rounded to float32: 6e-8 in t is 5e-5 in the fastest phase.
    np.testing.assert_allclose(got, want, atol=2e-4)


def distance(variant: str, a: float, b: float) -> float:
    pair = fourier_features(np.array([a, b]), variant=variant)
    return float(jnp.linalg.norm(pair[0] - pair[1]))


def test_the_printed_formula_cannot_tell_careful_from_careless():
    assert distance("paper", 1.0, 1.5) < 1e-3
    assert distance("paper", 1.0, 2.0) < 1e-3


def test_the_code_wraps_around_at_the_ends():
    assert distance("code", 1.0, 2.0) < TOLERANCE
    assert distance("code", 1.0, 1.5) == pytest.approx(2.0, abs=1e-3)


def test_the_fixed_variant_tells_all_temperatures_apart():
    features = np.asarray(fourier_features(GRID, variant="fixed"), np.float64)
    gaps = np.linalg.norm(features[:, None] - features[None], axis=-1)
    np.fill_diagonal(gaps, np.inf)
    assert gaps.min() > 1.99
    assert distance("fixed", 1.0, 2.0) == pytest.approx(2.0, abs=TOLERANCE)


def test_six_values_of_the_fixed_variant():
    got = fourier_features(1.25, variant="fixed")
    half = np.sqrt(0.5)
    want = [half, half, 1, 0, 0, -1, 0, 1, 0, 1, 0, 1]
    np.testing.assert_allclose(got, want, atol=TOLERANCE)


@pytest.mark.parametrize("t", [0.0, 0.99, 2.01, np.nan, np.inf])
def test_temperatures_outside_the_range_are_refused(t):
    with pytest.raises(InputError, match=r"temperature=.*\[1.0, 2.0\]"):
        fourier_features(np.array([1.5, t]))


def test_traced_temperatures_outside_the_range_give_nan():
    got = jax.jit(fourier_features)(jnp.array([1.5, 0.5]))
    assert np.isfinite(got[0]).all() and np.isnan(got[1]).all()


def test_jit_and_eager_agree():
    for variant in ("paper", "code", "fixed"):
        eager = fourier_features(GRID, variant=variant)
        grid = jnp.asarray(GRID, jnp.float32)
        traced = jax.jit(lambda t: fourier_features(t, variant=variant))(grid)
        np.testing.assert_allclose(eager, traced, atol=TOLERANCE)


def test_range_and_count_are_free():
    got = fourier_features(0.5, num_frequencies=2, t_min=0.0, t_max=1.0, variant="fixed")
    np.testing.assert_allclose(got, [1, 0, 0, -1], atol=TOLERANCE)


def test_unknown_variant_is_named():
    with pytest.raises(InputError, match="variant=other"):
        fourier_features(1.0, variant="other")
