"""Bridge queries by rule, pools of candidates, and the blend of grade and score."""

import numpy as np
import pytest

from calibjax.records import Passage
from calibjax.retrieval import BM25Retriever
from calibjax.retrieval.bridges import bridge_queries, sentences, triples
from calibjax.retrieval.multihop import (
    HitList,
    blend,
    candidate_pool,
    hit_lists,
    judged_order,
    second_hop,
)

SONG = Passage(
    "p",
    "Six Strings Down",
    "Six Strings Down is a blues song written by Jimmie Vaughan (guitarist) in 1994. It was "
    "recorded for the American film Blue Lake. The St. Louis concert followed. Nobody reads this.",
)


def test_triples_name_things_before_dates_and_nationalities():
    found = triples(SONG)
    assert found[0].subject == "Six Strings Down" and found[0].verb == "is"
    assert found[0].object == "Jimmie Vaughan"
    assert len(found) <= 3 and all(triple.object for triple in found)


def test_a_bridge_query_asks_for_what_the_passage_lacks():
    question = "What nationality is the writer of the song Six Strings Down?"
    first = bridge_queries(question, SONG)[0]
    assert "Jimmie Vaughan" in first and "nationality" in first
    # The question names the subject already, and the passage answers "song".
    assert "Strings" not in first and "song" not in first


def test_bridges_are_few_distinct_and_the_same_every_time():
    queries = bridge_queries("Who sang it?", SONG)
    assert queries == bridge_queries("Who sang it?", SONG)
    assert 1 <= len(queries) == len(set(queries)) <= 3


@pytest.mark.parametrize("text", ["", "no verb here", "lower case only is what it has", "A B C."])
def test_a_passage_without_a_triple_gives_its_title(text):
    assert bridge_queries("Who?", Passage("p", "Title", text)) == ["Title"]
    assert bridge_queries("Who?", Passage("p", "", text)) == []


def test_initials_and_abbreviations_end_no_sentence():
    assert sentences("J. R. Hill met Dr. Lee. He left.") == ["J. R. Hill met Dr. Lee.", "He left."]


# -------------------------------------------------------------------------------------- pool


def test_the_pool_is_the_best_of_both_hops():
    hop1 = HitList(["a", "b", "c"], [0.9, 0.5, 0.4])
    hop2 = [HitList(["c", "d"], [0.8, 0.1]), HitList(["e"], [0.5])]
    got = candidate_pool(hop1, hop2, size=4, from_hop1=2)
    # c comes from the bridges, with their score; b and e tie and go by id.
    assert got.ids == ["a", "c", "b", "e"] and got.scores == [0.9, 0.8, 0.5, 0.5]


def test_hop_2_lists_belong_to_their_questions():
    passages = [Passage(f"p{i}", "", text) for i, text in enumerate(["red", "blue", "green red"])]
    retriever = BM25Retriever(passages)
    found = second_hop([["red"], [], ["blue", "zzz"]], retriever, 2)
    assert [len(lists) for lists in found] == [1, 0, 2]
    assert found[0][0].ids == ["p0", "p2"] and found[2][0].ids[0] == "p1"
    assert found[2][1] == HitList([], [])
    assert hit_lists([], retriever, 2) == []


def test_with_alpha_0_the_judge_decides_and_scores_break_ties():
    pool = HitList(["a", "b", "c", "d"], [0.9, 0.1, 0.5, 0.5])
    assert judged_order(pool, [1, 2, 1, 1], 0.0).ids == ["b", "a", "c", "d"]


def test_alpha_weighs_the_scaled_scores():
    pool = HitList(["a", "b"], [0.9, 0.1])
    assert judged_order(pool, [1.0, 1.1], 0.1).ids == ["a", "b"]
    assert judged_order(pool, [1.0, 1.3], 0.1).ids == ["b", "a"]


def test_equal_scores_add_nothing():
    np.testing.assert_array_equal(blend([2, 0], [0.3, 0.3], 0.5), [1, 0])
    assert blend([], [], 0.1).shape == (0,)
