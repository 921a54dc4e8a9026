"""Abstain examples: one query with its retrieval scores and whether retrieval succeeded, per row.

Rows come from a file (JSON lines, CSV, Parquet), from TREC runs, or from our own retrievers.
"""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from calibjax.abstention.example_rows import Example, parse_example
from calibjax.abstention.score_features import Features, batch_features, pooled_lists, score_lists
from calibjax.abstention.splits import check_splits
from calibjax.errors import InputError
from calibjax.reading import textfiles
from calibjax.reading.textfiles import Rejected, Row


class Loaded(NamedTuple):
    """Examples, rows set aside, exact copies left out, and whether the file ends early."""

    examples: list[Example]
    rejected: list[Rejected]
    n_duplicates: int
    truncated: bool


def load_examples(
    path: str | Path, *, name: str = "examples", needs_success: bool = True
) -> Loaded:
    """The examples in a file; `name` is the flag that errors mention.

    A bad row is set aside, by line and id. Raises InputError for file faults: a missing column,
    more than half of the rows rejected, lists that ascend (distances), a wrong split, an id in both
    splits, a signal that some rows lack.
    """
    required = ["id", "hop1_scores", *(["success"] if needs_success else [])]
    records = textfiles.read_records(path, required=required, name=name)
    ascending: list[int] = []

    def parse(row: Row) -> tuple[int, Example]:
        return row.line, parse_example(row, ascending, needs_success)

    parsed = textfiles.parse_rows(records, parse)
    total = len(parsed.rows) + len(parsed.rejected)
    if 2 * len(ascending) > total:
        raise InputError(
            f"{name}={path}: hop1_scores: looks like distances (lower = better): {len(ascending)}"
            f" of {total} lists ascend, the first at line {ascending[0]}; fix: negate them"
        )
    check_splits([example for _, example in parsed.rows], path, name)
    kept, clashing, n_duplicates = _unique(parsed.rows, str(path))
    rejected = sorted([*parsed.rejected, *clashing], key=lambda row: row.line)
    textfiles.check_kept(textfiles.Parsed(kept, rejected), path, name)
    _check_complete(kept, path, name)
    examples = [example for _, example in kept]
    return Loaded(examples, rejected, n_duplicates, records.truncated)


def example_features(examples: Sequence[Example]) -> Features:
    """Features of the examples; the question's length only where all have a question."""
    hop2: list[Any] = [example.hop2_scores for example in examples]
    with_ids = [e.hop2_ids is not None for e in examples if e.hop2_scores]
    ids = [e.hop2_ids for e in examples] if with_ids and all(with_ids) else None
    questions = [e.question for e in examples if e.question is not None]
    return batch_features(
        score_lists([example.hop1_scores for example in examples]),
        pooled_lists(hop2, ids, len(examples)),
        questions if len(questions) == len(examples) else None,
    )


def column(examples: Sequence[Example], take: Callable[[Example], float | None]) -> np.ndarray:
    """A number of each example, float64 [n]; NaN where it has none."""
    values = [take(example) for example in examples]
    return np.array([np.nan if value is None else value for value in values], np.float64)


def _unique(
    rows: Iterable[tuple[int, Example]], path: str
) -> tuple[list[tuple[int, Example]], list[Rejected], int]:
    """Each id once: equal copies count as one, copies that differ are all set aside."""
    copies: dict[str, list[tuple[int, Example]]] = {}
    for line, example in rows:
        copies.setdefault(example.id, []).append((line, example))
    kept, rejected, repeated = [], [], 0
    for key, group in copies.items():
        if all(example == group[0][1] for _, example in group):
            kept.append(group[0])
            repeated += len(group) - 1
            continue
        lines = ", ".join(str(line) for line, _ in group)
        reason = f'id="{key}": expected one row, found {len(group)} that differ (at {lines})'
        rejected += [Rejected(path, line, reason) for line, _ in group]
    return kept, rejected, repeated


def _check_complete(rows: Sequence[tuple[int, Example]], path: str | Path, name: str) -> None:
    """A signal or a pipeline has to be in every row: else each would be judged on other queries."""
    for kind in ("scores", "pipelines"):
        columns = {key for _, example in rows for key in getattr(example, kind)}
        for key in sorted(columns):
            missing = [line for line, example in rows if key not in getattr(example, kind)]
            if missing:
                raise InputError(
                    f"{name}={path}: {kind}.{key}: missing in {len(missing)} of {len(rows)} rows,"
                    f" the first at line {missing[0]}; fix: give it in every row, or leave it out"
                )
