"""From labelled rows to a trained model: everything a run is made of, put together and run."""

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh

from calibjax import storage
from calibjax.backbone.load import Decoder
from calibjax.backbone.remat import check_policy
from calibjax.data.loader import Batch, Loader
from calibjax.forecaster.extract import extract_features
from calibjax.forecaster.losses import class_weights, entropy_floor, soft_log_loss
from calibjax.forecaster.model import ForecastModel, forecast_logits
from calibjax.forecaster.presets import Preset
from calibjax.perf import flops
from calibjax.records import SupervisionRow
from calibjax.training import distributed, sharding
from calibjax.training.checkpoint import Checkpoints
from calibjax.training.checkpoint_files import read_arrays
from calibjax.training.disk_room import check_room
from calibjax.training.engine import Engine
from calibjax.training.head_start import Frozen, start_head
from calibjax.training.journal import Journal
from calibjax.training.labelled import Data, prepare, split_by_question
from calibjax.training.loop import Best, Run, train
from calibjax.training.mesh import length_multiple, mesh_of, tokens_per_program
from calibjax.training.optimizer import learning_rates, optimizer
from calibjax.training.state import TrainState, init_state
from calibjax.training.step import StepMetrics, jit_train_step
from calibjax.training.watchdog import watching
from calibjax.trees import named_leaves


class FitReport(NamedTuple):
    """How training went. Losses are soft log losses of validation rows, in nats per row.

    base_rate_loss: of the constant forecast, the mean label of the training rows. entropy_floor:
    the part of every loss that no forecaster can remove. trainable: number of trained values.
    """

    steps: int
    best_step: int
    validation_loss: float
    base_rate_loss: float
    entropy_floor: float
    train_rows: int
    validation_rows: int
    skipped: int
    trainable: int


def fit(
    decoder: Decoder,
    model: ForecastModel,
    preset: Preset,
    rows: Sequence[SupervisionRow],
    *,
    validation: Sequence[SupervisionRow] | None = None,
    seed: int = 0,
    out: str | os.PathLike | None = None,
    resume: bool = False,
    frozen: Frozen | None = None,
    info: Mapping[str, Any],
    engine: Engine = Engine(),
) -> tuple[ForecastModel, FitReport]:
    """The model of the step with the lowest validation loss, and a report.

    validation: rows of other questions; None sets a seeded fifth of the questions aside. out:
    directory for metrics.jsonl and checkpoint/; with `resume` the newest good step in it goes on.
    frozen: gives `frozen_features` of rows and validation rows; called where a head starts from
    them. info: written into every checkpoint manifest. Runs on the mesh that the decoder lies on.
    """
    check_policy(engine.remat)
    mesh = mesh_of(decoder.module)
    batch_size = preset.batch_size * preset.accumulation
    sharding.check_batch_size(preset.batch_size, mesh)
    if validation is None:
        rows, validation = split_by_question(rows, seed=seed)
    data, held_out = (prepare(decoder, preset, part) for part in (rows, validation))
    class_weight_C = jnp.asarray(class_weights(data.label, balanced=preset.balanced_classes))
    checkpoints = None if out is None else _checkpoints(Path(out), engine)
    earlier = checkpoints if resume and checkpoints and _has_steps(checkpoints) else None
    if earlier is None:
        model = start_head(decoder, model, preset, data, held_out, class_weight_C, frozen)
    graphdef, state = init_state(model, optimizer(preset))
    if checkpoints is not None and distributed.is_primary():
        check_room(Path(out or "."), state)
    layout = sharding.layout(state, decoder.module, mesh)
    state = sharding.put(distributed.from_primary(state), layout.state)
    every = max(1, preset.steps // preset.num_evaluations)
    best, validate_first = None, False
    if earlier is not None:
        state, best, validated = _restored(earlier, state)
        validate_first = not validated and int(jax.device_get(state.step)) % every == 0
    loader = Loader(
        data.groups,
        data.rows,
        batch_size=batch_size,
        steps=preset.steps,
        seed=seed,
        multiple=length_multiple(mesh),
        tokens_per_program=tokens_per_program(mesh),
    )
    with ExitStack() as stack:
        stacks = Path(out or ".") / f"stacks.{distributed.process_id()}.txt"
        journal = Journal(
            write=_open_log(out, stack),
            trackers=engine.trackers,
            row_ids=[f"{row.question_id}/{row.passage_id}" for row in data.rows],
            leaf_names=list(named_leaves(state.params)),
            learning_rates=learning_rates(preset),
            batches_per_epoch=loader.batches_per_epoch,
            flops=lambda number: _flops(decoder, loader, number),
            peak_flops=_peak_flops(engine, mesh),
            max_bad_in_a_row=engine.max_bad_in_a_row,
            bad_batch=Path(out) / "bad_batch.npz" if out and distributed.is_primary() else None,
        )
        run = Run(
            step=_stepper(decoder, graphdef, preset, engine.remat, seed, class_weight_C, layout),
            loader=loader,
            put=lambda batch: sharding.put(batch, layout.batch),
            steps=preset.steps,
            eval_every=every,
            evaluate=_evaluator(decoder, graphdef, preset, held_out, mesh),
            validate_first=validate_first,
            journal=journal,
            checkpoints=checkpoints,
            info=info,
            watchdog=stack.enter_context(watching(engine.hang_seconds, stacks)),
        )
        with jax.set_mesh(mesh):
            state, best = train(run, state, best)
    report = _report(state, best, data, held_out)
    constants = jax.device_get(state.constants)
    return nnx.merge(graphdef, *jax.device_put((best.params, constants))), report


def _checkpoints(out: Path, engine: Engine) -> Checkpoints:
    return Checkpoints(out / "checkpoint", keep=engine.keep, asynchronous=engine.asynchronous)


def _has_steps(checkpoints: Checkpoints) -> bool:
    return bool(distributed.agree(bool(checkpoints.steps())))


def _stepper(
    decoder: Decoder,
    graphdef: nnx.GraphDef,
    preset: Preset,
    remat: str,
    seed: int,
    class_weight_C: jax.Array,
    layout: sharding.Layout,
) -> Callable[[TrainState, Batch], tuple[TrainState, StepMetrics]]:
    compiled = jit_train_step(layout)
    constant = sharding.put((jax.random.key(seed), class_weight_C), layout.whole)

    def step(state: TrainState, batch: Batch) -> tuple[TrainState, StepMetrics]:
        return compiled(graphdef, preset, remat, state, decoder.module, batch, *constant)

    return step


def _evaluator(
    decoder: Decoder, graphdef: nnx.GraphDef, preset: Preset, held_out: Data, mesh: Mesh
) -> Callable[[TrainState], float]:
    whole = sharding.replicated(mesh)

    def mean_loss(
        params: nnx.State,
        constants: nnx.State,
        features_ND: jax.Array,
        temperature_N1: jax.Array,
        label_N: jax.Array,
    ) -> jax.Array:
        model = nnx.merge(graphdef, params, constants)
        logits_NC = forecast_logits(model, features_ND, temperature_N1, preset)[:, 0]
        return jnp.mean(soft_log_loss(logits_NC, label_N))

    # Rows lie whole on every device: the head is small, and their number need not divide.
    compiled = jax.jit(mean_loss, in_shardings=whole, out_shardings=whole)
    rows = sharding.put((held_out.temperature[:, None], held_out.label), whole)

    def evaluate(state: TrainState) -> float:
        model = nnx.merge(graphdef, state.params, state.constants)
        features_ND = extract_features(
            decoder.module, model.adapter, held_out.groups, num_rows=len(held_out.rows)
        )
        features = sharding.put(features_ND, whole)
        return float(jax.device_get(compiled(state.params, state.constants, features, *rows)))

    return evaluate


def _restored(
    checkpoints: Checkpoints, template: TrainState
) -> tuple[TrainState, Best | None, bool]:
    """The newest state, the best one, and whether the newest has been validated."""
    checkpoints.remove_temporary()
    state, newest = checkpoints.restore(template)
    best_state, manifest = read_arrays(checkpoints.best(), template)
    if manifest["metric"] is None:
        return state, None, False
    params = jax.device_get(best_state.params)
    best = Best(manifest["metric"], manifest["step"], params)
    return state, best, newest["metric"] is not None


def _open_log(out: str | os.PathLike | None, stack: ExitStack) -> Callable[[Any], None]:
    if out is None or not distributed.is_primary():
        return lambda row: None
    Path(out).mkdir(parents=True, exist_ok=True)
    return stack.enter_context(storage.JsonlLog(Path(out) / "metrics.jsonl")).append


def _flops(decoder: Decoder, loader: Loader, number: int) -> float:
    groups = [loader.groups[group] for group in loader.plan(number).groups]
    return flops.of_groups(decoder.config, groups, train=True)


def _peak_flops(engine: Engine, mesh: Mesh) -> float | None:
    """Of all devices of the mesh together."""
    one = engine.peak_flops or flops.peak_flops(mesh.devices.flat[0].device_kind)
    return None if one is None else one * mesh.size


def _report(state: TrainState, best: Best, data: Data, held_out: Data) -> FitReport:
    rate = float(np.clip(np.mean(data.label), 1e-6, 1 - 1e-6))
    mean = float(np.mean(held_out.label))
    leaves = jax.tree.leaves(state.params)
    return FitReport(
        steps=int(jax.device_get(state.step)),
        best_step=best.step,
        validation_loss=best.loss,
        base_rate_loss=-mean * np.log(rate) - (1 - mean) * np.log1p(-rate),
        entropy_floor=entropy_floor(held_out.label),
        train_rows=len(data.rows),
        validation_rows=len(held_out.rows),
        skipped=int(jax.device_get(state.skipped)),
        trainable=sum(leaf.size for leaf in leaves),
    )
