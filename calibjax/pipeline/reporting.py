"""From outcomes to report.json and the files of rows behind it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from calibjax import storage
from calibjax.pipeline import comparison
from calibjax.pipeline.answer import Answer, to_answer
from calibjax.pipeline.comparison import Arm, Outcomes
from calibjax.pipeline.decision import Decided
from calibjax.report.predictions import predictions
from calibjax.report.summary import summarise


def prediction_rows(answers: Sequence[Answer], method: str) -> list[dict[str, Any]]:
    """Rows of predictions.jsonl from the answers to questions that have gold answers."""
    return [
        {
            "id": one.id,
            "method": method,
            "confidence": one.confidence,
            "correct": int(one.correct),
            "answered": one.answered,
            "temperature": one.temperature,
        }
        for one in answers
        if one.correct is not None
    ]


def answers_report(answers: Sequence[Answer], method: str, *, seed: int) -> dict[str, Any]:
    """report.json of one method's answers."""
    rows = prediction_rows(answers, method)
    columns = ([row[name] for row in rows] for name in ("id", "confidence", "correct", "answered"))
    report = summarise({method: predictions(*columns)} if rows else {}, seed=seed)
    report["stage3"] = stage3_shares([(one.triggered, one.round) for one in answers])
    return report


def stage3_shares(rounds: Sequence[tuple[bool, int]]) -> dict[str, float]:
    """Shares of the questions that were reformulated, and whose second round won."""
    count = max(1, len(rounds))
    return {
        "triggered": sum(triggered for triggered, _ in rounds) / count,
        "second_round_won": sum(number == 2 for _, number in rounds) / count,
    }


def make_report(
    found: Mapping[Arm, Outcomes],
    guidance: Mapping[str, Outcomes],
    decided: Mapping[Arm, list[Decided]],
    *,
    epsilon: float,
    replicates: int,
    seed: int,
) -> dict[str, Any]:
    """The figures of all methods, and what hiding the confidence and the temperature do to them."""

    def figures(parts: Mapping[str, Outcomes]) -> dict[str, Any]:
        rows = {name: _rows(part) for name, part in parts.items()}
        return summarise(rows, replicates=replicates, seed=seed)

    report = figures(guidance)
    methods = report["methods"]
    of_guidance = {name: _guidance_rows(part) for name, part in guidance.items()}
    graded = summarise(of_guidance, replicates=replicates, seed=seed)["methods"]
    for name in methods:
        methods[name]["answer_metrics"] = graded[name]["metrics"]
    hidden = figures({"calibrag": found[Arm("calibrag", shown=False)]})
    methods["calibrag"]["confidence_hidden"] = hidden["methods"]["calibrag"]["metrics"]
    for method in {arm.method for arm in found if arm.temperature is not None}:
        by_temperature = figures(
            {repr(t): found[Arm(method, t)] for t in comparison.TEMPERATURES}
        )
        methods[method]["by_temperature"] = {
            t: part["metrics"] for t, part in by_temperature["methods"].items()
        }
    report["temperature_questions"] = len(decided[Arm("calibrag", comparison.TEMPERATURES[0])])
    chosen = [one.case.selection for one in decided[Arm("calibrag")]]
    rounds = [(one.triggered, one.round) for one in chosen]
    report["stage3"] = {"epsilon": epsilon, **stage3_shares(rounds)}
    return report


def _rows(found: Outcomes) -> Any:
    return predictions(found.ids, found.confidence, found.correct, found.answered, found.group)


def _guidance_rows(found: Outcomes) -> Any:
    return predictions(
        found.questions,
        found.guidance_confidence,
        found.guidance_correct,
        found.guidance_answered,
    )


def write_rows(
    found: Mapping[Arm, Outcomes], decided: Mapping[Arm, list[Decided]], directory: Path
) -> None:
    """answers.jsonl, and the rows behind every figure of the report."""
    answers = [to_answer(one) for one in decided[Arm("calibrag")]]
    storage.write_jsonl(directory / "answers.jsonl", answers)
    files: dict[str, list[dict[str, Any]]] = {
        "predictions": [],
        "predictions_hidden": [],
        "predictions_by_temperature": [],
    }
    for arm, outcome in found.items():
        rows = comparison.prediction_rows(arm.method, outcome)
        name = "_by_temperature" if arm.temperature is not None else ""
        files["predictions" + (name if arm.shown else "_hidden")] += rows
    for name, rows in files.items():
        storage.write_jsonl(directory / f"{name}.jsonl", rows)
