"""Report of abstention: tables and files, written from report.json alone."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from calibjax import storage
from calibjax.report import tables
from calibjax.report.tables import interval, markdown_grid, markdown_text, number

_GUIDE = """\
- Success: all gold passages of the question are among the passages kept. CWAR: share of failures
  among the questions that are answered. Coverage: share of questions that are answered.
- AUC-AC: mean success rate of the k most confident questions over all k. A random order gets the
  success rate, so compare data sets by Gain: (AUC-AC - random) / (perfect - random).
- random is the expectation of a random order, not a draw; its standard deviation stands beside it.
- ECE ({bins} bins of equal size) is biased upward: compare it with what a calibrated model gets.
- Thresholds `first` and `suffix` are chosen on the rows that RCS was fitted on, as published; they
  miss the target on new rows about half of the time. `certified` uses rows that no fit has seen
  and misses it with probability at most {delta}; it needs some hundred rows to qualify at all.
- Ablation: AUC-AC without the feature minus with all; bold where the interval excludes 0.
- Intervals describe the sampling of the test questions: not the split, the fit, nor a judge.
"""
# Rule of thumb for logistic models (Peduzzi et al. 1996).
_ROWS_PER_WEIGHT = 10
_FIGURES = ("AUC-AC", "Gain", "Acc@70", "CWAR@70", "Acc@50", "CWAR@50", "ECE", "Brier")


def regimes_of(report: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The regimes of a report; one that holds a single regime is that regime."""
    return dict(report.get("regimes") or {report.get("name", "examples"): report})


def write_abstention_report(
    out_dir: str | Path,
    report: Mapping[str, Any],
    *,
    title: str = "Abstention report",
    notes: Sequence[str] = (),
) -> list[Path]:
    """report.json, .md, .tex, .csv and plots (PNG); report.json last, for a complete report."""
    from calibjax.report import abstention_plots, plots

    out = Path(out_dir)
    written = []
    figures = abstention_plots.all_plots(report)
    for name, figure in figures.items():
        written.append(out / f"{name}.png")
        storage.write_bytes(written[-1], plots.render(figure))
    for name, text in (
        ("report.md", markdown_page(report, title, notes, list(figures))),
        ("report.tex", latex_page(report)),
        ("report.csv", csv_table(report)),
    ):
        written.append(out / name)
        storage.write_text(written[-1], text)
    storage.write_json(out / "report.json", report)
    return [*written, out / "report.json"]


def summary_table(report: Mapping[str, Any]) -> str:
    """AUC-AC of every signal in every regime, the best of each regime in bold."""
    regimes = regimes_of(report)
    names = list(dict.fromkeys(name for r in regimes.values() for name in r["signals"]))
    bold = {key: _best(regime) for key, regime in regimes.items()}
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
    bold = _best(regime)
    rows = []
    for name, signal in regime["signals"].items():
        shown = [number(value) for value in _figures(signal)[1:]]
        rows.append([markdown_text(name), _area(signal, name in bold), *shown])
    return markdown_grid(["Signal", *_FIGURES], rows)


def markdown_page(
    report: Mapping[str, Any], title: str, notes: Sequence[str], pictures: Sequence[str]
) -> str:
    """The page report.md."""
    regimes = regimes_of(report)
    parts = [f"# {title}\n", *(f"{note}\n" for note in notes)]
    if len(regimes) > 1:
        parts += [tables.settings_line(report) + ".\n", summary_table(report)]
    parts += [f"![{name.replace('_', ' ')}]({name}.png)\n" for name in pictures]
    for key, regime in regimes.items():
        parts += [f"## {markdown_text(key)}\n", *_regime_parts(regime)]
    if len(regimes) > 1:
        parts += ["## Transfer: fitted on the row, tested on the column\n", transfer_table(report)]
    settings = report["settings"]
    guide = _GUIDE.format(bins=settings["num_bins"], delta=settings["delta"])
    return "\n".join([*parts, "## How to read this\n", guide])


def _regime_parts(regime: Mapping[str, Any]) -> Iterator[str]:
    rows, base = regime["rows"], regime["base"]
    yield (
        f"{rows['n_tune']} questions to tune on, {rows['n_test']} to test on; success rate "
        f"{number(base['success_rate'])}; AUC-AC of a random order {number(base['auc_ac_random'])} "
        f"(SD {number(base['auc_ac_random_sd'])}), of a perfect one "
        f"{number(base['auc_ac_oracle'])}; Brier of the base rate "
        f"{number(base['brier_base_rate'])}.\n"
    )
    yield signal_table(regime)
    null = regime["signals"]["rcs"]["ece_null"]
    mean, q95 = number(null["mean"]), number(null["q95"])
    yield f"A calibrated model with these forecasts gets an ECE of {mean} (95 % quantile {q95}).\n"
    yield "### Thresholds on RCS\n"
    yield threshold_table(regime)
    yield "### Split conformal on the best hop-1 score\n"
    yield conformal_table(regime)
    yield "### Weights of RCS (per standard deviation) and leave-one-feature-out\n"
    yield weight_table(regime)
    rarer, count = regime["rows"]["n_tune_rarer"], len(regime["rcs"]["weights"])
    if rarer < _ROWS_PER_WEIGHT * count:
        yield (
            f"Only {rarer} tune rows have the rarer outcome, for {count} weights: with fewer than "
            f"{_ROWS_PER_WEIGHT} a weight they say little, and RCS may lose to a single score.\n"
        )
    if not regime["rcs"]["converged"]:
        yield "RCS has no optimum on these rows (one outcome only): it is a constant.\n"
    for key, make in (("rescue", _rescue_lines), ("router", _router_lines)):
        if regime.get(key):
            yield f"### {key.capitalize()}\n"
            yield make(regime[key])
    own = regime.get("transfer")
    if own:
        yield "### Fits from elsewhere, applied here unchanged\n"
        lines = [
            [
                markdown_text(name),
                f"{number(cell['auc_ac']['estimate'])} {interval(cell['auc_ac'])}",
                f"{_sure(cell['difference'])} {interval(cell['difference'])}",
            ]
            for name, cell in own.items()
        ]
        yield markdown_grid(["Fitted on", "AUC-AC", "minus the fit on these rows"], lines)


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
        rows.append([markdown_text(name), number(weight), f"{_sure(delta)} {interval(delta)}"])
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


def _rescue_lines(cell: Mapping[str, Any]) -> str:
    return (
        f"A second pass for the questions below tau = {number(cell['tau'])} (coverage "
        f"{number(cell['coverage'])}, aimed at {number(cell['target_coverage'])}): "
        f"{cell['n_flagged']} of {cell['n']} flagged, among them {cell['flagged_failures']} of "
        f"{cell['n_failures']} failures; {cell['recovered']} recovered, {cell['lost']} lost, net "
        f"{cell['net']}; success rate {number(cell['success_before'])} before and "
        f"{number(cell['success_after'])} after; extra cost {number(cell['cost'], 1)} "
        f"{cell['unit']}, {number(cell['cost_per_query'])} a question.\n"
    )


def _router_lines(cell: Mapping[str, Any]) -> str:
    rows = [
        [markdown_text(name), number(rate), number(cell["share_chosen"][name])]
        for name, rate in cell["pipelines"].items()
    ]
    counts = ", ".join(f"{action} {count}" for action, count in cell["counts"].items())
    return (
        markdown_grid(["Pipeline", "Success rate if always", "Share chosen"], rows)
        + f"\nRouted {number(cell['success_routed'])}, best of each question "
        f"{number(cell['success_oracle'])}. Below tau: {cell['below']}. {counts}: coverage "
        f"{number(cell['coverage'])}, success rate of the answered "
        f"{number(cell['success_answered'])}.\n"
    )


def latex_page(report: Mapping[str, Any]) -> str:
    """One booktabs table a regime; needs only `\\usepackage{booktabs}`."""
    return "\n".join(_latex(report, key, regime) for key, regime in regimes_of(report).items())


def _latex(report: Mapping[str, Any], key: str, regime: Mapping[str, Any]) -> str:
    rows, base, bold = regime["rows"], regime["base"], _best(regime)
    caption = (
        f"{key}: {rows['n_tune']} questions to tune on, {rows['n_test']} to test on, success rate "
        f"{number(base['success_rate'])}. {tables.settings_line(report)}."
    )
    lines = [
        r"\begin{table}[t]",
        r"\centering",
        rf"\caption{{{tables.latex_text(caption)}}}",
        rf"\begin{{tabular}}{{l{'r' * len(_FIGURES)}}}",
        r"\toprule",
        " & ".join(["Signal", *_FIGURES]) + r" \\",
        r"\midrule",
    ]
    for name, signal in regime["signals"].items():
        area, *others = (_latex_number(value) for value in _figures(signal))
        area = rf"\textbf{{{area}}}" if name in bold else area
        small = interval(signal["auc_ac"])
        area += rf" {{\scriptsize {small}}}" if small else ""
        lines.append(" & ".join([tables.latex_text(name), area, *others]) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", r"\end{table}"]) + "\n"


def csv_table(report: Mapping[str, Any]) -> str:
    """Every figure on a line of its own: regime, kind, name, figure, estimate, low, high."""
    rows: list[list[Any]] = []
    for key, regime in regimes_of(report).items():
        for name, signal in regime["signals"].items():
            cells = {"auc_ac": signal["auc_ac"]} | {
                figure: cell
                for figure, cell in signal["intervals"].items()
                if figure != "accuracy_at_coverage"
            }
            for coverage, cell in signal["intervals"]["accuracy_at_coverage"].items():
                cells[f"accuracy_at_{coverage}"] = cell
            rows += [[key, "signal", name, f, *_triple(cell)] for f, cell in cells.items()]
        for name, cell in regime["ablation"].items():
            triple = [cell["delta"], cell["low"], cell["high"]]
            rows.append([key, "ablation", name, "auc_ac", *triple])
        for name, weight in regime["rcs"]["weights"].items():
            rows.append([key, "weight", name, "weight", weight, None, None])
        for name, cell in (regime.get("transfer") or {}).items():
            rows.append([key, "transfer", name, "auc_ac", *_triple(cell["auc_ac"])])
    heads = ["regime", "kind", "name", "figure", "estimate", "low", "high"]
    return tables.csv_text(heads, rows)


def _triple(cell: Mapping[str, Any]) -> list[Any]:
    return [cell["estimate"], cell["low"], cell["high"]]


def _figures(signal: Mapping[str, Any]) -> list[float | None]:
    """Values in the order of `_FIGURES`."""
    accuracy, cwar = signal["accuracy_at_coverage"], signal["cwar_at_coverage"]
    pairs = [part[coverage] for coverage in ("0.7", "0.5") for part in (accuracy, cwar)]
    area = signal["auc_ac"]["estimate"]
    return [area, signal["gain"], *pairs, signal["ece"], signal["brier"]]


def _best(regime: Mapping[str, Any]) -> set[str]:
    """Signals with the highest AUC-AC at three decimals."""
    areas = {name: signal["auc_ac"]["estimate"] for name, signal in regime["signals"].items()}
    shown = {name: round(area, 3) for name, area in areas.items() if area is not None}
    top = max(shown.values(), default=None)
    return {name for name, area in shown.items() if area == top}


def _area(signal: Mapping[str, Any], is_best: bool) -> str:
    text = number(signal["auc_ac"]["estimate"])
    text = f"**{text}**" if is_best else text
    return f"{text} {interval(signal['auc_ac'])}".strip()


def _sure(cell: Mapping[str, Any]) -> str:
    """The estimate, in bold where its interval excludes 0."""
    text = number(cell["estimate"])
    known = cell["low"] is not None and cell["high"] is not None
    return f"**{text}**" if known and (cell["low"] > 0 or cell["high"] < 0) else text


def _latex_number(value: float | None) -> str:
    return "--" if value is None else number(value).replace("-", "$-$")
