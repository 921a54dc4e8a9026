"""Texts and pairs of texts as BERT reads them: [CLS] a [SEP], [CLS] a [SEP] b [SEP]."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from calibjax.backbone import tokenizer_files
from calibjax.backbone.plain_tokenizer import without_added_tokens
from calibjax.errors import input_error


class TypedIds(NamedTuple):
    """Token ids of one input and their types: 0 for the first text, 1 for the second."""

    ids: list[int]
    types: list[int]


class WordPieces:
    """Tokenizer of a BERT checkpoint; a "[SEP]" inside a text stays text.

    max_length: in tokens, with [CLS] and [SEP]; what is longer is cut at its end, of a pair the
    longer text first. lower: lower-case texts before the checkpoint's own normaliser.
    """

    def __init__(self, directory: Path, *, max_length: int, lower: bool = False) -> None:
        full = tokenizer_files.from_directory(directory).tokenizer
        self._plain, _ = without_added_tokens(full)
        first, end = full.token_to_id("[CLS]"), full.token_to_id("[SEP]")
        if first is None or end is None:
            where = str(directory / "tokenizer.json")
            raise input_error(where, "no [CLS] or [SEP]", "the tokenizer of a BERT model")
        self._cls, self._sep = first, end
        self._lower = lower
        self.max_length = max_length
        self.vocab_size = max(full.get_vocab(with_added_tokens=True).values()) + 1

    def texts(self, texts: Sequence[str]) -> list[TypedIds]:
        """Each text as one input."""
        return [self._single(ids) for ids in self._encode(texts)]

    def pairs(self, first: Sequence[str], second: Sequence[str]) -> list[TypedIds]:
        """Each pair of texts as one input."""
        return [self._pair(a, b) for a, b in zip(self._encode(first), self._encode(second))]

    def _encode(self, texts: Sequence[str]) -> list[list[int]]:
        # Half characters (lone surrogates) cannot be encoded; they become "?" as in every file.
        clean = [text.encode("utf-8", "replace").decode("utf-8") for text in texts]
        if self._lower:
            clean = [text.lower() for text in clean]
        return [e.ids for e in self._plain.encode_batch(clean, add_special_tokens=False)]

    def _single(self, ids: list[int]) -> TypedIds:
        ids = [self._cls, *ids[: self.max_length - 2], self._sep]
        return TypedIds(ids, [0] * len(ids))

    def _pair(self, a: list[int], b: list[int]) -> TypedIds:
        keep_a, keep_b = longest_first(len(a), len(b), self.max_length - 3)
        first = [self._cls, *a[:keep_a], self._sep]
        second = [*b[:keep_b], self._sep]
        return TypedIds(first + second, [0] * len(first) + [1] * len(second))


def longest_first(a: int, b: int, room: int) -> tuple[int, int]:
    """How many tokens of texts with `a` and `b` tokens stay when `room` are left for both."""
    if a + b <= room:
        return a, b
    short, long = min(a, b), max(a, b)
    if 2 * short <= room:
        long = room - short
    else:
        short, long = room // 2, room - room // 2
    return (long, short) if a > b else (short, long)
