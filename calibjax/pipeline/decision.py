"""Stage 4: guidance by the plain reader, decisions of the user model, verdicts on both."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from calibjax.generation.prompts import decision_messages, guidance_messages
from calibjax.pipeline.selection import Selection
from calibjax.protocols import Grader
from calibjax.records import Question, Verdict
from calibjax.supervision.asking import Asked, Model, Sampling, cut_document, generate
from calibjax.supervision.grading import GradingTask, grade_many
from calibjax.supervision.labels import DECISION_TOKENS, GUIDANCE_TOKENS, fold_in
from calibjax.supervision.stages import Stage

USER_TEMPERATURES = (1.0, 1.1, 1.2, 1.3, 1.4, 1.5)


@dataclass(frozen=True, slots=True)
class Case:
    """One question with the document chosen for it, to be decided at one temperature.

    confidence_shown: what the user model reads beside the guidance; None hides it.
    """

    question: Question
    selection: Selection
    temperature: float
    confidence_shown: float | None


@dataclass(frozen=True, slots=True)
class Decided:
    """What came of a case: guidance z and its verdict, the draws of the decision and theirs."""

    case: Case
    guidance: str
    guidance_verdict: Verdict
    decisions: tuple[str, ...]
    verdicts: tuple[Verdict, ...]


class Deciding(NamedTuple):
    """draws: decisions per case; top_k, top_p truncate the user model's sampling."""

    draws: int = 1
    top_k: int | None = None
    top_p: float = 1.0
    max_document_tokens: int = 512
    seed: int = 0


def draw_user_temperature(seed: int, question_id: str) -> float:
    """The temperature of a user who gave none: one of 1.0, 1.1, ..., 1.5 by seed and question."""
    random = np.random.default_rng(fold_in(seed, "user", question_id))
    return float(random.choice(USER_TEMPERATURES))


def decide(
    cases: Sequence[Case],
    reader: Model,
    user: Model,
    grader: Grader,
    directory: Path,
    deciding: Deciding,
) -> list[Decided]:
    """Guidance, decisions and verdicts of all cases; equal prompts are asked once.

    What the models said is kept in `directory` and not asked for again. A case whose server request
    was refused has an empty guidance or decision, which counts as no answer.
    """
    guidance = _guidance(cases, reader, directory, deciding)
    decisions = _decisions(cases, guidance, user, directory, deciding)
    tasks = [
        GradingTask(x.question, x.answers, text, x.options)
        for x, z, drawn in zip((case.question for case in cases), guidance, decisions)
        for text in (z, *drawn)
    ]
    verdicts = iter(grade_many(grader, tasks))
    return [
        Decided(case, z, next(verdicts), tuple(drawn), tuple(next(verdicts) for _ in drawn))
        for case, z, drawn in zip(cases, guidance, decisions)
    ]


def _guidance(
    cases: Sequence[Case], reader: Model, directory: Path, deciding: Deciding
) -> list[str]:
    asked = []
    for case in cases:
        chosen = case.selection
        document, _ = cut_document(reader, chosen.document, deciding.max_document_tokens)
        messages = guidance_messages(chosen.query, document)
        asked.append(Asked(case.question.id, chosen.document.id, messages))
    stage = Stage(directory, "answer_guidance")
    replies = _ask_once(reader, stage, asked, Sampling(GUIDANCE_TOKENS))
    return [texts[0] if texts else "" for texts in replies]


def _decisions(
    cases: Sequence[Case],
    guidance: Sequence[str],
    user: Model,
    directory: Path,
    deciding: Deciding,
) -> list[list[str]]:
    asked = []
    for case, z in zip(cases, guidance):
        x = case.question
        messages = decision_messages(
            x.question, z, confidence=case.confidence_shown, options=x.options
        )
        asked.append(Asked(x.id, case.selection.document.id, messages, case.temperature))
    sampling = Sampling(
        DECISION_TOKENS, deciding.top_k, deciding.top_p, deciding.draws, deciding.seed
    )
    replies = _ask_once(user, Stage(directory, "answer_decisions"), asked, sampling)
    return [texts or [""] * deciding.draws for texts in replies]


def _ask_once(
    model: Model, stage: Stage, asked: Sequence[Asked], sampling: Sampling
) -> list[list[str]]:
    """Texts of every request; equal ones share one reply, so methods that agree stay paired."""
    keys = [repr(one) for one in asked]
    unique = dict(zip(keys, asked))
    replies = generate(model, stage, list(unique.values()), sampling)
    by_key = dict(zip(unique, replies))
    return [by_key[key].texts for key in keys]
