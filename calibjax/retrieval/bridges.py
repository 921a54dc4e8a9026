"""Bridge queries for a second hop: (subject, verb, object) expansions of the best hop-1 passage.

By rule, without a model: capitalised spans around a verb of a small list. RegimeAbstain names the
expansions and not how they are made, so the rules are ours.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

from calibjax.records import Passage

MAX_BRIDGES = 3
_SENTENCES = 3
_TOO_COMMON = frozenset(
    "a an the of in on at by for from to with and or but as is are was were be been being am do "
    "did does has have had it its he she his her him they their them this that these those who "
    "whom whose which what when where why how than then there also not no if so such both all any "
    "some one two same other into about after before between during while until over under out up "
    "down can could would should may might will shall must".split()
)
_VERBS = frozenset(
    "is are was were has have had became become becomes remains served serves born died made wrote "
    "written writes directed directs produced produces starred stars starring played plays founded "
    "created composed recorded released published located situated lies based includes included "
    "contains features featured married owned owns led leads won wins won received known named "
    "called appeared appears developed designed built operated operates established formed belongs "
    "borders covers covered began begins ended ends took takes held holds worked works lived lives "
    "moved studied taught joined coached signed hosted voiced portrayed invented discovered "
    "described introduced performed edited adapted inspired nominated elected appointed".split()
)
_WORD = re.compile(r"\w[\w'’-]*")
_END = re.compile(
    r"(?<![A-Z])(?<!\b(?:St|Mr|Dr|No|Jr|Sr|vs))(?<!\bMrs)[.!?][\"')\]]*\s+(?=[\"'(]?[A-Z0-9])"
)
_NEXT_WORD = re.compile(r"\s+([a-z][\w'’-]*)")
_PARENTHESES = re.compile(r"\s*\([^()]*\)")
_SPAN = re.compile(
    r"[A-Z0-9][\w'’.&-]*"
    r"(?:\s+(?:(?:of|the|de|la|du|von|van)\s+){0,2}[A-Z0-9][\w'’.&-]*)*"
)


class Triple(NamedTuple):
    """Who does what to whom, as the passage words it."""

    subject: str
    verb: str
    object: str


def triples(passage: Passage, limit: int = MAX_BRIDGES) -> list[Triple]:
    """Up to `limit` triples with distinct objects from the title and the first three sentences.

    >>> text = "Ann Lee was an author. She wrote Red Hill and lived in Lima."
    >>> [tuple(t) for t in triples(Passage("p", "Ann Lee", text))]
    [('Ann Lee', 'wrote', 'Red Hill'), ('Ann Lee', 'wrote', 'Lima')]
    """
    found: dict[str, tuple[bool, Triple]] = {}
    title = _PARENTHESES.sub("", passage.title).strip()
    for sentence in sentences(passage.text)[:_SENTENCES]:
        for is_name, triple in _of_sentence(_PARENTHESES.sub("", sentence), title):
            if triple.object.lower() not in title.lower():
                found.setdefault(triple.object.lower(), (is_name, triple))
    # Names lead to other passages; dates and nationalities lead everywhere.
    ordered = sorted(found.values(), key=lambda entry: not entry[0])
    return [triple for _, triple in ordered[:limit]]


def bridge_queries(question: str, passage: Passage, limit: int = MAX_BRIDGES) -> list[str]:
    """Up to `limit` queries for the second hop: what the question asks beyond the passage + an end.

    Each is the question's content words that the passage lacks, with the object of a triple, and
    its subject where the question does not name it. A passage without a triple gives its title.
    """
    known = set(words(f"{passage.title} {passage.text}"))
    asked = dict.fromkeys(w for w in _WORD.findall(question) if w.lower() not in _TOO_COMMON)
    open_words = [word for word in asked if word.lower() not in known]
    found = triples(passage, limit)
    ends = [_ends(triple, question) for triple in found] or [passage.title]
    queries = (" ".join([*open_words, end]).strip() for end in ends)
    return list(dict.fromkeys(query for query in queries if query))


def words(text: str) -> list[str]:
    """Lower-case words of a text."""
    return [word.lower() for word in _WORD.findall(text)]


def sentences(text: str) -> list[str]:
    """Sentences by their end marks; initials and a few abbreviations end none."""
    places = [0, *(match.end() for match in _END.finditer(text)), len(text)]
    return [text[a:b].strip() for a, b in zip(places, places[1:]) if text[a:b].strip()]


def _ends(triple: Triple, question: str) -> str:
    if triple.subject.lower() in question.lower():
        return triple.object
    return f"{triple.subject} {triple.object}"


def _of_sentence(sentence: str, title: str) -> Iterator[tuple[bool, Triple]]:
    """Triples of the first verb, each with whether its object names a thing of its own."""
    verb = next((m for m in _WORD.finditer(sentence) if m.group().lower() in _VERBS), None)
    if verb is None:
        return
    before = [span for _, span in _spans(sentence[: verb.start()])]
    subject = before[-1] if before else title
    for is_name, span in _spans(sentence[verb.end() :]):
        yield is_name, Triple(subject, verb.group(), span)


def _spans(text: str) -> Iterator[tuple[bool, str]]:
    """Capitalised spans; False for dates, numbers and what qualifies a noun ("American singer").

    A first word that is capitalised for its place alone is left out.
    """
    for match in _SPAN.finditer(text):
        parts = match.group().strip(" .,'’-").split()
        while parts and parts[0].lower() in _TOO_COMMON:
            parts = parts[1:]
        if parts:
            following = _NEXT_WORD.match(text, match.end())
            qualifies = following is not None and following[1] not in _TOO_COMMON | _VERBS
            has_digit = any(character.isdigit() for character in parts[-1])
            yield not (qualifies or has_digit), " ".join(parts)
