"""f(t, q, d) as a module of parameters and the pure functions that evaluate it.

f = read-out of head(h + W_p PE(t)), CalibRAG eq. 3, with h the decoder's feature of the prompt for
(q, d). The temperature enters after the decoder, so one pass serves every t.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import ArrayLike

from calibjax.backbone.config import DecoderConfig
from calibjax.backbone.lora import Adapter
from calibjax.forecaster.fourier import fourier_features
from calibjax.forecaster.heads import Head, head_logits
from calibjax.forecaster.presets import Preset


class FeatureStatistic(nnx.Variable):
    """A constant measured once on the training rows: saved with the parameters, never trained."""


class ForecastModel(nnx.Module):
    """What is trained: adapter, W_p and head; beside them the constants that scale the features.

    temperature_kernel: W_p, [2 * num_frequencies, D], no bias; None when f does not depend on t.
    adapter: None when the head is trained on frozen features.
    """

    def __init__(self, preset: Preset, num_features: int, adapter: Adapter | None, key: jax.Array):
        head_key, temperature_key = jax.random.split(key)
        self.adapter = nnx.data(adapter)
        self.head = Head(
            preset.head, num_features, preset.num_outputs, last_bias=preset.last_bias, key=head_key
        )
        kernel = None
        if preset.fourier is not None:
            kernel = nnx.Param(_initial_kernel(preset, num_features, temperature_key))
        self.temperature_kernel = nnx.data(kernel)
        self.mean = FeatureStatistic(jnp.zeros(num_features))
        self.scale = FeatureStatistic(jnp.ones(num_features))


# One program instead of one for every operation of every initialiser.
@partial(jax.jit, static_argnums=(0, 1))
def initial_model(config: DecoderConfig, preset: Preset, key: jax.Array) -> ForecastModel:
    """The model before training; an adapter that changes nothing yet, where the preset has one."""
    adapter_key, head_key = jax.random.split(key)
    adapter = None
    if preset.lora_rank:
        adapter = Adapter(
            config,
            key=adapter_key,
            rank=preset.lora_rank,
            alpha=preset.lora_alpha,
            dropout=preset.lora_dropout,
            targets=preset.lora_targets,
        )
    return ForecastModel(preset, config.hidden_size, adapter, head_key)


def _initial_kernel(preset: Preset, num_features: int, key: jax.Array) -> jax.Array:
    """Xavier normal; in `fixed`, wave n starts at 2^-n of a standardised feature's size.

    A forecast that starts smooth in t, and that t matters to from the start, needs a fraction of
    the rows: the fast waves are noise until there are rows to fit them.
    """
    shape = (2 * preset.num_frequencies, num_features)
    if preset.fourier != "fixed":
        return jax.nn.initializers.glorot_normal()(key, shape)
    size_F = jnp.repeat(2.0 ** -jnp.arange(preset.num_frequencies, dtype=jnp.float32), 2)
    return size_F[:, None] * jax.random.normal(key, shape)


def split_model(model: ForecastModel) -> tuple[nnx.GraphDef, nnx.State, nnx.State]:
    """Structure, trainables and constants; `nnx.merge` puts them together again."""
    graphdef, params, *rest = nnx.split(model, nnx.Param, ...)
    return graphdef, params, rest[0]


def forecast_logits(
    model: ForecastModel, features: jax.Array, temperatures: jax.Array, preset: Preset
) -> jax.Array:
    """Logits float32 [..., M, C] for features [..., D] at temperatures [..., M]."""
    h = standardized(model, features)[..., None, :]
    if model.temperature_kernel is None or preset.fourier is None:
        h = jnp.broadcast_to(h, (*temperatures.shape, h.shape[-1]))
    else:
        code = fourier_features(
            temperatures,
            num_frequencies=preset.num_frequencies,
            t_min=preset.t_min,
            t_max=preset.t_max,
            variant=preset.fourier,
        )
        kernel = model.temperature_kernel[...]
        h = h + jnp.einsum("...f,fd->...d", code, kernel, precision="highest")
    return head_logits(model.head, h)


def standardized(model: ForecastModel, features: ArrayLike) -> jax.Array:
    """Features as the head reads them, float32; statistics that were never set change nothing.

    The residual stream has a few coordinates a hundred times larger than the rest.
    """
    h = jnp.asarray(features, jnp.float32)
    ones = (1,) * (h.ndim - 1)
    return (h - model.mean[...].reshape(*ones, -1)) / model.scale[...].reshape(*ones, -1)


def standardize(model: ForecastModel, features_ND: np.ndarray) -> None:
    """Set the model's feature statistics to mean and standard deviation of these rows."""
    features = np.asarray(features_ND, np.float64)
    spread = features.std(axis=0)
    # A coordinate that (nearly) never moves carries nothing; dividing by its noise would shout it.
    floor = 1e-3 * np.median(spread)
    model.mean = FeatureStatistic(jnp.asarray(features.mean(axis=0), jnp.float32))
    model.scale = FeatureStatistic(jnp.asarray(np.maximum(spread, max(floor, 1e-6)), jnp.float32))
