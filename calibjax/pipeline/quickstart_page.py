"""What report.md of the whole job says beyond the table of methods."""

from collections.abc import Iterator, Mapping
from typing import Any

from calibjax.report import schema, tables

_BESIDE = ("ece", "brier", "log_loss", "auroc", "accuracy")


def sections(report: Mapping[str, Any]) -> list[str]:
    """Markdown parts: temperature, confidence hidden, answers against decisions, labels, time."""
    return [part for make in _PARTS for part in make(report)]


def _by_temperature(report: Mapping[str, Any]) -> Iterator[str]:
    yield "## The user's temperature\n"
    yield (
        f"Users of {report['temperature_questions']} of the test questions decide once more at "
        "each temperature, and the forecast is asked for it. "
        "`calibrag_no_temperature` was trained without it.\n"
    )
    rows = []
    for name, method in report["methods"].items():
        for t, cells in method.get("by_temperature", {}).items():
            rows.append([f"{tables.markdown_text(name)}, t = {t}", *_cells(cells)])
    yield _grid("Method and temperature", rows)


def _confidence_hidden(report: Mapping[str, Any]) -> Iterator[str]:
    yield "## Confidence shown to the user model, and hidden\n"
    method = report["methods"]["calibrag"]
    rows = [["shown", *_cells(method["metrics"])], ["hidden", *_cells(method["confidence_hidden"])]]
    yield _grid("Confidence", rows)


def _answers_and_decisions(report: Mapping[str, Any]) -> Iterator[str]:
    yield "## Two calibrations: of the answer and of the decision\n"
    yield (
        "Answer: the guidance itself is graded. Decision: what the user model made of it, which is "
        "what the forecaster is trained to know.\n"
    )
    rows = []
    for name, method in report["methods"].items():
        shown = tables.markdown_text(name)
        rows.append([f"{shown}, decision", *_cells(method["metrics"])])
        rows.append([f"{shown}, answer", *_cells(method["answer_metrics"])])
    yield _grid("Method", rows)


def _supervision(report: Mapping[str, Any]) -> Iterator[str]:
    train = report["supervision"]["train"]
    yield "## Labels\n"
    histogram = [[label, str(count)] for label, count in train["labels"]["histogram"].items()]
    yield (
        f"{train['n_rows']} training rows from {train['n_questions']} questions; mean label "
        f"{tables.number(train['labels']['mean'])}.\n"
    )
    yield tables.markdown_grid(["Label", "Rows"], histogram)
    stage3 = report["stage3"]
    yield (
        f"Reformulation (stage 3) was triggered for {100 * stage3['triggered']:.0f} % of the test "
        f"questions (best forecast below {stage3['epsilon']}); the second round won for "
        f"{100 * stage3['second_round_won']:.0f} %.\n"
    )


def _seconds(report: Mapping[str, Any]) -> Iterator[str]:
    yield "## Seconds per stage\n"
    rows = [[name, f"{seconds:.1f}"] for name, seconds in report["seconds"].items()]
    yield tables.markdown_grid(["Stage", "Seconds"], rows)


_PARTS = (_by_temperature, _confidence_hidden, _answers_and_decisions, _supervision, _seconds)


def _cells(metrics: Mapping[str, Any]) -> list[str]:
    return [
        f"{tables.number(metrics[name]['estimate'])} {tables.interval(metrics[name])}".strip()
        for name in _BESIDE
    ]


def _grid(first: str, rows: list[list[str]]) -> str:
    return tables.markdown_grid([first, *(schema.title(name) for name in _BESIDE)], rows)
