"""Stages 1 to 3: retrieve, score and rerank, reformulate once (CalibRAG, section 3.4)."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from jax.typing import ArrayLike

from calibjax.forecaster import Forecaster
from calibjax.generation.prompts import rewrite_messages
from calibjax.protocols import Generator, Retriever
from calibjax.records import Passage

# Shown to the models when a query finds nothing: the question is then answered without a passage.
NO_PASSAGE = Passage(id="", title="", text="")

_REWRITE_TOKENS = 64
_CONTROL = re.compile(r"[\x00-\x1f\x7f]+")


@dataclass(frozen=True, slots=True)
class Candidates:
    """K documents of each query, best first, with all that a forecast needs to know of them.

    retriever_scores and features are NaN past the end of shorter lists: [n, K], [n, K, D].
    """

    queries: list[str]
    documents: list[list[Passage]]
    retriever_scores: np.ndarray
    features: np.ndarray


@dataclass(frozen=True, slots=True)
class Selection:
    """The document chosen for one question, and how.

    confidence: f of the chosen document; retriever_score: NaN when nothing was found. triggered:
    the first round was under epsilon and was reformulated; round: which of the two won (1 or 2).
    """

    query: str
    round: int
    triggered: bool
    document: Passage
    confidence: float
    retriever_score: float


def retrieve(
    queries: Sequence[str], retriever: Retriever, passages: Mapping[str, Passage], k: int
) -> tuple[list[list[Passage]], np.ndarray]:
    """Stage 1: the top k of each query (`NO_PASSAGE` alone if there is none), scores [n, k]."""
    hits = retriever.search(list(queries), k)
    documents = [
        [passages[key] for key, valid in zip(ids, found) if valid] or [NO_PASSAGE]
        for ids, found in zip(hits.ids, hits.valid)
    ]
    return documents, np.where(hits.valid, hits.scores, np.nan)


class Selector:
    """Chooses a document for each question; what the decoder computed is kept and asked again.

    passages: by id; k: documents retrieved per query. Stage 3 is triggered where the best forecast
    is below `epsilon` (strictly); `epsilon=0` never triggers.
    """

    def __init__(
        self,
        queries: Sequence[str],
        *,
        retriever: Retriever,
        passages: Mapping[str, Passage],
        forecaster: Forecaster,
        reader: Generator,
        k: int = 20,
        epsilon: float = 0.5,
    ) -> None:
        self.forecaster = forecaster
        self._retriever, self._passages, self._reader = retriever, passages, reader
        self._k, self._epsilon = k, epsilon
        self._first = self._gather(queries)
        self._second: dict[int, Candidates | None] = {}

    def choose(
        self,
        temperatures: ArrayLike | None = None,
        *,
        numbers: Sequence[int] | None = None,
        rerank: bool = True,
        stage3: bool = True,
    ) -> list[Selection]:
        """One selection per question, or of those with these `numbers` alone.

        temperatures: None ranks by the marginal forecast, a number by the forecast at it.
        rerank=False keeps the retriever's best document and states the forecast of it; no other
        query is then tried.
        """
        of_all = select(self._first, self.forecaster, temperatures, rerank=rerank)
        chosen = dict(enumerate(of_all)) if numbers is None else {n: of_all[n] for n in numbers}
        if not (rerank and stage3):
            return list(chosen.values())
        triggered = [n for n, one in chosen.items() if one.confidence < self._epsilon]
        self._reformulate(triggered)
        for n in triggered:
            candidates = self._second[n]
            if candidates is not None:
                [two] = select(candidates, self.forecaster, temperatures)
                chosen[n] = better_round(chosen[n], two)
        return list(chosen.values())

    def _gather(self, queries: Sequence[str]) -> Candidates:
        documents, scores = retrieve(queries, self._retriever, self._passages, self._k)
        features = self.forecaster.features(queries, documents)
        return Candidates(list(queries), documents, scores, features)

    def _reformulate(self, numbers: Sequence[int]) -> None:
        """Second-round candidates of these questions; None where the rewrite says nothing new."""
        missing = [n for n in numbers if n not in self._second]
        if not missing:
            return
        lines = rewrite([self._first.queries[n] for n in missing], self._reader)
        told = [n for n, line in zip(missing, lines) if line]
        self._second.update(dict.fromkeys(missing))
        if told:
            gathered = self._gather([line for line in lines if line])
            self._second.update(zip(told, one_by_one(gathered)))


def select(
    candidates: Candidates,
    forecaster: Forecaster,
    temperatures: ArrayLike | None = None,
    *,
    rerank: bool = True,
) -> list[Selection]:
    """Stage 2: the document with the highest forecast; on ties, or without rerank, the first."""
    forecast_NK = forecaster.score_features(candidates.features, temperatures)
    selections = []
    for n, documents in enumerate(candidates.documents):
        best = int(np.nanargmax(forecast_NK[n])) if rerank else 0
        selections.append(
            Selection(
                query=candidates.queries[n],
                round=1,
                triggered=False,
                document=documents[best],
                confidence=float(forecast_NK[n, best]),
                retriever_score=float(candidates.retriever_scores[n, best]),
            )
        )
    return selections


def rewrite(queries: Sequence[str], reader: Generator) -> list[str]:
    """Stage 3's new wording, one line each; "" where the reader says nothing new."""
    prompts = [rewrite_messages(query) for query in queries]
    texts = reader.generate(prompts, max_new_tokens=_REWRITE_TOKENS, temperature=0.0, stop=["\n"])
    lines = [_CONTROL.sub(" ", samples[0]).strip().strip('"') for samples in texts]
    return [
        "" if line.casefold() == query.casefold() else line for line, query in zip(lines, queries)
    ]


def better_round(one: Selection, two: Selection) -> Selection:
    """Stage 3's outcome: the round with the higher forecast, the first on ties."""
    if two.confidence > one.confidence:
        return replace(two, round=2, triggered=True)
    return replace(one, triggered=True)


def one_by_one(candidates: Candidates) -> Iterator[Candidates]:
    """The candidates of each query apart."""
    for n, query in enumerate(candidates.queries):
        yield Candidates(
            [query],
            [candidates.documents[n]],
            candidates.retriever_scores[n : n + 1],
            candidates.features[n : n + 1],
        )
