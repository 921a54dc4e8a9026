"""What `launch.answer` writes: answers, predictions and the report."""

from typing import Any

from launch import _inputs, _main


def write(out: Any, answers: list[Any], method: str, counts: dict[str, int]) -> None:
    """answers.jsonl, predictions.jsonl and the report of the questions that have gold answers."""
    from calibjax import storage
    from calibjax.pipeline.reporting import answers_report, prediction_rows
    from calibjax.report.writer import headline, write_report

    storage.write_jsonl(out.path / "answers.jsonl", answers)
    storage.write_jsonl(out.path / "predictions.jsonl", prediction_rows(answers, method))
    with out.stage("report"):
        report = answers_report(answers, method, seed=_main.FLAGS.seed)
    report["rows"]["n_rejected"] += out.n_rejected
    report |= {"seconds": out.seconds, "source": counts}
    write_report(out.path, report, title=f"{method} on {_inputs.DATASET.value}")
    print(f"{len(answers)} answers; {headline(report)}")
