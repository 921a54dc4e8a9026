"""Reads the questions of a data set, in our own format or in the published one."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from calibjax.errors import InputError, closest, input_error
from calibjax.reading import strictjson, textfiles
from calibjax.reading.textfiles import Records, Rejected, Row
from calibjax.reading.textlines import TextFile
from calibjax.records import Question
from calibjax.sources import (
    bioasq,
    flashrag,
    hotpotqa,
    hover,
    mmlu,
    musique,
    nq_open,
    ours,
    popqa,
    pubmedqa,
    squad2,
    triviaqa,
    webquestions,
    wiki2,
    wikiqa,
)
from calibjax.sources.fields import UNANSWERABLE
from calibjax.sources.layout import Layout

# None: the set exists in our own format alone.
LAYOUTS: dict[str, Layout | None] = {
    "hotpotqa": hotpotqa.LAYOUT,
    "2wiki": wiki2.LAYOUT,
    "musique": musique.LAYOUT,
    "hover": hover.LAYOUT,
    "nq_open": nq_open.LAYOUT,
    "webquestions": webquestions.LAYOUT,
    "squad2": squad2.LAYOUT,
    "triviaqa": triviaqa.LAYOUT,
    "wikiqa": wikiqa.LAYOUT,
    "pubmedqa": pubmedqa.LAYOUT,
    "bioasq": bioasq.LAYOUT,
    "mmlu": mmlu.LAYOUT,
    "popqa": popqa.LAYOUT,
    "flashrag": flashrag.LAYOUT,
    "worldfacts": None,
    "own": None,
}
_OTHER_NAMES = {
    "2wikimultihopqa": "2wiki",
    "nq": "nq_open",
    "webqa": "webquestions",
    "squad_v2": "squad2",
    "bioasq_yesno": "bioasq",
    "mmlu_med": "mmlu",
}
Parse = Callable[[Row], Question | None]


class Loaded(NamedTuple):
    """Questions, the rows set aside, and counts.

    counts: n (kept), n_rejected, n_duplicates (same id and content as a kept one), n_other_type
    (rows that the set leaves out), n_without_answers, n_unanswerable (of those, marked so by the
    set: meta["unanswerable"]), n_passages (distinct), n_with_gold. truncated: the file ends early.
    """

    questions: list[Question]
    rejected: list[Rejected]
    counts: dict[str, int]
    truncated: bool = False


def load_questions(dataset: str, path: str | Path, *, name: str = "path") -> Loaded:
    """The questions in a file, whose format is told by its content; `name` is the flag's name.

    Raises InputError for an unknown set, a file fault, or when more than half of it is rejected.
    """
    dataset = canonical(dataset)
    layout = LAYOUTS[dataset]
    records = _read(path, layout, name)
    parse = _parser(records, dataset, layout, name)
    parsed = textfiles.parse_rows(records, lambda row: (row.line, parse(row)))
    found = [(line, question) for line, question in parsed.rows if question is not None]
    kept, clashing = _unique(found, records)
    rejected = sorted([*parsed.rejected, *clashing], key=lambda row: row.line)
    textfiles.check_kept(textfiles.Parsed(kept, rejected), path, name)
    counts = count(kept, rejected)
    counts["n_duplicates"] = len(found) - len(kept) - len(clashing)
    counts["n_other_type"] = len(parsed.rows) - len(found)
    return Loaded(kept, rejected, counts, records.truncated)


def canonical(dataset: str) -> str:
    """The name under which a set is known here. Raises InputError with the closest one."""
    known = _OTHER_NAMES.get(dataset.lower(), dataset.lower())
    if known in LAYOUTS:
        return known
    near = closest(known, [*LAYOUTS, *_OTHER_NAMES])
    fix = f"did you mean {_OTHER_NAMES.get(near, near)}" if near else "--dataset=own for your own"
    raise input_error("dataset", dataset, f"one of {', '.join(LAYOUTS)}", fix)


def count(questions: list[Question], rejected: list[Rejected]) -> dict[str, int]:
    """Counts of a list of questions; see `Loaded`."""
    return {
        "n": len(questions),
        "n_rejected": len(rejected),
        "n_duplicates": 0,
        "n_other_type": 0,
        "n_without_answers": sum(not question.answers for question in questions),
        "n_unanswerable": sum(bool(question.meta.get(UNANSWERABLE)) for question in questions),
        "n_passages": len({p.id for question in questions for p in question.passages}),
        "n_with_gold": sum(bool(question.gold_ids) for question in questions),
    }


def _read(path: str | Path, layout: Layout | None, name: str) -> Records:
    suffix = Path(str(path).removesuffix(".gz")).suffix.lower()
    if layout and layout.flatten and suffix == ".json" and _is_one_object(path, layout, name):
        return _document(path, layout.flatten, name)
    columns = layout.columns if layout and suffix == ".csv" else ()
    if columns and _has_header(path, name):
        columns = ()
    records = textfiles.read_records(path, columns=columns or None, name=name)
    if layout and layout.gather and any(layout.fits(row.data) for row in records.rows):
        records.rows = layout.gather(records.rows, Path(path))
    return records


def _first_line(path: str | Path, name: str) -> bytes:
    with TextFile(path, name) as source:
        return next((raw for _, raw in source.lines() if raw and raw.strip()), b"")


def _is_one_object(path: str | Path, layout: Layout, name: str) -> bool:
    """Whether the file is one JSON object, not one object a line and not a list."""
    first = _first_line(path, name).lstrip()
    if not first.startswith(b"{"):
        return False
    try:
        row = strictjson.parse_object(first)
    except strictjson.RowFault:
        return True
    return not (layout.fits(row) or ours.fits(row))


def _has_header(path: str | Path, name: str) -> bool:
    cells = _first_line(path, name).lower().split(b",")
    return b"question" in (cell.strip(b' "') for cell in cells)


def _document(path: str | Path, flatten: Callable[..., Any], name: str) -> Records:
    document = textfiles.read_json(path, name=name)
    try:
        items = list(flatten(document))
    except (KeyError, TypeError, AttributeError) as fault:
        found = ", ".join(list(document)[:5])
        expected = f"the published layout or JSON lines, found an object with {found}"
        raise input_error(name, path, f"{expected} ({fault!r})", "check --dataset") from None
    records = Records(str(path))
    for number, item in enumerate(items, start=1):
        if isinstance(item, dict):
            records.rows.append(Row(number, item))
        else:
            reason, shown = "expected a JSON object", strictjson.write(item).decode()
            records.rejected.append(Rejected(records.path, number, reason, shown))
    return records


def _parser(records: Records, dataset: str, layout: Layout | None, name: str) -> Parse:
    """How to read the rows: as the first row that is in either format tells."""
    for row in records.rows:
        if layout and layout.fits(row.data):
            return partial(_published, layout)
        if ours.fits(row.data):
            return partial(_ours, dataset)
    if not records.rows:  # nothing to read: the caller says so, with the reasons
        return partial(_ours, dataset)
    found = ", ".join(sorted({key for row in records.rows[:100] for key in row.data})[:12])
    published = " or ".join(" ".join(sorted(mark)) for mark in layout.marks) if layout else ""
    expected = f"fields id question answers{f' or {published}' if published else ''}"
    raise InputError(
        f"{name}={records.path}: found fields {found}: expected {expected} of {dataset};"
        " fix: check --dataset, or rename the fields"
    )


def _published(layout: Layout, row: Row) -> Question | None:
    return layout.parse(row.data)


def _ours(dataset: str, row: Row) -> Question:
    data = ours.from_cells(row.data) if row.is_text else row.data
    return ours.parse(data, may_be_unanswerable=dataset == "squad2")


def _unique(
    found: list[tuple[int, Question]], records: Records
) -> tuple[list[Question], list[Rejected]]:
    """Each id once. Equal copies count as one; copies that differ are all set aside."""
    copies: dict[str, list[tuple[int, Question]]] = {}
    for line, question in found:
        copies.setdefault(question.id, []).append((line, question))
    rows = {row.line: row for row in records.rows}
    kept: list[Question] = []
    rejected: list[Rejected] = []
    for id, group in copies.items():
        if all(question == group[0][1] for _, question in group):
            kept.append(group[0][1])
            continue
        lines = ", ".join(str(line) for line, _ in group)
        reason = f"id={id}: lines {lines} share this id and differ: expected one of them"
        rejected += [textfiles.reject(records.path, rows[line], reason) for line, _ in group]
    return kept, rejected
