"""Where `launch.abstain` gets its examples from: files of examples, TREC files, or retrieval."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from calibjax.errors import input_error
from calibjax.reading.textfiles import Rejected, existing_file


class Source(NamedTuple):
    """Examples of one regime, and what was set aside.

    cut: files that end early. notes: lines for the top of the report.
    """

    name: str
    examples: list[Any]
    rejected: list[Rejected]
    cut: tuple[str, ...]
    counts: dict[str, Any]
    notes: tuple[str, ...] = ()

    def fingerprint(self) -> str:
        """Hash of the examples: a resumed run must find the same."""
        from calibjax import storage

        return f"sha256:{storage.sha256_json(self.examples)}"


def from_files(
    paths: Sequence[str], names: Sequence[str], *, flag: str, needs_success: bool = True
) -> list[Source]:
    """One regime a file."""
    for place, path in enumerate(paths):
        existing_file(path, flag)
        if names[place] in names[:place]:
            raise input_error(flag, path, "each file once", "drop the second mention")
    from calibjax.abstention.examples import load_examples

    sources = []
    for name, path in zip(names, paths, strict=True):
        loaded = load_examples(path, name=flag, needs_success=needs_success)
        counts = {
            "n_kept": len(loaded.examples),
            "n_rejected": len(loaded.rejected),
            "n_duplicates": loaded.n_duplicates,
            "truncated": loaded.truncated,
        }
        cut = (path,) if loaded.truncated else ()
        sources.append(Source(name, loaded.examples, loaded.rejected, cut, counts))
    return sources


def from_trec(
    run: str, qrels: str | None, questions: str | None, *, k: int, exclude_self: bool = False
) -> Source:
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
    joined = join_run(found, judged, texts, k=k, exclude_self=exclude_self)
    ends = ((run, found.truncated), (qrels, judged.truncated), (questions, cut))
    cut_files = tuple(str(path) for path, is_cut in ends if is_cut)
    counts = {
        "n_kept": len(joined.examples),
        "n_rejected": len(found.rejected) + len(judged.rejected) + len(bad),
        "n_queries": len(joined.examples),
        "n_missing": len({*joined.no_run, *joined.no_qrels}),
        "truncated": bool(cut_files),
        "no_run": joined.no_run,
        "no_qrels": joined.no_qrels,
        "no_question": joined.no_question,
        "own_document": joined.own_document,
        "exclude_self": exclude_self,
    }
    what_of_own = "left out" if exclude_self else "kept; --exclude_self leaves them out"
    notes = tuple(
        f"{len(missing)} {what}: {_listed(missing)}."
        for what, missing in (
            ("judged queries without results count as failures", joined.no_run),
            ("queries without a relevant document count as failures", joined.no_qrels),
            ("queries without a question are left out", joined.no_question),
            (f"queries find a document of their own id ({what_of_own})", joined.own_document),
        )
        if missing
    )
    rejected = [*found.rejected, *judged.rejected, *bad]
    return Source(Path(run).stem, joined.examples, rejected, cut_files, counts, notes)


def _listed(ids: Sequence[str]) -> str:
    return ", ".join(ids[:5]) + (f" and {len(ids) - 5} more" if len(ids) > 5 else "")


def names_of(paths: Sequence[str]) -> list[str]:
    """File names without ending; with as many directories as tell different files apart."""
    places = [Path(path).resolve() for path in paths]
    files = list(dict.fromkeys(places))
    bare = [place.with_name(Path(place.name.removesuffix(".gz")).stem) for place in files]
    if len(set(bare)) < len(bare):  # one name in several formats
        bare = files
    stems = [path.name for path in bare]
    names = {
        place: stem if stems.count(stem) == 1 else _shortest(path, bare)
        for place, path, stem in zip(files, bare, stems)
    }
    return [names[place] for place in places]


def _shortest(path: Path, others: Sequence[Path]) -> str:
    """The fewest last parts of a path that no other one ends in."""
    for depth in range(2, len(path.parts) + 1):
        end = path.parts[-depth:]
        if sum(other.parts[-depth:] == end for other in others) == 1:
            break
    return "/".join(end).lstrip("/")
