"""Copies of a tokenizer: one that knows no added token, one that puts no mark before a text."""

import json
import secrets
from typing import Any

import tokenizers

from calibjax.errors import input_error


def without_added_tokens(tokenizer: tokenizers.Tokenizer) -> tuple[tokenizers.Tokenizer, set[int]]:
    """(copy for plain text, ids it can never produce).

    Taking the added tokens off the matcher is not enough: where the model's own vocabulary repeats
    them, merges or whole-word look-ups could still build one. They are removed there too. The one
    exception is the unknown token of models that need one: it stands for text.
    """
    spec = json.loads(tokenizer.to_str())
    added = {token["content"]: token["id"] for token in spec["added_tokens"]}
    spec.update(added_tokens=[], post_processor=None, truncation=None, padding=None)
    model = spec["model"]
    kept = _remove(model, set(added), _is_byte_level(spec))
    plain = tokenizers.Tokenizer.from_str(json.dumps(spec))
    return plain, {number for text, number in added.items() if text != kept}


def without_prefix(tokenizer: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """The tokenizer for texts that continue another, itself where that makes no difference.

    Tokenizers made from SentencePiece (Llama 2, Mistral) put a space before every text; before a
    part of a prompt it would be a second space, or one inside a word.
    """
    steps = [step for step in (tokenizer.normalizer, tokenizer.pre_tokenizer) if step is not None]
    nested = [one for step in steps for one in _nested(json.loads(step.__getstate__()))]
    if not any(map(_prefixes, nested)):
        return tokenizer
    spec = json.loads(tokenizer.to_str())
    for place, several in (("normalizer", "normalizers"), ("pre_tokenizer", "pretokenizers")):
        kept = [_unprefixed(s) for s in _nested(spec[place] or {}) if s.get("type") != "Prepend"]
        spec[place] = {"type": "Sequence", several: kept} if any(kept) else None
    return tokenizers.Tokenizer.from_str(json.dumps(spec))


def _unprefixed(step: dict[str, Any]) -> dict[str, Any]:
    if step.get("type") == "Metaspace":
        return step | {"prepend_scheme": "never"}
    return step | {"add_prefix_space": False} if "add_prefix_space" in step else step


def _nested(step: dict[str, Any]) -> list[dict[str, Any]]:
    """The step, or the steps of a sequence."""
    return step.get("pretokenizers") or step.get("normalizers") or [step]


def _prefixes(step: dict[str, Any]) -> bool:
    if step.get("type") == "Metaspace":
        return step.get("prepend_scheme") != "never"
    return step.get("type") == "Prepend" or bool(step.get("add_prefix_space"))


def _is_byte_level(spec: dict[str, Any]) -> bool:
    """Whether every character maps to letters of the byte alphabet: then no text is unknown."""
    steps = [spec.get("pre_tokenizer") or {}, spec.get("normalizer") or {}]
    return any(one.get("type") == "ByteLevel" for step in steps for one in _nested(step))


def _remove(model: dict[str, Any], added: set[str], byte_level: bool) -> str | None:
    """Takes `added` out of the model's vocabulary; returns the unknown token if it stays."""
    if model["type"] == "Unigram":
        return _remove_pieces(model, added)
    if model["type"] not in ("BPE", "WordPiece", "WordLevel"):
        raise input_error("tokenizer model", model["type"], "BPE, Unigram, WordPiece or WordLevel")
    if model["type"] == "BPE" and byte_level:
        model["unk_token"] = None
    unknown = model.get("unk_token")
    gone = added - {unknown}
    model["vocab"] = {text: number for text, number in model["vocab"].items() if text not in gone}
    if model["type"] == "BPE":
        prefix = model.get("continuing_subword_prefix") or ""
        pairs = [pair.split(" ") if isinstance(pair, str) else pair for pair in model["merges"]]
        model["merges"] = [
            [left, right]
            for left, right in pairs
            if gone.isdisjoint((left, right, left + right.removeprefix(prefix)))
        ]
    return unknown


def _remove_pieces(model: dict[str, Any], added: set[str]) -> str | None:
    """Unigram ids are places in a list, so pieces are renamed to what no text can hold."""
    place = model.get("unk_id")
    unknown = None if place is None else model["vocab"][place][0]
    model["vocab"] = [
        [secrets.token_hex(32) if text in added and text != unknown else text, score]
        for text, score in model["vocab"]
    ]
    return unknown
