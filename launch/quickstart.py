"""The whole job, small: labels questions, trains a forecaster, answers test questions, reports.

Without --path it runs on worldfacts, the built-in questions about countries, cities and elements.
With --path (test questions) and --train_path it runs on yours; passages come with the questions or
from --corpus. Writes report.json, report.md, report.tex and plots to --out, beside the labels, the
trained forecasters, answers.jsonl and the rows behind every figure. A run that was stopped goes on
with --resume.
"""

from typing import Any

from absl import flags

from launch import _inputs, _main

PATH = flags.DEFINE_string("path", None, "file of test questions")
TRAIN_PATH = flags.DEFINE_string(
    "train_path", None, "file of training questions; default: a seeded part of --path"
)
BACKBONE = flags.DEFINE_string(
    "backbone", _inputs.DEFAULT_DECODER, "decoder: a weights package, a directory or a .gguf file"
)
SIZE = flags.DEFINE_enum("size", "default", ["default", "smoke"], "how much is done")
PRESET = flags.DEFINE_enum("preset", "fixed", ["paper", "code", "fixed"], "which forecaster")
TRAIN_QUESTIONS = flags.DEFINE_integer(
    "train_questions", None, "labelled questions (default: by --size)", lower_bound=4
)
TEST_QUESTIONS = flags.DEFINE_integer(
    "test_questions", None, "answered questions (default: by --size)", lower_bound=2
)
K = flags.DEFINE_integer("k", None, "passages per question (default: by --size)", lower_bound=1)
for _name in ("dataset", "corpus", "retriever", "encoder", "user_top_k", "user_top_p"):
    flags.declare_key_flag(_name)

EXAMPLES = (
    "python -m launch.quickstart --out=runs/quickstart",
    "python -m launch.quickstart --size=smoke --out=runs/smoke",
    "python -m launch.quickstart --dataset=hotpotqa --train_path=hotpot_train.json"
    " --path=hotpot_dev.json --out=runs/hotpot",
    "python -m launch.quickstart --dataset=own --path=questions.jsonl --corpus=passages.jsonl"
    " --out=runs/own",
)


def main() -> None:
    files = {"path": PATH.value, "train_path": TRAIN_PATH.value, "corpus": _inputs.CORPUS.value}
    with _main.open_out(main, files=files) as out:
        from calibjax.pipeline import quickstart
        from calibjax.pipeline.quickstart_page import sections
        from calibjax.report.writer import headline, write_report

        with out.stage("load"):
            size = _size(quickstart.SIZES[SIZE.value])
            job = _job(out, size)
        report = quickstart.run(job, size, out.path, out.stage)
        report["seconds"] = out.seconds
        report["rows"]["n_rejected"] += out.n_rejected
        write_report(
            out.path,
            report,
            title=f"CalibRAG on {_inputs.DATASET.value}",
            sections=sections(report),
        )
        print(headline(report))
        print(f"report: {out.path / 'report.md'}")


def _size(size: Any) -> Any:
    """The size with the flags that were given."""
    from dataclasses import replace

    changes: dict[str, int] = {}
    if TRAIN_QUESTIONS.value:
        held_out = max(1, TRAIN_QUESTIONS.value // 5)
        changes = {
            "train_questions": TRAIN_QUESTIONS.value - held_out,
            "validation_questions": held_out,
        }
    if TEST_QUESTIONS.value:
        changes["test_questions"] = TEST_QUESTIONS.value
    if K.value:
        changes["k"] = K.value
    return replace(size, **changes)


def _job(out: Any, size: Any) -> Any:
    from calibjax.backbone import load_decoder
    from calibjax.pipeline.quickstart import Job, split_questions
    from calibjax.supervision.grading import make_grader

    test = _inputs.questions(out, PATH.value, split="test")
    train, validation = _training_questions(out)
    parts = split_questions(train, validation, test.questions, size, _main.FLAGS.seed)
    pools = [train or [], validation or [], test.questions]
    decoder = load_decoder(BACKBONE.value)
    out.check_same("backbone_sha256", decoder.sha256)
    return Job(
        *parts,
        retriever=_inputs.retriever(_inputs.passages(out, *pools)),
        decoder=decoder,
        grader=make_grader("auto"),
        preset=PRESET.value,
        user_top_k=_inputs.USER_TOP_K.value or None,
        user_top_p=_inputs.USER_TOP_P.value,
        seed=_main.FLAGS.seed,
    )


def _training_questions(out: Any) -> tuple[Any, Any]:
    """(training, validation) questions; None where they are to be split off."""
    if TRAIN_PATH.value:
        given = _inputs.questions(out, TRAIN_PATH.value, split="train", name="train_path")
        return given.questions, None
    if PATH.value:
        return None, None
    named = [_inputs.questions(out, None, split=split) for split in ("train", "validation")]
    return named[0].questions, named[1].questions


if __name__ == "__main__":
    _main.run(main, examples=EXAMPLES)
