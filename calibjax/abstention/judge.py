"""What models add to retrieval: grades of passages, bridge queries; kept on disk, asked once."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from calibjax.generation.prompts import JUDGE_CLASSES, bridge_messages, judge_messages
from calibjax.generation.readout import class_probabilities, class_token_ids
from calibjax.records import Passage, Question
from calibjax.retrieval.bridges import MAX_BRIDGES, sentences
from calibjax.supervision.asking import Asked, Model, Sampling, cut_document, generate
from calibjax.supervision.queries import clean
from calibjax.supervision.stages import Request, Stage

# Tokens of a passage that the judge reads.
MAX_TOKENS = 160
# Grade of A, B, C: supports, partial, none.
GRADES = np.array([2.0, 1.0, 0.0])
_BRIDGE_TOKENS = 60


class Pair(NamedTuple):
    """A passage to be graded for a question; bridge: what the first hop has found."""

    question: Question
    bridge: str
    passage: Passage


def bridge_text(passage: Passage) -> str:
    """Title and first sentence of the best hop-1 passage, as the judge is told."""
    first = next(iter(sentences(passage.text)), "")
    return f"{passage.title}. {first}" if passage.title else first


def grade_passages(model: Model, stage: Stage, pairs: Sequence[Pair]) -> np.ndarray:
    """Grade in [0, 2] of each pair, float64 [n]: 2 supports, 1 partial, 0 none.

    A local model's grade is its expectation over the three letters, read from the next token; a
    server's is the letter that it writes, and none of them counts as 0.
    """
    prompts = [
        judge_messages(pair.question.question, pair.bridge, _document(model, pair.passage))
        for pair in pairs
    ]
    decoder = getattr(model.generator, "decoder", None)
    if decoder is None:
        asked = [
            Asked(pair.question.id, pair.passage.id, prompt)
            for pair, prompt in zip(pairs, prompts)
        ]
        replies = generate(model, stage, asked, Sampling(max_new_tokens=4))
        return np.array([_letter_grade(reply.texts) for reply in replies])
    class_ids = class_token_ids(decoder.tokenizer, JUDGE_CLASSES)
    requests = [
        Request(pair.question.id, pair.passage.id, [model.name, prompt, list(JUDGE_CLASSES)])
        for pair, prompt in zip(pairs, prompts)
    ]

    def ask(numbers: list[int]) -> Iterator[tuple[int, dict[str, Any]]]:
        found = class_probabilities(decoder, [prompts[number] for number in numbers], class_ids)
        for number, probability in zip(numbers, found):
            yield number, {"probabilities": [round(float(p), 6) for p in probability]}

    rows = stage.run(requests, ask)
    return np.array([row["probabilities"] for row in rows]).reshape(-1, len(GRADES)) @ GRADES


def write_bridges(
    model: Model, stage: Stage, questions: Sequence[Question], tops: Sequence[Passage]
) -> list[list[str]]:
    """Up to three queries a question that the model writes from its best hop-1 passage."""
    asked = [
        Asked(
            question.id,
            top.id,
            bridge_messages(question.question, _document(model, top)),
        )
        for question, top in zip(questions, tops)
    ]
    replies = generate(model, stage, asked, Sampling(max_new_tokens=_BRIDGE_TOKENS))
    return [parse_bridges(reply.texts[0] if reply.texts else "") for reply in replies]


def parse_bridges(reply: str) -> list[str]:
    """Queries, one a line, without list marks; each once, at most three.

    >>> parse_bridges("1. Ann Lee born\\n2. Ann Lee born\\n- Red Hill author")
    ['Ann Lee born', 'Red Hill author']
    """
    lines = (clean(line).lstrip("0123456789.)-*• ").strip() for line in reply.splitlines())
    return list(dict.fromkeys(line for line in lines if line))[:MAX_BRIDGES]


def _document(model: Model, passage: Passage) -> str | list[int]:
    return cut_document(model, passage, MAX_TOKENS)[0]


def _letter_grade(texts: Sequence[str]) -> float:
    letter = texts[0].strip()[:1].upper() if texts else ""
    return float(GRADES[JUDGE_CLASSES.index(letter)]) if letter in JUDGE_CLASSES else 0.0
