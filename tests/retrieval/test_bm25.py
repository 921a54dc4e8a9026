"""BM25: scores by hand, ties by id, masks, empty and spaceless texts, the cache, the import."""

import math
import subprocess
import sys

import numpy as np
import pytest

from calibjax.errors import InputError
from calibjax.records import Passage
from calibjax.retrieval import BM25Retriever, ranking, words


def corpus(*texts):
    return [Passage(f"d{i}", "", text) for i, text in enumerate(texts)]


def reference_scores(texts, query, k1=1.2, b=0.75):
    """The definition, word by word, in Python floats."""
    passages = [text.lower().split() for text in texts]
    mean = sum(map(len, passages)) / len(passages)
    scores = []
    for passage in passages:
        score = 0.0
        for word in query.lower().split():
            df = sum(word in other for other in passages)
            tf = passage.count(word)
            idf = math.log(1 + (len(passages) - df + 0.5) / (df + 0.5))
            score += idf * tf / (tf + k1 * (1 - b + b * len(passage) / mean)) if tf else 0.0
        scores.append(score)
    return scores


def random_texts(count, seed):
    rng = np.random.default_rng(seed)
    letters = np.array(list("abcdefghijklmnop"))
    return [" ".join(rng.choice(letters, rng.integers(1, 12))) for _ in range(count)]


def test_term_in_half_of_the_passages_still_counts():
    retriever = BM25Retriever(corpus("hello there", "windy london"), k1=1.5)
    hits = retriever.search(["windy"], 2)
    assert hits.ids[0] == ["d1", "d0"]
    assert hits.scores[0] == pytest.approx([0.2772589, 0.0], abs=1e-6)


def test_scores_and_order_are_those_of_the_definition():
    texts = random_texts(60, seed=0)
    queries = random_texts(20, seed=1) + ["a a b", "p"]
    hits = BM25Retriever(corpus(*texts)).search(queries, 60)
    for row, query in enumerate(queries):
        want = reference_scores(texts, query)
        got = dict(zip(hits.ids[row], hits.scores[row]))
        # float32 sums of at most a dozen terms.
        assert [got[f"d{i}"] for i in range(60)] == pytest.approx(want, rel=1e-5)
        assert hits.ids[row] == sorted(got, key=lambda name: (-got[name], name))


def test_ties_go_by_id_whatever_the_order_of_the_corpus_and_k():
    passages = [Passage(name, "", "same words") for name in ("b", "d", "a", "c")]
    for order in (passages, passages[::-1]):
        retriever = BM25Retriever(order)
        assert [retriever.search(["words"], k).ids[0] for k in (1, 2, 4)] == [
            ["a"],
            ["a", "b"],
            ["a", "b", "c", "d"],
        ]


def test_scores_do_not_depend_on_the_other_queries():
    texts, queries = random_texts(50, seed=2), random_texts(9, seed=3)
    retriever = BM25Retriever(corpus(*texts))
    together = retriever.search(queries, 7)
    for row, query in enumerate(queries):
        alone = retriever.search([query], 7)
        assert alone.ids[0] == together.ids[row]
        assert np.array_equal(alone.scores[0], together.scores[row])


def test_k_beyond_the_corpus_gives_all_passages_and_a_mask():
    hits = BM25Retriever(corpus("red fox", "red dog", "blue sky")).search(["red"], 5)
    assert hits.ids[0] == ["d0", "d1", "d2", "", ""]
    assert hits.valid.tolist() == [[True, True, True, False, False]]
    assert hits.scores.dtype == np.float32 and not hits.scores[0, 2:].any()


@pytest.mark.parametrize("texts", [(), ("", ""), ("!?", " ")])
def test_corpus_without_words_finds_nothing(texts):
    retriever = BM25Retriever(corpus(*texts))
    hits = retriever.search(["windy", ""], 2)
    assert hits.scores.tolist() == [[0.0, 0.0], [0.0, 0.0]]
    assert not hits.valid.any()
    assert retriever.num_empty == len(texts)


def test_empty_passages_are_kept_but_never_found():
    retriever = BM25Retriever(corpus("", "windy", "calm"))
    assert set(retriever.passages) == {"d0", "d1", "d2"} and retriever.num_empty == 1
    assert retriever.search(["windy"], 3).ids[0] == ["d1", "d2", ""]


@pytest.mark.parametrize("query", ["zzz", "", "?!"])
def test_query_of_unknown_words_has_no_valid_hit(query):
    hits = BM25Retriever(corpus("a b", "c d")).search([query], 2)
    assert hits.scores.tolist() == [[0.0, 0.0]]
    assert not hits.valid.any()


def test_one_letter_words_count():
    passages = corpus("vitamin d", "vitamin c")
    hits = BM25Retriever(passages).search(["vitamin c"], 2)
    assert hits.ids[0] == ["d1", "d0"]
    assert hits.scores[0, 0] > hits.scores[0, 1]


def test_title_is_searched_and_composed_letters_match_decomposed_ones():
    passages = [Passage("x", "Lu\u0308beck", "a city"), Passage("y", "Kiel", "a city")]
    assert BM25Retriever(passages).search(["L\u00dcBECK"], 1).ids == [["x"]]


def test_spaceless_scripts_are_found_by_the_cjk_tokenizer_and_warned_of_by_the_plain_one():
    passages = corpus("東京は日本の首都です", "パリはフランスの首都です")
    with pytest.warns(UserWarning, match='tokenizer="cjk"'):
        plain = BM25Retriever(passages)
    with pytest.warns(UserWarning, match="queries in a script"):
        assert not plain.search(["フランス"], 2).valid.any()
    cjk = BM25Retriever(passages, tokenizer="cjk")
    assert cjk.search(["フランス", "京"], 1).ids == [["d1"], ["d0"]]


def test_few_foreign_names_do_not_warn():
    BM25Retriever(corpus("Tokyo (東京) is the capital of Japan")).search(["Tokyo 東京 tower"], 1)


def test_cjk_words_are_characters_pairs_and_other_words():
    assert words.splitter("cjk")("Ab_1 東京都") == ["ab_1", "東", "京", "都", "東京", "京都"]
    assert words.splitter("plain")("Vitamin-C, a_b É") == ["vitamin", "c", "a_b", "é"]


def test_index_is_built_once_and_read_back(tmp_path, monkeypatch):
    passages = corpus(*random_texts(30, seed=4), "été x")
    first = BM25Retriever(passages, cache_dir=tmp_path).search(["a b c"], 10)
    assert len(list(tmp_path.iterdir())) == 1
    monkeypatch.setattr("calibjax.retrieval.bm25._build", None)  # a second build would fail
    again = BM25Retriever(passages[::-1], cache_dir=tmp_path).search(["a b c"], 10)
    assert again.ids == first.ids and np.array_equal(again.scores, first.scores)


def test_cache_is_keyed_by_texts_and_settings(tmp_path):
    passages = corpus("a b", "b c")
    for variant in ({}, {"k1": 0.9}, {"b": 0.5}, {"tokenizer": "cjk"}):
        BM25Retriever(passages, cache_dir=tmp_path, **variant)
    BM25Retriever(corpus("a b", "b d"), cache_dir=tmp_path)
    BM25Retriever([Passage("d0", "a", "b"), passages[1]], cache_dir=tmp_path)
    assert len(list(tmp_path.iterdir())) == 6


@pytest.mark.parametrize("damage", [b"", b"\x80\x04K\x01.", "flip", "cut"])
def test_damaged_cache_is_rebuilt(tmp_path, damage):
    passages = corpus(*random_texts(30, seed=5))
    want = BM25Retriever(passages, cache_dir=tmp_path).search(["a b c"], 10)
    (path,) = tmp_path.iterdir()
    data = path.read_bytes()
    if damage == "flip":
        place = data.index(b"data.npy") + 200
        damage = data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]
    elif damage == "cut":
        damage = data[: len(data) // 2]
    path.write_bytes(damage)
    got = BM25Retriever(passages, cache_dir=tmp_path).search(["a b c"], 10)
    assert got.ids == want.ids and np.array_equal(got.scores, want.scores)
    assert path.read_bytes() == data


def test_equal_passages_are_kept_once_and_differing_ones_under_one_id_refused():
    same = Passage("x", "", "a b")
    assert len(BM25Retriever([same, same]).passages) == 1
    with pytest.raises(InputError, match="id=x: expected one text per passage id"):
        BM25Retriever([same, Passage("x", "", "c")])


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"tokenizer": "porter"}, "tokenizer=porter: expected plain or cjk"),
        ({"k1": -1.0}, "k1=-1.0"),
        ({"b": 1.5}, "b=1.5"),
        ({"b": math.nan}, "b=nan"),
    ],
)
def test_wrong_settings_are_named(settings, message):
    with pytest.raises(InputError, match=message):
        BM25Retriever(corpus("a"), **settings)


@pytest.mark.parametrize("k", [0, -1, 1.5])
def test_wrong_k_is_named(k):
    with pytest.raises(InputError, match="k="):
        BM25Retriever(corpus("a")).search(["a"], k)


def test_top_k_equals_a_full_sort():
    rng = np.random.default_rng(6)
    for _ in range(50):
        scores = rng.integers(0, 5, rng.integers(1, 30)).astype(np.float32)
        full = np.lexsort((np.arange(len(scores)), -scores))
        for k in (1, 3, len(scores), 40):
            assert ranking.top_k(scores, k).tolist() == full[:k].tolist()


def test_neither_the_import_nor_a_search_starts_an_accelerator():
    code = """
import sys
from calibjax.records import Passage
import calibjax.retrieval
assert "bm25s" not in sys.modules and "faiss" not in sys.modules
import jax
retriever = calibjax.retrieval.BM25Retriever([Passage("a", "", "windy london")])
assert retriever.search(["windy"], 1).ids == [["a"]]
assert "bm25s" in sys.modules and sys.modules["jax"] is jax
from jax._src import xla_bridge
print(len(xla_bridge._backends))
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.stdout.strip() == "0", result.stderr


def test_repeated_query_words_count_as_often_as_they_stand():
    texts = ("a b", "a c", "b c")
    hits = BM25Retriever(corpus(*texts)).search(["a a b"], 3)
    want = reference_scores(texts, "a a b")
    assert dict(zip(hits.ids[0], hits.scores[0].tolist())) == pytest.approx(
        {f"d{i}": score for i, score in enumerate(want)}, rel=1e-6
    )
