"""The cost part of a report: what each router pays per question, by unit and by part."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from calibjax.routing import costs
from calibjax.routing.cells import Cell, cell
from calibjax.routing.examples import Outcomes

# Shares of the price of always retrieving at which accuracy is reported.
_SHARES = (0.25, 0.5, 0.75, 1.0, 1.25)


def cost_models(
    outcomes: Outcomes,
    judged: np.ndarray,
    prices: costs.Prices,
    reuse_draft: bool,
    reuse_probe: bool,
) -> tuple[dict[str, costs.CostModel], str]:
    """Cost models by unit, "tokens" (token equivalents) and "seconds" (measured), and what is
    missing for the first. Token counts are means; seconds are medians, since a batch that compiles
    is slow."""
    models = {}
    if outcomes.tokens:
        mean = {kind: float(column[judged].mean()) for kind, column in outcomes.tokens.items()}
        arms = [
            float(costs.token_cost(mean[f"{arm}_prompt"], mean[f"{arm}_output"], prices))
            for arm in ("without", "with")
        ]
        models["tokens"] = costs.CostModel(
            arms[0],
            arms[1],
            prices.retrieval,
            prices.retrieval,
            reuse_draft=reuse_draft,
            reuse_probe=reuse_probe,
        )
    if outcomes.seconds:
        typical = {k: float(np.median(column[judged])) for k, column in outcomes.seconds.items()}
        models["seconds"] = costs.CostModel(
            typical["without"],
            typical["with"],
            typical["retrieval"],
            typical["retrieval"],
            reuse_draft=reuse_draft,
            reuse_probe=reuse_probe,
        )
    return models, outcomes.reasons.get("tokens", "")


def router_costs(
    made: Mapping[str, Any],
    family: str | None,
    models: Mapping[str, costs.CostModel],
    reason: str,
) -> dict[str, Any]:
    """Cost per question at the realised usage of each budget; null with a reason."""
    if family is None:
        reason = "no family: name it with --families"
    if family is None or "tokens" not in models:
        return {"cost": None, "cost_reason": reason, "cost_parts": None, "seconds": None}
    found: dict[str, Any] = {"cost": {}, "cost_parts": {}, "seconds": None}
    for budget, entry in made["deployable"].items():
        usage = entry["usage"]
        ends = [costs.cost(family, usage[end], models["tokens"]) for end in usage]
        # Cost need not rise with usage.
        low, high = sorted(float(one.total) for one in ends[1:])
        found["cost"][budget] = cell(ends[0].total, low, high)
        parts = {key: float(value) for key, value in ends[0]._asdict().items() if key != "total"}
        found["cost_parts"][budget] = parts
    for entries in made["conservative"].values():
        for entry in entries.values():
            usage = entry["usage"]["estimate"]
            entry["cost"] = cell(costs.cost(family, usage, models["tokens"]).total)
    if "seconds" in models:
        found["seconds"] = {
            budget: float(costs.cost(family, e["usage"]["estimate"], models["seconds"]).total)
            for budget, e in made["deployable"].items()
        }
    found["accuracy_at_cost"] = _accuracy_at_cost(made, found["cost"], models["tokens"])
    return found


def _accuracy_at_cost(
    made: Mapping[str, Any], by_budget: Mapping[str, Cell], model: costs.CostModel
) -> dict[str, float | None]:
    """Best deployable accuracy for a share of the price of always retrieving."""
    spent = [one["estimate"] for one in by_budget.values()]
    right = [entry["accuracy"]["estimate"] for entry in made["deployable"].values()]
    limit = costs.always_cost(model)
    return {
        repr(share): costs.accuracy_at_cost(spent, right, share * limit)
        for share in _SHARES
    }


def cost_section(
    models: Mapping[str, costs.CostModel], reason: str, prices: costs.Prices
) -> dict[str, Any] | None:
    if "tokens" not in models:
        return {"prices": prices._asdict(), "tokens": None, "seconds": None, "reason": reason}
    made: dict[str, Any] = {"prices": prices._asdict(), "seconds": None}
    for unit, model in models.items():
        made[unit] = {
            **model._asdict(),
            "always": costs.always_cost(model),
            "never": costs.never_cost(model),
            "break_even": {f: costs.break_even(f, model) for f in costs.FAMILIES},
        }
    return made
