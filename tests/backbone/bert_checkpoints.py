"""Tiny random BERT checkpoints as Hugging Face directories, and a float64 NumPy forward pass."""

import json
from pathlib import Path

import numpy as np
import scipy.special
import tokenizers
from safetensors.numpy import save_file

CONFIG = {
    "model_type": "bert",
    "vocab_size": 64,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 40,
    "type_vocab_size": 2,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
}
LETTERS = "abcdefghijklmnopqrstuvwxy"


def tensors(seed=0, labels=0, **overrides):
    """Random float32 tensors under the names of BertModel (with `labels`: of a classifier)."""
    c = CONFIG | overrides
    rng = np.random.default_rng(seed)
    D, F = c["hidden_size"], c["intermediate_size"]
    shapes = {
        "embeddings.word_embeddings.weight": (c["vocab_size"], D),
        "embeddings.position_embeddings.weight": (c["max_position_embeddings"], D),
        "embeddings.token_type_embeddings.weight": (c["type_vocab_size"], D),
        "embeddings.LayerNorm.weight": (D,),
        "embeddings.LayerNorm.bias": (D,),
        "pooler.dense.weight": (D, D),
        "pooler.dense.bias": (D,),
    }
    block = {f"attention.self.{name}": (D, D) for name in ("query", "key", "value")}
    block |= {"attention.output.dense": (D, D)}
    block |= {"intermediate.dense": (F, D), "output.dense": (D, F)}
    for layer in range(c["num_hidden_layers"]):
        stem = f"encoder.layer.{layer}."
        for name, shape in block.items():
            shapes[f"{stem}{name}.weight"], shapes[f"{stem}{name}.bias"] = shape, shape[:1]
        for name in ("attention.output.LayerNorm", "output.LayerNorm"):
            shapes[f"{stem}{name}.weight"] = shapes[f"{stem}{name}.bias"] = (D,)
    if labels:
        shapes |= {"classifier.weight": (labels, D), "classifier.bias": (labels,)}
    arrays = {name: 0.4 * rng.standard_normal(shape) for name, shape in shapes.items()}
    for name in arrays:
        if name.endswith("LayerNorm.weight"):
            arrays[name] = arrays[name] + 1.0
    return {name: array.astype(np.float32) for name, array in arrays.items()}


def write(directory, arrays=None, *, pooling=None, normalize=False, max_length=None, **overrides):
    """A whole checkpoint directory; with `pooling` also its sentence-transformers files."""
    directory = Path(directory)
    directory.mkdir(exist_ok=True, parents=True)
    write_json(directory / "config.json", CONFIG | overrides)
    save_file(tensors() if arrays is None else arrays, directory / "model.safetensors")
    word_piece_tokenizer().save(str(directory / "tokenizer.json"))
    if max_length:
        write_json(directory / "sentence_bert_config.json", {"max_seq_length": max_length})
    if pooling:
        kinds = ["Transformer", "Pooling"] + ["Normalize"] * normalize
        paths = ["", "1_Pooling", "2_Normalize"]
        entries = [{"type": f"st.models.{kind}", "path": p} for kind, p in zip(kinds, paths)]
        write_json(directory / "modules.json", entries)
        modes = {f"pooling_mode_{m}": m == pooling for m in ("cls_token", "mean_tokens", "max")}
        (directory / "1_Pooling").mkdir()
        write_json(directory / "1_Pooling" / "config.json", modes)
    return directory


def write_json(path, value):
    path.write_text(json.dumps(value))


def word_piece_tokenizer():
    """Lower-casing WordPiece over letters, alone and inside words, and two words."""
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS, "the", "cat"]
    pieces += [f"##{letter}" for letter in LETTERS]
    vocabulary = {piece: i for i, piece in enumerate(pieces)}
    model = tokenizers.models.WordPiece(vocabulary, unk_token="[UNK]")
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.normalizer = tokenizers.normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = tokenizers.processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    tokenizer.add_special_tokens(pieces[:5])
    return tokenizer


def random_texts(count, seed=0, longest=6):
    """Texts of up to `longest` words, one of them empty."""
    rng = np.random.default_rng(seed)
    words = [
        ["".join(rng.choice(list(LETTERS), rng.integers(1, 5))) for _ in range(n)]
        for n in rng.integers(1, longest + 1, count - 1)
    ]
    return [" ".join(text) for text in words] + [""]


def reference_hidden(arrays, ids, types, heads=4, eps=1e-12):
    """Last hidden states of one input without padding, float64 [T, D], from the definition."""
    a = {name: value.astype(np.float64) for name, value in arrays.items()}

    def linear(x, name):
        return x @ a[f"{name}.weight"].T + a[f"{name}.bias"]

    def norm(x, name):
        centred = x - x.mean(-1, keepdims=True)
        normed = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + eps)
        return normed * a[f"{name}.weight"] + a[f"{name}.bias"]

    x = a["embeddings.word_embeddings.weight"][ids]
    x = x + a["embeddings.position_embeddings.weight"][: len(ids)]
    x = norm(x + a["embeddings.token_type_embeddings.weight"][types], "embeddings.LayerNorm")
    layer = 0
    while f"encoder.layer.{layer}.output.dense.weight" in a:
        stem = f"encoder.layer.{layer}."
        q, k, v = (
            linear(x, f"{stem}attention.self.{name}").reshape(len(ids), heads, -1).swapaxes(0, 1)
            for name in ("query", "key", "value")
        )
        probs = scipy.special.softmax(q @ k.swapaxes(1, 2) / np.sqrt(q.shape[-1]), axis=-1)
        mixed = (probs @ v).swapaxes(0, 1).reshape(len(ids), -1)
        x = x + linear(mixed, f"{stem}attention.output.dense")
        x = norm(x, f"{stem}attention.output.LayerNorm")
        hidden = linear(x, f"{stem}intermediate.dense")
        hidden = hidden * scipy.special.ndtr(hidden)  # exact GELU
        x = norm(x + linear(hidden, f"{stem}output.dense"), f"{stem}output.LayerNorm")
        layer += 1
    return x


def reference_logit(arrays, ids, types):
    """Classifier output of one input, from the definition."""
    first = reference_hidden(arrays, ids, types)[0]
    pooled = np.tanh(arrays["pooler.dense.weight"] @ first + arrays["pooler.dense.bias"])
    return arrays["classifier.weight"] @ pooled + arrays["classifier.bias"]
