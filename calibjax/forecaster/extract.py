"""One pass of the decoder over many (query, document) pairs: features that every head can read."""

from collections.abc import Iterable, Sequence
from typing import Any

import jax
import numpy as np

from calibjax import progress
from calibjax.backbone.lora import Adapter
from calibjax.backbone.packed import Packed, packed_features
from calibjax.data.batching import BatchPlan, Group, collate, plan_passes
from calibjax.training import signals

# Tokens of one pass, padding included: enough to fill two cores, little enough to stay in cache.
TOKENS_PER_PASS = 2048


def _features(backbone: Any, adapter: Adapter | None, packed: Packed) -> jax.Array:
    return packed_features(backbone, packed, adapter=adapter)


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
    """float32 [num_rows, D]: the feature of every row of the groups.

    label: shows progress under this name; empty shows none.
    """
    num_documents = max(len(group.suffixes) for group in groups)
    features_ND: np.ndarray | None = None
    plans: Iterable[BatchPlan] = plan_passes(groups, tokens_per_pass)
    for plan in progress.track(plans, label, "passes") if label else plans:
        signals.check()
        packed = collate(groups, plan, num_documents=num_documents)
        features_BND = np.asarray(_jitted_features(backbone, adapter, packed))
        if features_ND is None:
            features_ND = np.full((num_rows, features_BND.shape[-1]), np.nan, np.float32)
        for b, number in enumerate(plan.groups):
            for n, rows in enumerate(groups[number].rows):
                features_ND[list(rows)] = features_BND[b, n]
    assert features_ND is not None
    return features_ND
