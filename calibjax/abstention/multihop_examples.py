"""Abstain examples of multi-hop questions: retrieval of one or two hops, and whether it succeeded.

Architectures: `dense` keeps the hop-1 top k as is; `judge` adds bridge queries, a second hop and a
judge over a pool of candidates. Source: RegimeAbstain, experiments; how bridge queries, pool and
blend work in detail is not published, so these are ours.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from calibjax.abstention.examples import Example
from calibjax.abstention.judge import Pair, bridge_text, grade_passages, write_bridges
from calibjax.protocols import Retriever
from calibjax.records import Passage, Question
from calibjax.retrieval.bridges import bridge_queries
from calibjax.retrieval.multihop import (
    HitList,
    candidate_pool,
    hit_lists,
    judged_order,
    second_hop,
)
from calibjax.supervision.asking import Model
from calibjax.supervision.stages import Stage

# Prompts between two writes to disk: many, so that most batches are full and few programs compiled.
_BATCH = 128


class Plan(NamedTuple):
    """Sizes of a pass. k: passages kept; depth: hits of each list; alpha: weight of the scores."""

    k: int = 5
    depth: int = 50
    pool: int = 20
    alpha: float = 0.1
    bridges_from: int = 1


# The dearer pass: a larger pool, with bridges from the three best passages.
RESCUE = Plan(pool=50, bridges_from=3)


@dataclass(frozen=True, slots=True)
class Passes:
    """Retrieval for a set of questions. writer: writes the bridge queries; None: the rule does."""

    retriever: Retriever
    passages: Mapping[str, Passage]
    directory: Path
    judge: Model | None = None
    writer: Model | None = None


class Outcome(NamedTuple):
    """What the judged pass found for one question. cost: passages judged."""

    hop2: list[HitList]
    ranking: HitList
    success: float
    cost: float


def full_success(question: Question, ids: Sequence[str]) -> float:
    """1.0 if all gold passages are among the ids."""
    return float(set(question.gold_ids) <= set(ids))


def dense_examples(
    questions: Sequence[Question], hop1: Sequence[HitList], plan: Plan = Plan()
) -> list[Example]:
    """Hop-1 scores and full success in the top k."""
    return [
        Example(
            id=question.id,
            hop1_scores=tuple(hits.scores),
            success=full_success(question, hits.ids[: plan.k]),
            question=question.question,
        )
        for question, hits in zip(questions, hop1)
    ]


def judge_examples(
    questions: Sequence[Question], hop1: Sequence[HitList], passes: Passes, plan: Plan = Plan()
) -> list[Example]:
    """Hop-1 and hop-2 scores, and full success in the judge's top k.

    `pipelines` holds both architectures' success, and as cost the passages that each has judged.
    """
    outcomes = judged_pass(questions, hop1, passes, plan, "judge")
    return [
        replace(
            example,
            success=outcome.success,
            hop2_scores=tuple(tuple(hits.scores) for hits in outcome.hop2) or None,
            hop2_ids=tuple(tuple(hits.ids) for hits in outcome.hop2) or None,
            pipelines={"dense": example.success or 0.0, "judge": outcome.success},
            costs={"dense": 0.0, "judge": outcome.cost},
        )
        for example, outcome in zip(dense_examples(questions, hop1, plan), outcomes)
    ]


def judged_pass(
    questions: Sequence[Question],
    hop1: Sequence[HitList],
    passes: Passes,
    plan: Plan,
    name: str,
) -> list[Outcome]:
    """Bridges, second hop, pool, judge; what models say is kept in `directory` under `name`."""
    assert passes.judge is not None
    tops = [
        [passes.passages[key] for key in hits.ids[: plan.bridges_from]] for hits in hop1
    ]
    bridges = _bridges(questions, tops, passes, name)
    hop2 = second_hop(bridges, passes.retriever, plan.depth)
    pools = [candidate_pool(a, b, size=plan.pool) for a, b in zip(hop1, hop2)]
    pairs = [
        Pair(question, bridge_text(top[0]), passes.passages[key])
        for question, top, pool in zip(questions, tops, pools)
        for key in pool.ids
    ]
    stage = Stage(passes.directory, name, batch_size=_BATCH)
    grades = iter(grade_passages(passes.judge, stage, pairs))
    outcomes = []
    for question, lists, pool in zip(questions, hop2, pools):
        ranking = judged_order(pool, [float(next(grades)) for _ in pool.ids], plan.alpha)
        success = full_success(question, ranking.ids[: plan.k])
        outcomes.append(Outcome(lists, ranking, success, float(len(pool.ids))))
    return outcomes


def with_rescue(
    examples: Sequence[Example],
    questions: Sequence[Question],
    hop1: Sequence[HitList],
    flagged: np.ndarray,
    passes: Passes,
    plan: Plan = RESCUE,
) -> list[Example]:
    """The examples with `rescue_success` and `rescue_cost` of the flagged ones (mask [n])."""
    places = np.flatnonzero(flagged).tolist()
    found = judged_pass(
        [questions[i] for i in places], [hop1[i] for i in places], passes, plan, "rescue"
    )
    made = list(examples)
    for place, outcome in zip(places, found):
        made[place] = replace(
            made[place], rescue_success=outcome.success, rescue_cost=outcome.cost
        )
    return made


def _bridges(
    questions: Sequence[Question],
    tops: Sequence[Sequence[Passage]],
    passes: Passes,
    name: str,
) -> list[list[str]]:
    """Bridge queries of each question from its best passages; none where it found nothing."""
    if passes.writer is None:
        return [
            _distinct(query for top in best for query in bridge_queries(question.question, top))
            for question, best in zip(questions, tops)
        ]
    asked = [(number, top) for number, best in enumerate(tops) for top in best]
    stage = Stage(passes.directory, f"{name}_bridges")
    written = write_bridges(
        passes.writer, stage, [questions[n] for n, _ in asked], [top for _, top in asked]
    )
    collected: list[list[str]] = [[] for _ in questions]
    for (number, _), queries in zip(asked, written):
        collected[number] += queries
    return [_distinct(queries) for queries in collected]


def _distinct(queries) -> list[str]:
    return list(dict.fromkeys(queries))


def retrieve(questions: Sequence[Question], retriever: Retriever, depth: int) -> list[HitList]:
    """Hop 1: the hits of each question as it is worded."""
    return hit_lists([question.question for question in questions], retriever, depth)
