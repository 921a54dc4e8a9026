"""Signals that a trigger may read: of a draft answered without evidence, and of a probe retrieval.

Every score is oriented higher = retrieve first.
"""

import math
from collections.abc import Sequence

import numpy as np

from calibjax.abstention.score_features import features

UNCERTAINTY_FEATURES = (
    "mean_entropy",
    "max_entropy",
    "min_probability",
    "mean_probability",
    "length",
    "first_probability",
)
RETRIEVAL_FEATURES = ("top", "margin", "top3", "lift", "entropy")
_HOP1 = ("hop1_max", "hop1_margin", "hop1_top3", "hop1_lift", "hop1_H")

# Nats of a uniform draw from 2^18 tokens, the largest vocabularies in use: no draft is less sure.
UNKNOWN_ENTROPY = 18 * math.log(2)
# Minus the log-probability of a draft that is not known: that of 800 such draws.
UNKNOWN_SURPRISE = 1e4


def uncertainty_features(log_probs: Sequence[float], entropies: Sequence[float]) -> list[float]:
    """`UNCERTAINTY_FEATURES` of one draft from its tokens' log-probabilities and entropies (nats).

    A draft of which nothing is known (no tokens, or a server that told nothing of them) is as
    unsure as can be: `UNKNOWN_ENTROPY`, probabilities and length 0. It answers nothing, so there
    is nothing for evidence to break.
    """
    p = np.exp(np.asarray(log_probs, np.float64))
    h = np.asarray(entropies, np.float64)
    if not p.size or not h.size:
        return [UNKNOWN_ENTROPY, UNKNOWN_ENTROPY, 0.0, 0.0, 0.0, 0.0]
    values = (h.mean(), h.max(), p.min(), p.mean(), len(p), p[0])
    return [float(value) for value in values]


def uncertainty_scores(log_probs: Sequence[float], entropies: Sequence[float]) -> dict[str, float]:
    """Scores of the uncertainty triggers for one draft.

    mean_entropy, max_entropy: nats, over the whole vocabulary; min_confidence: 1 - the smallest
    token probability; sequence_log_prob: minus the log-probability of the whole draft. A draft of
    which nothing is known scores above every other: evidence goes there first.
    """
    feature = dict(zip(UNCERTAINTY_FEATURES, uncertainty_features(log_probs, entropies)))
    surprise = -float(np.sum(np.asarray(log_probs, np.float64)))
    return {
        "mean_entropy": feature["mean_entropy"],
        "max_entropy": feature["max_entropy"],
        "min_confidence": 1.0 - feature["min_probability"],
        "sequence_log_prob": surprise if feature["length"] else UNKNOWN_SURPRISE,
    }


def retrieval_features(scores: Sequence[float]) -> list[float]:
    """`RETRIEVAL_FEATURES` of one probe from the scores of its valid hits, of at most 50.

    As in `calibjax.abstention.score_features`, where short and constant lists are defined.
    """
    found = features(np.asarray(scores, np.float64))
    return [float(found.column(name)) for name in _HOP1]


def retrieval_scores(scores: Sequence[float]) -> dict[str, float]:
    """Scores of the retrieval triggers for one probe: top score, its opposite, margin.

    `top` trusts a good match; `top_inverse` retrieves where nothing matches well. Which of the two
    ranks better is a property of the data: both are offered.
    """
    feature = dict(zip(RETRIEVAL_FEATURES, retrieval_features(scores)))
    return {
        "top": feature["top"],
        "top_inverse": -feature["top"],
        "margin": feature["margin"],
    }


def reflection_score(p_retrieve: float | None, p_no_retrieve: float | None) -> float:
    """P(retrieve) / (P(retrieve) + P(no retrieve)) of a reflection token; a missing one counts 0.

    Probabilities, not log-probabilities. 0 where neither token is known.

    >>> reflection_score(None, 0.9)
    0.0
    """
    yes, no = p_retrieve or 0.0, p_no_retrieve or 0.0
    return yes / (yes + no) if yes + no > 0 else 0.0
