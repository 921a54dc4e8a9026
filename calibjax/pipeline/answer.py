"""Answer questions in four stages: retrieve, score and rerank, reformulate once, decide."""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from calibjax.errors import input_error
from calibjax.forecaster import Forecaster
from calibjax.pipeline.decision import Case, Decided, Deciding, decide, draw_user_temperature
from calibjax.pipeline.selection import Selection, Selector
from calibjax.protocols import Generator, Grader, Retriever
from calibjax.records import Passage, Question
from calibjax.supervision.asking import Model
from calibjax.supervision.grading import make_grader
from calibjax.supervision.queries import write_queries


@dataclass(frozen=True, slots=True)
class Answer:
    """What the pipeline answers to one question; one row of answers.jsonl.

    confidence: f of the chosen document. confidence_shown: what the user model read, or None.
    correct: None for questions without gold answers. round, triggered: see `Selection`.
    """

    id: str
    query: str
    round: int
    triggered: bool
    document_id: str
    title: str
    confidence: float
    confidence_shown: float | None
    guidance: str
    decision: str
    answered: bool
    correct: bool | None
    temperature: float


def answer(
    questions: Sequence[Question],
    *,
    retriever: Retriever,
    forecaster: Forecaster,
    reader: Generator | Model,
    user: Generator | Model,
    grader: Grader | None = None,
    passages: Mapping[str, Passage] | None = None,
    k: int = 20,
    epsilon: float = 0.5,
    stage3: bool = True,
    rerank: bool = True,
    temperature: float | None = None,
    user_temperature: float | None = None,
    show_confidence: bool = True,
    query_writer: str = "template",
    deciding: Deciding = Deciding(),
    directory: Path | None = None,
) -> list[Answer]:
    """Runs the four stages over the questions (CalibRAG, section 3.4).

    passages: by id (None: `retriever.passages`). temperature: the one that f is conditioned on
    (None: the mean over 1.0, 1.1, ..., 1.5). user_temperature: what the user model decides at
    (None: `temperature`, and without one a draw per question from the same six). directory: keeps
    what the models said, to go on after an interruption (None: nothing is kept).
    """
    reading = as_model(reader)
    selector = Selector(
        write_queries(questions, check_writer(query_writer)).texts,
        retriever=retriever,
        passages=passages_of(retriever, passages),
        forecaster=forecaster,
        reader=reading.generator,
        k=k,
        epsilon=epsilon,
    )
    selections = selector.choose(temperature, rerank=rerank, stage3=stage3)
    decides_at = temperature if user_temperature is None else user_temperature
    cases = make_cases(questions, selections, decides_at, show_confidence, deciding.seed)
    with tempfile.TemporaryDirectory() as scratch:
        decided = decide(
            cases,
            reading,
            as_model(user),
            grader or make_grader("auto"),
            directory or Path(scratch),
            deciding,
        )
    return [to_answer(one) for one in decided]


def make_cases(
    questions: Sequence[Question],
    selections: Sequence[Selection],
    temperature: float | None,
    show_confidence: bool,
    seed: int,
) -> list[Case]:
    """The decisions to be made; temperature None draws one of the six per question."""
    return [
        Case(
            question=x,
            selection=chosen,
            temperature=draw_user_temperature(seed, x.id) if temperature is None else temperature,
            confidence_shown=chosen.confidence if show_confidence else None,
        )
        for x, chosen in zip(questions, selections)
    ]


def to_answer(decided: Decided) -> Answer:
    """The first draw of a decided case as a row of answers.jsonl."""
    case, verdict = decided.case, decided.verdicts[0]
    chosen = case.selection
    return Answer(
        id=case.question.id,
        query=chosen.query,
        round=chosen.round,
        triggered=chosen.triggered,
        document_id=chosen.document.id,
        title=chosen.document.title,
        confidence=chosen.confidence,
        confidence_shown=case.confidence_shown,
        guidance=decided.guidance,
        decision=decided.decisions[0],
        answered=verdict.answered,
        correct=verdict.correct if case.question.answers else None,
        temperature=case.temperature,
    )


def as_model(generator: Generator | Model) -> Model:
    """A generator with the name its results are filed under."""
    if isinstance(generator, Model):
        return generator
    name = getattr(generator, "name", type(generator).__name__)
    return Model(generator, name, getattr(generator, "tokenizer", None))


def passages_of(
    retriever: Retriever, passages: Mapping[str, Passage] | None
) -> Mapping[str, Passage]:
    """The passages that a retriever's ids stand for."""
    found = passages if passages is not None else getattr(retriever, "passages", None)
    if found is None:
        name = type(retriever).__name__
        raise input_error("passages", "None", f"a mapping from id to passage for {name}")
    return found


def check_writer(writer: str) -> str:
    """The query writers that need no model call of their own."""
    if writer not in ("template", "none"):
        raise input_error("query_writer", writer, "template or none", "--query_writer=template")
    return writer
