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
    """Split the model once; the graph definition rebuilds it inside the step.

    The arrays lie where the model's do; `sharding.put` places them on a mesh.
    """
    graphdef, params, constants = split_model(model)
    # Each counter its own buffer: a donated buffer must not be given twice.
    counters = [jnp.asarray(np.zeros((), np.int32)) for _ in range(3)]
    return graphdef, TrainState(params, constants, tx.init(params), *counters)
