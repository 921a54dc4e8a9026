"""Cost of the four families, by the formulas."""

import numpy as np
import pytest

from calibjax import routing
from calibjax.routing import costs

MODEL = routing.CostModel(draft=10, answer=30, retrieval=5, probe=5, features=1)


def total(family, usage=0.5, **changes):
    return float(routing.cost(family, usage, MODEL._replace(**changes)).total)


def test_the_worked_example():
    assert [total(family) for family in costs.FAMILIES] == [23.5, 27.5, 25, 30]
    assert costs.always_cost(MODEL) == 35 and costs.never_cost(MODEL) == 10


def test_without_reuse_the_draft_and_the_probe_are_paid_twice():
    assert total("uncertainty", reuse_draft=False) == 27.5 + 0.5 * 10
    assert total("retrieval", reuse_probe=False) == 25 + 0.5 * 5
    assert total("full", reuse_draft=False, reuse_probe=False) == 30 + 5 + 2.5
    assert total("query", reuse_draft=False, reuse_probe=False) == 23.5


def test_what_a_trigger_reads_itself_is_paid_before_the_decision():
    for family in ("uncertainty", "retrieval", "full"):
        for usage in (0.0, 0.5, 1.0):
            assert total(family, usage, reading=7) == total(family, usage) + 7
    # A query trigger reads nothing but its features.
    assert total("query", reading=7) == total("query") == total("query", features=0) + 1


def test_parts_add_up_to_the_total():
    for family in costs.FAMILIES:
        model = MODEL._replace(reading=2)
        made = routing.cost(family, np.linspace(0, 1, 5), model)._asdict()
        np.testing.assert_allclose(made.pop("total"), sum(made.values()))


def test_break_even_is_where_the_trigger_costs_as_much_as_always():
    assert routing.break_even("uncertainty", MODEL) == pytest.approx(1 - 10 / 35)
    for family in costs.FAMILIES:
        usage = routing.break_even(family, MODEL)
        assert total(family, usage) == pytest.approx(costs.always_cost(MODEL))
    dear = MODEL._replace(draft=50)
    assert routing.break_even("uncertainty", dear) < 0


def test_cost_can_turn_the_order_of_two_routers():
    """The uncertainty router is the more accurate at every budget, and the dearer."""
    budgets = [0.0, 0.25, 0.5, 0.75, 1.0]
    accuracy = {"uncertainty": [0.20, 0.31, 0.40, 0.42, 0.42]}
    accuracy["query"] = [0.20, 0.29, 0.37, 0.40, 0.42]
    model = routing.CostModel(draft=20, answer=40)
    at = {}
    for family, right in accuracy.items():
        spent = [float(routing.cost(family, b, model).total) for b in budgets]
        at[family] = costs.accuracy_at_cost(spent, right, 35.0)
    assert all(a >= b for a, b in zip(accuracy["uncertainty"], accuracy["query"]))
    assert at["query"] > at["uncertainty"]
    assert costs.accuracy_at_cost([10.0, 20.0], [0.1, 0.2], 5.0) is None


def test_an_unknown_family_is_named():
    with pytest.raises(ValueError, match="family=uncertain.*did you mean uncertainty"):
        routing.cost("uncertain", 0.5, MODEL)


def test_prices_weigh_prompt_and_output_tokens():
    assert costs.token_cost(100, 5, costs.Prices(prompt=1, output=4)) == 120
