"""Tells from retrieval scores alone which questions will lack evidence: the retrieval confidence
score (RCS), the signals it is compared with, and thresholds that keep failures within a target.

Input, one of: --examples (rows with `id`, `hop1_scores` best first, `success` 0/1; optional
`question`, `hop2_scores`, `hop2_ids`, `split` tune/test, `scores.NAME`, `pipelines.NAME.success`,
`rescue_success`, `rescue_cost`), --run with --qrels (TREC) and --questions, or --dataset with
--path, which runs our own retrieval. Several files or sets give one table and a transfer matrix.
Writes the report, rcs.json, rcs_certified.json and decisions.jsonl.
"""

from typing import Any

from absl import flags

from calibjax.errors import input_error
from launch import _abstain_inputs, _abstain_retrieval, _inputs, _main

EXAMPLES_FLAG = flags.DEFINE_list("examples", [], "files of abstain examples, one regime each")
FIT_EXAMPLES = flags.DEFINE_list(
    "fit_examples", [], "files whose RCS is applied to --examples unchanged (transfer)"
)
APPLY = flags.DEFINE_string("apply", None, "rcs.json of an earlier run: score --examples with it")
TAU = flags.DEFINE_float("tau", None, "with --apply: the threshold (default: the file's own)")
RUN = flags.DEFINE_string("run", None, "TREC run: query Q0 document rank score tag")
QRELS = flags.DEFINE_string("qrels", None, "TREC or BEIR relevance judgements of --run")
QUESTIONS = flags.DEFINE_string("questions", None, "texts of the queries of --run (id, question)")
K = flags.DEFINE_integer("k", 5, "success: all gold passages in the top k", lower_bound=1)
TARGET = flags.DEFINE_float(
    "target", 0.25, "share of failures to keep below", lower_bound=0.0, upper_bound=1.0
)
DELTA = flags.DEFINE_float(
    "delta", 0.1, "how often `certified` may miss it", lower_bound=0.001, upper_bound=0.999
)
N_MIN = flags.DEFINE_integer("n_min", 60, "rows before its first test", lower_bound=1)
ALPHA = flags.DEFINE_float(
    "conformal_alpha", 0.1, "level of split conformal", lower_bound=0.0, upper_bound=1.0
)
COVERAGE = flags.DEFINE_float(
    "rescue_coverage", 0.8, "share that is not rescued", lower_bound=0.0, upper_bound=1.0
)
BELOW = flags.DEFINE_string(
    "below", "abstain", "what to do below the threshold: abstain or escalate:PIPELINE"
)
PLATT = flags.DEFINE_boolean("platt", False, "probabilities for signals that are none, too")
REPLICATES = flags.DEFINE_integer("replicates", 2000, "bootstrap replicates", lower_bound=1)
flags.adopt_module_key_flags(_inputs)
flags.adopt_module_key_flags(_abstain_retrieval)

EXAMPLES = (
    "python -m launch.abstain --examples=scores.jsonl --out=runs/abstain",
    "python -m launch.abstain --examples=b.jsonl --fit_examples=a.jsonl --out=runs/a_to_b",
    "python -m launch.abstain --examples=new.jsonl --apply=runs/abstain/rcs.json --out=runs/gate",
    "python -m launch.abstain --run=a.run --qrels=a.qrels --questions=q.jsonl --out=runs/trec",
    "python -m launch.abstain --dataset=hotpotqa,2wiki --path=data --architecture=judge"
    " --out=runs/judge",
)


def main() -> None:
    """Files of examples are read first, so that a wrong one leaves no directory behind."""
    from calibjax.abstention.policy import check_below

    check_below(BELOW.value)
    sources, fitted_on = _read()
    with _main.open_out(main, harmless=_abstain_retrieval.HARMLESS) as out:
        for source in [*sources, *fitted_on]:
            out.check_same(f"examples:{source.name}", _fingerprint(source))
            out.reject(source.rejected, cut=source.cut)
        sources = sources or _abstain_retrieval.sources(out, K.value, COVERAGE.value)
        from launch import _abstain_report

        if APPLY.value:
            _abstain_report.apply(out, sources, APPLY.value, TAU.value, BELOW.value)
        else:
            _abstain_report.study(out, sources, fitted_on, _settings())


def _read() -> tuple[list[Any], list[Any]]:
    """Sources from files, and those that are only fitted on; none where retrieval has to run."""
    given = [
        flag.name
        for flag, is_given in (
            (EXAMPLES_FLAG, bool(EXAMPLES_FLAG.value)),
            (RUN, bool(RUN.value)),
            (_inputs.DATASET, _inputs.DATASET.present or bool(_abstain_retrieval.PATH.value)),
        )
        if is_given
    ]
    if len(given) != 1:
        shown = " and ".join(f"--{name}" for name in given) or "none of them"
        expected = f"one of --examples, --run, --dataset; found {shown}"
        raise input_error("examples", "", expected, "--examples=FILE")
    if APPLY.value and not EXAMPLES_FLAG.value:
        raise input_error("apply", APPLY.value, "--examples to score", "--examples=FILE")
    needs_success = not APPLY.value
    files = _abstain_inputs.from_files
    fitted_on = files(FIT_EXAMPLES.value, flag="fit_examples") if FIT_EXAMPLES.value else []
    if RUN.value:
        one = _abstain_inputs.from_trec(RUN.value, QRELS.value, QUESTIONS.value, K.value)
        return [one], fitted_on
    if not EXAMPLES_FLAG.value:
        return [], fitted_on
    return files(EXAMPLES_FLAG.value, flag="examples", needs_success=needs_success), fitted_on


def _fingerprint(source: Any) -> str:
    from calibjax import storage

    return f"sha256:{storage.sha256_json(source.examples)}"


def _settings() -> Any:
    from calibjax.abstention.fitting import Settings

    return Settings(
        seed=_main.FLAGS.seed,
        replicates=REPLICATES.value,
        target=TARGET.value,
        delta=DELTA.value,
        n_min=N_MIN.value,
        alpha=ALPHA.value,
        rescue_coverage=COVERAGE.value,
        below=BELOW.value,
        platt=PLATT.value,
    )


if __name__ == "__main__":
    _main.run(main, examples=EXAMPLES)
