"""Where every array lies: rules from path to partition, covering all that a step reads or writes.

A rule's partition is that of the trailing dimensions, so one rule serves a block and a stack of
blocks. Backbone kernels [in, out] are divided by `fsdp` along the residual stream and by `tensor`
along heads and hidden units; what is trained is small and lies whole on every device.
"""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from calibjax.errors import InputError, input_error
from calibjax.training.mesh import DATA, FSDP, TENSOR, batch_shards
from calibjax.trees import leaf_name, named_leaves

_BLOCK = r"(blocks|last_block)"
_OUT = r"(attention/[qkv]_proj|mlp/(gate|up)_proj)"
_IN = r"(attention/o_proj|mlp/down_proj)"
_TRAINED = r"(params|opt_state/\d+/\d+/(mu|nu))"

# (pattern of the whole path, partition of the trailing dimensions); the first match counts.
RULES: tuple[tuple[str, P], ...] = (
    (r"embedding", P(TENSOR, FSDP)),
    (r"lm_head/kernel", P(FSDP, TENSOR)),
    (rf"{_BLOCK}/{_OUT}/kernel", P(FSDP, TENSOR)),
    (rf"{_BLOCK}/{_OUT}/bias", P(TENSOR)),
    (rf"{_BLOCK}/{_IN}/kernel", P(TENSOR, FSDP)),
    (rf"{_BLOCK}/{_IN}/bias", P()),
    (rf"({_BLOCK}/(attention|mlp)_norm|norm)/scale", P()),
    (rf"{_TRAINED}/adapter/\w+_proj/[ab]", P()),
    (rf"{_TRAINED}/head/(kernels|biases)/\d+", P()),
    (rf"{_TRAINED}/temperature_kernel", P()),
    (r"constants/(mean|scale)", P()),
    (r"opt_state/\d+/\d+/count", P()),
    (r"step|skipped|skipped_in_a_row", P()),
)

Rules = Sequence[tuple[str, P]]


def spec_of(name: str, ndim: int, rules: Rules = RULES) -> P:
    """Partition of the array called `name`. Raises InputError when no rule covers it."""
    for pattern, spec in rules:
        if re.fullmatch(pattern, name) and len(spec) <= ndim:
            return P(*[None] * (ndim - len(spec)), *spec) if spec else P()
    fix = "add a rule to calibjax/training/sharding.py"
    raise InputError(f"{name} [{ndim} dimensions]: no sharding rule covers it; fix: {fix}")


def sharding_of(
    name: str, shape: Sequence[int], mesh: Mesh, rules: Rules = RULES
) -> NamedSharding:
    """Sharding of the array called `name`. Raises InputError when an axis does not divide it."""
    spec = spec_of(name, len(shape), rules)
    for dimension, (axis, size) in enumerate(zip(spec, shape)):
        if axis is not None and size % mesh.shape[axis]:
            expected = f"a multiple of {axis}={mesh.shape[axis]}"
            fix = f"another size of {axis} in --mesh"
            raise input_error(f"{name}: size of dimension {dimension}", size, expected, fix)
    return NamedSharding(mesh, spec)


def shardings(tree: Any, mesh: Mesh, rules: Rules = RULES) -> Any:
    """A tree of shardings for a tree of arrays or of their shapes."""
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: sharding_of(leaf_name(path), leaf.shape, mesh, rules), tree
    )


def specs(tree: Any, mesh: Mesh, rules: Rules = RULES) -> dict[str, P]:
    """Partition by path, for people and tests."""
    return {name: s.spec for name, s in named_leaves(shardings(tree, mesh, rules)).items()}


def replicated(mesh: Mesh) -> NamedSharding:
    """Every device holds the whole array."""
    return NamedSharding(mesh, P())


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """The leading dimension is divided over the `data` and `fsdp` axes."""
    return NamedSharding(mesh, P((DATA, FSDP)))


def check_batch_size(batch_size: int, mesh: Mesh) -> None:
    """Raises InputError unless every device gets the same number of groups."""
    shards = batch_shards(mesh)
    if batch_size % shards:
        most = max(n for n in range(1, batch_size + 1) if batch_size % n == 0 and n <= shards)
        fix = f"--config.batch_size={-(-batch_size // shards) * shards}, or --mesh=data={most}"
        expected = f"a multiple of {shards}, the number of parts of a batch on this mesh"
        raise input_error("batch_size", batch_size, expected, fix)


class Layout(NamedTuple):
    """Shardings of what goes into and comes out of a step; `batch` and `whole` stand for trees."""

    state: Any
    backbone: Any
    batch: NamedSharding
    whole: NamedSharding


def layout(state: Any, backbone: Any, mesh: Mesh) -> Layout:
    """The layout of a step. state: arrays or shapes, laid out by the rules; backbone: arrays or
    shapes that carry the sharding they were loaded with.
    """
    placed = jax.tree.map(lambda leaf: leaf.sharding, backbone)
    return Layout(shardings(state, mesh), placed, batch_sharding(mesh), replicated(mesh))


def put(tree: Any, where: Any) -> Any:
    """Host arrays (equal on every process) as device arrays; `where`: one sharding, or a tree.

    Each process hands over only the parts that its own devices hold; nothing is exchanged.
    """
    if isinstance(where, NamedSharding):
        return jax.tree.map(lambda leaf: _put(leaf, where), tree)
    return jax.tree.map(_put, tree, where)


def _put(leaf: Any, sharding: NamedSharding) -> jax.Array:
    if getattr(leaf, "sharding", None) == sharding:
        return leaf
    if sharding.is_fully_addressable:
        return jax.device_put(leaf, sharding)
    if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return jax.random.wrap_key_data(_put(jax.random.key_data(leaf), sharding))
    host = np.asarray(leaf)
    return jax.make_array_from_callback(host.shape, sharding, lambda index: host[index])
