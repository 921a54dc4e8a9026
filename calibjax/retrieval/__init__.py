"""Retrieval: BM25 and dense. Both rank by score, ties by passage id, and mask what they miss."""

from calibjax.retrieval.bm25 import BM25Retriever
from calibjax.retrieval.dense import DenseRetriever

__all__ = ["BM25Retriever", "DenseRetriever"]
