"""Which pipeline a question calls for, by its text (after RegimeRouter, arXiv 2604.09019)."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from calibjax.abstention.policy import ANSWER, ESCALATE, decide
from calibjax.abstention.score_features import query_length

TEXT_FEATURES = ("length", "capitalised_spans", "comparison_words", "wh_word", "has_year")
_CAPITALISED = re.compile(
    r"[A-Z][\w'.-]*(?:\s+(?:(?:of|the|de|and|von|van)\s+)?[A-Z][\w'.-]*)*"
)
_COMPARISON = re.compile(
    r"\b(?:both|same|older|younger|taller|larger|longer|shorter|earlier|later|first|more|less|most|"
    r"least|than|or|between|compared?|difference|common|which one|either|neither)\b",
    re.IGNORECASE,
)
_WH = re.compile(r"\b(?:who|whom|whose|what|when|where|which|why|how)\b", re.IGNORECASE)
_YEAR = re.compile(r"\b1\d{3}\b|\b20\d{2}\b")


def text_features(questions: Sequence[str]) -> np.ndarray:
    """Five features [n, 5] of each question's text, in the order of `TEXT_FEATURES`.

    >>> text_features(["Who is older, Ann Lee or Bo Chan, born in 1990?"]).tolist()
    [[10.0, 2.0, 2.0, 1.0, 1.0]]
    """
    return np.array([_text_features(question) for question in questions], np.float64)


def _text_features(question: str) -> list[float]:
    # The first word of a sentence is capitalised whatever it is.
    inner = question.lstrip(' "')[1:]
    return [
        query_length(question),
        len(_CAPITALISED.findall(inner)),
        len(_COMPARISON.findall(question)),
        float(bool(_WH.search(question))),
        float(bool(_YEAR.search(question))),
    ]


@dataclass(frozen=True, slots=True)
class PipelineRouter:
    """Multinomial logistic model of the best pipeline.

    pipelines: from the cheapest to the dearest. model: None where one pipeline was the best for
    every question that it was fitted on.
    """

    pipelines: tuple[str, ...]
    mean: np.ndarray
    scale: np.ndarray
    model: Any
    constant: str

    @classmethod
    def fit(
        cls,
        questions: Sequence[str],
        success: Mapping[str, np.ndarray],
        costs: Mapping[str, float] | None = None,
    ) -> "PipelineRouter":
        """success: [n] of each pipeline; ties (all right, all wrong) go to the cheapest.

        costs: mean cost of each; without them pipelines are taken as listed from cheap to dear.
        """
        from sklearn.linear_model import LogisticRegression

        order = tuple(sorted(success, key=lambda name: costs[name]) if costs else success)
        best = np.argmax(np.stack([success[name] for name in order], axis=1), axis=1)
        x = text_features(questions)
        mean, deviation = x.mean(axis=0), x.std(axis=0)
        scale = np.where(deviation > 0, deviation, 1.0)
        model = None
        if len(set(best)) > 1:
            model = LogisticRegression(max_iter=1000).fit((x - mean) / scale, best)
        return cls(order, mean, scale, model, order[best[0]])

    def choose(self, questions: Sequence[str]) -> list[str]:
        """The pipeline of each question."""
        if self.model is None:
            return [self.constant] * len(questions)
        z = (text_features(questions) - self.mean) / self.scale
        return [self.pipelines[place] for place in self.model.predict(z)]


def route(
    confidence: Any, tau: float, chosen: Sequence[str], *, below: str = "abstain"
) -> list[str]:
    """`answer:PIPELINE` at or above tau, else `abstain` or `escalate:PIPELINE`.

    >>> route([0.9, 0.1], 0.5, ["dense", "dense"], below="escalate:judge")
    ['answer:dense', 'escalate:judge']
    """
    actions = decide(confidence, tau, below=below)
    return [f"{ANSWER}:{name}" if a == ANSWER else str(a) for a, name in zip(actions, chosen)]


def routed(actions: Sequence[str], success: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Counts of each action and the success of the queries that are answered.

    success: [n] of each pipeline. An escalated query is answered by the pipeline it goes to.
    """
    counts: dict[str, int] = {}
    outcomes = np.full(len(actions), np.nan)
    for place, action in enumerate(actions):
        counts[action] = counts.get(action, 0) + 1
        kind, _, name = action.partition(":")
        if kind in (ANSWER, ESCALATE) and name in success:
            outcomes[place] = success[name][place]
    known = ~np.isnan(outcomes)
    return {
        "counts": dict(sorted(counts.items())),
        "coverage": float(known.mean()) if len(actions) else None,
        "success_answered": float(outcomes[known].mean()) if known.any() else None,
        "n": len(actions),
    }
