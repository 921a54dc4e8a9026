"""The one exception type that means "the input is wrong", and the wording of its message."""

import difflib
from collections.abc import Iterable


class InputError(ValueError):
    """Bad input or flags. Commands print it as one line and exit with 2."""


def input_error(name: str, value: object, expected: str, fix: str | None = None) -> InputError:
    """InputError in house style: `name=value: expected ...; fix: ...`."""
    text = f"{name}={value}: expected {expected}"
    return InputError(text if fix is None else f"{text}; fix: {fix}")


def closest(value: str, allowed: Iterable[str]) -> str | None:
    """The allowed name nearest to `value` in spelling, or None when nothing is near."""
    matches = difflib.get_close_matches(value, list(allowed), n=1, cutoff=0.5)
    return matches[0] if matches else None
