"""What `launch.budget` charges for the work of a router, as flags."""

from typing import Any

from absl import flags

PRICE_PROMPT = flags.DEFINE_float("price_prompt", 1.0, "of a prompt token", lower_bound=0.0)
PRICE_OUTPUT = flags.DEFINE_float("price_output", 4.0, "of a generated token", lower_bound=0.0)
PRICE_RETRIEVAL = flags.DEFINE_float("price_retrieval", 0.0, "of one retrieval", lower_bound=0.0)
REUSE_DRAFT = flags.DEFINE_boolean(
    "reuse_draft", True, "a draft that a trigger has read is the answer where nothing is retrieved"
)
REUSE_PROBE = flags.DEFINE_boolean(
    "reuse_probe", True, "the hits of a probe are the evidence where something is retrieved"
)


def prices() -> Any:
    """`Prices` of the flags."""
    from calibjax.routing.costs import Prices

    return Prices(PRICE_PROMPT.value, PRICE_OUTPUT.value, PRICE_RETRIEVAL.value)


def reuse() -> dict[str, bool]:
    """The reuse flags by the names that the report takes."""
    return {"reuse_draft": REUSE_DRAFT.value, "reuse_probe": REUSE_PROBE.value}
