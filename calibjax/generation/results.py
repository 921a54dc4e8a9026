"""What generators return for one sample of one prompt."""

from collections.abc import Sequence
from typing import NamedTuple


class Generation(NamedTuple):
    """One sample.

    token_ids: the tokens of `text`, and the end token where one was drawn (empty from a server).
    log_probs: nats, one per token, of the model's own distribution (temperature 1, not truncated).
    entropies: nats, one per token, over the whole vocabulary; over the listed top tokens and the
    rest as one token when `approximate`. finish_reason: "stop" (end token or stop string), "length"
    (max_new_tokens reached), or "rejected" (a server refused this prompt; `error` says why).
    """

    text: str
    token_ids: tuple[int, ...] = ()
    log_probs: tuple[float, ...] = ()
    entropies: tuple[float, ...] = ()
    finish_reason: str = "stop"
    approximate: bool = False
    error: str = ""


def cut_at(text: str, stop: Sequence[str]) -> int | None:
    """Where the earliest stop string begins in the text, or None."""
    places = [place for word in stop if (place := text.find(word)) >= 0]
    return min(places, default=None)
