"""Questions and passages from files: one reader per published format, and our own."""

from calibjax.sources.corpus import Corpus, load_corpus, pool_passages
from calibjax.sources.load import LAYOUTS, Loaded, canonical, load_questions

DATASETS = tuple(LAYOUTS)

__all__ = [
    "DATASETS",
    "Corpus",
    "Loaded",
    "canonical",
    "load_corpus",
    "load_questions",
    "pool_passages",
]
