"""The figures of report.json, with intervals, from the predictions of one or more methods."""

import functools
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from calibjax import metrics
from calibjax.errors import input_error
from calibjax.report import curves, schema
from calibjax.report.predictions import Predictions


def summarise(
    methods: Mapping[str, Predictions],
    *,
    num_bins: int = 15,
    num_mass_bins: int = 10,
    replicates: int = 2000,
    confidence_level: float = 0.95,
    seed: int = 0,
    rows: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """report.json as a dict: figures of each method, paired differences, and the data of plots.

    Rows without an answer count as wrong; `<metric>_answered` leaves them out. Methods with equal
    ids in equal order are resampled together (by `group` where given). `comparisons.<a>-<b>`
    holds a minus b where both judge the same outcomes; where the ids agree but the outcomes do not,
    `across_outcomes` holds the figures that remain comparable. Undefined figures are None with a
    `reason`. `rows` is copied into the report, with n_kept and n_rejected added if absent.

    All arithmetic is float64: in float32, confidences of 1 - 1e-9 and 1 would tie.
    """
    for name, method in methods.items():
        if not len(method):
            raise input_error(f"methods[{name!r}]", "0 rows", "at least one row", "leave it out")
    settings = {
        "num_bins": num_bins,
        "num_mass_bins": num_mass_bins,
        "replicates": replicates,
        "confidence_level": confidence_level,
        "seed": seed,
    }
    report: dict[str, Any] = {"methods": {}, "comparisons": {}, "across_outcomes": {}}
    with jax.enable_x64(True):
        for block in _blocks(methods):
            part = _summarise_block({name: methods[name] for name in block}, settings)
            for section, content in part.items():
                report[section] |= content
    report["methods"] = {name: report["methods"][name] for name in methods}
    grouped = any(method.group is not None for method in methods.values())
    kept = sum(map(len, methods.values()))
    report["rows"] = {"n_kept": kept, "n_rejected": 0, **(rows or {})}
    report["settings"] = settings | {"cluster": "group" if grouped else "row"}
    report["higher_is_better"] = dict(schema.HIGHER_IS_BETTER)
    return report


def outcomes(methods: Mapping[str, Predictions]) -> dict[str, str]:
    """For each method the first one that judges the same outcomes: ids, verdicts and answers."""
    first: dict[str, str] = {}
    for name, method in methods.items():
        same = (known for known in dict.fromkeys(first.values()) if _same(method, methods[known]))
        first[name] = next(same, name)
    return first


def _same(a: Predictions, b: Predictions) -> bool:
    return (
        np.array_equal(a.ids, b.ids)
        and np.array_equal(a.correct, b.correct)
        and np.array_equal(a.answered, b.answered)
    )


def _blocks(methods: Mapping[str, Predictions]) -> list[list[str]]:
    """Names of methods with equal ids in equal order, together."""
    blocks: list[list[str]] = []
    for name, method in methods.items():
        for block in blocks:
            if np.array_equal(methods[block[0]].ids, method.ids):
                block.append(name)
                break
        else:
            blocks.append([name])
    return blocks


# ------------------------------------------------------------------------------- figures


@functools.cache
def _figures(num_bins: int, num_mass_bins: int, with_answered: bool) -> Any:
    """A function for the bootstrap: all figures [K] or [2 K, methods], in schema order.

    Cached, so that equal settings are the same function and compile once.
    """

    def one(confidence, correct, weight, where):
        rows: dict[str, Any] = {"weight": weight, "where": where}
        ece = metrics.expected_calibration_error
        return [
            ece(confidence, correct, num_bins=num_bins, **rows),
            ece(confidence, correct, num_bins=num_mass_bins, binning="mass", **rows),
            metrics.brier_score(confidence, correct, **rows),
            metrics.log_loss(confidence, correct, **rows),
            metrics.log_loss_skill(confidence, correct, **rows),
            metrics.auroc(confidence, correct, **rows),
            metrics.area_under_accuracy_coverage(confidence, correct, **rows),
            metrics.accuracy(correct, **rows),
        ]

    def of_method(confidence, correct, answered, weight):
        every = jnp.ones_like(answered)
        unanswered = 1.0 - answered.astype(confidence.dtype)
        values = one(confidence, correct * (1.0 - unanswered), weight, every)
        values.append(metrics.accuracy(unanswered, weight=weight))
        if with_answered:
            values += one(confidence, correct, weight, answered)
            values.append(metrics.accuracy(unanswered, weight=weight, where=answered))
        return jnp.stack(values)

    def figures(confidence, correct, answered, weight):
        over_methods = jax.vmap(of_method, in_axes=(1, 1, 1, None), out_axes=1)
        return over_methods(confidence, correct, answered, weight)

    return figures


def _summarise_block(methods: Mapping[str, Predictions], settings: dict) -> dict[str, Any]:
    """The report's sections for methods over the same ids."""
    some_unanswered = any(not method.answered.all() for method in methods.values())
    function = _figures(settings["num_bins"], settings["num_mass_bins"], some_unanswered)
    draw_key, null_key = jax.random.split(jax.random.key(settings["seed"]))
    columns = ("confidence", "correct", "answered")
    arrays = {c: np.stack([getattr(m, c) for m in methods.values()], axis=1) for c in columns}
    cluster = next((m.group for m in methods.values() if m.group is not None), None)
    details = metrics.bootstrap_details(
        {"figures": function},
        arrays,
        key=draw_key,
        num_replicates=settings["replicates"],
        confidence_level=settings["confidence_level"],
        cluster=None if cluster is None else _codes(cluster),
    )["figures"]
    names = [*schema.METRICS, *(name + schema.ANSWERED for name in schema.METRICS)]
    if not some_unanswered:
        # Nothing to leave out: the answered figures are the primary ones.
        details = jax.tree.map(lambda x: np.concatenate([x, x], axis=-2), details)
    same = outcomes(methods)
    out: dict[str, Any] = {"methods": {}, "comparisons": {}, "across_outcomes": {}}
    for place, (name, method) in enumerate(methods.items()):
        cells = _cells(names, jax.tree.map(lambda x: np.asarray(x)[..., place], details), settings)
        _explain(cells, method)
        out["methods"][name] = {
            "n": len(method),
            "n_answered": int(method.answered.sum()),
            "outcomes": same[name],
            **_parts(method, cells, null_key, settings),
        }
    differences = _differences(names, details, len(methods), settings)
    for (a, b), cells in zip(combinations(methods, 2), differences, strict=True):
        if same[a] == same[b]:
            out["comparisons"][f"{a}-{b}"] = cells
        else:
            shown = {metric: cells[metric] for metric in schema.ACROSS_OUTCOMES}
            out["across_outcomes"][f"{a}-{b}"] = shown
    return out


def _codes(group: np.ndarray) -> np.ndarray:
    """Groups as integers, by first appearance."""
    known: dict[str, int] = {}
    return np.array([known.setdefault(value, len(known)) for value in group], np.int64)


def _differences(
    names: Sequence[str], details: metrics.BootstrapDetails, count: int, settings: dict
) -> list[dict[str, Any]]:
    """Cells of a - b for every pair of methods, all pairs in one call."""
    if count < 2:
        return []
    first, second = np.array(list(combinations(range(count), 2))).T
    sides = [jax.tree.map(lambda x: np.asarray(x)[..., side], details) for side in (first, second)]
    level = settings["confidence_level"]
    found = metrics.paired_difference(*sides, confidence_level=level)
    host = jax.tree.map(np.asarray, found)
    pairs = range(len(first))
    return [_cells(names, jax.tree.map(lambda x: x[..., p], host), settings) for p in pairs]


def _cells(names: Sequence[str], details: Any, settings: dict) -> dict[str, dict[str, Any]]:
    """{estimate, low, high, n_valid[, reason]} by name; what is not finite is None."""
    cells = {}
    for place, name in enumerate(names):
        cell: dict[str, Any] = {
            part: _finite(getattr(details, part)[place]) for part in ("estimate", "low", "high")
        }
        cell["n_valid"] = int(details.n_valid[place])
        if cell["estimate"] is None:
            cell |= {"low": None, "high": None, "reason": "undefined for one of the methods"}
        elif cell["low"] is None:
            valid, wanted = cell["n_valid"], settings["replicates"]
            cell["reason"] = f"no interval: defined in {valid} of {wanted} bootstrap replicates"
        cells[name] = cell
    return cells


def _explain(cells: dict[str, dict[str, Any]], method: Predictions) -> None:
    """Says why a figure of a method is undefined."""
    y = np.where(method.answered, method.correct, 0.0)
    for name, cell in cells.items():
        if cell["estimate"] is None:
            chosen = method.correct[method.answered] if name.endswith(schema.ANSWERED) else y
            cell["reason"] = _reason(chosen)


def _reason(correct: np.ndarray) -> str:
    if not len(correct):
        return "no answered rows"
    if correct.min() == correct.max() and correct.min() in (0.0, 1.0):
        return f"only one class: every row is {'right' if correct.min() else 'wrong'}"
    return "undefined"


def _finite(value: Any) -> float | None:
    return float(value) if np.isfinite(value) else None


def _parts(
    method: Predictions, cells: dict[str, dict[str, Any]], key: jax.Array, settings: dict
) -> dict[str, Any]:
    """`metrics`, `ece_null` and `curves` of one method."""
    y = np.where(method.answered, method.correct, 0.0)
    null = metrics.ece_null_reference(
        method.confidence,
        key=key,
        num_draws=settings["replicates"],
        num_bins=settings["num_bins"],
    )
    for name in ("ece", "ece_mass"):
        cells[name]["warning"] = "biased upward: compare with ece_null"
    level = settings["confidence_level"]
    return {
        "metrics": cells,
        "ece_null": {"mean": _finite(null.mean), "q95": _finite(null.quantile)},
        "curves": {
            "reliability": curves.reliability_bins(
                method.confidence, y, settings["num_bins"], level
            ),
            "accuracy_coverage": curves.accuracy_coverage(method.confidence, y),
        },
    }
