"""A question before it is worded, and how it becomes one."""

from collections.abc import Iterable
from typing import NamedTuple

from calibjax.records import Question
from calibjax.sources.worldfacts.choice import pick, rank
from calibjax.sources.worldfacts.passages import Key, passages


class Draft(NamedTuple):
    """What is asked (relation, subjects), the answers, and the keys of the gold passages.

    `subject` names the subject in ids; `x` and `y` stand in the wording.
    """

    relation: str
    subject: str
    split: str
    x: str
    y: str
    answers: tuple[str, ...]
    gold: tuple[Key, ...]


def worded(draft: Draft, kind: str, wordings: tuple[str, ...]) -> Question:
    """The question in one of the wordings, chosen by its subject."""
    template = pick(wordings, "wording", draft.relation, draft.subject)
    text = template.format(x=draft.x, y=draft.y)
    return Question(
        id=f"wf-{draft.relation}-{draft.subject}",
        question=text[0].upper() + text[1:],
        answers=draft.answers,
        gold_ids=tuple(passages()[key].id for key in draft.gold),
        meta={
            "kind": kind,
            "relation": draft.relation,
            "subject": draft.subject,
            "split": draft.split,
        },
    )


def thinned(drafts: Iterable[Draft], limit: int) -> list[Draft]:
    """At most `limit` of the drafts, chosen by hash."""
    ordered = sorted(drafts, key=lambda d: (rank("thin", d.relation, d.subject), d.subject))
    return ordered[:limit]
