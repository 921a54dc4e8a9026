"""Active RAG under a budget: when to retrieve, what it gains, harms and costs."""

from calibjax.routing.complexity import ComplexityClassifier, complexity_rule, query_features
from calibjax.routing.costs import Cost, CostModel, Prices, break_even, cost
from calibjax.routing.learned import BURGBM, BURLinear
from calibjax.routing.signals import (
    reflection_score,
    retrieval_features,
    retrieval_scores,
    uncertainty_features,
    uncertainty_scores,
)
from calibjax.routing.utilities import shares, utility

__all__ = [
    "BURGBM",
    "BURLinear",
    "ComplexityClassifier",
    "Cost",
    "CostModel",
    "Prices",
    "break_even",
    "complexity_rule",
    "cost",
    "query_features",
    "reflection_score",
    "retrieval_features",
    "retrieval_scores",
    "shares",
    "uncertainty_features",
    "uncertainty_scores",
    "utility",
]
