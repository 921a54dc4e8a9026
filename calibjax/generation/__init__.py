"""Text from models: a local sampler, a client of OpenAI-compatible servers, and the prompts."""

from calibjax.generation.client import OpenAIClient
from calibjax.generation.results import Generation
from calibjax.generation.retry import RetryPolicy
from calibjax.generation.sampler import Sampler
from calibjax.generation.spending import BudgetSpent, Spending

__all__ = ["BudgetSpent", "Generation", "OpenAIClient", "RetryPolicy", "Sampler", "Spending"]
