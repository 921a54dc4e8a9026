"""Leaves of a tree by the names that checkpoints, sharding rules and messages use."""

from typing import Any

import jax


def named_leaves(tree: Any) -> dict[str, Any]:
    """Leaves by path, `params/head/kernels/0`: the names in checkpoints and messages."""
    flat, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {leaf_name(path): leaf for path, leaf in flat}


def leaf_name(path: tuple[Any, ...]) -> str:
    """Slash-joined name of a tree path, without the wrapper that nnx puts around each array."""
    return jax.tree_util.keystr(path, simple=True, separator="/").removesuffix("/value")


def with_leaves(template: Any, leaves: dict[str, Any]) -> Any:
    """The tree of `template` with its leaves taken from `leaves` by name."""
    flat, treedef = jax.tree_util.tree_flatten_with_path(template)
    return jax.tree_util.tree_unflatten(treedef, [leaves[leaf_name(path)] for path, _ in flat])
