"""All questions of the set: about one fact, over a bridge, and comparisons."""

from collections.abc import Iterator
from functools import cache

from calibjax.records import Question
from calibjax.sources.worldfacts.bridges import bridge_drafts
from calibjax.sources.worldfacts.comparisons import comparison_drafts
from calibjax.sources.worldfacts.drafts import Draft, thinned, worded
from calibjax.sources.worldfacts.singles import single_drafts
from calibjax.sources.worldfacts.wordings import BRIDGE, COMPARISON, SINGLE

# At most this many questions per relation; relations that need the passage's number are fewer.
LIMITS = {
    "calling_code": 90,
    "domain": 120,
    "borders": 90,
    "continent": 130,
    "city_country": 650,
    "direction": 200,
    "distance": 100,
    "number_of": 80,
    "symbol_of": 100,
}
BRIDGE_LIMIT = 90
COMPARISON_LIMIT = 64


@cache
def questions() -> tuple[Question, ...]:
    """Every question once, single-hop first."""
    return tuple(_all())


def _all() -> Iterator[Question]:
    seen: set[str] = set()
    for kind, drafts, wordings, default in (
        ("single", single_drafts(), SINGLE, 1000),
        ("bridge", bridge_drafts(), BRIDGE, BRIDGE_LIMIT),
        ("comparison", comparison_drafts(), COMPARISON, COMPARISON_LIMIT),
    ):
        by_relation: dict[str, list[Draft]] = {relation: [] for relation in wordings}
        for draft in drafts:
            by_relation[draft.relation].append(draft)
        for relation, group in by_relation.items():
            for draft in thinned(group, LIMITS.get(relation, default)):
                question = worded(draft, kind, wordings[relation])
                if question.question not in seen:
                    seen.add(question.question)
                    yield question
