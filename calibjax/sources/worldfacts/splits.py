"""Train, validation and test: by country, and by element; a subject is in one split alone."""

from collections.abc import Sequence
from functools import cache

from calibjax.sources.worldfacts.choice import rank
from calibjax.sources.worldfacts.facts import countries, elements

SPLITS = ("train", "validation", "test")
# Shares of the countries, and of the elements.
SHARES = (0.60, 0.12, 0.28)


@cache
def country_splits() -> dict[str, str]:
    """Split by country code."""
    return _assigned([*countries()], "country")


@cache
def element_splits() -> dict[int, str]:
    """Split by atomic number."""
    return {int(key): split for key, split in _assigned(
        [str(element.number) for element in elements()], "element"
    ).items()}


def _assigned(keys: Sequence[str], kind: str) -> dict[str, str]:
    ordered = sorted(keys, key=lambda key: rank("split", kind, key))
    first = round(SHARES[0] * len(keys))
    second = first + round(SHARES[1] * len(keys))
    names = [SPLITS[(place >= first) + (place >= second)] for place in range(len(keys))]
    return dict(zip(ordered, names, strict=True))
