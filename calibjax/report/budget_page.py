"""Writes a budget report into a directory: JSON, Markdown, LaTeX, CSV and plots.

Refuses a report that shows accuracy without realised usage, transfer error, violation, harm and
cost.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from calibjax import storage
from calibjax.report import budget_schema as schema
from calibjax.report import budget_tables, tables
from calibjax.report.writer import headline

_READING_GUIDE = """\
- Exact: accuracy when exactly the best-scored share of the judged questions gets evidence. It
  judges the ranking; no threshold can do it, since it looks at the questions it is judged on.
- Accuracy, Usage: what a threshold from the calibration questions does on others. Transfer error:
  usage minus budget. Violated: share of splits that use more than the budget. A plain quantile is
  violated almost half of the time by construction, so compare it with Expected (beta-binomial, for
  scores without ties).
- Two routers at one budget compare only if they use the same: see Over random, the accuracy beyond
  that of random retrieval at the usage that the router really has.
- Harm (all), Benefit (all): questions that evidence breaks or mends, as a share of all; Harm
  (retrieved): of those that get evidence, over all splits together.
- Rules: exact and DKW bound P(usage of new questions > budget) at alpha (exact for one budget, DKW
  for all at once); predictive bounds it for the next batch of this size.
- Cost: token equivalents per question at the realised usage; drafts and probes that a trigger needs
  before it decides are paid for.
- Intervals: percentile, from resampled questions with splits and thresholds as they are. They do
  not cover the training of the models.
"""


def write_budget_report(
    out_dir: str | Path, report: Mapping[str, Any], *, title: str = "Retrieval under a budget"
) -> list[Path]:
    """Writes the report's files; report.json last. Raises InputError if a figure is missing."""
    schema.check_complete(report)
    from calibjax.report import budget_plots, plots

    out = Path(out_dir)
    out.mkdir(parents=True, exist_ok=True)
    drawn = {
        "frontiers": budget_plots.frontiers,
        "usage": budget_plots.usage,
        "utility": budget_plots.utility,
    }
    if report["cost_model"] and report["cost_model"]["tokens"]:
        drawn["cost"] = budget_plots.cost
    written = []
    for name, draw in drawn.items():
        path = out / f"{name}.png"
        storage.write_bytes(path, plots.render(draw(report)))
        written.append(path)
    middle = main_budget(report)
    texts = {
        "report.md": page(report, title, list(drawn)),
        "report.tex": budget_tables.latex(report, middle, f"{title}, budget {middle}."),
        "report.csv": budget_tables.csv(report),
    }
    for name, text in texts.items():
        storage.write_text(out / name, text)
        written.append(out / name)
    storage.write_json(out / "report.json", report)
    return [*written, out / "report.json"]


def main_budget(report: Mapping[str, Any]) -> str:
    """The budget nearest to one half, which the tables of one budget show."""
    return min(schema.budgets(report), key=lambda b: abs(float(b) - 0.5))


def page(report: Mapping[str, Any], title: str, pictures: list[str]) -> str:
    """The page report.md."""
    schema.check_complete(report)
    return "\n".join(_parts(report, title, pictures))


def _parts(report: Mapping[str, Any], title: str, pictures: list[str]) -> Iterator[str]:
    settings, middle = report["settings"], main_budget(report)
    yield f"# {title}\n"
    yield f"{headline(report)}. {_protocol(settings)}\n"
    ends = [budget_tables.shown(schema.cell(report, name)) for name in ("never", "always")]
    yield f"Accuracy without evidence {ends[0]}, with evidence for every question {ends[1]}.\n"
    if report["notes"]:
        yield "\n".join(f"- {tables.markdown_text(note)}" for note in report["notes"]) + "\n"
    yield "## What evidence does\n"
    yield budget_tables.utility(report)
    if not report["utility"].get("same_arm"):
        yield f"No same-arm control: {report['utility'].get('same_arm_reason', 'not given')}.\n"
    for budget in schema.budgets(report):
        yield f"## Budget {budget}\n"
        yield budget_tables.at_budget(report, budget)
    yield "## Violations over all routers\n"
    yield budget_tables.violations(report)
    yield f"## Conservative rules at budget {middle}\n"
    yield f"alpha = {settings['alpha']:g}. The other budgets are in report.csv.\n"
    yield budget_tables.rules_at(report, middle)
    yield from _difference_parts(report, middle)
    yield from _cost_parts(report, middle)
    yield from (f"![{name}]({name}.png)\n" for name in pictures)
    yield "## How to read this\n"
    yield _READING_GUIDE


def _protocol(settings: Mapping[str, Any]) -> str:
    if settings["split"] == "column":
        split = "One split, as marked in the file"
    else:
        split = f"Means over {settings['num_splits']} random splits by question"
    sizes = [f"{settings[f'n_{part}']:.0f} {part}" for part in ("train", "calibration", "test")]
    percent = f"{100 * settings['confidence_level']:g} %"
    replicates = f"{settings['replicates']} resamples of questions"
    return f"{split} ({', '.join(sizes)}); {percent} intervals from {replicates}."


def _difference_parts(report: Mapping[str, Any], budget: str) -> Iterator[str]:
    text, n_differ, n_pairs = budget_tables.differences(report, budget)
    if not n_pairs:
        return
    yield f"## Paired differences at budget {budget}\n"
    yield (
        f"{n_differ} of {n_pairs} pairs of routers differ in deployable accuracy (interval without"
        " 0, no correction for many). They may differ in usage too.\n"
    )
    if text:
        yield text


def _cost_parts(report: Mapping[str, Any], budget: str) -> Iterator[str]:
    model = report["cost_model"] or {}
    unknown = budget_tables.unknown_costs(report)
    yield f"## Cost at budget {budget}\n"
    if not model.get("tokens"):
        yield f"Not computed: {model.get('reason') or 'no token counts'}.\n"
        if model.get("seconds"):
            yield budget_tables.seconds(report)
        return
    prices, tokens = model["prices"], model["tokens"]
    reuse = ", ".join(
        f"{part} {'reused' if tokens[f'reuse_{part}'] else 'not reused'}"
        for part in ("draft", "probe")
    )
    yield (
        f"Prices: prompt token {prices['prompt']:g}, generated token {prices['output']:g},"
        f" retrieval {prices['retrieval']:g}; {reuse}. Never {tokens['never']:.1f}, always"
        f" {tokens['always']:.1f} per question.\n"
    )
    known = {k: v for k, v in tokens["break_even"].items() if v is not None}
    yield (
        "Cheaper than always retrieving below a usage of: "
        + ", ".join(f"{family} {value:.3f}" for family, value in known.items())
        + ".\n"
    )
    yield budget_tables.costs(report, budget) or "The cost of no router is known.\n"
    if unknown:
        yield "Not known: " + "; ".join(unknown) + ".\n"
