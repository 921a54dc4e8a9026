"""Thresholds of a regime by three rules, and what the conformal targets accept."""

from typing import Any

import jax
import numpy as np

from calibjax import metrics
from calibjax.abstention.fitting import Regime, Settings
from calibjax.abstention.signals import CONFORMAL_TARGETS

RULES = ("first", "suffix", "certified")


def thresholds(regime: Regime, settings: Settings) -> dict[str, dict[str, Any]]:
    """tau on RCS for the target CWAR by each rule, with what it does on the rows it never saw.

    first, suffix: chosen on the very rows that RCS was fitted on (`in_sample`), as published.
    certified: RCS of one half of the tune rows, tau from the other half over a grid fixed
    beforehand (quantiles of the fitted half's scores): P(CWAR > target) <= delta on new rows.
    tau is inf and coverage 0 where no threshold qualifies: abstain on everything.
    """
    found = {}
    for rule in RULES:
        certified = rule == "certified"
        rcs = regime.honest if certified else regime.rcs
        chosen_on = regime.tune & ~regime.honest_fit if certified else regime.tune
        score = rcs.score(regime.features)
        grid: list[float] | None = None
        if certified:
            grid = np.unique(rcs.score(regime.features.take(regime.honest_fit))).tolist()
        with jax.enable_x64(True):
            details = metrics.cwar_threshold_details(
                score[chosen_on],
                regime.success[chosen_on],
                settings.target,
                rule=rule,
                delta=settings.delta,
                n_min=settings.n_min,
                grid=grid,
            )
        found[rule] = {
            **applied(score[regime.test], regime.success[regime.test], float(details.tau)),
            "target": settings.target,
            "tune": _number(details.rate),
            "tune_coverage": _number(details.coverage),
            "upper_bound": _number(details.upper_bound) if details.feasible else None,
            "feasible": bool(details.feasible),
            "in_sample": not certified,
            "n_chosen_on": int(chosen_on.sum()),
        }
        rate = found[rule]["test"]
        found[rule]["violated"] = rate is not None and rate > settings.target
    return found


def applied(score: np.ndarray, success: np.ndarray, tau: float) -> dict[str, Any]:
    """tau with the coverage and CWAR (`test`) of the rows at or above it; null where none is."""
    kept = score >= tau
    wrong = int((kept & (success == 0)).sum())
    return {
        "tau": tau,
        "test": wrong / int(kept.sum()) if kept.any() else None,
        "coverage": float(kept.mean()),
        "n_kept": int(kept.sum()),
        "n_wrong": wrong,
    }


def conformal(regime: Regime, settings: Settings) -> dict[str, dict[str, Any]]:
    """Split conformal on the best hop-1 score at level alpha: what each target accepts."""
    best = regime.features.column("hop1_max")
    tune, test = regime.tune, regime.test
    found = {}
    for target in CONFORMAL_TARGETS:
        with jax.enable_x64(True):
            threshold = metrics.conformal_score_threshold(
                best[tune],
                regime.success[tune],
                alpha=settings.target if target == "selection" else settings.alpha,
                target=target,
                test_score=best[test],
            )
        success = regime.success[test]
        shown = applied(best[test], success, float(threshold.tau))
        kept = best[test] >= shown["tau"]
        found[target] = {
            **shown,
            "alpha": settings.target if target == "selection" else settings.alpha,
            "feasible": bool(threshold.feasible),
            "successes_kept": _share(kept & (success == 1), success == 1),
            "failures_kept": _share(kept & (success == 0), success == 0),
        }
    return found


def coverage_threshold(score: np.ndarray, coverage: float) -> float:
    """The largest tau that keeps at least this share of the rows; -inf to keep all for 1."""
    if coverage >= 1:
        return -np.inf
    kept = int(np.ceil(round(coverage * len(score), 9)))
    return float(np.sort(score)[::-1][kept - 1]) if kept else np.inf


def _share(part: np.ndarray, whole: np.ndarray) -> float | None:
    return float(part.sum() / whole.sum()) if whole.any() else None


def _number(value: Any) -> float | None:
    return float(value) if np.isfinite(value) else None
