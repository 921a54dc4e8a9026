"""The typed records that flow between the rooms."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np


@dataclass(frozen=True, slots=True)
class Passage:
    """One document of a corpus."""

    id: str
    title: str
    text: str


@dataclass(frozen=True, slots=True)
class Question:
    """A question x with its gold answers y (aliases) and, where known, its gold passages.

    `passages` are the candidates that came with the question (empty for open-domain sets);
    `gold_ids` are the ids of its gold passages in the corpus. `options` holds the answer choices of
    a multiple-choice question, in order A, B, ...
    """

    id: str
    question: str
    answers: tuple[str, ...]
    passages: tuple[Passage, ...] = ()
    gold_ids: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    meta: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SupervisionRow:
    """One labelled (t, q, d, b): R decisions at temperature t, their verdicts, the soft label b."""

    question_id: str
    passage_id: str
    query: str
    title: str
    text: str
    guidance: str
    temperature: float
    decisions: tuple[str, ...]
    verdicts: tuple[int, ...]
    label: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a grader says of one prediction.

    answered: False for "no answer" and refusals (then `correct` is False).
    invalid: the grader gave no readable verdict; such a row is counted, never right or wrong.
    lenient: the match used a relaxed rule (sentence golds); reports flag it.
    """

    correct: bool
    answered: bool = True
    invalid: bool = False
    lenient: bool = False


class Hits(NamedTuple):
    """Search results of n queries, best first; `valid` masks places where fewer than k were found.

    ids: [n][k] passage ids ("" where not valid); scores: float32 [n, k]; valid: bool [n, k].
    """

    ids: Sequence[Sequence[str]]
    scores: np.ndarray
    valid: np.ndarray


def passage_id(title: str, text: str) -> str:
    """Content id of a passage: equal passages of any file share it."""
    digest = hashlib.sha256(f"{title}\0{text}".encode("utf-8", "surrogatepass")).hexdigest()
    return f"p{digest[:16]}"
