"""Agreement of a human's and the surrogate user's judgements of the same rows, with intervals."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from calibjax import metrics
from calibjax.errors import input_error
from calibjax.reading import fields, textfiles
from calibjax.reading.textfiles import Rejected, Row

JUDGES = ("human", "user")
_OTHERS = ("id", "confidence", "group")


class Judgements(NamedTuple):
    """Two columns of verdicts as text [n]; ids [n] ("" = none) and confidence [n] (NaN = none)."""

    human: np.ndarray
    user: np.ndarray
    ids: np.ndarray
    confidence: np.ndarray
    rejected: list[Rejected]
    truncated: bool


def load(
    path: str | Path, *, rename: Mapping[str, str] | None = None, name: str = "human"
) -> Judgements:
    """Columns `human` and `user` of a file, or its only two columns; optional id, confidence.

    Verdicts are text, numbers or booleans and are compared as text without regard to case; true is
    1. Raises InputError for a file that cannot be used.
    """
    records = textfiles.read_records(path, rename=rename, name=name)
    judges = _judges(records.rows, path, name) if records.rows else JUDGES
    parsed = textfiles.parse_rows(records, lambda row: _parse(row, judges))
    textfiles.check_kept(parsed, path, name)
    human, user, ids, confidence = zip(*parsed.rows, strict=True)
    return Judgements(
        human=np.array(human, str),
        user=np.array(user, str),
        ids=np.array(ids, object),
        confidence=np.array(confidence, np.float64),
        rejected=parsed.rejected,
        truncated=records.truncated,
    )


def with_confidence(judgements: Judgements, known: Mapping[str, float]) -> Judgements:
    """Fills in missing confidences by id."""
    own = judgements.confidence
    pairs = zip(judgements.ids, own, strict=True)
    filled = [known.get(key, c) if np.isnan(c) else c for key, c in pairs]
    return judgements._replace(confidence=np.array(filled, np.float64))


def summarise_agreement(
    judgements: Judgements,
    *,
    num_bins: int = 5,
    replicates: int = 2000,
    confidence_level: float = 0.95,
    seed: int = 0,
) -> dict[str, Any]:
    """Agreement rate and Cohen's kappa, overall and by confidence bin, each with an interval.

    Bins are over the rows that have a confidence; none has: `bins` is empty, with a reason.
    """
    codes = np.unique(np.r_[judgements.human, judgements.user], return_inverse=True)[1]
    first, second = codes.reshape(2, -1).astype(np.int32)
    known = ~np.isnan(judgements.confidence)
    confidence = np.where(known, judgements.confidence, 0.0)

    def figures(a, b, confidence, known, weight):
        whole = metrics.agreement(a, b, weight=weight)
        parts = metrics.agreement(
            a, b, confidence=confidence, num_bins=num_bins, weight=weight, where=known
        )
        rate = jnp.concatenate([whole.rate[None], parts.bin_rate])
        return jnp.stack([rate, jnp.concatenate([whole.kappa[None], parts.bin_kappa])])

    with jax.enable_x64(True):
        found = metrics.bootstrap(
            {"agreement": figures},
            {"a": first, "b": second, "confidence": confidence, "known": known},
            key=jax.random.key(seed),
            num_replicates=replicates,
            confidence_level=confidence_level,
        )["agreement"]
    parts = [np.asarray(part) for part in found]
    cells = [
        {kind: _cell(*(part[row, place] for part in parts)) for row, kind in enumerate(_KINDS)}
        for place in range(num_bins + 1)
    ]
    report: dict[str, Any] = {"n": len(first), **cells[0], "bins": []}
    if not known.any():
        return report | {"reason": "no confidence: add a column, or ids of the predictions"}
    edges = np.arange(1, num_bins) / num_bins
    counts = np.bincount(np.searchsorted(edges, confidence[known]), minlength=num_bins)
    for place, cell in enumerate(cells[1:]):
        low, high = place / num_bins, (place + 1) / num_bins
        name = f"{low:g} to {high:g}"
        entry = {"confidence": name, "lower": low, "upper": high, "n": int(counts[place])}
        report["bins"].append(entry | cell)
    return report


_KINDS = ("rate", "kappa")


def _cell(estimate: Any, low: Any, high: Any, n_valid: Any) -> dict[str, Any]:
    values = {"estimate": estimate, "low": low, "high": high}
    cell: dict[str, Any] = {k: float(v) if np.isfinite(v) else None for k, v in values.items()}
    if cell["estimate"] is None:
        cell["reason"] = "no rows, or both judges always say the same one thing"
    elif cell["low"] is None:
        cell["reason"] = f"no interval: defined in only {int(n_valid)} bootstrap replicates"
    return cell


def _judges(rows: list[Row], path: str | Path, name: str) -> tuple[str, ...]:
    """The two columns that hold verdicts."""
    columns = list(dict.fromkeys(key for row in rows[:1000] for key in row.data))
    if all(judge in columns for judge in JUDGES):
        return JUDGES
    left = [column for column in columns if column not in _OTHERS]
    if len(left) != 2:
        found = f"columns human and user, or two columns, found {', '.join(columns)}"
        raise input_error(name, path, found, "--rename=YOUR_NAME:human,OTHER_NAME:user")
    return tuple(left)


def _parse(row: Row, judges: tuple[str, ...]) -> tuple[str, str, str, float]:
    human, user = (_verdict(row, judge) for judge in judges)
    given = [key for key in ("id", "confidence") if row.data.get(key) not in (None, "")]
    key = fields.identifier(row, "id") if "id" in given else ""
    confidence = fields.number(row, "confidence", 0.0, 1.0) if "confidence" in given else np.nan
    return human, user, key, confidence


def _verdict(row: Row, key: str) -> str:
    value = row.data.get(key)
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, (int, float)):
        return f"{value:g}"
    if isinstance(value, str) and value.strip():
        return value.strip().casefold()
    raise fields.fault(key, value, "a verdict")
