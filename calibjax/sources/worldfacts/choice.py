"""Choices that are the same on every machine: by hash, never by a random stream."""

import hashlib
from collections.abc import Iterable, Sequence
from typing import TypeVar

T = TypeVar("T")
SEED = 20261129


def rank(*key: object) -> int:
    """A number below 2**64 that depends on the key (and the seed) alone."""
    text = ":".join(str(part) for part in (SEED, *key))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def pick(options: Sequence[T], *key: object) -> T:
    """One of the options."""
    return options[rank(*key) % len(options)]


def shuffled(items: Iterable[T], *key: object) -> list[T]:
    """The items in an order that each item's text decides."""
    return sorted(items, key=lambda item: (rank(*key, item), str(item)))
