"""Query-only triggers: what the wording of a question says about how hard it is.

Source of the idea: Adaptive-RAG (Jeong et al. 2024), a classifier of query complexity that sees
the question alone. The features are those of `abstention.question_router`; the rule is ours.
"""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from calibjax.abstention.question_router import TEXT_FEATURES as QUERY_FEATURES
from calibjax.abstention.question_router import text_features as query_features

__all__ = ["QUERY_FEATURES", "ComplexityClassifier", "complexity_rule", "query_features"]

_LENGTH, _COMPARISONS = (QUERY_FEATURES.index(n) for n in ("length", "comparison_words"))
_WORD = re.compile(r"\w+(?:['\u2019-]\w+)*")
# Words that hang one fact on another: "the director of the film that ...".
_BRIDGE = frozenset("whose whom that which where when of by who after before during".split())


def complexity_rule(questions: Sequence[str]) -> np.ndarray:
    """Complexity by rule, higher = retrieve first: cues of comparison and of bridges, float64 [n].

    The wh-word that opens a question is no bridge. A hundredth of the length in words decides
    between equal counts.
    """
    features = query_features(questions).reshape(-1, len(QUERY_FEATURES))
    bridges = np.array([_bridges(question) for question in questions], np.float64)
    return features[:, _COMPARISONS] + bridges + features[:, _LENGTH] / 100


def _bridges(question: str) -> int:
    return sum(word in _BRIDGE for word in _WORD.findall(question.lower())[1:])


class ComplexityClassifier:
    """A logistic classifier of complexity over query features; its score is the expected level.

    levels: numbers such as hops; or 0 for questions that need no evidence and 1 for the others.
    """

    def fit(self, features: Any, level: Any) -> "ComplexityClassifier":
        """features [n, d], level [n] numbers. One level only: all questions score alike."""
        from sklearn.linear_model import LogisticRegression
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler

        level = np.asarray(level, np.float64)
        self.levels, classes = np.unique(level, return_inverse=True)
        self._model = None
        if len(self.levels) > 1:
            self._model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
            self._model.fit(np.asarray(features, np.float64), classes)
        return self

    def score(self, features: Any) -> np.ndarray:
        """Expected level, float64 [n]; higher = retrieve first."""
        features = np.asarray(features, np.float64)
        if self._model is None:
            return np.full(len(features), self.levels[0])
        return self._model.predict_proba(features) @ self.levels
