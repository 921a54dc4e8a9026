"""From labelled rows to a trained model: prompts, statistics, head warm-up, joint training."""

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
from calibjax.data.batching import Group, make_groups
from calibjax.data.loader import Batch, Loader
from calibjax.errors import input_error
from calibjax.forecaster.extract import extract_features
from calibjax.forecaster.losses import class_weights, entropy_floor, soft_log_loss
from calibjax.forecaster.model import (
    ForecastModel,
    forecast_logits,
    standardize,
    standardized,
)
from calibjax.forecaster.presets import Preset
from calibjax.forecaster.prompts import forecast_prompts
from calibjax.records import SupervisionRow
from calibjax.training import distributed, sharding
from calibjax.training.checkpoint import Checkpoints, check_room, read_arrays
from calibjax.training.engine import Engine
from calibjax.training.journal import Journal
from calibjax.training.loop import Best, Run, train
from calibjax.training.mesh import mesh_of
from calibjax.training.optimizer import learning_rates, optimizer
from calibjax.training.ridge import start_from_ridge
from calibjax.training.state import TrainState, init_state
from calibjax.training.step import StepMetrics, jit_train_step
from calibjax.training.warmup import Rows, fit_head
from calibjax.training.watchdog import watching
from calibjax.trees import named_leaves

# Documents of a query in one group: they share a prefix, but attention is wasted on their pairs.
MAX_DOCUMENTS = 5

# Features of the frozen decoder, of training and of validation rows.
Frozen = Callable[[], tuple[np.ndarray, np.ndarray]]


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


class Data(NamedTuple):
    """Labelled rows, and their prompts in groups."""

    rows: Sequence[SupervisionRow]
    groups: list[Group]
    temperature: np.ndarray
    label: np.ndarray


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
    loader = Loader(data.groups, data.rows, batch_size=batch_size, seed=seed)
    with ExitStack() as stack:
        stacks = Path(out or ".") / f"stacks.{distributed.process_id()}.txt"
        journal = Journal(
            write=_open_log(out, stack),
            trackers=engine.trackers,
            row_ids=[f"{row.question_id}/{row.passage_id}" for row in data.rows],
            leaf_names=list(named_leaves(state.params)),
            learning_rates=learning_rates(preset),
            batches_per_epoch=loader.batches_per_epoch,
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


def split_by_question(
    rows: Sequence[SupervisionRow], *, seed: int, fraction: float = 0.2
) -> tuple[list[SupervisionRow], list[SupervisionRow]]:
    """(train, validation): a seeded share of the questions, never of the rows, is set aside."""
    ids = sorted({row.question_id for row in rows})
    if len(ids) < 2:
        fix = "give rows of more questions, or validation rows"
        raise input_error("questions", len(ids), "two or more", fix)
    order = np.random.default_rng(seed).permutation(len(ids))
    count = max(1, round(fraction * len(ids)))
    held_out = {ids[i] for i in order[:count]}
    train_rows = [row for row in rows if row.question_id not in held_out]
    return train_rows, [row for row in rows if row.question_id in held_out]


def prepare(decoder: Decoder, preset: Preset, rows: Sequence[SupervisionRow]) -> Data:
    """Rows checked, tokenised and grouped. Raises InputError for a label or t out of range."""
    if not rows:
        raise input_error("rows", 0, "at least one labelled row")
    for row in rows:
        where = f"row {row.question_id}/{row.passage_id}"
        if not 0.0 <= row.label <= 1.0:
            raise input_error(f"{where}: label", row.label, "a number in [0, 1]")
        if not preset.t_min <= row.temperature <= preset.t_max:
            expected = f"a number in [{preset.t_min}, {preset.t_max}]"
            raise input_error(f"{where}: temperature", row.temperature, expected)
    prompts = [
        forecast_prompts(
            decoder.tokenizer,
            row.query,
            [row],
            max_document_tokens=preset.max_document_tokens,
            max_tokens=decoder.config.max_positions,
            bos=preset.bos,
        )[0]
        for row in rows
    ]
    prefixes = [prompt.prefix for prompt in prompts]
    suffixes = [prompt.suffix for prompt in prompts]
    if preset.group_by == "row":
        groups = [Group(p, (s,), ((i,),)) for i, (p, s) in enumerate(zip(prefixes, suffixes))]
    else:
        groups = make_groups(prefixes, suffixes, max_documents=MAX_DOCUMENTS)
    temperature = np.array([row.temperature for row in rows], np.float32)
    return Data(rows, groups, temperature, np.array([row.label for row in rows], np.float32))


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
