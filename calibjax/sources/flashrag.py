"""FlashRAG question files (Jin et al. 2024): JSON lines id, question, golden_answers, metadata."""

from collections.abc import Mapping
from typing import Any

from calibjax.records import Question
from calibjax.sources.fields import answers_of, id_of, make_question, text_of, texts_of, without
from calibjax.sources.layout import Layout, marks

_USED = ("id", "question", "golden_answers", "choices")


def parse(data: Mapping[str, Any]) -> Question:
    """One question; choices, where given, become options."""
    return make_question(
        id_of(data),
        text_of(data, "question"),
        answers_of(data, "golden_answers"),
        options=texts_of(data, "choices") if isinstance(data.get("choices"), list) else (),
        meta=without(data, *_USED),
    )


LAYOUT = Layout(marks("id question golden_answers"), parse)
