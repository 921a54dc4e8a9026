"""HoVer (Jiang et al. 2020): claims of 2 to 4 hops with the titles that support them, no text."""

from collections.abc import Mapping
from typing import Any

from calibjax.records import Question
from calibjax.sources.fields import (
    Candidate,
    id_of,
    make_question,
    member_of,
    text_of,
    without,
)
from calibjax.sources.hotpotqa import pairs
from calibjax.sources.layout import Layout, marks

LABELS = ("SUPPORTED", "NOT_SUPPORTED")
_USED = ("uid", "claim")


def parse(data: Mapping[str, Any]) -> Question:
    """One claim. The published files hold no text: gold titles go to meta, passages stay empty.

    The hidden test set has no labels and no facts.
    """
    facts = pairs(data.get("supporting_facts") or [], "key", "value")
    return make_question(
        id_of(data, "uid"),
        text_of(data, "claim"),
        (member_of(data, "label", LABELS),) if data.get("label") is not None else (),
        candidates=[Candidate(title, "", True) for title, _ in facts],
        options=LABELS,
        meta=without(data, *_USED),
    )


LAYOUT = Layout(marks("uid claim"), parse)
