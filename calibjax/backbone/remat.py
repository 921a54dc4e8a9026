"""What the backward pass recomputes, by name: memory for time, the values stay the same."""

from collections.abc import Callable
from typing import Any

import jax

from calibjax.errors import closest, input_error

_SAVED = {
    # With the middle of the residual stream kept, no product with the backbone's weights is
    # computed again; the context is needed only where the output projection has an adapter.
    "save_qkv_context_mlp": ("qkv", "softmax", "context", "middle", "gate", "up"),
    "save_qkv_context": ("qkv", "softmax", "context"),
}
# From the most memory to the least. Names in `_SAVED` are given to arrays in `layers`, `attention`.
POLICIES = ("none", "dots", *_SAVED, "full")


def check_policy(name: str) -> None:
    """Raises InputError unless `name` is one of `POLICIES`."""
    if name not in POLICIES:
        near = closest(name, POLICIES)
        fix = None if near is None else f"did you mean {near}"
        raise input_error("remat", name, ", ".join(POLICIES), fix)


def rematerialized(body: Callable[..., Any], policy: str) -> Callable[..., Any]:
    """The body of a scan over blocks, keeping of a block only what `policy` says.

    none: everything but attention's probabilities. dots: products with weights. save_...: the named
    arrays. full: the block's input alone.
    """
    if policy == "none":
        return body
    saveable = jax.checkpoint_policies.nothing_saveable
    if policy == "dots":
        saveable = jax.checkpoint_policies.dots_with_no_batch_dims_saveable
    elif policy in _SAVED:
        saveable = jax.checkpoint_policies.save_only_these_names(*_SAVED[policy])
    # The scan itself keeps the recomputation apart, so common subexpressions cannot undo it.
    return jax.checkpoint(body, prevent_cse=False, policy=saveable)
