"""One pass of the decoder over many (query, document) pairs: features that every head can read."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from calibjax import progress
from calibjax.backbone.decoder import shared_features
from calibjax.backbone.lora import Adapter
from calibjax.data.batching import Group, collate, plan_passes
from calibjax.training import signals

# Tokens of one pass, padding included: enough to fill two cores, little enough to stay in cache.
TOKENS_PER_PASS = 2048


def _features(backbone: Any, adapter: Adapter | None, tokens: Any) -> jax.Array:
    return shared_features(backbone, *tokens, adapter=adapter)


_jitted_features = jax.jit(_features)


def extract_features(
    backbone: Any,
    adapter: Adapter | None,
    groups: Sequence[Group],
    *,
    num_rows: int,
    tokens_per_pass: int = TOKENS_PER_PASS,
    label: str = "",
) -> np.ndarray:
    """float32 [num_rows, D]: the feature of every row that the groups hold, NaN for the others.

    label: shows progress under this name; empty shows none.
    """
    features_ND: np.ndarray | None = None
    passes = plan_passes(groups, tokens_per_pass)
    for plan, batch_size, num_documents in progress.track(passes, label, "passes") if label else passes:
        signals.check()
        tokens = collate(groups, plan, batch_size=batch_size, num_documents=num_documents)
        features_BND = np.asarray(_jitted_features(backbone, adapter, tokens))
        if features_ND is None:
            features_ND = np.full((num_rows, features_BND.shape[-1]), np.nan, np.float32)
        for b, number in enumerate(plan.groups):
            for n, rows in enumerate(groups[number].rows):
                features_ND[list(rows)] = features_BND[b, n]
    return np.zeros((0, 0), np.float32) if features_ND is None else features_ND
