"""One outcome a question: both verdicts, and what a trigger could have seen before deciding."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from calibjax.protocols import Grader
from calibjax.reading.textfiles import Rejected
from calibjax.records import Question, Verdict
from calibjax.routing import complexity, signals
from calibjax.routing.answering import ARMS
from calibjax.routing.forecasts import Scored
from calibjax.routing.probes import Probe
from calibjax.supervision import answers as text_rules
from calibjax.supervision import grading


class Made(NamedTuple):
    """rows: one outcome a question, as `launch.budget` reads them; rejected: questions that a
    server refused or that have no gold to grade by; report: accuracies, counts, tokens."""

    rows: list[dict[str, Any]]
    rejected: list[Rejected]
    report: dict[str, Any]


def make_outcomes(
    questions: Sequence[Question],
    probes: Sequence[Probe],
    answers: Mapping[str, Sequence[dict[str, Any]]],
    grader: Grader,
    *,
    retriever: str = "bm25",
    retrieval_seconds: float = 0.0,
    extra: Mapping[str, Scored] | None = None,
) -> Made:
    """Grades both arms and puts outcomes, signals, tokens and seconds into one row a question.

    retriever: names the retrieval scores; extra: further routers, with what their scores took.
    Where the reader tells of some drafts how sure it was, those of which it tells nothing (empty
    ones) count as unsure; where it tells of none, there are no uncertainty scores.
    """
    verdicts = {name: _grade(grader, questions, rows) for name, rows in answers.items()}
    tells = any(map(_is_known, answers["without"]))
    made, rejected = [], []
    told = {"n_unknown": 0, "n_approximate": 0}
    for place, question in enumerate(questions):
        own = {name: rows[place] for name, rows in answers.items()}
        graded = {name: verdict[place] for name, verdict in verdicts.items()}
        fault = _fault(own, graded)
        if fault:
            rejected.append(Rejected("stages", place + 1, fault, question.id))
            continue
        row = _row(question, own, graded, retrieval_seconds)
        row["scores"], row["features"] = _signals(question, probes[place], own, retriever, tells)
        row["hop1_scores"] = probes[place].scores
        row["passage_ids"] = [passage.id for passage in probes[place].passages]
        for name, scored in (extra or {}).items():
            row["scores"][name] = float(scored.scores[place])
            took = {"tokens": scored.tokens[place], "seconds": scored.seconds}
            row.setdefault("scoring", {})[name] = took
        told["n_unknown"] += tells and not _is_known(own["without"])
        told["n_approximate"] += bool(own["without"].get("approximate"))
        made.append(row)
    return Made(made, rejected, _report(made, rejected) | {"uncertainty": told})


def _is_known(draft: Mapping[str, Any]) -> bool:
    """Whether the reader has told how sure it was of the draft's tokens."""
    return bool(draft.get("log_probs")) and bool(draft.get("entropies"))


def _grade(
    grader: Grader, questions: Sequence[Question], rows: Sequence[dict[str, Any]]
) -> list[Verdict]:
    tasks = [
        grading.GradingTask(question.question, question.answers, row["text"], question.options)
        for question, row in zip(questions, rows, strict=True)
    ]
    return grading.grade_many(grader, tasks)


def _fault(rows: Mapping[str, dict[str, Any]], verdicts: Mapping[str, Verdict]) -> str:
    """Why a question has no outcome, "" if it has one."""
    errors = [row["error"] for row in rows.values() if row.get("error")]
    if errors:
        return errors[0]
    return "no verdict: no valid gold" if any(v.invalid for v in verdicts.values()) else ""


def _row(
    question: Question,
    rows: Mapping[str, dict[str, Any]],
    verdicts: Mapping[str, Verdict],
    retrieval_seconds: float,
) -> dict[str, Any]:
    """Outcomes, answers, tokens and seconds of both arms."""
    made: dict[str, Any] = {"id": question.id, "question": question.question}
    for name in rows:
        arm, repeats = name.removesuffix("_repeat"), name.endswith("_repeat")
        made[f"{'repeat' if repeats else 'correct'}_{arm}"] = int(verdicts[name].correct)
    for arm in ARMS:
        made[f"answer_{arm}"] = rows[arm]["text"]
        made[f"f1_{arm}"] = text_rules.f1(rows[arm]["text"], question.answers)
    if rows["without"]["n_prompt_tokens"] is not None:
        made["tokens"] = {
            f"{arm}_{kind}": rows[arm][key]
            for arm in ARMS
            for kind, key in (("prompt", "n_prompt_tokens"), ("output", "n_tokens"))
        }
    made["seconds"] = {arm: rows[arm]["seconds"] for arm in ARMS}
    made["seconds"]["retrieval"] = retrieval_seconds
    if isinstance(question.meta.get("hops"), (int, float)):
        made["level"] = question.meta["hops"]
    return made


def _signals(
    question: Question,
    probe: Probe,
    rows: Mapping[str, dict[str, Any]],
    retriever: str,
    tells: bool,
) -> tuple[dict[str, float], dict[str, dict[str, float]]]:
    """Scores by router and features by family."""
    query = complexity.query_features([question.question])[0]
    scores = {
        "query_length": float(query[0]),
        "complexity": float(complexity.complexity_rule([question.question])[0]),
    }
    found: dict[str, tuple[Sequence[str], Sequence[float]]] = {
        "query": (complexity.QUERY_FEATURES, query.tolist()),
        "retrieval": (signals.RETRIEVAL_FEATURES, signals.retrieval_features(probe.scores)),
    }
    if tells:
        draft = rows["without"]
        told = draft["log_probs"], draft["entropies"]
        if not _is_known(draft):
            told = [], []
        scores |= signals.uncertainty_scores(*told)
        features = signals.uncertainty_features(*told)
        found["uncertainty"] = (signals.UNCERTAINTY_FEATURES, features)
    for name, score in signals.retrieval_scores(probe.scores).items():
        scores[f"{retriever}_{name}"] = score
    return scores, {family: dict(zip(names, values)) for family, (names, values) in found.items()}


def _report(rows: Sequence[dict[str, Any]], rejected: Sequence[Rejected]) -> dict[str, Any]:
    u = np.array([row["correct_with"] - row["correct_without"] for row in rows])
    report: dict[str, Any] = {"n": len(rows), "n_rejected": len(rejected)}
    for name in ("correct_without", "correct_with", "f1_without", "f1_with"):
        report[name] = _mean([row[name] for row in rows])
    report["utility"] = {
        "harmful": int((u < 0).sum()),
        "neutral": int((u == 0).sum()),
        "beneficial": int((u > 0).sum()),
    }
    for name in ("tokens", "seconds"):
        kinds = rows[0].get(name, {}) if rows else {}
        report[name] = {kind: _mean([row[name][kind] for row in rows]) for kind in kinds} or None
    return report


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if len(values) else None
