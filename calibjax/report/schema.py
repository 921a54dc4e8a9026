"""Names, titles and directions of the figures in report.json, and who may be compared on them."""

from collections.abc import Mapping
from typing import Any

METRICS = (
    "ece",
    "ece_mass",
    "brier",
    "log_loss",
    "log_loss_skill",
    "auroc",
    "auc_ac",
    "accuracy",
    "no_answer_rate",
)
HIGHER_IS_BETTER = {
    "ece": False,
    "ece_mass": False,
    "brier": False,
    "log_loss": False,
    "log_loss_skill": True,
    "auroc": True,
    "auc_ac": True,
    "accuracy": True,
    "no_answer_rate": False,
}
TITLES = {
    "ece": "ECE",
    "ece_mass": "ECE (mass)",
    "brier": "Brier",
    "log_loss": "Log loss",
    "log_loss_skill": "Skill",
    "auroc": "AUROC",
    "auc_ac": "AUC-AC",
    "accuracy": "ACC",
    "no_answer_rate": "No answer",
}
# Figures that keep their meaning when two methods answer the same questions with other decisions;
# all others depend on the base rate of the outcome that is forecast.
ACROSS_OUTCOMES = ("accuracy", "log_loss_skill", "no_answer_rate")

ANSWERED = "_answered"


def base_name(metric: str) -> str:
    """`ece` for `ece_answered`: the figure whose direction and title a variant shares."""
    return metric.removesuffix(ANSWERED)


def title(metric: str) -> str:
    """Column heading of a figure."""
    mark = " (answered)" if metric.endswith(ANSWERED) else ""
    return TITLES.get(base_name(metric), metric) + mark


def higher_is_better(metric: str) -> bool:
    """Direction of a figure."""
    return HIGHER_IS_BETTER[base_name(metric)]


def estimate(report: Mapping[str, Any], method: str, metric: str, key: str = "metrics") -> Any:
    """{estimate, low, high[, reason]} of one cell of the report, all null when it is absent."""
    empty = {"estimate": None, "low": None, "high": None, "reason": "not computed"}
    return report["methods"][method].get(key, {}).get(metric, empty)


def difference(report: Mapping[str, Any], a: str, b: str, metric: str) -> Any | None:
    """The paired difference a minus b of a figure, whichever way round it is stored, or None."""
    for section in ("comparisons", "across_outcomes"):
        pairs = report.get(section, {})
        found = pairs.get(f"{a}-{b}", {}).get(metric)
        if found is not None:
            return found
        turned = pairs.get(f"{b}-{a}", {}).get(metric)
        if turned is not None and turned["estimate"] is not None:
            low, high = turned["low"], turned["high"]
            return {
                "estimate": -turned["estimate"],
                "low": None if high is None else -high,
                "high": None if low is None else -low,
            }
    return None


def differs(report: Mapping[str, Any], a: str, b: str, metric: str) -> bool:
    """Whether the interval of the paired difference excludes 0."""
    found = difference(report, a, b, metric)
    if found is None or found["low"] is None or found["high"] is None:
        return False
    return found["low"] > 0 or found["high"] < 0
