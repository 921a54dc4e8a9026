"""report.json of the budget: its keys, its shapes, and the refusal to show half of it."""

import copy
import json

import numpy as np
import pytest

from calibjax import storage
from calibjax.report import budget_page, budget_schema, budget_tables
from calibjax.routing import costs, examples, reporting, study
from calibjax.routing.study import RULES, Settings

BUDGETS = (0.25, 0.5)


def rows(n, split):
    rng = np.random.default_rng(0)
    parts = np.array(["calibration", "test"])[np.arange(n) % 2] if split else None
    columns = (rng.random((2, n)) < [[0.3], [0.5]]).astype(float)
    return examples.Outcomes(
        np.array([f"q{i}" for i in range(n)], object),
        *columns,
        scores={"mean_entropy": rng.random(n), "mine": rng.random(n)},
        tokens={"without_prompt": np.full(n, 10.0), "without_output": np.full(n, 5.0)}
        | {"with_prompt": np.full(n, 100.0), "with_output": np.full(n, 5.0)},
        seconds={
            kind: np.full(n, value)
            for kind, value in {"without": 0.1, "with": 0.4, "retrieval": 0.01}.items()
        },
        pairs={"repeat": (columns[0], columns[1])},
        split=parts,
    )


def make(split, **changes):
    outcomes = rows(80, split)
    for name, value in changes.items():
        setattr(outcomes, name, value)
    settings = Settings(budgets=BUDGETS, num_splits=8, replicates=20)
    made = reporting.build(outcomes, study.run(outcomes, settings), settings)
    made["rows"] = {"n_kept": len(outcomes), "n_rejected": 0}
    return storage.plain(made)


@pytest.fixture(scope="module")
def over_splits():
    return make(split=False)


@pytest.fixture(scope="module")
def of_one_split():
    return make(split=True)


def test_the_keys_are_those_that_others_rely_on(over_splits):
    assert set(over_splits) >= {"never", "always", "utility", "routers", "oracle", "random"}
    assert set(over_splits["expected_violation"]) == set(RULES)
    assert set(over_splits["oracle"]) == set(over_splits["random"]) == {"0.25", "0.5"}
    router = over_splits["routers"]["mean_entropy"]
    assert router["family"] == "uncertainty"
    assert set(router["exact"]) == set(router["deployable"]) == set(router["cost"])
    assert set(router["deployable"]["0.5"]) >= set(budget_schema.REQUIRED)
    assert set(router["conservative"]) == set(RULES[1:])
    assert set(over_splits["utility"]) >= {"harmful", "neutral", "beneficial"}


def test_over_splits_figures_have_intervals_around_them(over_splits):
    entry = over_splits["routers"]["mine"]["deployable"]["0.5"]
    for name in (*budget_schema.REQUIRED, "missed"):
        assert entry[name]["low"] <= entry[name]["estimate"] <= entry[name]["high"], name
    shift = entry["usage"]["estimate"] - entry["transfer_error"]["estimate"]
    assert shift == pytest.approx(0.5)
    assert over_splits["never"]["low"] < over_splits["never"]["estimate"]


def test_of_one_split_figures_are_plain_numbers_with_intervals_beside(of_one_split):
    entry = of_one_split["routers"]["mine"]["deployable"]["0.5"]
    assert all(isinstance(entry[name], (int, float)) for name in ("accuracy", "usage", "harm_all"))
    assert entry["violation_rate"] in (0.0, 1.0)
    assert entry["intervals"]["accuracy"]["estimate"] == entry["accuracy"]
    assert isinstance(of_one_split["never"], float)
    assert isinstance(of_one_split["utility"]["harmful"], float)
    assert isinstance(of_one_split["routers"]["mine"]["exact"]["0.5"], float)


def test_a_threshold_of_one_split_is_a_score_that_realises_the_usage(of_one_split):
    outcomes = rows(80, True)
    entry = of_one_split["routers"]["mine"]["deployable"]["0.5"]
    held_out = outcomes.scores["mine"][outcomes.split == "test"]
    assert np.mean(held_out >= entry["threshold"]) == pytest.approx(entry["usage"])
    assert entry["threshold"] in outcomes.scores["mine"]


def test_the_figures_of_one_split_are_those_of_plain_numpy(of_one_split):
    outcomes = rows(80, True)
    test = outcomes.split == "test"
    without, with_evidence = outcomes.correct_without[test], outcomes.correct_with[test]
    own = np.sort(outcomes.scores["mine"][~test])[::-1]
    used = outcomes.scores["mine"][test] >= own[19]  # floor(.5 * 40) rows
    entry = of_one_split["routers"]["mine"]["deployable"]["0.5"]
    u = with_evidence - without
    expected = {
        "accuracy": np.where(used, with_evidence, without).mean(),
        "usage": used.mean(),
        "transfer_error": used.mean() - 0.5,
        "violation_rate": float(used.sum() > 20),
        "harm_all": (used & (u < 0)).mean(),
        "harm_used": (u[used] < 0).mean(),
        "benefit_all": (used & (u > 0)).mean(),
        "missed": (~used & (u > 0)).mean(),
    }
    for name, value in expected.items():
        assert entry[name] == pytest.approx(value, abs=1e-6), name
    assert of_one_split["utility"]["harmful"] == pytest.approx((u < 0).mean())
    assert of_one_split["never"] == pytest.approx(without.mean())


def test_cost_follows_the_realised_usage_and_family(of_one_split):
    router = of_one_split["routers"]["mean_entropy"]
    usage = router["deployable"]["0.5"]["usage"]
    draft, answer = 10 + 4 * 5, 100 + 4 * 5
    assert router["cost"]["0.5"] == pytest.approx(draft + usage * answer)
    assert router["seconds"]["0.5"] == pytest.approx(0.1 + usage * 0.41)
    tokens = of_one_split["cost_model"]["tokens"]
    assert tokens["break_even"]["uncertainty"] == pytest.approx(1 - draft / answer)


def test_without_a_family_or_token_counts_cost_is_null_with_the_reason(over_splits):
    mine = over_splits["routers"]["mine"]
    assert mine["cost"] is None and "--families" in mine["cost_reason"]
    assert "mine (no family: name it with --families)" in budget_page.page(over_splits, "t", [])
    bare = make(split=True, tokens={}, reasons={"tokens": "no column tokens.with_output"})
    router = bare["routers"]["mean_entropy"]
    assert router["cost"] is None and router["cost_reason"] == "no column tokens.with_output"
    budget_schema.check_complete(bare)
    page = budget_page.page(bare, "t", [])
    assert "no column tokens.with_output" in page
    # What was measured is still shown.
    assert "Seconds at 0.5" in page and f"{router['seconds']['0.5']:.2f}" in page


def test_a_forecaster_without_its_tokens_is_not_priced_as_free():
    made = make(split=True, scores={"forecaster": np.arange(80.0)})
    router = made["routers"]["forecaster"]
    assert router["family"] == "retrieval" and router["cost"] is None
    assert "| forecaster | retrieval |" in (page := budget_page.page(made, "t", []))
    assert "forecaster (no column scoring.forecaster.tokens, and its score is not free)" in page


def test_budgets_come_in_increasing_order(over_splits):
    page = budget_page.page(over_splits, "t", [])
    assert page.index("## Budget 0.25") < page.index("## Budget 0.5")


def test_one_split_has_no_interval_of_violations(of_one_split, over_splits):
    overall = of_one_split["violation_overall"]["quantile"]
    assert overall["0.5"] in (0.0, 0.5, 1.0) and "intervals" not in overall
    assert "violation_rate" not in of_one_split["routers"]["mine"]["deployable"]["0.5"]["intervals"]
    several = over_splits["violation_overall"]["quantile"]["0.5"]
    assert several["low"] <= several["estimate"] <= several["high"]


def test_the_gap_to_the_exact_frontier_at_the_same_count_is_reported_and_zero(over_splits):
    for router in over_splits["routers"].values():
        for entries in (router["deployable"], *router["conservative"].values()):
            for entry in entries.values():
                assert entry["exact_gap"]["estimate"] == pytest.approx(0, abs=1e-6)


def test_two_equal_runs_of_each_arm_show_no_harm(over_splits):
    for arm in ("without", "with"):
        assert over_splits["utility"]["same_arm"][arm]["harmful"]["estimate"] == 0.0


def test_constant_scores_are_said_in_the_notes():
    made = make(split=True, scores={"flat": np.ones(80), "mine": np.arange(80.0)})
    assert any("flat: all scores are equal" in note for note in made["notes"])
    assert made["routers"]["flat"]["deployable"]["0.5"]["usage"] == 0.0


def paths():
    yield from (["routers", "mine", "deployable", "0.5", name] for name in budget_schema.REQUIRED)
    for rule in budget_schema.RULES:
        yield ["routers", "mine", "conservative", rule, "0.25", "usage"]
        yield ["routers", "mine", "conservative", rule]
    yield from ([name] for name in budget_schema.SECTIONS)
    yield ["routers", "mine", "exact", "0.25"]
    yield ["routers", "mine", "cost"]
    yield ["routers", "mine", "deployable"]
    yield ["utility", "harmful"]


@pytest.mark.parametrize("path", list(paths()), ids=".".join)
def test_a_report_with_any_figure_deleted_is_not_written(over_splits, of_one_split, path, tmp_path):
    for report in (over_splits, of_one_split):
        broken = copy.deepcopy(report)
        group = broken
        for key in path[:-1]:
            group = group[key]
        del group[path[-1]]
        with pytest.raises(ValueError, match="figures missing"):
            budget_page.write_budget_report(tmp_path / "out", broken)
        assert not (tmp_path / "out").exists()


def test_every_file_of_the_report_is_written_and_says_the_same(over_splits, of_one_split, tmp_path):
    for name, report in (("splits", over_splits), ("one", of_one_split)):
        written = budget_page.write_budget_report(tmp_path / name, report)
        names = {path.name for path in written}
        assert names == {"report.json", "report.md", "report.tex", "report.csv"} | {
            f"{plot}.png" for plot in ("frontiers", "usage", "utility", "cost")
        }
        assert json.loads((tmp_path / name / "report.json").read_text()) == report
        page = (tmp_path / name / "report.md").read_text()
        entry = report["routers"]["mine"]["deployable"]["0.5"]
        for figure in ("accuracy", "usage", "violation_rate", "harm_all"):
            assert budget_tables.shown(budget_schema.cell(entry, figure)) in page
        assert r"\begin{tabular}" in (tmp_path / name / "report.tex").read_text()


def test_prices_and_reuse_change_the_bill():
    outcomes = rows(80, True)
    settings = Settings(budgets=BUDGETS, replicates=20)
    found = study.run(outcomes, settings)

    def bill(prices, **reuse):
        made = reporting.build(outcomes, found, settings, prices, **reuse)
        router = made["routers"]["mean_entropy"]
        return router["cost"]["0.5"], router["deployable"]["0.5"]["usage"]

    plain, usage = bill(costs.Prices())
    dear, _ = bill(costs.Prices(retrieval=50.0))
    assert dear - plain == pytest.approx(50 * usage)
    again, _ = bill(costs.Prices(), reuse_draft=False)
    assert again - plain == pytest.approx((1 - usage) * 30)
