"""x -> q: turns a question into an open-ended query, by rule or by the reader (paper section 3).

A query must not give the answer away: one that names a gold answer that the question does not name
is replaced by the rule's, and counted.
"""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from calibjax.errors import closest, input_error
from calibjax.generation.prompts import query_messages
from calibjax.records import Question
from calibjax.supervision import answers as text_rules
from calibjax.supervision.matching import YES_NO

WRITERS = ("template", "llm", "none")
MAX_NEW_TOKENS = 48

# "What is the capital of Peru?" -> "the capital of Peru"; a choice ("..., X or Y?") is no topic.
_TOPIC = re.compile(r"(?:what|who)(?:\s+(?:is|are|was|were)|'s)\s+(?P<topic>.+)", re.IGNORECASE)
_CHOICE = re.compile(r",|\bor\b|\bthan\b")


class Queries(NamedTuple):
    """texts: one query per question. counts: n; n_names_answer: the question itself names a gold;
    n_leaked, n_empty: written queries that were replaced by the rule's."""

    texts: list[str]
    counts: dict[str, int]


def template_query(question: str) -> str:
    """An open-ended query by rule: keeps the question's names, adds none.

    A question with no topic to ask about stays as it is: words around it would only be noise to a
    lexical retriever.

    >>> template_query("What is the capital of Peru?")
    'Tell me about the capital of Peru.'
    >>> template_query("Which is longer, the Nile or the Rhine?")
    'Which is longer, the Nile or the Rhine?'
    """
    text = " ".join(question.split())
    match = _TOPIC.fullmatch(text.rstrip(" ?.!"))
    if match and not _CHOICE.search(match["topic"]):
        return f"Tell me about {match['topic']}."
    return text


def check_writer(name: str) -> None:
    """InputError unless `name` is template, llm or none."""
    if name not in WRITERS:
        near = closest(name, WRITERS)
        fix = f"--query_writer={near or WRITERS[0]}"
        raise input_error("query_writer", name, f"one of {', '.join(WRITERS)}", fix)


def query_prompts(questions: Sequence[Question]) -> list[list[dict[str, Any]]]:
    """What the reader is asked when it writes the queries."""
    return [query_messages(question.question) for question in questions]


def write_queries(
    questions: Sequence[Question], writer: str, replies: Sequence[str] | None = None
) -> Queries:
    """Queries of the questions; `replies` are the reader's to `query_prompts` when writer="llm"."""
    check_writer(writer)
    counts = dict.fromkeys(("n", "n_names_answer", "n_leaked", "n_empty"), 0)
    texts = []
    for number, question in enumerate(questions):
        rule = template_query(question.question)
        text = question.question if writer == "none" else rule
        if writer == "llm" and replies is not None:
            text = clean(replies[number])
            counts["n_empty"] += not text
            leaks = names_answer(text, question) and not names_answer(question.question, question)
            counts["n_leaked"] += leaks
            text = rule if leaks or not text else text
        counts["n"] += 1
        counts["n_names_answer"] += names_answer(question.question, question)
        texts.append(text)
    return Queries(texts, counts)


def clean(reply: str) -> str:
    """The first line of a reply that says something, on one line, without quotes around it."""
    lines = ("".join(c if c.isprintable() else " " for c in line) for line in reply.splitlines())
    kept = (" ".join(line.split()).strip("\"'` ") for line in lines)
    return next((line for line in kept if any(c.isalnum() for c in line)), "")


def names_answer(text: str, question: Question) -> bool:
    """Whether a gold answer (other than yes, no, maybe) stands in `text` word by word."""
    tokens = text_rules.unicode_tokens(text)
    golds = (text_rules.unicode_tokens(answer) for answer in question.answers)
    return any(
        bool(gold) and " ".join(gold) not in YES_NO and bool(text_rules.find_runs(tokens, gold))
        for gold in golds
    )
