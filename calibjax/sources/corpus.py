"""Passage collections: a file of passages, or the pool of all passages that came with questions."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from calibjax.errors import InputError
from calibjax.reading import textfiles
from calibjax.reading.textfiles import Rejected, RowFault
from calibjax.records import Passage, Question
from calibjax.sources.fields import id_of


class Corpus(NamedTuple):
    """Passages, the rows set aside, and counts n, n_rejected, n_duplicates, n_without_text."""

    passages: list[Passage]
    rejected: list[Rejected]
    counts: dict[str, int]
    truncated: bool = False


def pool_passages(*question_lists: Iterable[Question]) -> list[Passage]:
    """All passages of all questions, each content once, in order of first appearance."""
    pooled: dict[str, Passage] = {}
    for questions in question_lists:
        for question in questions:
            for passage in question.passages:
                pooled.setdefault(passage.id, passage)
    return list(pooled.values())


def load_corpus(path: str | Path, *, name: str = "corpus") -> Corpus:
    """Passages of a file with `id`, `title`, `text` (or FlashRAG's `id`, `contents`).

    A passage without text is kept and counted; no retriever returns it. Raises InputError for file
    faults and when two passages share an id but not their content.
    """
    records = textfiles.read_records(path, required=("id",), name=name)
    parsed = textfiles.parse_rows(records, lambda row: (row.line, _passage(row.data)))
    first: dict[str, tuple[int, Passage]] = {}
    for line, passage in parsed.rows:
        line_before, before = first.setdefault(passage.id, (line, passage))
        if before != passage:
            raise InputError(
                f"{name}={path}: lines {line_before} and {line} share id={passage.id} and differ:"
                " expected one passage per id; fix: give them ids of their own"
            )
    passages = [passage for _, passage in first.values()]
    textfiles.check_kept(textfiles.Parsed(passages, parsed.rejected), path, name)
    counts = {
        "n": len(passages),
        "n_rejected": len(parsed.rejected),
        "n_duplicates": len(parsed.rows) - len(passages),
        "n_without_text": sum(not passage.text.strip() for passage in passages),
    }
    return Corpus(passages, parsed.rejected, counts, records.truncated)


def _passage(data: Mapping[str, Any]) -> Passage:
    if isinstance(data.get("contents"), str) and "text" not in data:
        title, _, text = data["contents"].partition("\n")
        return Passage(id_of(data), title.strip().strip('"'), text)
    title, text = data.get("title"), data.get("text")
    if not isinstance(text, str):
        raise RowFault("text: expected text (it may be empty)")
    if title is not None and not isinstance(title, str):
        raise RowFault("title: expected text")
    return Passage(id_of(data), title or "", text)
