"""Judges retrieval triggers under a budget: what they gain, use, break, harm and cost.

Reads per-example outcomes of any system: a row has `id`, `correct_without` and `correct_with`
(right without and with evidence, in [0, 1]) and `scores.<router>` (higher = retrieve first);
optional: `features.<family>.<name>` for the learned routers, `tokens.{without_prompt,
without_output, with_prompt, with_output}`, `scoring.<router>.tokens` (read to make that score),
`split` (train, calibration, test), `group` (rows of one question); docs/routing.md has all. JSON
lines, CSV or Parquet, by the file's ending. Writes report.json, .md, .tex, .csv and plots.
"""

from typing import Any

from absl import flags

from calibjax import storage
from calibjax.errors import input_error
from calibjax.reading.textfiles import existing_file
from launch import _budget_prices, _columns, _main
from launch._budgets import parse_budgets, parse_families
from launch._flags import MIN_REPLICATES
from launch._refusals import Needs, refuse_ignored

EXAMPLES_FILE = flags.DEFINE_string("examples", None, "file of outcomes, see launch.outcomes")
BUDGETS = flags.DEFINE_string(
    "budgets", "0.1,0.25,0.5,0.75,0.9", "usages allowed, shares from 0 to 1, separated by commas"
)
SPLITS = flags.DEFINE_integer(
    "splits", 200, "random splits by question, where the file has no split column", lower_bound=1
)
FAMILIES = flags.DEFINE_list(
    "families",
    [],
    "what each router reads, NAME=query|uncertainty|retrieval|full; without it its cost is not "
    "known",
)
LEARNED = flags.DEFINE_enum(
    "learned",
    "utility",
    ["utility", "benefit", "both", "none"],
    "what routers are fitted on the feature columns to predict: utility by regression, benefit by "
    "classification",
)
ALPHA = flags.DEFINE_float(
    "alpha", 0.05, "how often the conservative rules may break a budget, up to 0.5"
)
REPLICATES = flags.DEFINE_integer(
    "replicates", 2000, "bootstrap replicates behind each interval", lower_bound=MIN_REPLICATES
)
flags.adopt_module_key_flags(_budget_prices)
flags.adopt_module_key_flags(_columns)
EXAMPLES = (
    "python -m launch.budget --examples=outcomes.jsonl --out=runs/budget",
    "python -m launch.budget --examples=mine.csv --families=entropy=uncertainty,bm25=retrieval"
    " --price_retrieval=50 --out=runs/mine",
)


def main() -> None:
    """Reads the file first, so that a wrong one leaves no directory behind."""
    path = EXAMPLES_FILE.value
    if not path:
        raise input_error("examples", "", "a file", "--examples=FILE")
    existing_file(path, "examples")
    budgets = parse_budgets(BUDGETS.value)
    families = parse_families(FAMILIES.value)
    if not 0 < ALPHA.value <= 0.5:
        raise input_error("alpha", ALPHA.value, "a number above 0, up to 0.5", "--alpha=0.05")
    # What JAX needs a second to import comes after the checks that can fail without it.
    from calibjax.routing import examples

    outcomes = examples.load(path, rename=_columns.renames(("examples", path)))
    learns = LEARNED.value == "none" or bool(outcomes.features)
    refuse_ignored([Needs(LEARNED, learns, f"columns features.<family>.<name> in {path}")])
    with _main.open_out(main, files={"examples": path}) as run:
        run.reject(outcomes.rejected, cut=path if outcomes.truncated else None)
        report = _report(run, outcomes, budgets, families)
        from calibjax.report.budget_page import write_budget_report
        from calibjax.report.writer import headline

        with run.stage("write"):
            write_budget_report(run.path, report, title=f"Retrieval under a budget: {path}")
        print(f"{headline(report)}; {run.path / 'report.md'}")


def _report(run: Any, outcomes: Any, budgets: list[float], families: dict[str, str]) -> Any:
    from calibjax.routing import learned, reporting, study

    settings = study.Settings(
        budgets=budgets,
        num_splits=SPLITS.value,
        alpha=ALPHA.value,
        replicates=REPLICATES.value,
        learned=LEARNED.value,
        seed=_main.FLAGS.seed,
    )
    with run.stage("study"):
        found = study.run(outcomes, settings, families=families)
    if outcomes.split is not None:
        for name, (model, columns) in found.routers.models.items():
            (run.path / "routers").mkdir(exist_ok=True)
            learned.save(model, run.path / "routers" / f"{name}.json", features=columns)
    with run.stage("report"):
        report = reporting.build(
            outcomes, found, settings, _budget_prices.prices(), **_budget_prices.reuse()
        )
    report["rows"] = {
        "n_kept": len(outcomes),
        "n_rejected": len(outcomes.rejected),
        "n_duplicates": outcomes.n_duplicates,
    }
    return storage.plain(report)


if __name__ == "__main__":
    _main.run(main, examples=EXAMPLES)
