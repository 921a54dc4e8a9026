"""Abstain examples from a TREC run, its judgements and the questions' texts."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from calibjax import fields, textfiles
from calibjax.abstention.examples import Example
from calibjax.errors import InputError
from calibjax.retrieval.trec import Qrels, Run
from calibjax.textfiles import Rejected


class Joined(NamedTuple):
    """Examples, and the queries that count as failures because something is missing.

    no_run: judged but without results (an empty list); no_qrels: results, but no relevant document
    is known. no_question: left out, since their length is not known.
    """

    examples: list[Example]
    no_run: list[str]
    no_qrels: list[str]
    no_question: list[str]


def join_run(
    run: Run, qrels: Qrels, questions: Mapping[str, str] | None = None, *, k: int = 5
) -> Joined:
    """One example per query of the run or the judgements; success: all relevant in the top k.

    Raises InputError when run and judgements share no query.
    """
    if not run.rankings.keys() & qrels.relevance.keys():
        shown = [next(iter(part), "none") for part in (run.rankings, qrels.relevance)]
        raise InputError(
            f"run, qrels: no query in common ({len(run.rankings)} and {len(qrels.relevance)}"
            f" queries, such as {shown[0]} and {shown[1]}); fix: files of the same queries"
        )
    joined = Joined([], [], [], [])
    for query in dict.fromkeys([*run.rankings, *qrels.relevance]):
        if questions is not None and query not in questions:
            joined.no_question.append(query)
            continue
        ranking = run.rankings.get(query)
        relevant = qrels.relevant(query)
        if ranking is None:
            joined.no_run.append(query)
        if not relevant:
            joined.no_qrels.append(query)
        top = set(ranking.documents[:k]) if ranking else set()
        joined.examples.append(
            Example(
                id=query,
                hop1_scores=tuple(ranking.scores) if ranking else (),
                success=float(bool(relevant) and relevant <= top),
                question=None if questions is None else questions[query],
            )
        )
    if not joined.examples:
        raise InputError(
            f"questions: none of the {len(joined.no_question)} queries of the run has a text;"
            " fix: a file with their ids"
        )
    return joined


def read_questions(
    path: str | Path, *, name: str = "questions"
) -> tuple[dict[str, str], list[Rejected], bool]:
    """Texts by query id (`id` or BEIR's `_id`; `question` or `text`), rejected rows, truncated."""
    rename = {"_id": "id", "text": "question", "query": "question"}
    records = textfiles.read_records(path, required=("id", "question"), rename=rename, name=name)
    parsed = textfiles.parse_rows(
        records, lambda row: (fields.identifier(row, "id"), fields.text(row, "question"))
    )
    textfiles.check_kept(parsed, path, name)
    return dict(parsed.rows), parsed.rejected, records.truncated
