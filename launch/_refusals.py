"""Refuses flags that were given and would do nothing: what is ignored in silence misleads."""

from collections.abc import Iterable
from typing import Any, NamedTuple

from calibjax.errors import input_error


class Needs(NamedTuple):
    """A flag, whether it has a meaning here, and what it needs to have one."""

    flag: Any
    met: bool
    needed: str


def refuse_ignored(rules: Iterable[Needs]) -> None:
    """Raises InputError for the first flag of the command line whose need is not met."""
    for flag, met, needed in rules:
        if flag.present and not met:
            value = ",".join(flag.value) if isinstance(flag.value, list) else flag.value
            raise input_error(flag.name, value, needed, f"drop --{flag.name}")
