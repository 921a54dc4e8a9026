"""Text and chat messages to token ids, so that no text can ever become a control token."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast, overload

import tokenizers

from calibjax.backbone import chat_template, tokenizer_files
from calibjax.backbone.plain_tokenizer import without_added_tokens, without_prefix
from calibjax.errors import input_error

Part = str | Sequence[int]
Messages = Sequence[Mapping[str, Any]]
Prompt = str | Messages | Sequence[int]


class Tokenizer:
    """Token ids of plain text and of chats.

    Every added token of the checkpoint, special or not, is a control token: it comes from the chat
    template or not at all. Attributes: `bos_id` (or None), `eos_ids` (any of them ends a text),
    `pad_id`, `vocab_size` (one more than the largest id), `control_ids`, `name` (for messages).
    """

    def __init__(
        self, parts: tokenizer_files.TokenizerParts, *, name: str = "tokenizer", trusted: bool
    ) -> None:
        self.name = name
        self._full = parts.tokenizer
        # Every part of a prompt but the first continues another.
        self._continuing = without_prefix(parts.tokenizer)
        self._plain, control = without_added_tokens(self._continuing)
        self.control_ids = frozenset(control)
        self.vocab_size = max(self._full.get_vocab(with_added_tokens=True).values()) + 1
        self.bos_id = self._special_id(parts, "bos_token")
        self.eos_ids = parts.eos_ids
        pad = self._special_id(parts, "pad_token")
        self.pad_id = pad if pad is not None else min(self.eos_ids, default=0)
        self._add_bos = parts.add_bos and self.bos_id is not None
        self._template = None
        if parts.chat_template is not None:
            specials = tuple(sorted(parts.specials.items()))
            self._template = chat_template.Template(parts.chat_template, name, trusted, specials)
        self._frames: dict[tuple[str, ...], list[list[int] | int]] = {}

    @classmethod
    def from_gguf(
        cls, fields: Mapping[str, Any], *, name: str = "gguf", trusted: bool = False
    ) -> "Tokenizer":
        """Tokenizer of GGUF metadata; trusted: the file belongs to an installed package."""
        return cls(tokenizer_files.from_gguf(fields), name=name, trusted=trusted)

    @classmethod
    def from_directory(cls, path: str | Path, *, trusted: bool = False) -> "Tokenizer":
        """Tokenizer of a Hugging Face directory; trusted: it belongs to an installed package."""
        parts = tokenizer_files.from_directory(Path(path))
        return cls(parts, name=str(path), trusted=trusted)

    @classmethod
    def from_tokenizers(
        cls,
        tokenizer: tokenizers.Tokenizer,
        template: str | None = None,
        *,
        specials: Mapping[str, str] | None = None,
        add_bos: bool = False,
        name: str = "tokenizer",
        trusted: bool = False,
    ) -> "Tokenizer":
        """Tokenizer of a `tokenizers.Tokenizer`; specials: {"eos_token": "<|im_end|>", ...}."""
        specials = dict(specials or {})
        end = tokenizer.token_to_id(specials.get("eos_token", ""))
        eos_ids = () if end is None else (end,)
        parts = tokenizer_files.TokenizerParts(tokenizer, specials, eos_ids, add_bos, template)
        return cls(parts, name=name, trusted=trusted)

    def _special_id(self, parts: tokenizer_files.TokenizerParts, name: str) -> int | None:
        return self._full.token_to_id(parts.specials.get(name, ""))

    def encode(self, text: str) -> list[int]:
        """Ids of plain text; never one of `control_ids`.

        Bytes that the vocabulary lacks (a few ASCII control characters in SmolLM2) are dropped.
        """
        try:
            return self._plain.encode(text, add_special_tokens=False).ids
        except (TypeError, UnicodeEncodeError) as error:
            raise input_error("text", repr(text)[:60], "valid Unicode text") from error

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids; special tokens are left out."""
        return self._full.decode(list(ids), skip_special_tokens=True)

    def encode_prompt(self, prompt: Prompt) -> list[int]:
        """Ids of a prompt: chat messages, a text (one user message), or ids taken as they are."""
        if isinstance(prompt, str):
            return self.encode_chat([{"role": "user", "content": prompt}])
        if not len(prompt):
            raise input_error("prompt", prompt, "at least one message or token id")
        if isinstance(prompt[0], Mapping):
            return self.encode_chat(cast(Messages, prompt))
        ids = [int(number) for number in cast(Sequence[int], prompt)]
        if min(ids) < 0 or max(ids) >= self.vocab_size:
            wrong = next(number for number in ids if not 0 <= number < self.vocab_size)
            raise input_error("token id", wrong, f"0 to {self.vocab_size - 1}")
        return ids

    @overload
    def encode_chat(self, messages: Messages, *, split: None = None) -> list[int]: ...

    @overload
    def encode_chat(
        self, messages: Messages, *, split: tuple[int, int]
    ) -> tuple[list[int], list[int]]: ...

    def encode_chat(self, messages: Messages, *, split: tuple[int, int] | None = None) -> Any:
        """Ids of a chat, ending with the header of the assistant's turn.

        messages: [{"role", "content"}]; a content is a text or a list of parts, each a text or the
        ids of one. Parts are encoded apart from one another and put in unchanged (a template that
        trims contents does not trim these). split: (message, part) whose start cuts the result into
        (prefix ids, suffix ids). Raises InputError without a chat template, for unknown roles, and
        for ids in a content that are control tokens.
        """
        contents = [_parts_of(message) for message in messages]
        ids: list[int] = []
        cuts: list[int] = []
        for piece in self._frame(tuple(str(message.get("role")) for message in messages)):
            if not isinstance(piece, int):
                ids.extend(piece)
                continue
            for index, part in enumerate(contents[piece]):
                if split == (piece, index):
                    cuts.append(len(ids))
                ids.extend(self._encode_part(part))
        if split is None:
            return ids
        if len(cuts) != 1:
            raise input_error("split", split, f"a part shown once, not {len(cuts)} times")
        return ids[: cuts[0]], ids[cuts[0] :]

    def _encode_part(self, part: Part) -> list[int]:
        if isinstance(part, str):
            return self.encode(part)
        ids = [int(number) for number in part]
        for number in ids:
            if number in self.control_ids or not 0 <= number < self.vocab_size:
                raise input_error("content", f"token id {number}", "ids that `encode` returned")
        return ids

    def _frame(self, roles: tuple[str, ...]) -> list[list[int] | int]:
        """The template's own ids around the contents, with one BOS at the very front."""
        if roles in self._frames:
            return self._frames[roles]
        if self._template is None:
            raise input_error(
                "chat_template",
                self.name,
                "a chat template",
                "add chat_template.jinja, or pass prompts as token ids",
            )
        if not roles:
            raise input_error("messages", "[]", "at least one message")
        frame: list[list[int] | int] = []
        for number, part in enumerate(chat_template.skeleton(self._template, roles)):
            if isinstance(part, str):
                tokenizer = self._continuing if number else self._full
                frame.append(tokenizer.encode(part, add_special_tokens=False).ids)
            else:
                frame.append(part)
        if not frame or isinstance(frame[0], int):
            frame.insert(0, [])
        head = frame[0]
        assert isinstance(head, list)
        if self.bos_id is not None:
            while head[:2] == [self.bos_id, self.bos_id]:
                del head[0]
            if self._add_bos and head[:1] != [self.bos_id]:
                head.insert(0, self.bos_id)
        self._frames[roles] = frame
        return frame


def _parts_of(message: Mapping[str, Any]) -> list[Part]:
    content = message.get("content")
    if isinstance(content, str):
        return [content]
    if not isinstance(content, list | tuple):
        raise input_error("content", repr(content)[:60], "a text or a list of parts")
    for part in content:
        if not isinstance(part, str) and not hasattr(part, "__iter__"):
            raise input_error("content", repr(part)[:60], "parts that are texts or lists of ids")
    return list(content)


def check_vocabulary(tokenizer: Tokenizer, rows: int) -> None:
    """Raises InputError if the tokenizer can give an id that the embedding has no row for."""
    if tokenizer.vocab_size > rows:
        raise input_error(
            tokenizer.name,
            f"{tokenizer.vocab_size} token ids",
            f"at most {rows}, the rows of the embedding",
            "use the tokenizer that belongs to these weights",
        )
