"""Which flags of `launch.abstain` go together: one that would be ignored is refused."""

from collections.abc import Callable
from typing import NamedTuple

from absl import flags

from launch._inputs import ENCODING, SERVING
from launch._refusals import Needs, refuse_ignored


class _Rule(NamedTuple):
    """These flags have an effect only where `holds`; `needs` says what that is."""

    names: tuple[str, ...]
    holds: Callable[[], bool]
    needs: str


def _value(name: str) -> object:
    return flags.FLAGS[name].value


def from_questions() -> bool:
    """Whether examples come from our own retrieval."""
    return flags.FLAGS["dataset"].present > 0 or bool(_value("path"))


def _judges() -> bool:
    return from_questions() and (_value("architecture") == "judge" or bool(_value("rescue")))


_RULES = (
    _Rule(
        (
            *("corpus", "retriever", *ENCODING, "forecaster", *SERVING, "limit"),
            *("architecture", "rescue", "judge", "bridge_writer", "alpha", "pool"),
        ),
        from_questions,
        "--dataset",
    ),
    _Rule(("qrels", "questions", "exclude_self"), lambda: bool(_value("run")), "--run"),
    _Rule(("k",), lambda: bool(_value("run")) or from_questions(), "--run or --dataset"),
    _Rule(("tau",), lambda: bool(_value("apply")), "--apply"),
    _Rule(
        (
            *("fit_examples", "target", "delta", "n_min", "conformal_alpha", "rescue_coverage"),
            *("platt", "replicates"),
        ),
        lambda: not _value("apply"),
        "a fit, not --apply",
    ),
    _Rule(
        ("judge", "bridge_writer", "alpha", "server"), _judges, "--architecture=judge or --rescue"
    ),
    _Rule(("pool",), lambda: _value("architecture") == "judge", "--architecture=judge"),
    _Rule(ENCODING, lambda: _value("retriever") == "dense", "--retriever=dense"),
    _Rule(
        tuple(name for name in SERVING if name != "server"),
        lambda: bool(_value("server")),
        "--server",
    ),
    _Rule(
        ("rescue_coverage",),
        lambda: bool(_value("examples")) or bool(_value("rescue")),
        "--rescue, or --examples with rescue_success",
    ),
)


def check() -> None:
    """InputError for the first flag that is given where it would have no effect."""
    refuse_ignored(
        Needs(flags.FLAGS[name], rule.holds(), f"{rule.needs} beside it")
        for rule in _RULES
        for name in rule.names
    )
