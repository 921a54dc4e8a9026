"""Columns that a file lacks: what it has instead, and what the missing ones are called there."""

import re
from collections.abc import Mapping, Sequence

from calibjax.errors import InputError, closest

# Where a column name should be: a value, so the file has no header.
_DATA = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")

# What users call the columns of a prediction file, for the hint of a missing column.
_OTHER_NAMES = {
    "confidence": ("prob", "probability", "score", "conf", "p", "y_prob", "forecast"),
    "correct": ("label", "is_correct", "success", "y", "y_true", "target", "em"),
    "id": ("question_id", "qid", "_id", "idx", "index", "example_id"),
    "question": ("query", "text", "prompt"),
    "answers": ("answer", "golds", "gold", "target"),
}


def no_columns(
    path: str,
    found: Mapping[str, None],
    missing: Sequence[str],
    required: Sequence[str],
    name: str,
    rename: Mapping[str, str] | None,
) -> InputError:
    """Names all missing columns, what there is, and what each of them may be called there."""
    free = {key: None for key in found if key not in required}
    near: dict[str, str] = {}
    for wanted in missing:
        match = _nearest_column(wanted, {key: None for key in free if key not in near.values()})
        near |= {wanted: match} if match else {}
    pairs = ",".join(f"{old}:{new}" for new, old in near.items())
    absent = [wanted for wanted in missing if wanted not in near]
    steps = [f"add {', '.join(absent)}"] if absent else []
    if near and rename is not None:  # None: the command has no such flag
        steps.insert(0, f"--rename={pairs} or rename in the file")
    elif near:
        steps.insert(0, f"rename in the file ({pairs})")
    is_table = path.removesuffix(".gz").lower().endswith((".csv", ".tsv"))
    if is_table and any(_DATA.fullmatch(key) for key in found):
        steps = [f"write a first line with the names of the columns, such as {','.join(required)}"]
    what = "column" if len(missing) == 1 else "columns"
    return InputError(
        f"{name}={path}: no {what} {', '.join(missing)}: expected {', '.join(required)},"
        f" found {', '.join(found)}; fix: {'; '.join(steps)}"
    )


def _nearest_column(wanted: str, found: Mapping[str, None]) -> str | None:
    lower = {key.lower(): key for key in found}
    known = [lower[key] for key in (wanted, *_OTHER_NAMES.get(wanted, ())) if key in lower]
    return known[0] if known else closest(wanted, found)
