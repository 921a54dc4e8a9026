"""All that is fitted on the tune rows of one regime: RCS, its comparison set, the ablations."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from calibjax.abstention import signals as rules
from calibjax.abstention.examples import Example, column, example_features, half_of, split_of
from calibjax.abstention.mlp import mlp_scores
from calibjax.abstention.rcs import RCS
from calibjax.abstention.score_features import Features, score_lists
from calibjax.abstention.signals import Signal
from calibjax.errors import input_error

# Salt of the half of the tune rows that the certified threshold is fitted on.
_CERTIFIED = 0x5EED


class Settings(NamedTuple):
    """How a regime is fitted and judged.

    target: the CWAR that thresholds aim at; delta: how often `certified` may miss it; n_min: rows
    before its first test; alpha: level of the conformal targets; rescue_coverage: share of queries
    that are not rescued; below: what happens below the threshold, abstain or escalate:PIPELINE;
    platt: probabilities for signals that are none.
    """

    seed: int = 0
    replicates: int = 2000
    confidence_level: float = 0.95
    target: float = 0.25
    delta: float = 0.1
    n_min: int = 60
    alpha: float = 0.1
    rescue_coverage: float = 0.8
    below: str = "abstain"
    platt: bool = False


@dataclass(frozen=True, slots=True)
class Regime:
    """One data set with one retrieval architecture, everything fitted.

    tune: mask [n] of the rows that were fitted on. honest: RCS of the half `honest_fit` [n] of
    them, for thresholds that no fitted row may choose. without: for each feature the logits [n] of
    an RCS refitted without it. facts: what the signals' fits have to say.
    """

    examples: Sequence[Example]
    tune: np.ndarray
    success: np.ndarray
    features: Features
    rcs: RCS
    honest: RCS
    honest_fit: np.ndarray
    signals: dict[str, Signal]
    without: dict[str, np.ndarray]
    facts: dict[str, Any]

    @property
    def test(self) -> np.ndarray:
        return ~self.tune


def fit_regime(
    examples: Sequence[Example], settings: Settings = Settings(), name: str = "examples"
) -> Regime:
    """Fits all signals on the tune rows; test rows change nothing of any fit."""
    unknown = next((example.id for example in examples if example.success is None), None)
    if unknown is not None:
        raise input_error("success", "null", f"0 or 1 for id={unknown}", "add success")
    tune = split_of(examples, settings.seed, name)
    success = column(examples, lambda example: example.success)
    features = example_features(examples)
    rcs = RCS.fit(features.take(tune), success[tune])
    signals, facts = _fit_signals(examples, features, success, tune, rcs, settings)
    honest_fit = _half(examples, tune, settings.seed)
    return Regime(
        examples=examples,
        tune=tune,
        success=success,
        features=features,
        rcs=rcs,
        honest=RCS.fit(features.take(honest_fit), success[honest_fit]),
        honest_fit=honest_fit,
        signals=signals,
        without={f: _refit_without(features, success, tune, f) for f in features.names},
        facts=facts,
    )


def _half(examples: Sequence[Example], tune: np.ndarray, seed: int) -> np.ndarray:
    """A seeded half of the tune rows, at least one row."""
    places = np.flatnonzero(tune)
    chosen = half_of([examples[place].id for place in places.tolist()], seed ^ _CERTIFIED)
    mask = np.zeros(len(tune), bool)
    mask[places[chosen] if chosen.any() else places] = True
    return mask


def _fit_signals(
    examples: Sequence[Example],
    features: Features,
    success: np.ndarray,
    tune: np.ndarray,
    rcs: RCS,
    settings: Settings,
) -> tuple[dict[str, Signal], dict[str, Any]]:
    mlp = mlp_scores(features, success, tune, settings.seed)
    lists = score_lists([example.hop1_scores for example in examples])
    fitted = rules.fit_temperature(
        type(lists)(lists.scores[tune], lists.valid[tune]), success[tune]
    )
    scaled = rules.max_softmax(lists, fitted.temperature)
    found = {
        "rcs": Signal(rcs.logit(features), rcs.score(features)),
        "mlp": Signal(mlp, mlp),
        **rules.untrained_signals(features),
        "temp_scaled": Signal(scaled, scaled),
    }
    best = features.column("hop1_max")
    for target in rules.CONFORMAL_TARGETS:
        score = rules.conformal_confidence(best, best[tune], success[tune], target)
        found[f"conformal_{target}"] = Signal(score)
    for key in examples[0].scores:
        score = column(examples, lambda example: example.scores[key])
        if key in found:
            raise input_error(f"scores.{key}", "<column>", f"a name other than {', '.join(found)}")
        found[key] = Signal(score, score if ((score >= 0) & (score <= 1)).all() else None)
    if settings.platt:
        found |= _platt(found, success, tune)
    counts = {
        "n_lift_undefined": int(features.lift_bad.sum()),
        "n_hop2_missing": int(features.hop2_missing.sum()),
        "n_hop1_scores": [int(c) for c in np.percentile(lists.valid.sum(1), (0, 50, 100))],
    }
    return found, {"temperature": fitted._asdict(), "features": counts}


def _platt(
    signals: dict[str, Signal], success: np.ndarray, tune: np.ndarray
) -> dict[str, Signal]:
    """One-dimensional logistic fits of the signals that are no probability."""
    made = {}
    for name, signal in signals.items():
        if signal.probability is None and name != "random":
            model = RCS.fit(signal.score[tune, None], success[tune])
            column_N1 = signal.score[:, None]
            made[f"{name}_platt"] = Signal(model.logit(column_N1), model.score(column_N1))
    return made


def _refit_without(
    features: Features, success: np.ndarray, tune: np.ndarray, name: str
) -> np.ndarray:
    """Logits of an RCS that does not see one feature."""
    if len(features.names) == 1:
        return np.zeros(len(success))
    fewer = features.without(name)
    return RCS.fit(fewer.take(tune), success[tune]).logit(fewer)
