"""What a router costs per question, in token equivalents: evidence used is not the whole bill.

A trigger that reads a draft pays for the draft before it decides; one that reads retrieval scores
pays for a probe. Whether that work is used again (the draft as the answer, the probe's hits as the
evidence) is stated, never assumed in silence.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from calibjax.errors import closest, input_error

FAMILIES = ("query", "uncertainty", "retrieval", "full")


class Prices(NamedTuple):
    """Token equivalents of one prompt token, one generated token and one retrieval."""

    prompt: float = 1.0
    output: float = 4.0
    retrieval: float = 0.0


class CostModel(NamedTuple):
    """Mean token equivalents per question of each piece of work.

    draft: answer without evidence; answer: answer with evidence; retrieval, probe: one call each;
    features: of the question, paid by query triggers; reading: what a trigger of another family
    reads itself to make its score, such as a model that scores the probe's passages. reuse_draft:
    the draft is the answer where nothing is retrieved; reuse_probe: the probe's hits are the
    evidence.
    """

    draft: float
    answer: float
    retrieval: float = 0.0
    probe: float = 0.0
    features: float = 0.0
    reuse_draft: bool = True
    reuse_probe: bool = True
    reading: float = 0.0


class Cost(NamedTuple):
    """Cost per question by what it is paid for; `total` is their sum."""

    total: Any
    features: Any
    reading: Any
    draft: Any
    probe: Any
    retrieval: Any
    answer_without: Any
    answer_with: Any


def token_cost(prompt: Any, output: Any, prices: Prices) -> Any:
    """Token equivalents of calls with so many prompt and generated tokens."""
    return prices.prompt * np.asarray(prompt) + prices.output * np.asarray(output)


def cost(family: str, usage: Any, model: CostModel) -> Cost:
    """Cost per question of a router of a family at a realised usage in [0, 1].

    query: features, then one answer; uncertainty: a draft first; retrieval: a probe first; full:
    both; all but query also pay for the trigger's own reading. Without reuse, an unused draft is
    generated again and an unused probe is retrieved again.

    >>> model = CostModel(draft=10, answer=30, retrieval=5, probe=5, features=1)
    >>> [float(cost(family, 0.5, model).total) for family in FAMILIES]
    [23.5, 27.5, 25.0, 30.0]
    """
    if family not in FAMILIES:
        near = closest(family, FAMILIES)
        fix = f"did you mean {near}" if near else None
        raise input_error("family", family, f"one of {', '.join(FAMILIES)}", fix)
    usage = np.asarray(usage, np.float64)
    drafts, probes = family in ("uncertainty", "full"), family in ("retrieval", "full")
    answers_anew = not (drafts and model.reuse_draft)
    retrieves_anew = not (probes and model.reuse_probe)
    parts = {
        "features": np.full_like(usage, model.features if family == "query" else 0.0),
        "reading": np.full_like(usage, 0.0 if family == "query" else model.reading),
        "draft": np.full_like(usage, model.draft if drafts else 0.0),
        "probe": np.full_like(usage, model.probe if probes else 0.0),
        "retrieval": usage * (model.retrieval if retrieves_anew else 0.0),
        "answer_without": (1 - usage) * (model.draft if answers_anew else 0.0),
        "answer_with": usage * model.answer,
    }
    return Cost(total=sum(parts.values()), **parts)


def always_cost(model: CostModel) -> float:
    """Cost per question of retrieving for every question, without a trigger."""
    return model.retrieval + model.answer


def never_cost(model: CostModel) -> float:
    """Cost per question of never retrieving, without a trigger."""
    return model.draft


def break_even(family: str, model: CostModel) -> float | None:
    """The usage below which a router of the family costs less than always retrieving.

    Cost is linear in usage. Values below 0: never cheaper; 1 or more, or None: always cheaper.
    For uncertainty triggers with a reused draft it is 1 - draft / (retrieval + answer).
    """
    at_none, at_all = (float(cost(family, usage, model).total) for usage in (0.0, 1.0))
    slope = at_all - at_none
    if slope <= 0:
        return None if at_none < always_cost(model) else -1.0
    return (always_cost(model) - at_none) / slope


def accuracy_at_cost(
    costs: Sequence[float], accuracies: Sequence[float], limit: float
) -> float | None:
    """Best accuracy among a router's working points that cost at most `limit`; None without any."""
    within = [a for c, a in zip(costs, accuracies, strict=True) if c <= limit]
    return max(within, default=None)
