"""The whole job in one call: label, train, answer, and an honest table of all methods."""

import functools
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from calibjax import storage
from calibjax.backbone import Decoder
from calibjax.data import supervision
from calibjax.errors import input_error
from calibjax.forecaster import Forecaster
from calibjax.forecaster.presets import get_preset
from calibjax.generation import Sampler
from calibjax.pipeline import comparison
from calibjax.pipeline.comparison import Arm, Outcomes
from calibjax.pipeline.decision import Decided, Deciding, decide
from calibjax.pipeline.reporting import make_report, write_rows
from calibjax.pipeline.selection import Selector
from calibjax.protocols import Grader
from calibjax.records import Question, SupervisionRow
from calibjax.supervision.asking import Model
from calibjax.supervision.labels import Labelled, Labeller, Settings, fold_in, sample_questions
from calibjax.supervision.queries import write_queries
from calibjax.training.head_start import Frozen, frozen_features

StageTimer = Callable[[str], AbstractContextManager[None]]

FORECASTERS = ("calibrag", "calibrag_no_temperature")


@dataclass(frozen=True, slots=True)
class Size:
    """How much is done.

    k: passages retrieved; docs_per_question: of these, labelled; draws: decisions per labelled row
    (R); test_draws: decisions per test question and arm; temperature_questions: test questions of
    which users decide once more at each of `comparison.TEMPERATURES`; steps: of joint LoRA and head
    training.
    """

    train_questions: int
    validation_questions: int
    test_questions: int
    k: int
    docs_per_question: int
    draws: int
    test_draws: int
    temperature_questions: int
    steps: int
    epsilon: float
    replicates: int


SIZES = {
    "default": Size(240, 12, 160, 3, 2, 4, 2, 60, 2, 0.1, 2000),
    "smoke": Size(8, 3, 6, 3, 2, 2, 2, 4, 2, 0.1, 200),
}


class Job(NamedTuple):
    """What the size is applied to. user_top_k and user_top_p truncate the user model's sampling."""

    train: Sequence[Question]
    validation: Sequence[Question]
    test: Sequence[Question]
    retriever: Any
    decoder: Decoder
    grader: Grader
    preset: str
    user_top_k: int | None
    user_top_p: float
    seed: int


def run(job: Job, size: Size, directory: Path, stage: StageTimer) -> dict[str, Any]:
    """The report of report.json; files of every stage are left in `directory`, to resume from."""
    reader = Model(
        Sampler(job.decoder), f"sha256:{job.decoder.sha256}", tokenizer=job.decoder.tokenizer
    )
    with stage("label"):
        train, validation = label(job, size, reader, directory)
    forecasters = {}
    frozen = functools.cache(lambda: features(job, train, validation))
    for method in FORECASTERS:
        with stage(f"train_{method}"):
            forecasters[method] = fit(job, size, method, train, validation, frozen, directory)
    with stage("score"):
        selectors = _selectors(job, size, reader, forecasters)
        again = sample_questions(job.test, size.temperature_questions, job.seed)
        arms = comparison.make_arms(job.test, again, selectors, job.seed)
    with stage("answer"):
        decided = answer(job, size, reader, arms, directory)
    with stage("baselines"):
        found, guidance = judge(job, size, decided, train.rows)
    with stage("report"):
        report = make_report(
            found,
            guidance,
            decided,
            epsilon=size.epsilon,
            replicates=size.replicates,
            seed=job.seed,
        )
        report["labels"] = train.report["labels"]
        report["supervision"] = {"train": train.report, "validation": validation.report}
        write_rows(found, decided, directory)
    return report


def label(job: Job, size: Size, reader: Model, directory: Path) -> tuple[Labelled, Labelled]:
    """Supervision sets of the training and the validation questions."""
    settings = Settings(
        k=size.k,
        docs_per_question=size.docs_per_question,
        draws=size.draws,
        user_top_k=job.user_top_k,
        user_top_p=job.user_top_p,
        seed=job.seed,
    )
    made = []
    for name, questions in (("train", job.train), ("validation", job.validation)):
        labeller = Labeller(reader, reader, job.grader, directory / "stages" / name, settings)
        labelled = labeller.label(questions, job.retriever, job.retriever.passages)
        storage.write_jsonl(directory / f"supervision_{name}.jsonl", labelled.rows)
        made.append(labelled)
    supervision.build(made[0].rows, directory / "supervision")
    return made[0], made[1]


def features(job: Job, train: Labelled, validation: Labelled) -> tuple[np.ndarray, np.ndarray]:
    """Features of the frozen decoder, from which the heads of all methods start."""
    preset = get_preset(job.preset)
    return (
        frozen_features(job.decoder, preset, train.rows),
        frozen_features(job.decoder, preset, validation.rows),
    )


def fit(
    job: Job,
    size: Size,
    method: str,
    train: Labelled,
    validation: Labelled,
    frozen: Frozen,
    directory: Path,
) -> Forecaster:
    """A trained forecaster; both methods start from the same key and see the same rows."""
    preset = replace(
        get_preset(job.preset),
        steps=size.steps,
        warmup_steps=size.steps // 10,
        num_evaluations=1,  # each costs a pass over the validation rows
    )
    forecaster = Forecaster(job.decoder, preset, key=jax.random.key(job.seed), method=method)
    forecaster.fit(
        train.rows,
        validation=validation.rows,
        seed=job.seed,
        out=directory / method,
        resume=True,
        frozen=frozen,
    )
    return forecaster


def _selectors(
    job: Job, size: Size, reader: Model, forecasters: Mapping[str, Forecaster]
) -> dict[str, Selector]:
    queries = write_queries(job.test, "template").texts
    return {
        method: Selector(
            queries,
            retriever=job.retriever,
            passages=job.retriever.passages,
            forecaster=forecaster,
            reader=reader.generator,
            k=size.k,
            epsilon=size.epsilon,
        )
        for method, forecaster in forecasters.items()
    }


def answer(
    job: Job,
    size: Size,
    reader: Model,
    arms: Mapping[Arm, Sequence[Any]],
    directory: Path,
) -> dict[Arm, list[Decided]]:
    """Guidance, decisions and verdicts of all arms, asked for together."""
    deciding = Deciding(
        draws=size.test_draws, top_k=job.user_top_k, top_p=job.user_top_p, seed=job.seed
    )
    cases = [case for of_arm in arms.values() for case in of_arm]
    decided = decide(cases, reader, reader, job.grader, directory / "stages" / "test", deciding)
    return comparison.split_arms(arms, decided)


def judge(
    job: Job, size: Size, decided: Mapping[Arm, list[Decided]], rows: Sequence[SupervisionRow]
) -> tuple[dict[Arm, Outcomes], dict[str, Outcomes]]:
    """Outcomes of every arm, the baselines' among them, and of the methods that differ in z."""
    found = {arm: comparison.outcomes(of_arm) for arm, of_arm in decided.items()}
    main = decided[Arm("calibrag")]
    stated = comparison.stated_confidences(main, rows, job.retriever, job.decoder, size.k)
    for name, confidence in stated.items():
        found[Arm(name)] = comparison.outcomes(main, confidence)
    return found, {arm.method: o for arm, o in found.items() if arm == Arm(arm.method)}


def split_questions(
    train: Sequence[Question] | None,
    validation: Sequence[Question] | None,
    test: Sequence[Question],
    size: Size,
    seed: int,
) -> tuple[list[Question], list[Question], list[Question]]:
    """Training, validation and test questions of this size, disjoint, all with gold answers.

    None: training questions are split off the test questions, validation questions off the
    training questions. Raises InputError when there are too few.
    """
    test = [question for question in test if question.answers]
    if train is None:
        order = sample_questions(test, len(test), seed)
        order.sort(key=lambda question: fold_in(seed, "split", question.id))
        half = len(order) // 2
        train, test = order[:half], order[half:]
    used = {question.id for question in test} | {question.question for question in test}
    train = [x for x in train if x.answers and x.id not in used and x.question not in used]
    if validation is None:
        want = size.train_questions + size.validation_questions
        train = sample_questions(train, want, seed)
        held_out = max(1, len(train) * size.validation_questions // want) if len(train) > 1 else 0
        order = sorted(train, key=lambda question: fold_in(seed, "validation", question.id))
        validation, train = order[:held_out], order[held_out:]
    parts = (
        sample_questions(train, size.train_questions, seed),
        sample_questions(validation, size.validation_questions, seed),
        sample_questions(test, size.test_questions, seed),
    )
    for name, part in zip(("train", "validation", "test"), parts):
        if len(part) < 2:
            raise input_error(f"{name} questions", len(part), "two or more with answers")
    return parts
