"""The forecaster f(t, q, d): prompts, temperature code, heads, losses, presets."""

from calibjax.forecaster.forecaster import MARGINAL_TEMPERATURES, Forecaster, Reranked
from calibjax.forecaster.fourier import fourier_features
from calibjax.forecaster.presets import METHODS, PRESETS, Preset

__all__ = [
    "MARGINAL_TEMPERATURES",
    "METHODS",
    "PRESETS",
    "Forecaster",
    "Preset",
    "Reranked",
    "fourier_features",
]
