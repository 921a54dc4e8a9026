"""One pass of the decoder over many (query, document) pairs: features that every head can read."""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from calibjax import progress
from calibjax.backbone.lora import Adapter
from calibjax.backbone.packed import Packed, packed_features
from calibjax.data.batching import BatchPlan, Group, collate, plan_passes
from calibjax.training import sharding, signals
from calibjax.training.mesh import batch_shards, length_multiple, mesh_of, tokens_per_program

# Tokens of one pass and device, padding included: enough to fill two cores, little enough to stay
# in cache; an accelerator is filled by more.
TOKENS_PER_PASS, ACCELERATOR_TOKENS = 2048, 32768


def features_pass(backbone: Any, mesh: Mesh) -> jax.stages.Wrapped:
    """A compiled pass (backbone, adapter, packed) -> features [B, N, D] whole on every device.

    backbone: arrays or shapes that carry their sharding; rows are divided over the mesh.
    """
    placed, tree = jax.tree.flatten(jax.tree.map(lambda leaf: leaf.sharding, backbone))
    return _compiled(tree, tuple(placed), mesh)


@lru_cache(maxsize=8)
def _compiled(tree: Any, placed: tuple[Any, ...], mesh: Mesh) -> jax.stages.Wrapped:
    """One function per layout, so that every call of a shape finds its program."""
    whole = sharding.replicated(mesh)
    return jax.jit(
        _features,
        in_shardings=(jax.tree.unflatten(tree, placed), whole, sharding.batch_sharding(mesh)),
        out_shardings=whole,
    )


def _features(backbone: Any, adapter: Adapter | None, packed: Packed) -> jax.Array:
    return packed_features(backbone, packed, adapter=adapter)


def extract_features(
    backbone: Any,
    adapter: Adapter | None,
    groups: Sequence[Group],
    *,
    num_rows: int,
    label: str = "",
) -> np.ndarray:
    """float32 [num_rows, D]: the feature of every row of the groups.

    label: shows progress under this name; empty shows none.
    """
    mesh = mesh_of(backbone)
    run = features_pass(backbone, mesh)
    adapter = sharding.put(adapter, sharding.replicated(mesh))
    num_documents = max(len(group.suffixes) for group in groups)
    features_ND: np.ndarray | None = None
    on_cpu = mesh.devices.flat[0].platform == "cpu"
    plans: Iterable[BatchPlan] = plan_passes(
        groups,
        TOKENS_PER_PASS if on_cpu else ACCELERATOR_TOKENS,
        batch_shards(mesh),
        multiple=length_multiple(mesh),
        tokens_per_program=tokens_per_program(mesh),
    )
    for plan in progress.track(plans, label, "passes") if label else plans:
        signals.check()
        packed = collate(groups, plan, num_documents=num_documents)
        rows = sharding.put(packed, sharding.batch_sharding(mesh))
        with jax.set_mesh(mesh):
            features_BND = np.asarray(run(backbone, adapter, rows))
        if features_ND is None:
            features_ND = np.full((num_rows, features_BND.shape[-1]), np.nan, np.float32)
        for b, number in enumerate(plan.groups):
            for n, members in enumerate(groups[number].rows):
                features_ND[list(members)] = features_BND[b, n]
    assert features_ND is not None
    return features_ND
