"""What the policies would have done with the test rows of a regime: rescue, and the router."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from calibjax.abstention.deciding import coverage_threshold, thresholds
from calibjax.abstention.example_rows import Example
from calibjax.abstention.examples import column
from calibjax.abstention.fitting import Regime, Settings
from calibjax.abstention.policy import check_below, rescue
from calibjax.abstention.question_router import PipelineRouter, route, routed
from calibjax.errors import input_error


def rescue_section(regime: Regime, settings: Settings) -> dict[str, Any] | None:
    """The second pass below the threshold that keeps `rescue_coverage` of the tune rows.

    None where no test row says how the second pass ended.
    """
    success = column(regime.examples, lambda example: example.rescue_success)
    if np.isnan(success[regime.test]).all():
        return None
    cost = column(regime.examples, lambda example: example.rescue_cost)
    score, test = regime.rcs.score(regime.features), regime.test
    tau = coverage_threshold(score[regime.tune], settings.rescue_coverage)
    has_cost = not np.isnan(cost).all()
    found = rescue(
        score[test],
        regime.success[test],
        success[test],
        cost[test] if has_cost else None,
        tau=tau,
    )
    unit = "rescue_cost of the file" if has_cost else "passes"
    aimed = {"tau": tau, "target_coverage": settings.rescue_coverage, "unit": unit}
    return aimed | found._asdict()


def router_section(regime: Regime, settings: Settings) -> dict[str, Any] | None:
    """RCS first, then the pipeline that the question's text calls for; None without pipelines."""
    examples, test = regime.examples, regime.test
    names = list(examples[0].pipelines)
    if not names:
        return None
    questions = [example.question for example in examples]
    if any(question is None for question in questions):
        raise input_error("question", "null", "a text in every row, for the router", "add question")
    texts = [str(question) for question in questions]
    check_below(settings.below, names)
    success = {n: column(examples, lambda example: example.pipelines[n]) for n in names}
    costs = _mean_costs([e for e, part in zip(examples, regime.tune) if part], names)
    chooser = PipelineRouter.fit(
        [text for text, part in zip(texts, regime.tune) if part],
        {name: outcome[regime.tune] for name, outcome in success.items()},
        costs,
    )
    chosen = chooser.choose([text for text, part in zip(texts, test) if part])
    tested = {name: outcome[test] for name, outcome in success.items()}
    tau = thresholds(regime, settings)["suffix"]["tau"]
    score = regime.rcs.score(regime.features)[test]
    rows = np.arange(len(chosen))
    stacked = np.stack([tested[name] for name in chooser.pipelines], axis=1)
    picked = stacked[rows, [chooser.pipelines.index(name) for name in chosen]]
    return {
        "tau": tau,
        "below": settings.below,
        "pipelines": {name: float(outcome.mean()) for name, outcome in tested.items()},
        "cheapest_first": list(chooser.pipelines),
        "share_chosen": {name: chosen.count(name) / len(chosen) for name in chooser.pipelines},
        "success_routed": float(picked.mean()),
        "success_oracle": float(stacked.max(axis=1).mean()),
        **routed(route(score, tau, chosen, below=settings.below), tested),
    }


def _mean_costs(tuned: Sequence[Example], names: list[str]) -> dict[str, float] | None:
    """Mean cost of each pipeline over the tune rows; None unless each is known of all of them."""
    if any(name not in example.costs for example in tuned for name in names):
        return None
    return {name: float(np.mean([e.costs[name] for e in tuned])) for name in names}
