"""From questions to abstain examples: one architecture, and what may be added to it.

Added on request: the forecaster's best forecast as a signal, and a dearer second pass (rescue) for
the questions that the confidence flags.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from calibjax import metrics
from calibjax.abstention.deciding import coverage_threshold
from calibjax.abstention.example_rows import Example
from calibjax.abstention.examples import column, example_features
from calibjax.abstention.multihop_examples import (
    Passes,
    Plan,
    dense_examples,
    judge_examples,
    judged_pass,
)
from calibjax.abstention.rcs import RCS
from calibjax.abstention.splits import split_of
from calibjax.pipeline.forecasts import best_forecasts
from calibjax.records import Question
from calibjax.retrieval.multihop import HitList, hit_lists
from calibjax.supervision.stages import Request, Stage

ARCHITECTURES = ("dense", "judge")
# The dearer pass judges a larger pool, with bridges from the three best passages.
_RESCUE_POOL, _RESCUE_BRIDGES = 50, 3


class Recipe(NamedTuple):
    """How examples are made. rescue_coverage: share of questions without a dearer pass; None: all.

    seed: of the split whose test rows are rescued; the one that `Settings` has.
    """

    architecture: str = "dense"
    plan: Plan = Plan()
    rescue_coverage: float | None = None
    seed: int = 0


class NamedForecaster(NamedTuple):
    """A `Forecaster` with the name that its forecasts are filed under."""

    model: Any
    name: str


class Built(NamedTuple):
    """Examples of one set, and counts and figures of its retrieval."""

    examples: list[Example]
    counts: dict[str, Any]


def build_examples(
    questions: Sequence[Question],
    passes: Passes,
    recipe: Recipe,
    forecaster: NamedForecaster | None = None,
) -> Built:
    """Examples of questions with gold passages, in their order.

    counts: recall_at_k of the passages kept; passages judged, replies that named no grade, and the
    recall of hop 1 alone, which the judge should exceed.
    """
    plan = recipe.plan
    hop1 = hit_lists([question.question for question in questions], passes.retriever, plan.depth)
    first = [hits.ids[: plan.k] for hits in hop1]
    counts: dict[str, Any] = {}
    if recipe.architecture == "judge":
        judged = judged_pass(questions, hop1, passes, plan, "judge")
        examples = judge_examples(questions, hop1, judged.outcomes, plan)
        kept = [outcome.ranking.ids[: plan.k] for outcome in judged.outcomes]
        counts["n_judged"] = int(sum(outcome.cost for outcome in judged.outcomes))
        counts["n_unparsed"] = judged.n_unparsed
        counts["recall_of_hop1"] = _recall(questions, first, plan.k)
    else:
        examples, kept = dense_examples(questions, hop1, plan), first
    counts["recall_at_k"] = _recall(questions, kept, plan.k)
    if forecaster is not None:
        examples = with_forecasts(examples, questions, kept, passes, forecaster)
    if recipe.rescue_coverage is not None:
        flagged = flagged_rows(examples, recipe.rescue_coverage, recipe.seed)
        examples, more = with_rescue(examples, questions, hop1, flagged, passes, plan)
        counts |= more
    return Built(examples, counts)


def _recall(questions: Sequence[Question], kept: Sequence[Sequence[str]], k: int) -> float:
    """Mean share of a question's gold passages among those that are kept."""
    relevant = np.zeros((len(questions), k), np.float32)
    for row, (question, ids) in enumerate(zip(questions, kept)):
        relevant[row, : len(ids)] = np.isin(ids, question.gold_ids)
    gold = np.array([len(set(question.gold_ids)) for question in questions], np.float32)
    return float(np.mean(metrics.recall_at_k(relevant, k=k, num_relevant=gold)))


def with_forecasts(
    examples: Sequence[Example],
    questions: Sequence[Question],
    kept: Sequence[Sequence[str]],
    passes: Passes,
    forecaster: NamedForecaster,
) -> list[Example]:
    """The examples with `scores.forecaster`: the best forecast over the passages that are kept."""
    tops = [[passes.passages[key] for key in ids] for ids in kept]

    def ask(numbers: list[int]) -> Iterator[tuple[int, dict[str, Any]]]:
        asked, given = [questions[n] for n in numbers], [tops[n] for n in numbers]
        for number, best in zip(numbers, best_forecasts(forecaster.model, asked, given)):
            yield number, {"best": float(best)}

    requests = [
        Request(question.id, "", [forecaster.name, question.question, list(ids)])
        for question, ids in zip(questions, kept)
    ]
    rows = Stage(passes.directory, "forecasts").run(requests, ask)
    return [
        replace(example, scores={**example.scores, "forecaster": row["best"]})
        for example, row in zip(examples, rows)
    ]


def flagged_rows(examples: Sequence[Example], coverage: float, seed: int) -> np.ndarray:
    """Test rows below the threshold that keeps this share of the tune rows, as a mask [n]."""
    tune = split_of(examples, seed)
    features = example_features(examples)
    success = column(examples, lambda example: example.success)
    score = RCS.fit(features.take(tune), success[tune]).score(features)
    return ~tune & (score < coverage_threshold(score[tune], coverage))


def with_rescue(
    examples: Sequence[Example],
    questions: Sequence[Question],
    hop1: Sequence[HitList],
    flagged: np.ndarray,
    passes: Passes,
    plan: Plan = Plan(),
) -> Built:
    """The examples with `rescue_success` and `rescue_cost` of the flagged ones (mask [n])."""
    dearer = plan._replace(pool=_RESCUE_POOL, bridges_from=_RESCUE_BRIDGES)
    places = np.flatnonzero(flagged).tolist()
    found = judged_pass(
        [questions[i] for i in places], [hop1[i] for i in places], passes, dearer, "rescue"
    )
    made = list(examples)
    for place, outcome in zip(places, found.outcomes):
        made[place] = replace(
            made[place], rescue_success=outcome.success, rescue_cost=outcome.cost
        )
    return Built(made, {"n_rescued": len(places), "n_rescue_unparsed": found.n_unparsed})
