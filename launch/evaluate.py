"""Turns files of predictions into a report: calibration, discrimination, selective accuracy, with
bootstrap intervals and paired comparisons of methods.

A prediction is a row with `id`, `confidence` in [0,1] and `correct` in [0,1]; optional: `answered`
(false = no answer, which counts as wrong), `group` (rows to resample together, such as the
question) and `method`. JSON lines, CSV or Parquet, by the file's ending. Writes report.json, .md,
.tex, .csv and plots.
"""

from collections.abc import Mapping
from typing import Any

from absl import flags

from calibjax import storage
from calibjax.errors import input_error
from calibjax.progress import say
from calibjax.textfiles import existing_file
from launch import _columns, _main

PREDICTIONS = flags.DEFINE_list(
    "predictions", None, "prediction files, separated by commas; one method a file or a column"
)
NUM_BINS = flags.DEFINE_integer(
    "num_bins", 15, "bins of equal width, for the ECE and its diagram", lower_bound=1
)
NUM_MASS_BINS = flags.DEFINE_integer(
    "num_mass_bins", 10, "bins of equal size of the second ECE", lower_bound=1
)
REPLICATES = flags.DEFINE_integer(
    "replicates", 2000, "bootstrap replicates behind each interval", lower_bound=1
)
HUMAN = flags.DEFINE_string(
    "human", None, "file with columns `human` and `user`: two judgements of the same rows"
)
PDF = flags.DEFINE_boolean("pdf", False, "plots as PDF too")
flags.adopt_module_key_flags(_columns)
EXAMPLES = (
    "python -m launch.evaluate --predictions=preds.jsonl --out=runs/eval",
    "python -m launch.evaluate --predictions=a.csv,b.parquet --num_bins=10 --out=runs/a_b",
    "python -m launch.evaluate --predictions=p.csv --rename=prob:confidence --out=runs/p",
)


def main() -> None:
    """Reads all files first, so that a wrong one leaves no directory behind."""
    files = PREDICTIONS.value or []
    paths = [("predictions", path) for path in files]
    paths += [("human", HUMAN.value)] if HUMAN.value else []
    if not paths:
        raise input_error("predictions", "", "a file", "--predictions=FILE[,FILE]")
    for name, path in paths:
        existing_file(path, name)
    # What JAX needs a second to import comes after the checks that can fail without it.
    from calibjax.report import predictions, reading

    loaded = reading.load(files, rename=_columns.renames())
    methods, n_common = predictions.pair(loaded.methods)
    rows = {
        "n_kept": loaded.n_kept,
        "n_rejected": len(loaded.rejected),
        "n_duplicates": loaded.n_duplicates,
        "n_common": n_common,
        "n_by_method": {name: len(method) for name, method in loaded.methods.items()},
        "truncated": loaded.truncated,
    }
    resampling = {"replicates": REPLICATES.value, "seed": flags.FLAGS.seed}
    with _main.open_out(main, harmless=("predictions", "human", "pdf")) as run:
        run.check_same("inputs", {path: storage.sha256_file(path) for _, path in paths})
        run.reject(loaded.rejected, cut=next(iter(loaded.truncated), None))
        with run.stage("figures"):
            from calibjax.report import summary

            report = summary.summarise(
                methods,
                num_bins=NUM_BINS.value,
                num_mass_bins=NUM_MASS_BINS.value,
                rows=rows,
                **resampling,
            )
        if HUMAN.value:
            report["agreement"] = _agreement(HUMAN.value, methods, run, resampling)
        with run.stage("report"):
            from calibjax.report import writer

            writer.write_report(run.path, report, pdf=PDF.value)
        say(f"{writer.headline(report)}; see {run.path / 'report.md'}")


def _agreement(
    path: str, methods: Mapping[str, Any], run: Any, resampling: Mapping[str, int]
) -> dict[str, Any]:
    """Of the two judges in a file; confidences that it lacks are the first method's, by id."""
    from calibjax.report import human

    with run.stage("agreement"):
        judgements = human.load(path, rename=_columns.renames())
        run.reject(judgements.rejected, cut=path if judgements.truncated else None)
        first = next(iter(methods.values()), None)
        known = dict(zip(first.ids, first.confidence, strict=True)) if first else {}
        judgements = human.with_confidence(judgements, known)
        return human.summarise_agreement(judgements, **resampling)


if __name__ == "__main__":
    _main.run(main, examples=EXAMPLES)
