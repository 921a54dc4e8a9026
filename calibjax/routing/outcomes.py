"""Answers every question without evidence and with it, and notes what a trigger could have seen.

Entropies and probabilities are those of the very answer that is graded. Every answer is kept in a
stage file; what is there is not asked for again.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from calibjax import progress
from calibjax.errors import InputError
from calibjax.generation import prompts
from calibjax.protocols import Grader, Retriever
from calibjax.records import Hits, Passage, Question, Verdict
from calibjax.routing import complexity, signals
from calibjax.supervision import answers as text_rules
from calibjax.supervision import grading
from calibjax.supervision.asking import Model, cut_document
from calibjax.supervision.stages import Request, Stage
from calibjax.textfiles import Rejected

ARMS = ("without", "with")
# An answer ends with its line.
_STOP = ("\n",)


class Settings(NamedTuple):
    """passages: given as evidence; probe: hits that the retrieval signals see.

    temperature 0 is greedy. repeat: ask both arms a second time, as a control of how much harm is
    noise. Passages longer than max_document_tokens are cut.
    """

    passages: int = 3
    probe: int = 20
    max_new_tokens: int = 32
    max_document_tokens: int = 256
    temperature: float = 0.0
    repeat: bool = False
    batch_size: int = 32
    seed: int = 0


class Probe(NamedTuple):
    """The hits of one question, best first."""

    passages: list[Passage]
    scores: list[float]


class Made(NamedTuple):
    """rows: one outcome a question, as `launch.budget` reads them; rejected: questions that a
    server refused or that have no gold to grade by; report: accuracies, counts, tokens."""

    rows: list[dict[str, Any]]
    rejected: list[Rejected]
    report: dict[str, Any]


def search_own(
    questions: Sequence[Question], make: Callable[[Sequence[Passage]], Retriever], k: int
) -> tuple[list[Probe], float]:
    """Each question's hits among the passages that came with it; and seconds per question.

    Raises InputError when a question brings none.
    """
    bare = [question.id for question in questions if not question.passages]
    if bare:
        text = f"{len(bare)} questions bring no passages, such as {bare[0]}"
        raise InputError(f"evidence=own: {text}; fix: --evidence=global --corpus=FILE")
    probes, start = [], time.monotonic()
    for question in progress.track(questions, "search", "questions"):
        by_id = {passage.id: passage for passage in question.passages}
        hits = make(question.passages).search([question.question], k)
        probes += _probes(hits, by_id)
    return probes, (time.monotonic() - start) / max(1, len(questions))


def search_pool(
    questions: Sequence[Question], retriever: Any, k: int
) -> tuple[list[Probe], float]:
    """Each question's hits in one pool of passages; and seconds per question."""
    start = time.monotonic()
    hits = retriever.search([question.question for question in questions], k)
    seconds = (time.monotonic() - start) / max(1, len(questions))
    return _probes(hits, retriever.passages), seconds


def _probes(hits: Hits, passages: Mapping[str, Passage]) -> list[Probe]:
    probes = []
    for ids, scores, valid in zip(hits.ids, hits.scores, hits.valid, strict=True):
        found = [place for place, is_hit in enumerate(valid) if is_hit]
        kept = [passages[ids[place]] for place in found]
        probes.append(Probe(kept, [float(scores[place]) for place in found]))
    return probes


class Answerer:
    """The reader of both arms; its stage files lie in `directory`."""

    def __init__(self, reader: Model, directory: Path, settings: Settings) -> None:
        self.reader, self.settings = reader, settings
        names = ARMS if not settings.repeat else (*ARMS, *(f"{arm}_repeat" for arm in ARMS))
        self.stages = {
            name: Stage(directory, name, batch_size=settings.batch_size) for name in names
        }

    def answer(
        self, questions: Sequence[Question], probes: Sequence[Probe]
    ) -> dict[str, list[dict[str, Any]]]:
        """Stage -> one row a question: text, tokens, log-probabilities, entropies, seconds."""
        evidence = [
            [self._cut(passage) for passage in probe.passages[: self.settings.passages]]
            for probe in probes
        ]
        bare: list[list[Any]] = [[] for _ in questions]
        return {
            name: self._ask(stage, questions, bare if name.startswith("without") else evidence)
            for name, stage in self.stages.items()
        }

    def _cut(self, passage: Passage) -> str | list[int]:
        return cut_document(self.reader, passage, self.settings.max_document_tokens)[0]

    def _ask(
        self, stage: Stage, questions: Sequence[Question], evidence: Sequence[list[Any]]
    ) -> list[dict[str, Any]]:
        messages = [
            prompts.answer_messages(question.question, documents, options=question.options)
            for question, documents in zip(questions, evidence, strict=True)
        ]
        # A repeat must be another draw: greedy answers come out alike, sampled ones do not.
        seed = self.settings.seed + stage.name.endswith("_repeat")
        sampling: dict[str, Any] = {
            "max_new_tokens": self.settings.max_new_tokens,
            "temperature": self.settings.temperature,
            "seed": seed,
            "stop": list(_STOP),
        }
        requests = [
            Request(question.id, "", [self.reader.name, sampling, message])
            for question, message in zip(questions, messages)
        ]

        def ask(numbers: list[int]) -> Iterator[tuple[int, dict[str, Any]]]:
            batch = [messages[number] for number in numbers]
            start = time.monotonic()
            found = self.reader.generator.generate(batch, return_details=True, **sampling)
            seconds = (time.monotonic() - start) / len(batch)
            for number, samples in zip(numbers, found):
                yield number, self._result(messages[number], samples[0], seconds)

        return stage.run(requests, ask)

    def _result(self, message: Any, sample: Any, seconds: float) -> dict[str, Any]:
        if sample.finish_reason == "rejected":
            return {"text": "", "error": sample.error or "refused by the server"}
        tokenizer = self.reader.tokenizer
        return {
            "text": sample.text.strip().encode("utf-8", "replace").decode("utf-8"),
            "finish_reason": sample.finish_reason,
            "n_prompt_tokens": None if tokenizer is None else len(tokenizer.encode_prompt(message)),
            "n_tokens": len(sample.token_ids or sample.log_probs),
            "log_probs": list(sample.log_probs),
            "entropies": list(sample.entropies),
            "approximate": sample.approximate,
            "seconds": seconds,
        }


def make_outcomes(
    questions: Sequence[Question],
    probes: Sequence[Probe],
    answers: Mapping[str, Sequence[dict[str, Any]]],
    grader: Grader,
    *,
    retriever: str = "bm25",
    retrieval_seconds: float = 0.0,
    extra_scores: Mapping[str, Sequence[float]] | None = None,
) -> Made:
    """Grades both arms and puts outcomes, signals, tokens and seconds into one row a question.

    retriever: names the retrieval scores; extra_scores: further routers, one score a question.
    """
    verdicts = {name: _grade(grader, questions, rows) for name, rows in answers.items()}
    made, rejected = [], []
    for place, question in enumerate(questions):
        own = {name: rows[place] for name, rows in answers.items()}
        graded = {name: verdict[place] for name, verdict in verdicts.items()}
        fault = _fault(own, graded)
        if fault:
            rejected.append(Rejected("stages", place + 1, fault, question.id))
            continue
        row = _row(question, probes[place], own, graded, retriever, retrieval_seconds)
        for name, scores in (extra_scores or {}).items():
            row["scores"][name] = float(scores[place])
        made.append(row)
    return Made(made, rejected, _report(made, rejected))


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
    probe: Probe,
    rows: Mapping[str, dict[str, Any]],
    verdicts: Mapping[str, Verdict],
    retriever: str,
    retrieval_seconds: float,
) -> dict[str, Any]:
    draft = rows["without"]
    scores = {
        "query_length": float(complexity.query_features([question.question])[0, 0]),
        "complexity": float(complexity.complexity_rule([question.question])[0]),
    }
    features = {
        "query": dict(
            zip(complexity.QUERY_FEATURES, complexity.query_features([question.question])[0])
        ),
        "retrieval": dict(
            zip(signals.RETRIEVAL_FEATURES, signals.retrieval_features(probe.scores))
        ),
    }
    if draft["entropies"]:
        scores |= signals.uncertainty_scores(draft["log_probs"], draft["entropies"])
        found = signals.uncertainty_features(draft["log_probs"], draft["entropies"])
        features["uncertainty"] = dict(zip(signals.UNCERTAINTY_FEATURES, found))
    for name, score in signals.retrieval_scores(probe.scores).items():
        scores[f"{retriever}_{name}"] = score
    made: dict[str, Any] = {"id": question.id, "question": question.question}
    for name in rows:
        arm, repeats = name.removesuffix("_repeat"), name.endswith("_repeat")
        made[f"{'repeat' if repeats else 'correct'}_{arm}"] = int(verdicts[name].correct)
    for arm in ARMS:
        made[f"answer_{arm}"] = rows[arm]["text"]
        made[f"f1_{arm}"] = text_rules.f1(rows[arm]["text"], question.answers)
    made |= {"scores": scores, "features": features}
    made["hop1_scores"] = probe.scores
    made["passage_ids"] = [passage.id for passage in probe.passages]
    if draft["n_prompt_tokens"] is not None:
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
