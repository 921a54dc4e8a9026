"""NQ-open (Lee et al. 2019): JSON lines with `question` and the list `answer`, without ids."""

from collections.abc import Mapping
from typing import Any

from calibjax.records import Question
from calibjax.sources.fields import answers_of, content_id, make_question, text_of, without
from calibjax.sources.layout import Layout, marks


def parse(data: Mapping[str, Any]) -> Question:
    """One question; its id is made from its content, so it is the same in every slice."""
    question, answers = text_of(data, "question"), answers_of(data, "answer")
    return make_question(
        content_id("nq_open", question, *answers),
        question,
        answers,
        meta=without(data, "question", "answer"),
    )


LAYOUT = Layout(marks("question answer"), parse)
