"""2WikiMultiHopQA (Ho et al. 2020): HotpotQA's shape plus evidence triples."""

from collections.abc import Mapping
from typing import Any

from calibjax.records import Question
from calibjax.sources.hotpotqa import titled_paragraphs
from calibjax.sources.layout import Layout, marks


def parse(data: Mapping[str, Any]) -> Question:
    """One question; sentences come without spaces between them."""
    return titled_paragraphs(data, separator=" ")


LAYOUT = Layout(marks("_id question context", "id question context supporting_facts"), parse)
