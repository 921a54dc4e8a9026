"""The supervision set on disk: rows (t, q, d, b) as a TFDS data set in ArrayRecord shards."""

import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from calibjax import storage
from calibjax.data import manifest
from calibjax.errors import InputError
from calibjax.reading import textfiles
from calibjax.reading.strictjson import RowFault, shown
from calibjax.records import SupervisionRow

ROWS_PER_SHARD = 20_000
SPLIT = "train"
# The label is a share of decisions; anything farther off than rounding is a mistake.
_LABEL_TOLERANCE = 1e-6
_TEXTS = ("question_id", "passage_id", "query", "title", "text", "guidance")


def build(rows: Iterable[SupervisionRow], directory: str | Path) -> None:
    """Writes the rows, in their order, to `directory` (replaced as a whole, or not at all).

    Besides the TFDS files there is manifest.json with rows and SHA-256 per shard. Raises InputError
    for a row that cannot be right, and when there are none.
    """
    from calibjax.data.supervision_builder import write_shards

    target = Path(directory)
    checked = [_checked(row, number) for number, row in enumerate(rows)]
    if not checked:
        raise InputError("rows=[]: expected at least one labelled row; fix: label some questions")
    target.parent.mkdir(parents=True, exist_ok=True)
    _recover(target)
    work = target.parent / f".{target.name}.tmp"
    shutil.rmtree(work, ignore_errors=True)
    try:
        made, shards = write_shards(checked, work, -(-len(checked) // ROWS_PER_SHARD))
        manifest.write(made, shards)
        # What was written is read back before what it replaces goes.
        if load(made) != checked:
            raise OSError(f"{made}: rows read back differ from the rows written")
        _replace(made, target)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def load(directory: str | Path, *, name: str = "data") -> list[SupervisionRow]:
    """The rows in the order in which they were written, after the shards were verified.

    Raises InputError that names a damaged shard and the command that builds it again.
    """
    from calibjax.data.supervision_builder import read_examples

    path = Path(directory)
    if path.parent.is_dir():
        _recover(path)
    rebuild = f"python -m launch.label --resume --out={path.parent} and the flags of its run.json"
    found = manifest.verify(path, name=name, rebuild=rebuild)
    rows = [_row(example) for example in read_examples(path, SPLIT)]
    if len(rows) != found["n"]:
        raise InputError(
            f"{name}={path}: expected {found['n']} rows, found {len(rows)}; fix: {rebuild}"
        )
    return rows


def read_file(path: str | Path, *, name: str = "data") -> textfiles.Parsed[SupervisionRow]:
    """Rows of a JSON-lines or Parquet file made elsewhere; rows that cannot be right are set aside.

    Raises InputError for file faults, also when fewer than two rows are kept.
    """
    records = textfiles.read_records(path, required=("question_id", "label"), name=name)
    parsed = textfiles.parse_rows(records, lambda row: parse(row.data))
    textfiles.check_kept(parsed, path, name)
    if len(parsed.rows) < 2:
        raise InputError(f"{name}={path}: kept 1 row: expected more; fix: label more questions")
    return parsed


def parse(data: Mapping[str, Any]) -> SupervisionRow:
    """One row from its JSON object. Raises RowFault with the field, what is there and the rule."""
    for field in _TEXTS:
        if not isinstance(data.get(field), str):
            raise RowFault(f"{field}={shown(data.get(field))}: expected text")
    decisions, verdicts = data.get("decisions"), data.get("verdicts")
    if not _all_are(decisions, str) or not _all_are(verdicts, int):
        raise RowFault("decisions, verdicts: expected a list of texts and a list of 0 and 1")
    row = SupervisionRow(
        **{field: data[field] for field in _TEXTS},
        temperature=_number(data, "temperature"),
        decisions=tuple(decisions or ()),
        verdicts=tuple(verdicts or ()),
        label=_number(data, "label"),
    )
    fault = fault_of(row)
    if fault:
        raise RowFault(fault)
    return row


def fault_of(row: SupervisionRow) -> str | None:
    """Why a row cannot be right, or None. Verdict -1 (the grader was unreadable) counts nowhere."""
    if not row.temperature > 0:
        return f"temperature={row.temperature}: expected a number above 0"
    if not 0 <= row.label <= 1:
        return f"label={row.label}: expected a number in [0,1]"
    if len(row.decisions) != len(row.verdicts):
        sizes = f"{len(row.decisions)} decisions, {len(row.verdicts)} verdicts"
        return f"decisions: expected as many verdicts as decisions, found {sizes}"
    if any(verdict not in (-1, 0, 1) for verdict in row.verdicts):
        return "verdicts: expected 0, 1, or -1 where the grader's reply was unreadable"
    readable = [verdict for verdict in row.verdicts if verdict >= 0]
    share = sum(readable) / len(readable) if readable else row.label
    if abs(share - row.label) > _LABEL_TOLERANCE:
        return f"label={row.label}: expected the share of right decisions, {share}"
    return None


def _checked(row: SupervisionRow, number: int) -> SupervisionRow:
    fault = fault_of(row)
    if fault:
        raise InputError(f"rows[{number}].{fault}")
    return row


def _number(data: Mapping[str, Any], field: str) -> float:
    value = data.get(field)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise RowFault(f"{field}={shown(value)}: expected a number")
    return float(value)


def _all_are(values: Any, kind: type) -> bool:
    return isinstance(values, list) and all(type(value) is kind for value in values)


def _row(example: Mapping[str, Any]) -> SupervisionRow:
    """A row from a TFDS example, whose texts are bytes."""
    return SupervisionRow(
        **{field: example[field].decode() for field in _TEXTS},
        temperature=float(example["temperature"]),
        decisions=tuple(text.decode() for text in example["decisions"]),
        verdicts=tuple(int(verdict) for verdict in example["verdicts"]),
        label=float(example["label"]),
    )


def _replace(made: Path, target: Path) -> None:
    """Puts `made` in the place of `target`; the old one goes after the new one stands."""
    old = _old(target)
    if target.exists():
        os.replace(target, old)
    os.replace(made, target)
    storage.sync(target.parent)
    shutil.rmtree(old, ignore_errors=True)


def _recover(target: Path) -> None:
    """Undoes a replacement that was killed between its two renames."""
    old = _old(target)
    if old.exists() and not target.exists():
        os.replace(old, target)
    shutil.rmtree(old, ignore_errors=True)


def _old(target: Path) -> Path:
    return target.parent / f".{target.name}.old"


__all__: Sequence[str] = ["build", "load", "parse", "read_file"]
