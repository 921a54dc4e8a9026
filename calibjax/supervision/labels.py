"""The labeller: questions -> (t, q, d, b) rows, b the share of R decisions that are right.

Per question: q from x, the top K passages, of these rank 1 and some others. Per (q, d): guidance z
by the reader (greedy), R decisions of the user model at one t ~ U[1, 2], verdicts (paper section
3.1). Every text and verdict is kept in OUT/stages/; what is there is not asked for again.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from calibjax.generation import prompts
from calibjax.protocols import Grader, Retriever
from calibjax.records import Passage, Question, SupervisionRow, Verdict
from calibjax.supervision import grading, queries
from calibjax.supervision.asking import Asked, Model, Reply, Sampling, cut_document, generate
from calibjax.supervision.stages import Request, Stage
from calibjax.textfiles import Rejected, RowFault

GUIDANCE_TOKENS = 48
# A decision is a few words; what a small model adds after them only costs time.
DECISION_TOKENS = 16
T_MIN, T_MAX = 1.0, 2.0


class Settings(NamedTuple):
    """k: passages retrieved; docs_per_question: of these, labelled; draws: decisions per row (R).

    user_top_k, user_top_p truncate the user model's sampling. Passages longer than
    max_document_tokens are cut. batch_size: rows that are asked for at once.
    """

    k: int = 20
    docs_per_question: int = 3
    query_writer: str = "template"
    draws: int = 10
    user_top_k: int | None = None
    user_top_p: float = 1.0
    max_document_tokens: int = 512
    batch_size: int = 32
    seed: int = 0


class Labelled(NamedTuple):
    """rows: the supervision set; rejected: rows that a server refused, or no grader could judge;
    report: counts, label mean and histogram, tokens and calls."""

    rows: list[SupervisionRow]
    rejected: list[Rejected]
    report: dict[str, Any]


class Pair(NamedTuple):
    """One (x, q, d), its place among the hits (from 1), and the temperature t drawn for it."""

    question: Question
    query: str
    passage: Passage
    rank: int
    temperature: float


class Labeller:
    """The models and settings of a labelling job; its stage files lie in `directory`."""

    def __init__(
        self, reader: Model, user: Model, grader: Grader, directory: Path, settings: Settings
    ) -> None:
        queries.check_writer(settings.query_writer)
        self.reader, self.user, self.grader = reader, user, grader
        self.settings = settings
        self.stages = {
            name: Stage(directory, name, batch_size=settings.batch_size)
            for name in ("queries", "guidance", "decisions", "verdicts")
        }

    def label(
        self,
        questions: Sequence[Question],
        retriever: Retriever,
        passages: Mapping[str, Passage],
        *,
        confidence: Callable[[Sequence[Pair]], Sequence[float]] | None = None,
    ) -> Labelled:
        """Labels the questions that have gold answers.

        passages: by id; confidence: forecasts that the user model is shown beside the guidance (a
        second round of labelling), none by default. Questions without hits and rows without one
        gradable decision are left out and counted.
        """
        answerable = [question for question in questions if question.answers]
        written = self.queries(answerable)
        pairs = choose_pairs(answerable, written.texts, retriever, passages, self.settings)
        guidance, n_cut = self.guidance(pairs)
        shown = confidence(pairs) if confidence else [None] * len(pairs)
        decisions = self.decisions(pairs, guidance, shown)
        verdicts = self.verdicts(pairs, decisions)
        rows: list[SupervisionRow] = []
        rejected: list[Rejected] = []
        for pair, z, decided, graded in zip(pairs, guidance, decisions, verdicts):
            fault = z.error or decided.error
            try:
                if fault:
                    raise RowFault(fault)
                rows.append(supervision_row(pair, z.texts[0], decided.texts, graded))
            except RowFault as error:
                ids = f"{pair.question.id} {pair.passage.id}"
                rejected.append(Rejected("stages", len(rows) + len(rejected) + 1, str(error), ids))
        report = {
            "n_questions": len(questions),
            "n_without_answers": len(questions) - len(answerable),
            "n_without_hits": len(answerable) - len({pair.question.id for pair in pairs}),
            "n_rows": len(rows),
            "n_rejected": len(rejected),
            "n_cut_documents": n_cut,
            "n_empty_guidance": sum(z.texts == [""] for z in guidance),
            "queries": written.counts,
            "labels": label_summary(rows, self.settings.draws),
            "decisions": _verdict_counts(verdicts),
            "stages": {name: stage.counts for name, stage in self.stages.items()},
        }
        return Labelled(rows, rejected, report)

    def queries(self, questions: Sequence[Question]) -> queries.Queries:
        """x -> q by the chosen writer."""
        writer = self.settings.query_writer
        if writer != "llm":
            return queries.write_queries(questions, writer)
        asked = [
            Asked(question.id, "", messages)
            for question, messages in zip(questions, queries.query_prompts(questions))
        ]
        sampling = Sampling(queries.MAX_NEW_TOKENS)
        replies = generate(self.reader, self.stages["queries"], asked, sampling)
        texts = [reply.texts[0] if reply.texts else "" for reply in replies]
        return queries.write_queries(questions, writer, texts)

    def guidance(self, pairs: Sequence[Pair]) -> tuple[list[Reply], int]:
        """(q, d) -> z, greedy; and how many documents were cut to max_document_tokens for it."""
        limit = self.settings.max_document_tokens
        cut = [cut_document(self.reader, pair.passage, limit) for pair in pairs]
        asked = [
            Asked(pair.question.id, pair.passage.id, prompts.guidance_messages(pair.query, text))
            for pair, (text, _) in zip(pairs, cut)
        ]
        replies = generate(self.reader, self.stages["guidance"], asked, Sampling(GUIDANCE_TOKENS))
        return replies, sum(is_cut for _, is_cut in cut)

    def decisions(
        self, pairs: Sequence[Pair], guidance: Sequence[Reply], shown: Sequence[float | None]
    ) -> list[Reply]:
        """(x, z) -> R decisions of the user model at the pair's temperature.

        A pair without guidance is not asked about: its reply says so.
        """
        settings = self.settings
        asked = []
        for pair, z, c in zip(pairs, guidance, shown):
            if z.error:
                continue
            x, text = pair.question, z.texts[0]
            messages = prompts.decision_messages(
                x.question, text, confidence=c, options=x.options
            )
            asked.append(Asked(x.id, pair.passage.id, messages, pair.temperature))
        sampling = Sampling(
            DECISION_TOKENS, settings.user_top_k, settings.user_top_p, settings.draws, settings.seed
        )
        made = iter(generate(self.user, self.stages["decisions"], asked, sampling))
        return [Reply([], z.error) if z.error else next(made) for z in guidance]

    def verdicts(
        self, pairs: Sequence[Pair], decisions: Sequence[Reply]
    ) -> list[list[Verdict]]:
        """Grades each decision against the question's golds."""
        tasks = [
            [grading.GradingTask(x.question, x.answers, text, x.options) for text in reply.texts]
            for x, reply in zip((pair.question for pair in pairs), decisions)
        ]
        name = getattr(self.grader, "name", type(self.grader).__name__)
        requests = [
            Request(pair.question.id, pair.passage.id, [name, of_pair])
            for pair, of_pair in zip(pairs, tasks)
        ]

        def ask(numbers: list[int]) -> Iterator[tuple[int, dict[str, Any]]]:
            flat = [task for number in numbers for task in tasks[number]]
            found = iter(grading.grade_many(self.grader, flat))
            for number in numbers:
                yield number, {"verdicts": [next(found) for _ in tasks[number]]}

        rows = self.stages["verdicts"].run(requests, ask)
        return [[Verdict(**verdict) for verdict in row["verdicts"]] for row in rows]


def sample_questions(
    questions: Sequence[Question], limit: int | None, seed: int
) -> list[Question]:
    """`limit` of the questions, uniform by (seed, id), in their order; more include the fewer."""
    if limit is None or limit >= len(questions):
        return list(questions)
    places = range(len(questions))
    first = sorted(places, key=lambda place: fold_in(seed, "question", questions[place].id))
    return [questions[place] for place in sorted(first[:limit])]


def choose_pairs(
    questions: Sequence[Question],
    texts: Sequence[str],
    retriever: Retriever,
    passages: Mapping[str, Passage],
    settings: Settings,
) -> list[Pair]:
    """Rank 1 and docs_per_question - 1 others of the top K, uniform, by (seed, question id)."""
    if not questions:
        return []
    hits = retriever.search(list(texts), settings.k)
    pairs = []
    for number, question in enumerate(questions):
        found = [id for id, is_hit in zip(hits.ids[number], hits.valid[number]) if is_hit]
        random = np.random.default_rng(fold_in(settings.seed, "documents", question.id))
        others = random.permutation(np.arange(1, len(found)))[: settings.docs_per_question - 1]
        for place in [0, *sorted(others.tolist())] if found else []:
            id = found[place]
            t = user_temperature(settings.seed, question.id, id)
            pairs.append(Pair(question, texts[number], passages[id], place + 1, t))
    return pairs


def user_temperature(seed: int, question_id: str, passage_id: str) -> float:
    """t ~ U[1, 2], one per (q, d): a function of the seed and the two ids alone."""
    random = np.random.default_rng(fold_in(seed, "temperature", question_id, passage_id))
    return float(random.uniform(T_MIN, T_MAX))


def fold_in(seed: int, *names: str) -> int:
    """A 63-bit seed from a root seed and names: a row draws alike in any order, any batch."""
    text = "\0".join((str(seed), *names))
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def supervision_row(
    pair: Pair, guidance: str, decisions: Sequence[str], verdicts: Sequence[Verdict]
) -> SupervisionRow:
    """The labelled row. A decision that the grader could not judge has verdict -1, counts nowhere.

    Raises RowFault when it could judge none.
    """
    right = [-1 if verdict.invalid else int(verdict.correct) for verdict in verdicts]
    judged = [verdict for verdict in right if verdict >= 0]
    if not judged:
        raise RowFault("no decision that the grader could judge")
    return SupervisionRow(
        question_id=pair.question.id,
        passage_id=pair.passage.id,
        query=pair.query,
        title=pair.passage.title,
        text=pair.passage.text,
        guidance=guidance,
        temperature=pair.temperature,
        decisions=tuple(decisions),
        verdicts=tuple(right),
        label=sum(judged) / len(judged),
    )


def label_summary(rows: Sequence[SupervisionRow], draws: int) -> dict[str, Any]:
    """Mean label, and how many rows have which: keys "0.0", "0.1", ... in steps of 1/R."""
    # A row with ungradable draws has other steps; it counts at the nearest.
    steps = Counter(round(row.label * draws) for row in rows)
    histogram = {repr(round(step / draws, 6)): steps[step] for step in range(draws + 1)}
    mean = sum(row.label for row in rows) / len(rows) if rows else None
    return {"n": len(rows), "mean": mean, "histogram": histogram}


def _verdict_counts(verdicts: Sequence[Sequence[Verdict]]) -> dict[str, int]:
    flat = [verdict for of_pair in verdicts for verdict in of_pair]
    return {
        "n": len(flat),
        "n_correct": sum(verdict.correct for verdict in flat),
        "n_no_answer": sum(not verdict.answered for verdict in flat),
        "n_invalid": sum(verdict.invalid for verdict in flat),
        "n_lenient": sum(verdict.lenient for verdict in flat),
    }
