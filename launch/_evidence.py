"""Where `launch.outcomes` looks for evidence: the flags, and the search itself."""

from collections.abc import Sequence
from typing import Any

from absl import flags

from launch import _inputs
from launch._refusals import Needs

POOL = flags.DEFINE_list(
    "pool", [], "more files of --dataset whose passages join the pool of --evidence=global"
)
EVIDENCE = flags.DEFINE_enum(
    "evidence",
    "own",
    ["own", "global"],
    "where passages are searched: among those of the question, or in all passages pooled",
)
PASSAGES = flags.DEFINE_integer("passages", 3, "given to the reader as evidence", lower_bound=1)
PROBE = flags.DEFINE_integer("probe", 20, "hits that retrieval triggers see", lower_bound=1)
BACKBONE = flags.DEFINE_string(
    "backbone", _inputs.DEFAULT_DECODER, "the decoder that --forecaster was trained on"
)
for _shared in ("corpus", "retriever", "encoder", "forecaster"):
    flags.declare_key_flag(_shared)


def needs() -> list[Needs]:
    """What these flags need to have a meaning."""
    pooled = EVIDENCE.value == "global"
    return [
        Needs(_inputs.CORPUS, pooled, "--evidence=global, which searches it"),
        Needs(POOL, pooled, "--evidence=global, which searches it"),
        Needs(POOL, not _inputs.CORPUS.value, "no --corpus, which is the pool"),
        Needs(_inputs.ENCODER, _inputs.RETRIEVER.value == "dense", "--retriever=dense"),
        Needs(BACKBONE, bool(_inputs.FORECASTER.value), "--forecaster=DIR"),
    ]


def search(out: Any, everything: Sequence[Any], chosen: Sequence[Any]) -> Any:
    """The hits of the chosen questions, and seconds per question."""
    from calibjax.routing import probes
    from calibjax.sources import load_questions

    k = max(PROBE.value, PASSAGES.value)
    if EVIDENCE.value == "own":
        return probes.search_own(chosen, _inputs.retriever_maker(), k)
    lists = [everything]
    for path in POOL.value:
        more = load_questions(_inputs.DATASET.value, path, name="pool")
        out.reject(more.rejected, cut=path if more.truncated else None)
        lists.append(more.questions)
    return probes.search_pool(chosen, _inputs.retriever(_inputs.passages(out, *lists)), k)


def forecasts(out: Any, chosen: Sequence[Any], probes: Sequence[Any]) -> dict[str, Any]:
    """The scores of --forecaster over the passages that the reader is given; {} without one."""
    if not _inputs.FORECASTER.value:
        return {}
    from calibjax.forecaster import Forecaster
    from calibjax.routing.forecasts import forecast

    with out.stage("forecast"):
        forecaster = Forecaster.load(_inputs.FORECASTER.value, backbone=BACKBONE.value)
        given = [probe.passages[: PASSAGES.value] for probe in probes]
        return {"forecaster": forecast(forecaster, chosen, given)}
