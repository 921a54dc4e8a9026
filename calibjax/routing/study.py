"""The budget protocol over an outcome file: all routers x budgets x splits x replicates."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from calibjax import metrics
from calibjax.errors import InputError
from calibjax.metrics import FrontierStudy, Interval, Splits
from calibjax.routing import routers as building
from calibjax.routing.examples import Outcomes
from calibjax.routing.utilities import utility

# The plain quantile first: it is what "a threshold for a budget" usually means.
RULES = ("quantile", "dkw1", "dkw2", "exact", "predictive")
BUDGETS = (0.1, 0.25, 0.5, 0.75, 0.9)
# Shares of the questions that choose thresholds and that judge; the rest trains routers.
CALIBRATION, TEST = 0.3, 0.3
# Reference routers that ride along so that they get intervals too.
_REFERENCES = ("oracle", "random")


class Settings(NamedTuple):
    """budgets: usages in [0, 1], ascending; alpha: allowed violation of the conservative rules."""

    budgets: Sequence[float] = BUDGETS
    num_splits: int = 200
    alpha: float = 0.05
    replicates: int = 2000
    learned: str = "utility"
    seed: int = 0


class BudgetStudy(NamedTuple):
    """What was found: router-led arrays of `frontiers` follow `routers.names`.

    ends: never and always retrieving, `Interval` [2]; oracle, random: [budgets]; gain: over random
    retrieval at the realised usage, [routers, budgets]; caution: rule -> accuracy lost against the
    quantile, the same shape; pairs: (a, b) -> difference in deployable accuracy a - b [budgets].
    """

    routers: building.Routers
    splits: Splits
    frontiers: FrontierStudy
    ends: Interval
    oracle: Interval
    random: Interval
    gain: Interval
    caution: dict[str, Interval]
    pairs: dict[tuple[str, str], Interval]


def run(
    outcomes: Outcomes, settings: Settings, *, families: Mapping[str, str] | None = None
) -> BudgetStudy:
    """The study of an outcome file. Raises InputError when it has too few rows to be split."""
    splits = make_splits(outcomes, settings)
    routers = building.build(
        outcomes, splits, families=families, learned=settings.learned, seed=settings.seed
    )
    evaluate = functools.partial(_frontiers, outcomes, splits, settings)
    u = utility(outcomes.correct_without, outcomes.correct_with)
    references = np.stack([u, np.zeros_like(u)])
    found = evaluate(building.ranks(np.concatenate([routers.fixed, references])))
    found, oracle, random = _apart(found, len(routers.fixed))
    if routers.fitted is not None:
        found = _joined(found, evaluate(building.ranks(routers.fitted)))
    ends, gain, caution, pairs = _contrasts(outcomes, settings, found, u)
    names = [(a, b) for i, a in enumerate(routers.names) for b in routers.names[i + 1 :]]
    by_pair = {
        pair: Interval(*(np.asarray(x)[place] for x in pairs)) for place, pair in enumerate(names)
    }
    return BudgetStudy(routers, splits, found, ends, oracle, random, gain, caution, by_pair)


def make_splits(outcomes: Outcomes, settings: Settings) -> Splits:
    """The file's own split, or seeded random ones by question, 40 % left for training."""
    if outcomes.split is not None:
        return Splits(*(outcomes.split[None] == part for part in ("calibration", "test")))
    units = len(outcomes) if outcomes.group is None else len(set(outcomes.group))
    if int(min(CALIBRATION, TEST) * units) < 1:
        raise InputError(
            f"examples: {units} questions: expected at least 4, for splits into three parts;"
            " fix: give more rows, or a column split"
        )
    return metrics.random_splits(
        len(outcomes),
        key=jax.random.key(settings.seed),
        num_splits=settings.num_splits,
        calibration=CALIBRATION,
        test=TEST,
        cluster=outcomes.group,
    )


def _frontiers(
    outcomes: Outcomes, splits: Splits, settings: Settings, scores: np.ndarray
) -> FrontierStudy:
    return metrics.frontier_study(
        scores,
        outcomes.correct_without.astype(np.float32),
        outcomes.correct_with.astype(np.float32),
        settings.budgets,
        splits,
        rules=RULES,
        alpha=settings.alpha,
        key=resampling_key(settings),
        num_replicates=settings.replicates,
        cluster=outcomes.group,
    )


def resampling_key(settings: Settings) -> jax.Array:
    """One key for all intervals, so that all figures are paired."""
    return jax.random.fold_in(jax.random.key(settings.seed), 1)


_ROUTER_LED = (
    "exact",
    "deployable",
    "exact_gap",
    "exact_interval",
    "intervals",
    "exact_times_used",
    "times_used",
)


def _of_routers(study: FrontierStudy, action: Any, *others: FrontierStudy) -> FrontierStudy:
    """The study with `action` on all arrays that have one entry a router."""
    changed = {
        name: jax.tree.map(action, *(getattr(one, name) for one in (study, *others)))
        for name in _ROUTER_LED
    }
    return study._replace(**changed)


def _apart(study: FrontierStudy, count: int) -> tuple[FrontierStudy, Interval, Interval]:
    """The first `count` routers, and the exact frontiers of the two references after them."""
    cells = study.exact_interval
    assert cells is not None
    oracle, random = (
        Interval(*(np.asarray(x)[count + place] for x in cells))
        for place in range(len(_REFERENCES))
    )
    return _of_routers(study, lambda x: np.asarray(x)[:count]), oracle, random


def _joined(first: FrontierStudy, second: FrontierStudy) -> FrontierStudy:
    return _of_routers(first, lambda a, b: np.concatenate([a, b]), second)


def _contrasts(
    outcomes: Outcomes, settings: Settings, study: FrontierStudy, u: np.ndarray
) -> tuple[Interval, Interval, dict[str, Interval], Interval]:
    """The end points, and differences that need every router in the same resample of questions.

    Figures averaged over splits are linear in how often each row is used and in its weight.
    """
    used = {rule: _by_row(times) for rule, times in study.times_used.items()}
    shape = (len(study.exact), len(settings.budgets))
    found = metrics.bootstrap(
        {"figures": _figures(*shape)},
        {
            "without": outcomes.correct_without.astype(np.float32),
            "u": u.astype(np.float32),
            "tested": np.asarray(study.times_tested, np.float32),
            **used,
        },
        key=resampling_key(settings),
        num_replicates=settings.replicates,
        cluster=outcomes.group,
    )["figures"]
    cells = shape[0] * shape[1]
    starts = [2 + place * cells for place in range(len(RULES) + 1)]
    parts = [_cut(found, start, start + cells, shape) for start in starts[:-1]]
    pairs = _cut(found, starts[-1], None, (-1, shape[1]))
    return _cut(found, 0, 2, (2,)), parts[0], dict(zip(RULES[1:], parts[1:])), pairs


@functools.lru_cache(maxsize=32)
def _figures(num_routers: int, num_budgets: int) -> Callable[..., jax.Array]:
    """The function that is resampled; one object a shape, so that it is compiled once."""
    first, second = (place.astype(np.int32) for place in np.triu_indices(num_routers, 1))

    def figures(without, u, tested, weight, **used):
        size = weight @ tested
        never = weight @ (tested * without) / size
        mean_gain = weight @ (tested * u) / size
        gains = {rule: (weight * u) @ times / size for rule, times in used.items()}
        plain = gains["quantile"]
        over_random = plain - (weight @ used["quantile"]) / size * mean_gain
        lost = [plain - gains[rule] for rule in RULES[1:]]
        plain = plain.reshape(num_routers, num_budgets)
        differences = (plain[first] - plain[second]).reshape(-1)
        ends = jnp.stack([never, never + mean_gain])
        return jnp.concatenate([ends, over_random, *lost, differences])

    return figures


def _by_row(times: Any) -> np.ndarray:
    """(routers, n, budgets) -> (n, routers * budgets)."""
    moved = np.moveaxis(np.asarray(times, np.float32), 1, 0)
    return moved.reshape(moved.shape[0], -1)


def _cut(found: Interval, start: int, stop: int | None, shape: tuple[int, ...]) -> Interval:
    return Interval._make(np.asarray(x)[start:stop].reshape(shape) for x in found)
