"""Tables of an abstention report, in Markdown."""

from collections.abc import Mapping
from typing import Any

from calibjax.report.tables import interval, markdown_grid, markdown_text, number

FIGURES = ("AUC-AC", "Gain", "Acc@70", "CWAR@70", "Acc@50", "CWAR@50", "ECE", "Brier")
_TYPE_SIGNALS = ("rcs", "entropy", "max_score", "query_len_inv")
# Where a question fails with a peaked list, entropy sees nothing.
_TYPE_FEATURES = ("hop1_H", "hop2_max")


def regimes_of(report: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The regimes of a report; one that holds a single regime is that regime."""
    return dict(report.get("regimes") or {report.get("name", "examples"): report})


def summary_table(report: Mapping[str, Any]) -> str:
    """AUC-AC of every signal in every regime, the best of each regime in bold."""
    regimes = regimes_of(report)
    names = list(dict.fromkeys(name for r in regimes.values() for name in r["signals"]))
    bold = {key: best_signals(regime) for key, regime in regimes.items()}
    rows = []
    for name in names:
        cells = [markdown_text(name)]
        for key, regime in regimes.items():
            signal = regime["signals"].get(name)
            cells.append("n/a" if signal is None else _area(signal, name in bold[key]))
        rows.append(cells)
    for label, key in (("success rate", "success_rate"), ("perfect", "auc_ac_oracle")):
        rows.append([f"*{label}*", *(number(r["base"][key]) for r in regimes.values())])
    heads = [f"{markdown_text(k)} (n {r['rows']['n_test']})" for k, r in regimes.items()]
    return markdown_grid(["AUC-AC", *heads], rows)


def signal_table(regime: Mapping[str, Any]) -> str:
    """All figures of one regime's signals."""
    bold = best_signals(regime)
    rows = []
    for name, signal in regime["signals"].items():
        shown = [number(value) for value in figures(signal)[1:]]
        rows.append([markdown_text(name), _area(signal, name in bold), *shown])
    return markdown_grid(["Signal", *FIGURES], rows)


def threshold_table(regime: Mapping[str, Any]) -> str:
    rows = []
    for rule, cell in regime["thresholds"].items():
        figures = [cell["target"], cell["tune"], cell["test"], cell["coverage"]]
        tau = number(cell["tau"]) if cell["feasible"] else "none: abstain on all"
        seen = "in sample" if cell["in_sample"] else "held out"
        missed = "yes" if cell["violated"] else "no"
        rows.append([rule, tau, *map(number, figures), missed, f"{seen}, {cell['n_chosen_on']}"])
    heads = ["tau", "target", "CWAR tune", "CWAR test", "coverage test", "missed", "chosen on"]
    return markdown_grid(["Rule", *heads], rows)


def conformal_table(regime: Mapping[str, Any]) -> str:
    rows = []
    for target, cell in regime["conformal"].items():
        keys = ("alpha", "coverage", "test", "successes_kept", "failures_kept")
        rows.append([target, *(number(cell[key]) for key in keys), str(cell["feasible"]).lower()])
    heads = ["alpha", "coverage", "CWAR", "successes kept", "failures kept", "feasible"]
    return markdown_grid(["Target", *heads], rows)


def weight_table(regime: Mapping[str, Any]) -> str:
    rows = []
    for name, weight in regime["rcs"]["weights"].items():
        cell = regime["ablation"][name]
        delta = {"estimate": cell["delta"], **cell}
        rows.append([markdown_text(name), number(weight), f"{sure(delta)} {interval(delta)}"])
    rows.append(["*bias*", number(regime["rcs"]["bias"]), ""])
    return markdown_grid(["Feature", "Weight", "AUC-AC without it"], rows)


def transfer_table(report: Mapping[str, Any]) -> str:
    """AUC-AC of each regime's RCS on each regime; the diagonal is the fit on the regime itself."""
    regimes = regimes_of(report)
    rows = []
    for fitted in regimes:
        cells = [markdown_text(fitted)]
        for tested, regime in regimes.items():
            own = fitted == tested
            area = regime["signals"]["rcs"] if own else regime["transfer"][fitted]
            text = number(area["auc_ac"]["estimate"])
            gain = number(area["gain"])
            cells.append(f"*{text}* (gain {gain})" if own else f"{text} (gain {gain})")
        rows.append(cells)
    return markdown_grid(["Fitted on", *map(markdown_text, regimes)], rows)


def type_table(regime: Mapping[str, Any]) -> str:
    """Kinds of question: how often retrieval succeeds, and the AUC-AC of some signals."""
    cells = regime["by_type"]
    names = [name for name in _TYPE_SIGNALS if name in regime["signals"]]
    rows = []
    for key, cell in cells.items():
        areas = [number(cell["auc_ac"][name]) for name in names]
        means = []
        for feature in _TYPE_FEATURES:
            both = cell["features"].get(feature)
            means.append("n/a" if both is None else " / ".join(map(number, both.values())))
        counts = [str(cell["n"]), str(cell["n_test"])]
        rates = [number(cell["success_rate"]), number(cell["success_rate_test"])]
        rows.append([markdown_text(key), *counts, *rates, *areas, *means])
    heads = ["n", "n test", "success", "success test", *names]
    return markdown_grid(["Type", *heads, *map(markdown_text, _TYPE_FEATURES)], rows)


def figures(signal: Mapping[str, Any]) -> list[float | None]:
    """Values in the order of `FIGURES`."""
    accuracy, cwar = signal["accuracy_at_coverage"], signal["cwar_at_coverage"]
    pairs = [part[coverage] for coverage in ("0.7", "0.5") for part in (accuracy, cwar)]
    area = signal["auc_ac"]["estimate"]
    return [area, signal["gain"], *pairs, signal["ece"], signal["brier"]]


def best_signals(regime: Mapping[str, Any]) -> set[str]:
    """Signals with the highest AUC-AC at three decimals."""
    areas = {name: signal["auc_ac"]["estimate"] for name, signal in regime["signals"].items()}
    shown = {name: round(area, 3) for name, area in areas.items() if area is not None}
    top = max(shown.values(), default=None)
    return {name for name, area in shown.items() if area == top}


def _area(signal: Mapping[str, Any], is_best: bool) -> str:
    text = number(signal["auc_ac"]["estimate"])
    text = f"**{text}**" if is_best else text
    return f"{text} {interval(signal['auc_ac'])}".strip()


def sure(cell: Mapping[str, Any]) -> str:
    """The estimate, in bold where its interval excludes 0."""
    text = number(cell["estimate"])
    known = cell["low"] is not None and cell["high"] is not None
    return f"**{text}**" if known and (cell["low"] > 0 or cell["high"] < 0) else text
