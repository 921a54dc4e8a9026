"""Tokenizers as checkpoints store them: GGUF metadata and Hugging Face directories."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

from calibjax.errors import closest, input_error


class TokenizerParts(NamedTuple):
    """A tokenizer with its special tokens by name ("bos_token", ...) and its chat template."""

    tokenizer: tokenizers.Tokenizer
    specials: dict[str, str]
    eos_ids: tuple[int, ...]
    add_bos: bool
    chat_template: str | None


# How a vocabulary cuts text into words before its merges apply.
_LLAMA3_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2_WORDS = _LLAMA3_WORDS.replace(r"\p{N}{1,3}", r"\p{N}")

_WORDS: dict[str, str | None] = {
    "default": None,
    "gpt-2": None,
    "smollm": None,
    "llama-bpe": _LLAMA3_WORDS,
    "qwen2": _QWEN2_WORDS,
}

_GGUF = "tokenizer.ggml."
_CONTROL, _USER_DEFINED = 3, 4


def from_gguf(fields: Mapping[str, Any]) -> TokenizerParts:
    """Byte-level BPE from GGUF metadata (keys to plain values).

    Raises InputError for other tokenizer models and for unknown `tokenizer.ggml.pre`.
    """
    kind = fields.get(_GGUF + "model")
    if kind != "gpt2":
        fix = "load the Hugging Face directory of the model instead"
        raise input_error(_GGUF + "model", kind, "gpt2 (byte-level BPE)", fix)
    pre = fields.get(_GGUF + "pre", "default")
    tokens = _texts(fields, "tokens")
    tokenizer = _byte_level_bpe(tokens, _texts(fields, "merges"), pre)
    types = fields.get(_GGUF + "token_type") or [1] * len(tokens)
    if len(types) != len(tokens):
        raise input_error(_GGUF + "token_type", f"{len(types)} values", f"{len(tokens)} values")
    _add_tokens(tokenizer, tokens, types)
    specials = _gguf_specials(fields, tokens)
    ends = {fields.get(f"{_GGUF}{name}_token_id") for name in ("eos", "eot")}
    return TokenizerParts(
        tokenizer,
        specials,
        tuple(sorted(end for end in ends if end is not None)),
        # Converters write no key for Llama 3, whose own tokenizer always adds the token.
        bool(fields.get(_GGUF + "add_bos_token", pre == "llama-bpe")),
        fields.get("tokenizer.chat_template"),
    )


def _texts(fields: Mapping[str, Any], name: str) -> list[str]:
    values = fields.get(_GGUF + name)
    if not isinstance(values, list | tuple) or not all(isinstance(v, str) for v in values):
        raise input_error(_GGUF + name, type(values).__name__, "a list of texts")
    return list(values)


def _byte_level_bpe(tokens: list[str], merges: list[str], pre: str) -> tokenizers.Tokenizer:
    if pre not in _WORDS:
        near = closest(str(pre), _WORDS)
        raise input_error(
            _GGUF + "pre", pre, ", ".join(_WORDS), f"the closest is {near}" if near else None
        )
    vocabulary = {text: number for number, text in enumerate(tokens)}
    if len(vocabulary) != len(tokens):
        raise input_error(_GGUF + "tokens", f"{len(tokens)} tokens", "no token twice")
    try:
        pairs = [(left, right) for left, right in (merge.split(" ") for merge in merges)]
        # Llama 3 takes a word that is in the vocabulary whole, without merging its way to it.
        model = models.BPE(vocabulary, pairs, ignore_merges=pre == "llama-bpe")
    except Exception as error:  # tokenizers raises bare Exception for merges of unknown tokens
        raise input_error(_GGUF + "merges", error, "pairs of known tokens") from error
    tokenizer = tokenizers.Tokenizer(model)
    words, by_regex = _WORDS[pre], _WORDS[pre] is None
    steps: list[Any] = [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=by_regex)]
    if words is not None:
        steps.insert(0, pre_tokenizers.Split(Regex(words), "isolated"))
    if pre == "smollm":
        steps.insert(0, pre_tokenizers.Digits(individual_digits=True))
    if pre == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _add_tokens(tokenizer: tokenizers.Tokenizer, tokens: list[str], types: list[int]) -> None:
    for kind, add in (
        (_CONTROL, tokenizer.add_special_tokens),
        (_USER_DEFINED, tokenizer.add_tokens),
    ):
        texts = [text for text, number in zip(tokens, types, strict=True) if number == kind]
        add([AddedToken(text, normalized=False, special=kind == _CONTROL) for text in texts])


def _gguf_specials(fields: Mapping[str, Any], tokens: list[str]) -> dict[str, str]:
    names = {"bos": "bos_token", "eos": "eos_token", "padding": "pad_token", "unknown": "unk_token"}
    specials = {}
    for key, name in names.items():
        number = fields.get(f"{_GGUF}{key}_token_id")
        if number is None:
            continue
        if not 0 <= number < len(tokens):
            raise input_error(f"{_GGUF}{key}_token_id", number, f"below {len(tokens)}")
        specials[name] = tokens[number]
    return specials


def from_directory(path: Path) -> TokenizerParts:
    """Tokenizer of a Hugging Face directory: tokenizer.json and the settings beside it.

    Raises InputError naming the file that is missing or broken.
    """
    file = path / "tokenizer.json"
    if not file.is_file():
        raise input_error(
            str(file),
            "missing",
            "a tokenizer in the fast format",
            "write one with transformers: AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR)",
        )
    try:
        tokenizer = tokenizers.Tokenizer.from_file(str(file))
    except Exception as error:  # tokenizers raises bare Exception for whatever it cannot read
        raise input_error(str(file), error, "a tokenizer of the tokenizers library") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    settings = _read_object(path / "tokenizer_config.json")
    names = ("bos_token", "eos_token", "pad_token", "unk_token")
    specials = {name: text for name in names if (text := _token_text(settings.get(name)))}
    add_bos = settings.get("add_bos_token")
    if add_bos is None:
        first = tokenizer.encode("", add_special_tokens=True).ids[:1]
        add_bos = first == [tokenizer.token_to_id(specials.get("bos_token", ""))]
    return TokenizerParts(
        tokenizer, specials, _eos_ids(path, specials, tokenizer), add_bos, _template(path, settings)
    )


def _read_object(file: Path) -> dict[str, Any]:
    """The JSON object of a file; {} when there is none."""
    if not file.is_file():
        return {}
    try:
        value = json.loads(file.read_bytes())
    except (ValueError, RecursionError) as error:
        raise input_error(str(file), type(error).__name__, "one JSON object") from error
    if not isinstance(value, dict):
        raise input_error(str(file), type(value).__name__, "one JSON object")
    return value


def _token_text(value: Any) -> str | None:
    """Token settings are a text or an object that holds it."""
    text = value.get("content") if isinstance(value, dict) else value
    return text if isinstance(text, str) else None


def _eos_ids(
    path: Path, specials: dict[str, str], tokenizer: tokenizers.Tokenizer
) -> tuple[int, ...]:
    ends: set[int] = set()
    if (own := tokenizer.token_to_id(specials.get("eos_token", ""))) is not None:
        ends.add(own)
    for name in ("generation_config.json", "config.json"):
        value = _read_object(path / name).get("eos_token_id")
        values = value if isinstance(value, list) else [value]
        ends.update(number for number in values if isinstance(number, int))
    return tuple(sorted(ends))


def _template(path: Path, settings: dict[str, Any]) -> str | None:
    """chat_template.jinja wins over tokenizer_config.json, as in transformers."""
    file = path / "chat_template.jinja"
    if file.is_file():
        try:
            return file.read_text("utf-8")
        except UnicodeDecodeError as error:
            raise input_error(str(file), error.reason, "UTF-8 text") from error
    template = settings.get("chat_template")
    if isinstance(template, list):
        named = {entry.get("name"): entry.get("template") for entry in template}
        template = named.get("default")
    return template if isinstance(template, str) else None
