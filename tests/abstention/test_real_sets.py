"""Real multi-hop slices: BM25's full success, and bridges that find something."""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from calibjax.abstention.examples import column, example_features
from calibjax.abstention.multihop_examples import Plan, dense_examples
from calibjax.retrieval import BM25Retriever
from calibjax.retrieval.bridges import bridge_queries
from calibjax.retrieval.multihop import hit_lists, second_hop
from calibjax.sources import load_questions, pool_passages

DATA = os.environ.get("CALIBJAX_DATA")
pytestmark = pytest.mark.skipif(not DATA, reason="CALIBJAX_DATA is not set")


def searched(name):
    """Questions of a set and their hits among all of its passages."""
    questions = load_questions(name, Path(str(DATA), name, f"{name}.jsonl")).questions
    retriever = BM25Retriever(pool_passages(questions))
    hits = hit_lists([question.question for question in questions], retriever, 50)
    return questions, hits, retriever


def test_bm25_finds_all_gold_passages_of_few_musique_questions():
    questions, hits, _ = searched("musique")
    success = column(dense_examples(questions, hits, Plan(k=5)), lambda e: e.success)
    assert len(success) == 80 and success.mean() == pytest.approx(0.075)  # 6 of 80


def test_bridges_of_2wiki_give_features_of_a_second_hop():
    questions, hits, retriever = searched("2wiki")
    chosen = range(40)
    bridges = [
        bridge_queries(questions[n].question, retriever.passages[hits[n].ids[0]]) for n in chosen
    ]
    assert all(1 <= len(queries) <= 3 for queries in bridges)
    hop2 = second_hop(bridges, retriever, 50)
    dense = dense_examples([questions[n] for n in chosen], [hits[n] for n in chosen])
    examples = [
        replace(example, hop2_scores=tuple(tuple(each.scores) for each in lists))
        for example, lists in zip(dense, hop2)
    ]
    made = example_features(examples)
    assert len(made.names) == 9 and np.isfinite(made.values).all()
    assert (made.column("hop2_max") > 0).all()
