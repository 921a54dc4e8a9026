"""Where `launch.abstain` gets its examples from: files of examples, TREC files, or retrieval."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from calibjax.errors import input_error
from calibjax.textfiles import Rejected, existing_file


class Source(NamedTuple):
    """Examples of one regime, and what was set aside. notes: lines for the top of the report."""

    name: str
    examples: list[Any]
    rejected: list[Rejected]
    cut: str | None = None
    counts: dict[str, Any] = {}
    notes: list[str] = []


def from_files(paths: Sequence[str], *, flag: str, needs_success: bool = True) -> list[Source]:
    """One regime a file, named by it."""
    for path in paths:
        existing_file(path, flag)
    from calibjax.abstention.examples import load_examples

    sources = []
    for name, path in zip(_names(paths), paths, strict=True):
        loaded = load_examples(path, name=flag, needs_success=needs_success)
        counts = {
            "n_kept": len(loaded.examples),
            "n_rejected": len(loaded.rejected),
            "n_duplicates": loaded.n_duplicates,
        }
        cut = path if loaded.truncated else None
        sources.append(Source(name, loaded.examples, loaded.rejected, cut, counts))
    return sources


def from_trec(run: str, qrels: str | None, questions: str | None, k: int) -> Source:
    """The queries of a run and its judgements; what is missing is a failure, and listed."""
    for flag, path in (("run", run), ("qrels", qrels), ("questions", questions)):
        if path:
            existing_file(path, flag)
    if not qrels:
        raise input_error("qrels", "", "a file of relevance judgements", "--qrels=FILE")
    from calibjax.abstention.trec_examples import join_run, read_questions
    from calibjax.retrieval.trec import read_qrels, read_run

    found, judged = read_run(run), read_qrels(qrels)
    texts, bad, cut = read_questions(questions) if questions else (None, [], False)
    joined = join_run(found, judged, texts, k=k)
    counts = {
        "n_kept": len(joined.examples),
        "n_rejected": len(found.rejected) + len(judged.rejected) + len(bad),
        "n_queries": len(joined.examples),
        "n_missing": len(joined.no_run) + len(joined.no_qrels),
        "no_run": joined.no_run,
        "no_qrels": joined.no_qrels,
        "no_question": joined.no_question,
    }
    notes = [
        f"{len(missing)} {what}: {_listed(missing)}."
        for what, missing in (
            ("judged queries without results count as failures", joined.no_run),
            ("queries without a relevant document count as failures", joined.no_qrels),
            ("queries without a question are left out", joined.no_question),
        )
        if missing
    ]
    truncated = [(found.truncated, run), (judged.truncated, qrels), (cut, questions)]
    rejected = [*found.rejected, *judged.rejected, *bad]
    cut_file = next((str(path) for is_cut, path in truncated if is_cut), None)
    return Source(Path(run).stem, joined.examples, rejected, cut_file, counts, notes)


def _listed(ids: Sequence[str]) -> str:
    return ", ".join(ids[:5]) + (f" and {len(ids) - 5} more" if len(ids) > 5 else "")


def _names(paths: Sequence[str]) -> list[str]:
    """File names without ending, with their directory where two are called alike."""
    stems = [Path(path.removesuffix(".gz")).stem for path in paths]
    longer = [f"{Path(path).resolve().parent.name}/{s}" for path, s in zip(paths, stems)]
    names = [b if stems.count(a) > 1 else a for a, b in zip(stems, longer)]
    repeated = next((name for name in names if names.count(name) > 1), None)
    if repeated:
        raise input_error("examples", repeated, "each file once", "drop the second mention")
    return names
