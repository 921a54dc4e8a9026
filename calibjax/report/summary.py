"""The figures of report.json, with intervals, from the predictions of one or more methods."""

import functools
from collections.abc import Callable, Mapping
from itertools import combinations
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from calibjax import metrics
from calibjax.errors import input_error
from calibjax.report import curves, schema
from calibjax.report.predictions import Predictions

# The bootstrap folds in its replicates 0, 1, ...; this number is out of their reach.
NULL_STREAM = 2**32 - 1
# Of the null reference, which is no interval, where no replicates are asked for.
_NULL_DRAWS = 2000
_NAMES = (*schema.METRICS, *(name + schema.ANSWERED for name in schema.METRICS))


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

    replicates: 0 leaves the intervals out. All arithmetic is float64: in float32, confidences of
    1 - 1e-9 and 1 would tie.
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
def _figures(num_bins: int, num_mass_bins: int) -> Callable[..., jax.Array]:
    """A function for the bootstrap: the figures of a method, (9,), in schema order.

    Cached, so that equal settings are the same function and compile once.
    """

    def figures(confidence, correct, unanswered, weight):
        ece = metrics.expected_calibration_error
        rows = {"weight": weight}
        return jnp.stack(
            [
                ece(confidence, correct, num_bins=num_bins, **rows),
                ece(confidence, correct, num_bins=num_mass_bins, binning="mass", **rows),
                metrics.brier_score(confidence, correct, **rows),
                metrics.log_loss(confidence, correct, **rows),
                metrics.log_loss_skill(confidence, correct, **rows),
                metrics.auroc(confidence, correct, **rows),
                metrics.area_under_accuracy_coverage(confidence, correct, **rows),
                metrics.accuracy(correct, **rows),
                metrics.accuracy(unanswered, **rows),
            ]
        )

    return figures


def _resampled(
    method: Predictions, cluster: np.ndarray | None, settings: Mapping[str, Any]
) -> metrics.BootstrapDetails:
    """All 18 figures with their replicates; paired for equal seeds, ids and clusters."""
    function = _figures(settings["num_bins"], settings["num_mass_bins"])
    answered = method.answered.astype(np.float64)
    arrays = {
        "confidence": method.confidence,
        "correct": method.correct * answered,
        "unanswered": 1.0 - answered,
    }

    def resample(weight):
        return metrics.bootstrap_details(
            {"figures": function},
            arrays,
            key=jax.random.key(settings["seed"]),
            num_replicates=settings["replicates"],
            confidence_level=settings["confidence_level"],
            cluster=cluster,
            weight=weight,
        )["figures"]

    every = resample(None)
    # Weight 0 leaves a row out of the figures, not out of the draws: both halves stay paired.
    chosen = every if answered.all() else resample(answered)
    return jax.tree.map(lambda a, b: np.concatenate([a, b], axis=-1), every, chosen)


def _summarise_block(
    methods: Mapping[str, Predictions], settings: Mapping[str, Any]
) -> dict[str, Any]:
    """The report's sections for methods over the same ids."""
    groups = [method.group for method in methods.values() if method.group is not None]
    cluster = _codes(groups[0]) if groups else None
    details = {name: _resampled(method, cluster, settings) for name, method in methods.items()}
    same = outcomes(methods)
    out: dict[str, Any] = {"methods": {}, "comparisons": {}, "across_outcomes": {}}
    for name, method in methods.items():
        cells = _cells(details[name], settings)
        _explain(cells, method)
        out["methods"][name] = {
            "n": len(method),
            "n_answered": int(method.answered.sum()),
            "outcomes": same[name],
            **_parts(method, cells, settings),
        }
    for a, b in combinations(methods, 2):
        level = settings["confidence_level"]
        found = metrics.paired_difference(details[a], details[b], confidence_level=level)
        cells = _cells(found, settings)
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


def _cells(
    details: metrics.BootstrapDetails, settings: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    """{estimate, low, high, n_valid[, reason]} by name; what is not finite is None."""
    cells = {}
    parts = [np.asarray(part) for part in details[:4]]
    for place, name in enumerate(_NAMES):
        estimate, low, high, n_valid = (part[place] for part in parts)
        cell: dict[str, Any] = {
            "estimate": _finite(estimate),
            "low": _finite(low),
            "high": _finite(high),
            "n_valid": int(n_valid),
        }
        if cell["estimate"] is None:
            cell |= {"low": None, "high": None, "reason": "undefined for one of the methods"}
        elif cell["low"] is None and settings["replicates"]:
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
    method: Predictions, cells: dict[str, dict[str, Any]], settings: Mapping[str, Any]
) -> dict[str, Any]:
    """`metrics`, `ece_null` and `curves` of one method."""
    y = np.where(method.answered, method.correct, 0.0)
    null = metrics.ece_null_reference(
        method.confidence,
        # Not the key of the bootstrap, whose draws must stay independent of these.
        key=jax.random.fold_in(jax.random.key(settings["seed"]), NULL_STREAM),
        num_draws=settings["replicates"] or _NULL_DRAWS,
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
