"""From a budget study to report.json: every figure with its interval, nothing left out."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from calibjax import metrics
from calibjax.metrics import Interval
from calibjax.report.curves import wilson_interval
from calibjax.routing import costs
from calibjax.routing import study as studies
from calibjax.routing import utilities
from calibjax.routing.examples import Outcomes
from calibjax.routing.study import BudgetStudy, Settings

Cell = dict[str, Any]
_CONFIDENCE = 0.95


def build(
    outcomes: Outcomes,
    study: BudgetStudy,
    settings: Settings,
    prices: costs.Prices = costs.Prices(),
    *,
    reuse_draft: bool = True,
    reuse_probe: bool = True,
) -> dict[str, Any]:
    """The report: without a split column figures are means over splits, {estimate, low, high};
    with one they are plain numbers of that split, with the intervals beside them."""
    judged = np.asarray(study.splits.test).any(axis=0)
    models, reason = cost_models(outcomes, judged, prices, reuse_draft, reuse_probe)
    report: dict[str, Any] = {
        "never": cell_at(study.ends, 0),
        "always": cell_at(study.ends, 1),
        "utility": utility_section(outcomes, judged, settings),
        "routers": {
            name: _router(study, settings, place, name, models, reason)
            for place, name in enumerate(study.routers.names)
        },
        "oracle": _by_budget(settings, lambda j: cell_at(study.oracle, j)),
        "random": _by_budget(settings, lambda j: cell_at(study.random, j)),
        "expected_violation": expected_violation(study, settings),
        "violation_overall": _overall_violation(study, settings),
        "comparisons": _comparisons(study, settings),
        "cost_model": _cost_section(models, reason, prices),
        "settings": _settings(outcomes, study, settings),
        "notes": _notes(outcomes, study),
    }
    return report if outcomes.split is None else _of_one_split(report)


def cell(estimate: Any, low: Any = None, high: Any = None, reason: str | None = None) -> Cell:
    """{estimate, low, high} with null for what is not defined, and the reason if there is one."""
    numbers = {"estimate": estimate, "low": low, "high": high}
    made: Cell = {
        key: None if value is None or not np.isfinite(value) else float(value)
        for key, value in numbers.items()
    }
    return made | {"reason": reason} if reason else made


def cell_at(interval: Interval, *place: int, shift: float = 0.0) -> Cell:
    """The cell of one place of an `Interval` of arrays."""
    return cell(*(float(np.asarray(x)[place]) + shift for x in interval[:3]))


def _by_budget(settings: Settings, make: Any) -> dict[str, Any]:
    return {repr(float(b)): make(j) for j, b in enumerate(settings.budgets)}


def utility_section(
    outcomes: Outcomes, judged: np.ndarray, settings: Settings
) -> dict[str, Any]:
    """Harmful, neutral and beneficial shares of the rows that are judged, hard or as given; the
    same for graded outcomes; and between two runs of one arm, where the file has a repeat."""
    group = None if outcomes.group is None else outcomes.group[judged]

    def shares(without: np.ndarray, with_evidence: np.ndarray) -> dict[str, Cell]:
        u = utilities.utility(without[judged], with_evidence[judged])
        found = utilities.shares(
            u, seed=settings.seed, num_replicates=settings.replicates, cluster=group
        )
        return {name: cell_at(part) for name, part in found._asdict().items()}

    u = utilities.utility(outcomes.correct_without[judged], outcomes.correct_with[judged])
    section: dict[str, Any] = shares(outcomes.correct_without, outcomes.correct_with)
    section["counts"] = {
        "n": len(u),
        "harmful": int((u < 0).sum()),
        "neutral": int((u == 0).sum()),
        "beneficial": int((u > 0).sum()),
    }
    graded = outcomes.pairs.get("f1")
    section["graded"] = shares(*graded) if graded else None
    repeat = outcomes.pairs.get("repeat")
    if repeat:
        first = (outcomes.correct_without, outcomes.correct_with)
        section["same_arm"] = {
            arm: shares(a, b) for arm, a, b in zip(("without", "with"), first, repeat)
        }
    else:
        section["same_arm"] = None
        section["same_arm_reason"] = "no columns repeat_without and repeat_with"
    return section


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
        models["tokens"] = costs.CostModel(
            *(
                float(costs.token_cost(mean[f"{arm}_prompt"], mean[f"{arm}_output"], prices))
                for arm in ("without", "with")
            ),
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


def _router(
    study: BudgetStudy,
    settings: Settings,
    r: int,
    name: str,
    models: Mapping[str, costs.CostModel],
    reason: str,
) -> dict[str, Any]:
    family = study.routers.families[name]
    exact = study.frontiers.exact_interval
    assert exact is not None
    made: dict[str, Any] = {
        "family": family,
        "exact": _by_budget(settings, lambda j: cell_at(exact, r, j)),
        "deployable": _by_budget(
            settings,
            lambda j: {
                **_entry(study, settings, "quantile", r, j),
                "gain_over_random": cell_at(study.gain, r, j),
            },
        ),
        "conservative": {
            rule: _by_budget(
                settings,
                lambda j, rule=rule: {
                    **_entry(study, settings, rule, r, j),
                    "accuracy_lost": cell_at(study.caution[rule], r, j),
                },
            )
            for rule in studies.RULES[1:]
        },
    }
    return made | _costs(made, family, models, reason)


def _entry(study: BudgetStudy, settings: Settings, rule: str, r: int, j: int) -> dict[str, Cell]:
    """What one rule's thresholds do at one budget, averaged over splits."""
    found, intervals = study.frontiers.deployable[rule], study.frontiers.intervals[rule]
    budget = float(settings.budgets[j])
    violated = np.asarray(found.violated)[r, :, j]
    rate = float(violated.mean())
    # One split is violated or not; of many, the share has an interval.
    ends = wilson_interval(rate, len(violated), _CONFIDENCE) if len(violated) > 1 else ()
    used = np.asarray(found.harm_used)[r, :, j]
    harm_used = float(np.mean(used[~np.isnan(used)])) if not np.isnan(used).all() else np.nan
    entry = {
        "accuracy": cell_at(intervals["accuracy"], r, j),
        "usage": cell_at(intervals["usage"], r, j),
        "transfer_error": cell_at(intervals["usage"], r, j, shift=-budget),
        "violation_rate": cell(rate, *ends),
        "harm_all": cell_at(intervals["harm_all"], r, j),
        "harm_used": cell(
            harm_used, reason="nothing is retrieved" if np.isnan(harm_used) else None
        ),
        "benefit_all": cell_at(intervals["benefit_all"], r, j),
        "missed": cell(np.asarray(found.missed)[r, :, j].mean()),
    }
    if len(violated) == 1:
        entry["threshold"] = _threshold(study, r, float(np.asarray(found.threshold)[r, 0, j]))
    return entry


def _threshold(study: BudgetStudy, r: int, rank: float) -> Cell:
    """The score to retrieve from; thresholds were found among ranks of scores."""
    if not np.isfinite(rank):
        return cell(None, reason="no threshold keeps the budget: nothing is retrieved")
    return cell(np.unique(study.routers.of_split(r, 0))[int(rank)])


def _costs(
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
        for share in (0.25, 0.5, 0.75, 1.0, 1.25)
    }


def expected_violation(study: BudgetStudy, settings: Settings) -> dict[str, dict[str, float]]:
    """The beta-binomial reference of each rule and budget, averaged over the splits' sizes."""
    sizes = np.stack([mask.sum(axis=1) for mask in study.splits], axis=1)
    pairs, counts = np.unique(sizes, axis=0, return_counts=True)

    def mean(rule: str, budget: float) -> float:
        rates = [
            metrics.expected_violation(int(n), int(m), budget, rule=rule, alpha=settings.alpha)
            for n, m in pairs
        ]
        return float(np.average(rates, weights=counts))

    return {
        rule: _by_budget(settings, lambda j, rule=rule: mean(rule, float(settings.budgets[j])))
        for rule in studies.RULES
    }


def _overall_violation(study: BudgetStudy, settings: Settings) -> dict[str, dict[str, Cell]]:
    """Violation rates over all routers; the error is over splits, which the routers share."""
    made = {}
    for rule in studies.RULES:
        rate = metrics.violation_rate(study.frontiers.deployable[rule].violated)
        means, errors = np.asarray(rate.overall), np.asarray(rate.overall_standard_error)
        made[rule] = _by_budget(
            settings,
            lambda j, means=means, errors=errors: cell(
                means[j],
                max(0.0, means[j] - 1.96 * errors[j]),
                min(1.0, means[j] + 1.96 * errors[j]),
            ),
        )
    return made


def _comparisons(study: BudgetStudy, settings: Settings) -> dict[str, Any]:
    """Deployable accuracy of a minus that of b at each budget, paired."""
    return {
        f"{a}-{b}": {"accuracy": _by_budget(settings, lambda j, found=found: cell_at(found, j))}
        for (a, b), found in study.pairs.items()
    }


def _cost_section(
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


def _settings(outcomes: Outcomes, study: BudgetStudy, settings: Settings) -> dict[str, Any]:
    calibration, test = (mask.sum(axis=1) for mask in study.splits)
    return {
        "budgets": [float(b) for b in settings.budgets],
        "alpha": settings.alpha,
        "split": "column" if outcomes.split is not None else "random",
        "num_splits": len(study.splits.test),
        "n_calibration": float(calibration.mean()),
        "n_test": float(test.mean()),
        "n_train": float(np.mean(len(outcomes) - calibration - test)),
        "replicates": settings.replicates,
        "confidence_level": _CONFIDENCE,
        "cluster": "group" if outcomes.group is not None else None,
        "seed": settings.seed,
    }


def _notes(outcomes: Outcomes, study: BudgetStudy) -> list[str]:
    """What a reader must know of the data before reading a figure."""
    notes = []
    for name, values in outcomes.scores.items():
        distinct = len(np.unique(values))
        if distinct == 1:
            notes.append(f"{name}: all scores are equal, so it retrieves for all rows or none")
        elif distinct < len(values) / 4:
            notes.append(
                f"{name}: {distinct} distinct scores in {len(values)} rows; a tie is taken whole"
                " or left whole, so budgets are not used up"
            )
    n_calibration = int(study.splits.calibration.sum(axis=1).min())
    if n_calibration < 50:
        notes.append(
            f"{n_calibration} calibration rows: conservative rules may retrieve nothing, and that"
            " is the honest answer"
        )
    return notes


def _of_one_split(report: dict[str, Any]) -> dict[str, Any]:
    """Cells as plain numbers, the intervals of each group of them beside it."""
    if set(report) >= {"estimate", "low", "high"}:
        return report["estimate"]
    made: dict[str, Any] = {}
    intervals: dict[str, Any] = {}
    for key, value in report.items():
        if isinstance(value, dict):
            made[key] = _of_one_split(value)
            if set(value) >= {"estimate", "low", "high"} and value["low"] is not None:
                intervals[key] = value
        else:
            made[key] = value
    return made | {"intervals": intervals} if intervals else made
