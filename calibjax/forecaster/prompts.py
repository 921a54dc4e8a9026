"""The forecaster's input: the guidance prompt of (q, d), as ids cut where the document starts.

Reading the very prompt that guidance is written from is what makes h a feature of the guidance to
come (CalibRAG, section 3.2). All documents of a query share the prefix.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from calibjax.errors import input_error
from calibjax.generation.prompts import GUIDANCE_DOCUMENT_PART, guidance_messages, passage_text


class ForecastPrompt(NamedTuple):
    """prefix: system, instruction and query; suffix: document, cue and generation header.

    truncated: the document was cut to `max_document_tokens`, before the template was applied.
    """

    prefix: tuple[int, ...]
    suffix: tuple[int, ...]
    truncated: bool


def forecast_prompts(
    tokenizer: Any,
    query: str,
    documents: Iterable[Any],
    *,
    max_document_tokens: int,
    max_tokens: int,
    bos: str = "single",
) -> list[ForecastPrompt]:
    """Prompts of one query with each of its documents (`Passage`s or {"title", "text"}).

    max_tokens: length of the decoder's context; documents are cut to fit it, never the cue. Raises
    InputError when the query alone does not fit. bos="double" repeats the first token where the
    tokenizer puts a beginning-of-sequence token of its own, as the authors' tokenisation did.
    """
    # Parts are encoded apart, so the frame around the document is the same for every document.
    messages = guidance_messages(query, [])
    prefix, frame = tokenizer.encode_chat(messages, split=GUIDANCE_DOCUMENT_PART)
    prefix, frame = tuple(prefix), tuple(frame)
    if bos == "double" and tokenizer.bos_id is not None and prefix[:1] == (tokenizer.bos_id,):
        prefix = prefix[:1] + prefix
    room = min(max_document_tokens, max_tokens - len(prefix) - len(frame))
    if room < 1:
        expected = f"a query that fits the context of {max_tokens} tokens with its document"
        raise input_error("query", repr(query[:40]), expected, "shorten the query")
    prompts = []
    for document in documents:
        ids = tokenizer.encode(passage_text(*title_and_text(document)))
        prompts.append(ForecastPrompt(prefix, (*ids[:room], *frame), len(ids) > room))
    return prompts


def title_and_text(document: Any) -> tuple[str, str]:
    """Title ("" if absent) and text of a `Passage`, a `SupervisionRow` or a mapping."""
    if isinstance(document, Mapping):
        if not isinstance(document.get("text"), str):
            raise input_error("document", sorted(document), 'a mapping with "title" and "text"')
        return document.get("title") or "", document["text"]
    return document.title, document.text


def check_lists(queries: Sequence[str], documents: Sequence[Any]) -> None:
    """One list of documents per query, or InputError."""
    if isinstance(queries, str) or isinstance(documents, Mapping):
        raise input_error("queries", type(queries).__name__, "a list, and a list of documents each")
    if len(queries) != len(documents):
        expected = f"one list per query, {len(queries)}"
        raise input_error("documents", f"{len(documents)} lists", expected)
