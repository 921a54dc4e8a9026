"""Tells from retrieval scores alone which questions will lack evidence: the retrieval confidence
score (RCS), the signals it is compared with, and thresholds that keep failures within a target.

Input, one of: --examples (rows with `id`, `hop1_scores` best first, `success` 0/1; optional
`question`, `hop2_scores`, `hop2_ids`, `split` tune/test, `scores.NAME`, `pipelines.NAME.success`,
`rescue_success`, `rescue_cost`, `type`), --run with --qrels (TREC) and --questions, or --dataset
with --path, which runs our own retrieval. Several files or sets give one table and a transfer
matrix. Writes the report, rcs.json, rcs_certified.json and decisions.jsonl.
"""

from typing import Any

from absl import flags

from calibjax.errors import input_error
from launch import (
    _abstain_combinations,
    _abstain_inputs,
    _abstain_retrieval,
    _abstain_settings,
    _main,
)

EXAMPLES_FLAG = flags.DEFINE_list("examples", [], "files of abstain examples, one regime each")
FIT_EXAMPLES = flags.DEFINE_list(
    "fit_examples", [], "files whose RCS is applied to --examples unchanged (transfer)"
)
APPLY = flags.DEFINE_string("apply", None, "rcs.json of an earlier run: score --examples with it")
TAU = flags.DEFINE_float("tau", None, "with --apply: the threshold (default: the file's own)")
RUN = flags.DEFINE_string("run", None, "TREC run: query Q0 document rank score tag")
QRELS = flags.DEFINE_string("qrels", None, "TREC or BEIR relevance judgements of --run")
QUESTIONS = flags.DEFINE_string("questions", None, "texts of the queries of --run (id, question)")
EXCLUDE_SELF = flags.DEFINE_boolean(
    "exclude_self", False, "leave out documents of --run whose id is the query's own"
)
K = flags.DEFINE_integer("k", 5, "success: all gold passages in the top k", lower_bound=1)
flags.adopt_module_key_flags(_abstain_settings)
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

    check_below(_abstain_settings.BELOW.value)
    _check_source()
    _abstain_combinations.check()
    sources, fitted_on = _read()
    with _main.open_out(main, harmless=_abstain_retrieval.HARMLESS) as out:
        for flag, group in (("examples", sources), ("fit_examples", fitted_on)):
            for source in group:
                out.check_same(f"{flag}:{source.name}", source.fingerprint())
                out.reject(source.rejected)
                for path in source.cut:
                    out.reject([], cut=path)
        coverage = _abstain_settings.COVERAGE.value
        sources = sources or _abstain_retrieval.sources(out, K.value, coverage)
        from launch import _abstain_report

        if APPLY.value:
            below = _abstain_settings.BELOW.value
            _abstain_report.apply(out, sources, APPLY.value, TAU.value, below)
        else:
            _abstain_report.study(out, sources, fitted_on, _abstain_settings.settings())


def _check_source() -> None:
    """InputError unless examples come from one place."""
    given = [
        name
        for name, is_given in (
            ("examples", bool(EXAMPLES_FLAG.value)),
            ("run", bool(RUN.value)),
            ("dataset", _abstain_combinations.from_questions()),
        )
        if is_given
    ]
    if len(given) != 1:
        shown = " and ".join(f"--{name}" for name in given) or "none of them"
        expected = f"one of --examples, --run, --dataset; found {shown}"
        raise input_error("examples", "", expected, "--examples=FILE")
    if APPLY.value and not EXAMPLES_FLAG.value:
        raise input_error("apply", APPLY.value, "--examples to score", "--examples=FILE")


def _read() -> tuple[list[Any], list[Any]]:
    """Sources from files, and those that are only fitted on; none where retrieval has to run."""
    scored, fitted = EXAMPLES_FLAG.value, FIT_EXAMPLES.value
    # Named together: a fit may come from a file of the same name in another directory.
    names = _abstain_inputs.names_of([*scored, *fitted])
    files = _abstain_inputs.from_files
    fitted_on = files(fitted, names[len(scored) :], flag="fit_examples") if fitted else []
    if RUN.value:
        one = _abstain_inputs.from_trec(
            RUN.value,
            QRELS.value,
            QUESTIONS.value,
            k=K.value,
            exclude_self=EXCLUDE_SELF.value,
        )
        return [one], fitted_on
    needs_success = not APPLY.value
    sources = files(scored, names[: len(scored)], flag="examples", needs_success=needs_success)
    return sources, fitted_on


if __name__ == "__main__":
    _main.run(main, examples=EXAMPLES)
