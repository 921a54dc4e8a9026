"""Query-only triggers: what the wording of a question says about how hard it is.

Source of the idea: Adaptive-RAG (Jeong et al. 2024), a classifier of query complexity that sees
the question alone. The features and the rule are ours.
"""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

QUERY_FEATURES = ("length", "capitalised_spans", "comparison_words", "wh_word", "has_year")

_WORD = re.compile(r"\w+(?:['\u2019-]\w+)*")
# Words of one name stay together over small words inside it ("University of Oxford").
_SPAN = re.compile(
    r"[^\W\d_a-z]\w*(?:[ '\u2019.-]+(?:(?:of|the|de|von|and)\s+){0,2}[^\W\d_a-z]\w*)*"
)
_COMPARISON = frozenset(
    "both same than more less older younger earlier later longer shorter larger smaller bigger "
    "higher lower taller closer newer first or compared difference different either".split()
)
# Words that hang one fact on another: "the director of the film that ...".
_BRIDGE = frozenset("whose whom that which where when of by who after before during".split())
_WH = frozenset("what who whom whose which where when why how".split())
_YEAR = re.compile(r"\b1[0-9]{3}s?\b|\b20[0-9]{2}s?\b")


def query_features(questions: Sequence[str]) -> np.ndarray:
    """`QUERY_FEATURES` of each question: float64 [n, 5].

    length: words; capitalised_spans: runs of capitalised words after the first word;
    comparison_words: their number; wh_word, has_year: 0 or 1.
    """
    rows = [_features(question) for question in questions]
    return np.array(rows, np.float64).reshape(len(rows), len(QUERY_FEATURES))


def complexity_rule(questions: Sequence[str]) -> np.ndarray:
    """Complexity by rule, higher = retrieve first: cues of comparison and of bridges, float64 [n].

    The wh-word that opens a question is no bridge. A hundredth of the length in words decides
    between equal counts.
    """
    return np.array([_cues(question) for question in questions], np.float64)


def _words(question: str) -> list[str]:
    return _WORD.findall(question)


def _features(question: str) -> list[float]:
    words = _words(question)
    lower = [word.lower() for word in words]
    inner = question[len(words[0]) :] if words else ""
    return [
        len(words),
        len(_SPAN.findall(inner)),
        sum(word in _COMPARISON for word in lower),
        float(any(word in _WH for word in lower)),
        float(bool(_YEAR.search(question))),
    ]


def _cues(question: str) -> float:
    lower = [word.lower() for word in _words(question)]
    comparisons = sum(word in _COMPARISON for word in lower)
    bridges = sum(word in _BRIDGE for word in lower[1:])
    return comparisons + bridges + len(lower) / 100


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
