"""WebQuestions (Berant et al. 2013): a JSON list with answers inside s-expressions.

The copies on hubs hold `url`, `question`, `answers` instead.
"""

import re
from collections.abc import Mapping
from typing import Any

from calibjax.reading.textfiles import RowFault
from calibjax.records import Question
from calibjax.sources.fields import (
    answers_of,
    content_id,
    distinct,
    make_question,
    text_of,
    without,
)
from calibjax.sources.layout import Layout, marks

_DESCRIPTION = re.compile(r'\(description\s+(?:"((?:[^"\\]|\\.)*)"|([^()"]*))\)')
_USED = ("utterance", "targetValue", "question", "answers")


def parse(data: Mapping[str, Any]) -> Question:
    """One question; its id is made from its content."""
    if "utterance" in data:
        question = text_of(data, "utterance")
        answers = descriptions(text_of(data, "targetValue"))
    else:
        question, answers = text_of(data, "question"), answers_of(data, "answers")
    return make_question(
        content_id("webquestions", question, *answers),
        question,
        answers,
        meta=without(data, *_USED),
    )


def descriptions(target: str) -> tuple[str, ...]:
    """Answers of `(list (description "Jamaican English") (description Patois))`."""
    found = [
        re.sub(r"\\(.)", r"\1", quoted) if quoted else bare
        for quoted, bare in _DESCRIPTION.findall(target)
    ]
    answers = distinct(found)
    if not answers:
        raise RowFault("targetValue: expected (list (description ...) ...) with an answer")
    return answers


LAYOUT = Layout(marks("utterance targetValue", "url question answers"), parse)
