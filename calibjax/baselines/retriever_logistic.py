"""Logistic calibration of the retriever's score: P(decision right | score of the document)."""

from collections.abc import Sequence

import numpy as np
from sklearn.linear_model import LogisticRegression


def fit_retriever_logistic(scores: Sequence[float], labels: Sequence[float]) -> LogisticRegression:
    """Fit on soft labels: a row of label b counts b times as right and 1 - b times as wrong.

    scores: retriever score of each labelled (query, document); labels in [0, 1].
    """
    feature = np.asarray(scores, np.float64)[:, None]
    right = np.asarray(labels, np.float64)
    return LogisticRegression().fit(
        np.concatenate([feature, feature]),
        np.repeat([1, 0], len(right)),
        sample_weight=np.concatenate([right, 1.0 - right]),
    )


def retriever_confidence(model: LogisticRegression, scores: Sequence[float]) -> np.ndarray:
    """Confidence [n] in (0, 1) of documents with these retriever scores."""
    return model.predict_proba(np.asarray(scores, np.float64)[:, None])[:, 1]
