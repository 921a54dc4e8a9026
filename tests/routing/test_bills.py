"""Bills of routers: nothing is free in silence, and no judged row sets a price."""

import numpy as np
import pytest

from calibjax.metrics import Splits
from calibjax.routing.bills import cost_models, router_costs
from calibjax.routing.costs import Prices
from calibjax.routing.examples import Outcomes

N = 8
TEST = np.arange(N) >= 5
SPLITS = Splits(~TEST[None] & (np.arange(N) >= 2)[None], TEST[None])
ENTRY = {"estimate": 0.5, "low": 0.25, "high": 0.75}
MADE = {
    "deployable": {"0.5": {"usage": ENTRY, "accuracy": ENTRY}},
    "conservative": {"exact": {"0.5": {"usage": dict(ENTRY)}}},
}


def outcomes(**changes):
    """Judged rows are a thousand times as long and as slow as the others."""
    scale = np.where(TEST, 1000.0, 1.0)
    tokens = {"without_prompt": 10, "without_output": 5, "with_prompt": 100, "with_output": 5}
    seconds = {"without": 0.1, "with": 0.4, "retrieval": 0.01}
    made = Outcomes(
        np.arange(N).astype(object),
        np.zeros(N),
        np.ones(N),
        scores={"forecaster": np.arange(N, dtype=float)},
        tokens={kind: value * scale for kind, value in tokens.items()},
        seconds={kind: value * scale for kind, value in seconds.items()},
        scoring={"tokens": {"forecaster": 200 * scale}, "seconds": {"forecaster": 2 * scale}},
    )
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def bill(name, family, rows, prices=Prices()):
    models = cost_models(rows, SPLITS, prices, True, True)
    return router_costs(MADE, name, family, models)


def test_judged_rows_set_no_price():
    models = cost_models(outcomes(), SPLITS, Prices(), True, True)
    assert models.by_unit["tokens"][:2] == (30, 120)
    assert models.by_unit["seconds"][:3] == pytest.approx((0.1, 0.4, 0.01))
    assert models.scoring == {"tokens": {"forecaster": 200}, "seconds": {"forecaster": 2}}


def test_over_splits_prices_are_means_over_what_each_split_leaves_unjudged():
    tests = np.stack([np.arange(N) < 4, np.arange(N) >= 4])
    tokens = outcomes().tokens | {"without_prompt": np.arange(8.0), "without_output": np.zeros(N)}
    models = cost_models(outcomes(tokens=tokens), Splits(~tests, tests), Prices(), True, True)
    assert models.by_unit["tokens"].draft == np.mean([5.5, 1.5])


def test_what_a_forecaster_reads_is_priced():
    # Probe and passages are read before the decision: 200 tokens; half of the questions get 120
    # tokens of answer, the others a draft of 30.
    found = bill("forecaster", "retrieval", outcomes())
    assert found["cost"]["0.5"]["estimate"] == 200 + 60 + 15
    assert found["cost_parts"]["0.5"]["reading"] == 200
    assert found["seconds"]["0.5"] == pytest.approx(2 + 0.01 + 0.2 + 0.05)
    dear = bill("forecaster", "retrieval", outcomes(), Prices(prompt=2.0))
    assert dear["cost_parts"]["0.5"]["reading"] == 400
    # A query trigger's own tokens are its features.
    parts = bill("forecaster", "query", outcomes())["cost_parts"]["0.5"]
    assert (parts["features"], parts["reading"]) == (200, 0)


def test_a_forecaster_without_its_tokens_has_no_cost_and_other_scores_need_none():
    bare = outcomes(scoring={"tokens": {}, "seconds": {}})
    found = bill("forecaster", "retrieval", bare)
    assert found["cost"] is None and found["seconds"] is None
    assert "no column scoring.forecaster.tokens" in found["cost_reason"]
    assert bill("bm25_top", "retrieval", bare)["cost"]["0.5"]["estimate"] == 60 + 15


def test_tokens_of_a_score_without_its_seconds_leave_the_seconds_open():
    rows = outcomes(scoring={"tokens": {"mine": np.full(N, 7.0)}, "seconds": {}})
    found = bill("mine", "uncertainty", rows)
    assert found["cost"]["0.5"]["estimate"] == 7 + 30 + 60
    assert found["seconds"] is None and "scoring.mine.seconds" in found["seconds_reason"]


def test_measured_seconds_stay_where_tokens_are_absent():
    rows = outcomes(tokens={}, reasons={"tokens": "no column tokens.with_output"})
    found = bill("bm25_top", "retrieval", rows)
    assert found["cost"] is None and found["cost_reason"] == "no column tokens.with_output"
    assert found["seconds"]["0.5"] == pytest.approx(0.01 + 0.2 + 0.05)
