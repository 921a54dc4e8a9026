"""From a budget study to report.json: every figure with its interval, nothing left out."""

from typing import Any

import numpy as np

from calibjax import metrics
from calibjax.routing import costs
from calibjax.routing import study as studies
from calibjax.routing import utilities
from calibjax.routing.bills import Models, cost_models, cost_section, router_costs
from calibjax.routing.cells import Cell, along, by_budget, cell, cell_at, of_one_split
from calibjax.routing.examples import Outcomes
from calibjax.routing.study import BudgetStudy, Settings

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
    judged: np.ndarray = np.any(np.asarray(study.splits.test), axis=0)
    models = cost_models(outcomes, study.splits, prices, reuse_draft, reuse_probe)
    report: dict[str, Any] = {
        "never": cell_at(study.ends, 0),
        "always": cell_at(study.ends, 1),
        "utility": utility_section(outcomes, judged, settings),
        "routers": {
            name: _router(study, settings, place, name, models)
            for place, name in enumerate(study.routers.names)
        },
        "oracle": along(settings.budgets, study.oracle),
        "random": along(settings.budgets, study.random),
        "expected_violation": expected_violation(study, settings),
        "violation_overall": _overall_violation(study, settings),
        "comparisons": _comparisons(study, settings),
        "cost_model": cost_section(models, prices),
        "settings": _settings(outcomes, study, settings),
        "notes": _notes(outcomes, study),
    }
    return report if outcomes.split is None else of_one_split(report)


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


def _router(
    study: BudgetStudy,
    settings: Settings,
    r: int,
    name: str,
    models: Models,
) -> dict[str, Any]:
    family = study.routers.families[name]
    exact = study.frontiers.exact_interval
    assert exact is not None
    made: dict[str, Any] = {
        "family": family,
        "exact": along(settings.budgets, exact, r),
        "deployable": _entries(study, settings, "quantile", r),
        "conservative": {
            rule: _entries(study, settings, rule, r) for rule in studies.RULES[1:]
        },
    }
    return made | router_costs(made, name, family, models)


def _entries(study: BudgetStudy, settings: Settings, rule: str, r: int) -> dict[str, Any]:
    """What one rule's thresholds do at every budget; and against what they must be seen."""
    beside, interval = "gain_over_random", study.gain
    if rule != "quantile":
        beside, interval = "accuracy_lost", study.caution[rule]
    return by_budget(
        settings.budgets,
        (
            _entry(study, settings, rule, r, j) | {beside: cell_at(interval, r, j)}
            for j in range(len(settings.budgets))
        ),
    )


def _entry(study: BudgetStudy, settings: Settings, rule: str, r: int, j: int) -> dict[str, Cell]:
    """What one rule's thresholds do at one budget, averaged over splits.

    harm_used is over all that is retrieved in any split. exact_gap: accuracy minus the exact one
    at the same count, 0 up to rounding.
    """
    found, intervals = study.frontiers.deployable[rule], study.frontiers.intervals[rule]
    budget = float(settings.budgets[j])
    violated = np.asarray(found.violated)[r, :, j]
    rate = float(violated.mean())
    # One split is violated or not; of many, the share has an interval.
    ends = metrics.wilson_interval(rate, len(violated), _CONFIDENCE) if len(violated) > 1 else ()
    used = cell_at(intervals["usage"], r, j)
    nothing = None if used["estimate"] else "nothing is retrieved"
    entry = {
        "accuracy": cell_at(intervals["accuracy"], r, j),
        "usage": used,
        "transfer_error": cell_at(intervals["usage"], r, j, shift=-budget),
        "violation_rate": cell(rate, *ends),
        "harm_all": cell_at(intervals["harm_all"], r, j),
        "harm_used": cell_at(intervals["harm_used"], r, j, reason=nothing),
        "benefit_all": cell_at(intervals["benefit_all"], r, j),
        "missed": cell_at(intervals["missed"], r, j),
        "exact_gap": cell(np.asarray(study.frontiers.exact_gap[rule])[r, :, j].mean()),
    }
    if len(violated) == 1:
        entry["threshold"] = _threshold(study, r, float(np.asarray(found.threshold)[r, 0, j]))
    return entry


def _threshold(study: BudgetStudy, r: int, rank: float) -> Cell:
    """The score to retrieve from; thresholds were found among ranks of scores."""
    if not np.isfinite(rank):
        return cell(None, reason="no threshold keeps the budget: nothing is retrieved")
    return cell(np.unique(study.routers.of_split(r, 0))[int(rank)])


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

    budgets = [float(budget) for budget in settings.budgets]
    return {
        rule: by_budget(budgets, (mean(rule, budget) for budget in budgets))
        for rule in studies.RULES
    }


def _overall_violation(study: BudgetStudy, settings: Settings) -> dict[str, dict[str, Cell]]:
    """Violation rates over all routers; the error is over splits, which the routers share."""
    made = {}
    for rule in studies.RULES:
        violated = study.frontiers.deployable[rule].violated
        rate = metrics.violation_rate(violated, confidence_level=_CONFIDENCE)
        figures = (rate.overall, rate.overall_low, rate.overall_high)
        made[rule] = by_budget(settings.budgets, map(cell, *map(np.asarray, figures)))
    return made


def _comparisons(study: BudgetStudy, settings: Settings) -> dict[str, Any]:
    """Deployable accuracy of a minus that of b at each budget, paired."""
    return {
        f"{a}-{b}": {"accuracy": along(settings.budgets, found)}
        for (a, b), found in study.pairs.items()
    }


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
