"""The cost part of a report: what each router pays per question, by unit and by part."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from calibjax.metrics import Splits
from calibjax.routing import costs
from calibjax.routing.cells import Cell, cell
from calibjax.routing.examples import UNITS, Outcomes

# Shares of the price of always retrieving at which accuracy is reported.
_SHARES = (0.25, 0.5, 0.75, 1.0, 1.25)
# Scores that a model makes by reading passages: without a bill of their own they would look free.
_READERS = ("forecaster",)


class Models(NamedTuple):
    """What work costs, by unit: "tokens" (token equivalents) and "seconds" (measured).

    by_unit: unit -> cost model; scoring: unit -> router -> what making its own score costs;
    reasons: unit -> why there is no model.
    """

    by_unit: dict[str, costs.CostModel]
    scoring: dict[str, dict[str, float]]
    reasons: dict[str, str]


def cost_models(
    outcomes: Outcomes,
    splits: Splits,
    prices: costs.Prices,
    reuse_draft: bool,
    reuse_probe: bool,
) -> Models:
    """Cost models of the rows that no figure is judged on: those outside the test part.

    Tokens are means; seconds are medians, since a batch that compiles is slow. Over several splits
    each split has its own rows, and figures are averaged.
    """
    free = ~splits.test

    def mean(column: np.ndarray) -> float:
        return float(np.mean([column[rows].mean() for rows in free]))

    def median(column: np.ndarray) -> float:
        return float(np.mean([np.median(column[rows]) for rows in free]))

    models = {}
    if outcomes.tokens:
        draft, answer = (
            float(
                costs.token_cost(
                    mean(outcomes.tokens[f"{arm}_prompt"]),
                    mean(outcomes.tokens[f"{arm}_output"]),
                    prices,
                )
            )
            for arm in ("without", "with")
        )
        models["tokens"] = costs.CostModel(draft, answer, prices.retrieval, prices.retrieval)
    if outcomes.seconds:
        draft, answer, search = (
            median(outcomes.seconds[name]) for name in ("without", "with", "retrieval")
        )
        models["seconds"] = costs.CostModel(draft, answer, search, search)
    reuse = {"reuse_draft": reuse_draft, "reuse_probe": reuse_probe}
    scoring = {
        "tokens": {r: prices.prompt * mean(c) for r, c in outcomes.scoring["tokens"].items()},
        "seconds": {r: median(c) for r, c in outcomes.scoring["seconds"].items()},
    }
    by_unit = {unit: model._replace(**reuse) for unit, model in models.items()}
    return Models(by_unit, scoring, outcomes.reasons)


def router_costs(
    made: Mapping[str, Any], name: str, family: str | None, models: Models
) -> dict[str, Any]:
    """Cost per question at the realised usage of each budget; null with a reason."""
    found: dict[str, Any] = {"cost": None, "cost_parts": None, "seconds": None}
    for unit, key in (("tokens", "cost_reason"), ("seconds", "seconds_reason")):
        reason = _reason(name, family, unit, models)
        if reason:
            found[key] = reason
            continue
        assert family is not None
        model = _with_scoring(family, models.by_unit[unit], models.scoring[unit].get(name, 0.0))
        spell_out = _in_tokens if unit == "tokens" else _in_seconds
        found |= spell_out(made, family, model)
    return found


def _reason(name: str, family: str | None, unit: str, models: Models) -> str | None:
    """Why the cost of a router is not known in a unit, None if it is."""
    if family is None:
        return "no family: name it with --families"
    if unit not in models.by_unit:
        return models.reasons.get(unit, f"no {unit}")
    reads = name in _READERS or any(name in models.scoring[other] for other in UNITS)
    if reads and name not in models.scoring[unit]:
        key = f"scoring.{name}.{unit}"
        return models.reasons.get(key, f"no column {key}, and its score is not free")
    return None


def _with_scoring(family: str, model: costs.CostModel, priced: float) -> costs.CostModel:
    if family == "query":
        return model._replace(features=priced)
    return model._replace(reading=priced)


def _in_tokens(made: Mapping[str, Any], family: str, model: costs.CostModel) -> dict[str, Any]:
    """Cost and its parts by budget; the conservative entries get theirs too."""
    by_budget: dict[str, Cell] = {}
    parts: dict[str, dict[str, float]] = {}
    for budget, entry in made["deployable"].items():
        ends = [costs.cost(family, usage, model) for usage in entry["usage"].values()]
        # Cost need not rise with usage.
        low, high = sorted(float(one.total) for one in ends[1:])
        by_budget[budget] = cell(ends[0].total, low, high)
        parts[budget] = {k: float(v) for k, v in ends[0]._asdict().items() if k != "total"}
    for entries in made["conservative"].values():
        for entry in entries.values():
            entry["cost"] = cell(costs.cost(family, entry["usage"]["estimate"], model).total)
    return {
        "cost": by_budget,
        "cost_parts": parts,
        "accuracy_at_cost": _accuracy_at_cost(made, by_budget, model),
    }


def _in_seconds(made: Mapping[str, Any], family: str, model: costs.CostModel) -> dict[str, Any]:
    return {
        "seconds": {
            budget: float(costs.cost(family, entry["usage"]["estimate"], model).total)
            for budget, entry in made["deployable"].items()
        }
    }


def _accuracy_at_cost(
    made: Mapping[str, Any], by_budget: Mapping[str, Cell], model: costs.CostModel
) -> dict[str, float | None]:
    """Best deployable accuracy for a share of the price of always retrieving."""
    spent = [one["estimate"] for one in by_budget.values()]
    right = [entry["accuracy"]["estimate"] for entry in made["deployable"].values()]
    limit = costs.always_cost(model)
    return {
        repr(share): costs.accuracy_at_cost(spent, right, share * limit) for share in _SHARES
    }


def cost_section(models: Models, prices: costs.Prices) -> dict[str, Any]:
    """The models themselves, their end points and break-even usages; null with a reason."""
    made: dict[str, Any] = {"prices": prices._asdict(), "tokens": None, "seconds": None}
    for unit in UNITS:
        model = models.by_unit.get(unit)
        if model is None:
            made["reason" if unit == "tokens" else "seconds_reason"] = models.reasons.get(unit)
            continue
        made[unit] = {
            **model._asdict(),
            "scoring": models.scoring[unit],
            "always": costs.always_cost(model),
            "never": costs.never_cost(model),
            "break_even": {f: costs.break_even(f, model) for f in costs.FAMILIES},
        }
    return made
