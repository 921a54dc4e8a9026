"""Which examples are tuned on and which are tested on."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from calibjax.abstention.example_rows import Example
from calibjax.errors import InputError, input_error

TUNE, TEST = "tune", "test"


def split_of(examples: Sequence[Example], seed: int, name: str = "examples") -> np.ndarray:
    """True for rows to tune on, [n]: by their `split`, else a seeded half of the ids.

    The half depends on seed and ids alone, not on the order of rows or on the machine.
    """
    if examples and examples[0].split is not None:
        tune = np.array([example.split == TUNE for example in examples])
    else:
        tune = half_of([example.id for example in examples], seed)
    for part, count in ((TUNE, int(tune.sum())), (TEST, int((~tune).sum()))):
        if not count:
            expected = f"at least one row to {'tune on' if part == TUNE else 'test on'}"
            found = f"{len(examples)} rows"
            raise input_error(name, found, f"{expected}, found no {part} row", "give more rows")
    return tune


def half_of(ids: Sequence[str], seed: int) -> np.ndarray:
    """A seeded half (rounded down) of the ids as a mask [n], whatever their order."""
    digests = [hashlib.sha256(f"{seed}\0{key}".encode("utf-8", "replace")).digest() for key in ids]
    mask = np.zeros(len(ids), bool)
    mask[sorted(range(len(ids)), key=digests.__getitem__)[: len(ids) // 2]] = True
    return mask


def split_hash(ids: Sequence[str], tune: np.ndarray) -> str:
    """SHA-256 of a split: equal ids in equal parts, equal hash."""
    text = "\n".join(sorted(f"{key}\t{int(part)}" for key, part in zip(ids, tune)))
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()


def check_splits(examples: Sequence[Example], path: str | Path, name: str) -> None:
    """InputError unless `split` is absent everywhere, or tune or test in every row, no id in both.

    Every row has to say it once one does.
    """
    counts: dict[str, int] = {}
    for example in examples:
        key = "(none)" if example.split is None else example.split
        counts[key] = counts.get(key, 0) + 1
    if set(counts) <= {"(none)"}:
        return
    found = ", ".join(f"{key} {count}" for key, count in counts.items())
    if not set(counts) <= {TUNE, TEST}:
        wrong = next(example.id for example in examples if example.split not in (TUNE, TEST))
        expected = f"expected tune or test in every row, found {found} (id={wrong} first)"
        fix = "name each row's split tune or test, or drop the column"
        raise InputError(f"{name}={path}: split: {expected}; fix: {fix}")
    for part in (TUNE, TEST):
        if part not in counts:
            fix = "add some, or drop the column for a seeded half split"
            raise InputError(f"{name}={path}: no {part} row: found {found}; fix: {fix}")
    places: dict[str, set[str | None]] = {}
    for example in examples:
        places.setdefault(example.id, set()).add(example.split)
    both = [key for key, parts in places.items() if len(parts) > 1]
    if both:
        shown = ", ".join(both[:5]) + (", ..." if len(both) > 5 else "")
        raise InputError(
            f"{name}={path}: {len(both)} ids are in tune and in test ({shown});"
            " fix: keep each in one of them"
        )
