"""How a head starts: feature statistics, ridge regression and warm-up on frozen features."""

from collections.abc import Callable, Sequence

import jax
import numpy as np

from calibjax.backbone.load import Decoder
from calibjax.forecaster.extract import extract_features
from calibjax.forecaster.model import ForecastModel, standardize, standardized
from calibjax.forecaster.presets import Preset
from calibjax.records import SupervisionRow
from calibjax.training.labelled import Data, prepare
from calibjax.training.ridge import start_from_ridge
from calibjax.training.warmup import Rows, fit_head

# Features of the frozen decoder, of training and of validation rows.
Frozen = Callable[[], tuple[np.ndarray, np.ndarray]]


def start_head(
    decoder: Decoder,
    model: ForecastModel,
    preset: Preset,
    data: Data,
    held_out: Data,
    class_weight_C: jax.Array,
    frozen: Frozen | None,
) -> ForecastModel:
    """The model with its feature statistics measured and its head started, as the preset says.

    All of it on features of the frozen decoder, which are the model's own at the start: B of the
    adapter is zero.
    """
    if not (preset.standardize or preset.ridge_start or preset.head_warmup_steps):
        return model
    parts = (data, held_out)
    found = [_frozen(decoder, part) for part in parts] if frozen is None else frozen()
    train_rows, validation_rows = (
        Rows(features, part.temperature, part.label) for features, part in zip(found, parts)
    )
    if preset.standardize:
        standardize(model, train_rows.features)
    if preset.ridge_start:
        start_from_ridge(
            model,
            preset,
            np.asarray(standardized(model, train_rows.features)),
            train_rows.temperature,
            train_rows.label,
            [row.question_id for row in data.rows],
        )
    if not preset.head_warmup_steps:
        return model
    return fit_head(model, preset, train_rows, validation_rows, class_weight_C=class_weight_C)


def frozen_features(
    decoder: Decoder, preset: Preset, rows: Sequence[SupervisionRow]
) -> np.ndarray:
    """float32 [N, D]: features of the frozen decoder, the same for every method of a preset."""
    return _frozen(decoder, prepare(decoder, preset, rows))


def _frozen(decoder: Decoder, data: Data) -> np.ndarray:
    return extract_features(
        decoder.module, None, data.groups, num_rows=len(data.rows), label="features"
    )
