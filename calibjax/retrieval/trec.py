"""TREC files: runs (6 columns), relevance judgements (qrels), read strictly and written safely.

The rank column of a run is ignored, as trec_eval does: order is by score, then by document id, both
descending, scores compared as float32.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from calibjax import storage
from calibjax.errors import input_error
from calibjax.reading import fields, strictjson, textfiles
from calibjax.reading.strictjson import RowFault
from calibjax.reading.textfiles import Rejected
from calibjax.reading.textlines import TextFile

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_BEIR_HEADER = ["query-id", "corpus-id", "score"]
_RAW_SHOWN = 200


class Ranking(NamedTuple):
    """Documents of one query, best first, with their scores."""

    documents: list[str]
    scores: list[float]


class Run(NamedTuple):
    """Rankings by query id, rows set aside, and whether the file ends early."""

    rankings: dict[str, Ranking]
    rejected: list[Rejected]
    truncated: bool


class Qrels(NamedTuple):
    """Relevance of documents by query id (above 0 = relevant), as `Run`."""

    relevance: dict[str, dict[str, int]]
    rejected: list[Rejected]
    truncated: bool

    def relevant(self, query: str) -> set[str]:
        """Ids of the relevant documents of a query, none for one that was not judged."""
        return {key for key, grade in self.relevance.get(query, {}).items() if grade > 0}


def read_run(path: str | Path, *, name: str = "run") -> Run:
    """A run: `query Q0 document rank score tag`, split at white space.

    Rows with another number of columns, a score that is no finite number, or a document that the
    query already has are set aside by line. Raises InputError for file faults.
    """
    found: dict[str, dict[str, float]] = {}

    def take(cells: list[str], line: int) -> None:
        query, _, document, _, score, _ = cells
        if not _NUMBER.fullmatch(score) or abs(float(score)) > fields.FLOAT32_MAX:
            raise RowFault(f"score={score}: expected a finite float32 number (query {query})")
        scores = found.setdefault(query, {})
        if document in scores:
            raise RowFault(f"document={document}: expected once in query {query}, found again")
        scores[document] = float(score)

    rejected, truncated = _read(path, name, 6, "query Q0 document rank score tag", take)
    rankings = {query: _ranked(scores) for query, scores in found.items()}
    return Run(rankings, rejected, truncated)


def read_qrels(path: str | Path, *, name: str = "qrels") -> Qrels:
    """Judgements: `query 0 document grade`, or BEIR's three columns under their header line."""
    found: dict[str, dict[str, int]] = {}
    with TextFile(path, name) as source:
        first = next((raw for _, raw in source.lines() if raw and raw.strip()), b"")
    is_beir = first.decode("utf-8", "replace").split() == _BEIR_HEADER

    def take(cells: list[str], line: int) -> None:
        if cells == _BEIR_HEADER:
            return
        query, document, grade = cells if is_beir else (cells[0], cells[2], cells[3])
        if not re.fullmatch(r"[+-]?\d+", grade):
            raise RowFault(f"grade={grade}: expected an integer (query {query})")
        grades = found.setdefault(query, {})
        if document in grades and grades[document] != int(grade):
            raise RowFault(f"document={document}: judged twice, and otherwise, in query {query}")
        grades[document] = int(grade)

    expected = "query-id corpus-id score" if is_beir else "query 0 document grade"
    rejected, truncated = _read(path, name, 3 if is_beir else 4, expected, take)
    return Qrels(found, rejected, truncated)


def write_run(
    path: str | Path, rankings: Mapping[str, Ranking], *, tag: str = "calibjax"
) -> None:
    """A run whose order every reader reproduces: scores strictly decreasing in float32.

    A score that ties with the one before it, in float32, is lowered to the next float32.
    """
    lines = []
    for query, ranking in rankings.items():
        scores = strictly_decreasing(ranking.scores)
        for rank, (document, score) in enumerate(zip(ranking.documents, scores), start=1):
            for word in (query, document, tag):
                if not word or word.split() != [word]:
                    raise input_error("id", repr(word), "a word without white space")
            lines.append(f"{query} Q0 {document} {rank} {score!s} {tag}\n")
    storage.write_text(path, "".join(lines))


def strictly_decreasing(scores: Sequence[float]) -> np.ndarray:
    """float32 scores, each below the one before it."""
    made = np.asarray(scores, np.float32).copy()
    for place in range(1, len(made)):
        if made[place] >= made[place - 1]:
            made[place] = np.nextafter(made[place - 1], np.float32(-np.inf))
    return made


def _ranked(scores: Mapping[str, float]) -> Ranking:
    order = sorted(scores, key=lambda key: (np.float32(scores[key]), key), reverse=True)
    return Ranking(order, [scores[key] for key in order])


def _read(path, name, num_columns, expected, take) -> tuple[list[Rejected], bool]:
    rejected: list[Rejected] = []
    lines: list[int] = []
    with TextFile(path, name) as source:
        for line, raw in source.lines():
            if raw is not None and not raw.strip():
                continue
            try:
                if raw is None:
                    raise RowFault("longer than a line may be, or cut off")
                cells = strictjson.decode(raw).split()
                if len(cells) != num_columns:
                    many = f"expected {num_columns} columns ({expected}), found {len(cells)}"
                    raise RowFault(many)
                take(cells, line)
                lines.append(line)
            except RowFault as fault:
                shown = (raw or b"")[:_RAW_SHOWN].decode("utf-8", "backslashreplace")
                rejected.append(Rejected(str(path), line, str(fault), shown))
        truncated = source.damage is not None
    textfiles.check_kept(textfiles.Parsed(lines, rejected), path, name)
    return rejected, truncated
