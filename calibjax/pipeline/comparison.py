"""All methods on the same test questions: whose document, which confidence, what came of it.

Baselines that only state a confidence (base rate, retriever score, verbalised number, P(true)) do
so for CalibRAG's own document and decision, so that all are judged on the same outcomes. Methods
that choose their own document have their own outcomes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from calibjax.backbone import Decoder
from calibjax.baselines.base_rate import base_rate
from calibjax.baselines.p_true import p_true_confidence
from calibjax.baselines.retriever_logistic import fit_retriever_logistic, retriever_confidence
from calibjax.baselines.verbal_number import verbal_number_confidence
from calibjax.pipeline.answer import make_cases
from calibjax.pipeline.decision import Case, Decided
from calibjax.pipeline.selection import Selector
from calibjax.protocols import Retriever
from calibjax.records import Question, SupervisionRow

# At these the user decides once more, with the forecast for just that temperature.
TEMPERATURES = (1.0, 1.2, 1.5)


class Arm(NamedTuple):
    """One way to answer all test questions.

    temperature: None, each user draws one and the forecast is the marginal; a number, all decide at
    it and the forecast is conditioned on it. shown: the user model reads the confidence.
    """

    method: str
    temperature: float | None = None
    shown: bool = True


def make_arms(
    questions: Sequence[Question],
    again: Sequence[Question],
    selectors: Mapping[str, Selector],
    seed: int,
) -> dict[Arm, list[Case]]:
    """The cases of every arm: each forecaster with reranking, CalibRAG with its confidence hidden,
    and its forecast of the retriever's best document; of the questions in `again`, each forecaster
    at each temperature."""
    chosen = {Arm(name): selector.choose() for name, selector in selectors.items()}
    chosen[Arm("calibrag", shown=False)] = chosen[Arm("calibrag")]
    chosen[Arm("calibrag_no_rerank")] = selectors["calibrag"].choose(rerank=False)
    cases = {
        arm: make_cases(questions, selections, None, arm.shown, seed)
        for arm, selections in chosen.items()
    }
    ids = {question.id for question in again}
    numbers = [n for n, question in enumerate(questions) if question.id in ids]
    asked = [questions[n] for n in numbers]
    for name, selector in selectors.items():
        for t in TEMPERATURES:
            cases[Arm(name, t)] = make_cases(
                asked, selector.choose(t, numbers=numbers), t, True, seed
            )
    return cases


def split_arms(
    arms: Mapping[Arm, Sequence[Case]], decided: Sequence[Decided]
) -> dict[Arm, list[Decided]]:
    """Undoes the concatenation of all arms' cases."""
    rest = iter(decided)
    return {arm: [next(rest) for _ in cases] for arm, cases in arms.items()}


@dataclass(frozen=True, slots=True)
class Outcomes:
    """Verdicts of one arm, a row per graded draw, and per question the verdict on the guidance.

    group: question of each row; the rest in the same order. questions, guidance_*: one entry per
    question.
    """

    ids: list[str]
    group: list[str]
    confidence: np.ndarray
    correct: np.ndarray
    answered: np.ndarray
    temperature: np.ndarray
    questions: list[str]
    guidance_confidence: np.ndarray
    guidance_correct: np.ndarray
    guidance_answered: np.ndarray


def outcomes(
    decided: Sequence[Decided], confidence: Sequence[Sequence[float]] | None = None
) -> Outcomes:
    """What an arm is judged by; `confidence` [question][draw] replaces the forecaster's."""
    rows = [
        (one, draw, verdict)
        for one in decided
        for draw, verdict in enumerate(one.verdicts)
        if not verdict.invalid
    ]
    stated = {
        one.case.question.id: [one.case.selection.confidence] * len(one.verdicts)
        if confidence is None
        else confidence[n]
        for n, one in enumerate(decided)
    }
    ids = [one.case.question.id for one, _, _ in rows]
    return Outcomes(
        ids=[f"{id}#{draw}" for id, (_, draw, _) in zip(ids, rows)],
        group=ids,
        confidence=np.array([stated[id][draw] for id, (_, draw, _) in zip(ids, rows)]),
        correct=np.array([float(verdict.correct) for _, _, verdict in rows]),
        answered=np.array([verdict.answered for _, _, verdict in rows]),
        temperature=np.array([one.case.temperature for one, _, _ in rows]),
        questions=[one.case.question.id for one in decided],
        guidance_confidence=np.array([stated[one.case.question.id][0] for one in decided]),
        guidance_correct=np.array([float(one.guidance_verdict.correct) for one in decided]),
        guidance_answered=np.array([one.guidance_verdict.answered for one in decided]),
    )


def stated_confidences(
    decided: Sequence[Decided],
    rows: Sequence[SupervisionRow],
    retriever: Retriever,
    reader: Decoder,
    k: int,
) -> dict[str, list[list[float]]]:
    """Confidence [question][draw] of each baseline in CalibRAG's own decisions.

    rows: labelled training rows, which the first two are fitted on.
    """
    constant = base_rate(rows)
    scores = np.array([one.case.selection.retriever_score for one in decided])
    logistic = fit_retriever_logistic(*_scored_labels(rows, retriever, k))
    calibrated = retriever_confidence(logistic, np.nan_to_num(scores))
    asked = [
        (one.case.question.question, one.guidance, decision)
        for one in decided
        for decision in one.decisions
    ]
    unique = {each: n for n, each in enumerate(dict.fromkeys(asked))}
    columns = [list(column) for column in zip(*unique)]
    drawn = [len(one.decisions) for one in decided]
    result = {
        "base_rate": [[constant] * n for n in drawn],
        "retriever_logistic": [[float(c)] * n for c, n in zip(calibrated, drawn)],
    }
    for name, state in (("verbal_number", verbal_number_confidence), ("p_true", p_true_confidence)):
        of_unique = state(reader, *columns)
        flat = iter([float(of_unique[unique[each]]) for each in asked])
        result[name] = [[next(flat) for _ in range(n)] for n in drawn]
    return result


def _scored_labels(
    rows: Sequence[SupervisionRow], retriever: Retriever, k: int
) -> tuple[list[float], list[float]]:
    """Retriever score and label of each training row; a passage outside the top k scores 0."""
    queries = list(dict.fromkeys(row.query for row in rows))
    hits = retriever.search(queries, k)
    score: dict[tuple[str, str], float] = {}
    for query, ids, scores, valid in zip(queries, hits.ids, hits.scores, hits.valid):
        score.update({(query, id): float(s) for id, s, ok in zip(ids, scores, valid) if ok})
    return [score.get((row.query, row.passage_id), 0.0) for row in rows], [r.label for r in rows]


def prediction_rows(name: str, found: Outcomes) -> list[dict[str, Any]]:
    """Rows of a predictions file."""
    return [
        {
            "id": found.ids[n],
            "method": name,
            "confidence": float(found.confidence[n]),
            "correct": int(found.correct[n]),
            "answered": bool(found.answered[n]),
            "group": found.group[n],
            "temperature": float(found.temperature[n]),
        }
        for n in range(len(found.ids))
    ]
