"""What a training run carries from step to step: arrays only, nothing of the frozen backbone."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from calibjax.forecaster.model import ForecastModel, split_model


@jax.tree_util.register_dataclass
@dataclass
class TrainState:
    """params: LoRA, W_p and head. constants: feature statistics. The rest counts steps, int32 [].

    step counts every batch seen; skipped and skipped_in_a_row those whose loss or gradient was not
    finite, which leave params and opt_state (with its schedule count) as they were.
    """

    params: nnx.State
    constants: nnx.State
    opt_state: Any
    step: jax.Array
    skipped: jax.Array
    skipped_in_a_row: jax.Array


def init_state(
    model: ForecastModel, tx: optax.GradientTransformation
) -> tuple[nnx.GraphDef, TrainState]:
    """Split the model once; the graph definition rebuilds it inside the step."""
    graphdef, params, constants = split_model(model)
    # Each counter its own buffer: a donated buffer must not be given twice.
    counters = [jnp.asarray(np.zeros((), np.int32)) for _ in range(3)]
    state = TrainState(params, constants, tx.init(params), *counters)
    # Committed to its device like a restored state, so that both run the same program.
    return graphdef, jax.device_put(state, jax.devices()[0])


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
