"""Report of abstention: tables and files, written from report.json alone."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from calibjax import storage
from calibjax.report import tables
from calibjax.report.abstention_export import csv_table, latex_page
from calibjax.report.abstention_tables import (
    conformal_table,
    regimes_of,
    signal_table,
    summary_table,
    sure,
    threshold_table,
    transfer_table,
    type_table,
    weight_table,
)
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
    if regime.get("by_type"):
        yield "### Kinds of question: AUC-AC, and feature means of failures / successes\n"
        yield type_table(regime)
    own = regime.get("transfer")
    if own:
        yield "### Fits from elsewhere, applied here unchanged\n"
        lines = [
            [
                markdown_text(name),
                f"{number(cell['auc_ac']['estimate'])} {interval(cell['auc_ac'])}",
                f"{sure(cell['difference'])} {interval(cell['difference'])}",
            ]
            for name, cell in own.items()
        ]
        yield markdown_grid(["Fitted on", "AUC-AC", "minus the fit on these rows"], lines)


def _rescue_lines(cell: Mapping[str, Any]) -> str:
    unknown = [
        f"{cell[key]} flagged questions have no known {what}."
        for key, what in (("n_unknown", "second outcome"), ("n_cost_unknown", "cost"))
        if cell[key]
    ]
    text = (
        f"A second pass for the questions below tau = {number(cell['tau'])} (coverage "
        f"{number(cell['coverage'])}, aimed at {number(cell['target_coverage'])}): "
        f"{cell['n_flagged']} of {cell['n']} flagged, among them {cell['flagged_failures']} of "
        f"{cell['n_failures']} failures; {cell['recovered']} recovered, {cell['lost']} lost, net "
        f"{cell['net']}; success rate {number(cell['success_before'])} before and "
        f"{number(cell['success_after'])} after; extra cost {number(cell['cost'], 1)} "
        f"{cell['unit']}, {number(cell['cost_per_query'])} a question."
    )
    return " ".join([text, *unknown]) + "\n"


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
