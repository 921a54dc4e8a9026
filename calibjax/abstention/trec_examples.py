"""Abstain examples from a TREC run, its judgements and the questions' texts."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from calibjax.abstention.examples import Example
from calibjax.errors import InputError
from calibjax.reading import fields, textfiles
from calibjax.reading.textfiles import Rejected
from calibjax.retrieval.trec import Qrels, Ranking, Run


class Joined(NamedTuple):
    """Examples, and the queries that count as failures because something is missing.

    no_run: judged but without results (an empty list); no_qrels: results, but no relevant document
    is known. no_question: left out, since their length is not known. own_document: queries whose
    results hold a document of the query's own id, as in sets of duplicate questions.
    """

    examples: list[Example]
    no_run: list[str]
    no_qrels: list[str]
    no_question: list[str]
    own_document: list[str]


def join_run(
    run: Run,
    qrels: Qrels,
    questions: Mapping[str, str] | None = None,
    *,
    k: int = 5,
    exclude_self: bool = False,
) -> Joined:
    """One example per query of the run or the judgements; success: all relevant in the top k.

    exclude_self: a document whose id is the query's own is neither a result nor relevant. Raises
    InputError when run and judgements share no query.
    """
    if not run.rankings.keys() & qrels.relevance.keys():
        shown = [next(iter(part), "none") for part in (run.rankings, qrels.relevance)]
        raise InputError(
            f"run, qrels: no query in common ({len(run.rankings)} and {len(qrels.relevance)}"
            f" queries, such as {shown[0]} and {shown[1]}); fix: files of the same queries"
        )
    joined = Joined([], [], [], [], [])
    for query in dict.fromkeys([*run.rankings, *qrels.relevance]):
        if questions is not None and query not in questions:
            joined.no_question.append(query)
            continue
        ranking = run.rankings.get(query)
        relevant = qrels.relevant(query)
        if ranking is None:
            joined.no_run.append(query)
        elif query in ranking.documents:
            joined.own_document.append(query)
            ranking = _without(ranking, query) if exclude_self else ranking
        if exclude_self:
            relevant.discard(query)
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


def _without(ranking: Ranking, document: str) -> Ranking:
    kept = [pair for pair in zip(*ranking) if pair[0] != document]
    return Ranking([name for name, _ in kept], [score for _, score in kept])


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
