"""report.json of abstention: figures of every signal, thresholds, ablation, transfer, policies."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from calibjax import metrics
from calibjax.abstention.deciding import conformal, coverage_threshold, thresholds
from calibjax.abstention.examples import Example, column, split_hash
from calibjax.abstention.fitting import Regime, Settings
from calibjax.abstention.policy import check_below, rescue
from calibjax.abstention.question_router import PipelineRouter, route, routed
from calibjax.abstention.rcs import RCS
from calibjax.abstention.resampling import COVERAGES, Resampled, null_ece, resample
from calibjax.abstention.signals import Signal
from calibjax.errors import input_error

_OPERATING = ("0.7", "0.5")
_WITHOUT, _FROM = "without:", "from:"


def judge_regime(
    regime: Regime, settings: Settings = Settings(), foreign: Mapping[str, RCS] = {}
) -> dict[str, Any]:
    """The report of one regime as a dict; undefined figures are None.

    foreign: RCS fitted elsewhere, by name, to be applied here unchanged (weights and
    normalisation): `transfer.<name>`. Intervals of all signals, ablations and transfers come from
    one bootstrap pass over the test rows, so that their differences are paired.
    """
    test, success = regime.test, regime.success[regime.test]
    signals = {name: _of(signal, test) for name, signal in regime.signals.items()}
    others = {_WITHOUT + name: logit[test] for name, logit in regime.without.items()}
    others |= {_FROM + name: rcs.logit(regime.features)[test] for name, rcs in foreign.items()}
    drawn = resample(
        signals,
        others,
        success,
        seed=settings.seed,
        replicates=settings.replicates,
        confidence_level=settings.confidence_level,
    )
    return {
        "rows": _rows(regime),
        "base": _base(success),
        "signals": _signals(drawn, signals, success, settings),
        "comparisons": _comparisons(drawn, settings),
        "conformal": conformal(regime, settings),
        "rcs": regime.rcs.as_dict(),
        "thresholds": thresholds(regime, settings),
        "ablation": _ablation(drawn, regime, settings),
        "transfer": _transfer(drawn, foreign, settings),
        "rescue": _rescue(regime, settings),
        "router": _router(regime, settings),
        **regime.facts,
    }


def _of(signal: Signal, rows: np.ndarray) -> Signal:
    probability = None if signal.probability is None else signal.probability[rows]
    return Signal(signal.score[rows], probability)


def _rows(regime: Regime) -> dict[str, Any]:
    ids = [example.id for example in regime.examples]
    tuned = regime.success[regime.tune]
    return {
        "n": len(ids),
        "n_tune": int(regime.tune.sum()),
        "n_test": int(regime.test.sum()),
        "tune_success_rate": float(tuned.mean()),
        "n_tune_rarer": int(min(tuned.sum(), len(tuned) - tuned.sum())),
        "split_sha256": split_hash(ids, regime.tune),
    }


def _base(success: np.ndarray) -> dict[str, Any]:
    """What the test rows allow: base rates, the perfect ranking, and the two constant forecasts."""
    rate = float(success.mean())
    return {
        "success_rate": rate,
        "cwar": 1 - rate,
        "auc_ac_random": rate,
        "auc_ac_random_sd": random_area_sd(success),
        "auc_ac_oracle": oracle_area(success),
        "brier_base_rate": rate * (1 - rate),
        "brier_majority": min(rate, 1 - rate),
    }


def oracle_area(success: np.ndarray) -> float:
    """AUC-AC of a perfect ranking: all a successes first, then a/k at k = a+1 .. n."""
    n, right = len(success), int(success.sum())
    return float((right + right * np.sum(1 / np.arange(right + 1, n + 1))) / n)


def random_area_sd(success: np.ndarray) -> float:
    """Standard deviation of the AUC-AC of a random order of these rows, in closed form.

    AUC-AC = mean of y_(i) (1/i + ... + 1/n), and the y are drawn without replacement.
    """
    n = len(success)
    if n < 2:
        return 0.0
    weights = np.cumsum(1 / np.arange(n, 0, -1))
    spread = np.sum((weights - weights.mean()) ** 2) * np.sum((success - success.mean()) ** 2)
    return float(np.sqrt(spread / (n - 1)) / n)


def _signals(
    drawn: Resampled, signals: Mapping[str, Signal], success: np.ndarray, settings: Settings
) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for place, name in enumerate(drawn.shown):
        curve = [_cell(drawn.curves, place, c) for c in range(len(COVERAGES))]
        accuracy = dict(zip(map(repr, COVERAGES), curve))
        area, gain = (_cell(drawn.areas, figure, place) for figure in (0, 1))
        cell: dict[str, Any] = {
            "auc_ac": area,
            "gain": gain["estimate"],
            "accuracy_at_coverage": {c: accuracy[c]["estimate"] for c in _OPERATING},
            "cwar_at_coverage": {c: _one_minus(accuracy[c]["estimate"]) for c in _OPERATING},
            "ece": None,
            "brier": None,
            "brier_skill": None,
            "is_probability": name in drawn.probable,
            "intervals": {
                "gain": gain,
                "accuracy_at_coverage": {c: accuracy[c] for c in _OPERATING},
            },
            "curve": {"coverage": list(COVERAGES), **_columns(curve)},
        }
        probability = signals[name].probability
        if probability is not None:
            column_ = drawn.probable.index(name)
            figures = [_cell(drawn.calibration, figure, column_) for figure in range(3)]
            for key, figure in zip(("ece", "brier", "brier_skill"), figures):
                cell[key] = figure["estimate"]
                cell["intervals"][key] = figure
            null = null_ece(probability, seed=settings.seed, draws=settings.replicates)
            cell["ece_null"] = {"mean": float(null.mean), "q95": float(null.quantile)}
        else:
            cell["reason"] = "no ECE or Brier score: the signal is no probability"
        found[name] = cell
    found["random"]["sd"] = random_area_sd(success)
    return found


def _cell(details: metrics.BootstrapDetails, *place: int) -> dict[str, Any]:
    estimate, low, high, n_valid = (np.asarray(part)[place] for part in details[:4])
    cell: dict[str, Any] = {
        "estimate": _finite(estimate),
        "low": _finite(low),
        "high": _finite(high),
        "n_valid": int(n_valid),
    }
    if cell["estimate"] is None:
        cell["reason"] = "undefined on these rows (one class, or no row kept)"
    return cell


def _columns(cells: list[dict[str, Any]]) -> dict[str, list[Any]]:
    named = {"accuracy": "estimate", "low": "low", "high": "high"}
    return {name: [cell[key] for cell in cells] for name, key in named.items()}


def _difference(drawn: Resampled, a: str, b: str, settings: Settings) -> dict[str, Any]:
    """AUC-AC of column a minus column b, paired."""
    first, second = (_column(drawn, name) for name in (a, b))
    found = metrics.paired_difference(
        first, second, confidence_level=settings.confidence_level
    )
    return _cell(found)


def _column(drawn: Resampled, name: str) -> metrics.BootstrapDetails:
    place = drawn.columns.index(name)
    estimate, low, high, n_valid = (part[0, place] for part in drawn.areas[:4])
    replicates = drawn.areas.replicates[:, 0, place]
    return metrics.BootstrapDetails(estimate, low, high, n_valid, replicates)


def _comparisons(drawn: Resampled, settings: Settings) -> dict[str, Any]:
    """RCS minus each other signal."""
    others = (name for name in drawn.shown if name != "rcs")
    return {
        f"rcs-{name}": {"auc_ac": _difference(drawn, "rcs", name, settings)} for name in others
    }


def _ablation(drawn: Resampled, regime: Regime, settings: Settings) -> dict[str, Any]:
    """AUC-AC of an RCS refitted without the feature, minus that of the full one."""
    found = {}
    for name in regime.without:
        cell = _difference(drawn, _WITHOUT + name, "rcs", settings)
        found[name] = {"delta": cell["estimate"], "low": cell["low"], "high": cell["high"]}
    return found


def _transfer(
    drawn: Resampled, foreign: Mapping[str, RCS], settings: Settings
) -> dict[str, Any] | None:
    """AUC-AC of fits from elsewhere, and their difference to the RCS fitted here."""
    if not foreign:
        return None
    found = {}
    for name, rcs in foreign.items():
        area = _cell(drawn.areas, 0, drawn.columns.index(_FROM + name))
        gain = _cell(drawn.areas, 1, drawn.columns.index(_FROM + name))
        found[name] = {
            "auc_ac": area,
            "gain": gain["estimate"],
            "difference": _difference(drawn, _FROM + name, "rcs", settings),
            "rcs": rcs.as_dict(),
        }
    return found


def _rescue(regime: Regime, settings: Settings) -> dict[str, Any] | None:
    """The second pass below the threshold that keeps `rescue_coverage` of the tune rows."""
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


def _router(regime: Regime, settings: Settings) -> dict[str, Any] | None:
    """RCS first, then the pipeline that the question's text calls for."""
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
    costs = _mean_costs(examples, names)
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


def _mean_costs(examples: Sequence[Example], names: list[str]) -> dict[str, float] | None:
    """Mean cost of each pipeline, or None unless all have one."""
    known = {n: [e.costs[n] for e in examples if n in e.costs] for n in names}
    if not all(known.values()):
        return None
    return {name: float(np.mean(values)) for name, values in known.items()}


def _one_minus(value: float | None) -> float | None:
    return None if value is None else 1 - value


def _finite(value: Any) -> float | None:
    return float(value) if np.isfinite(value) else None
