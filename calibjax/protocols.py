"""The parts that users may bring: a retriever, a generator, a grader."""

from collections.abc import Sequence
from typing import Any, Protocol

from calibjax.records import Hits, Verdict


class Retriever(Protocol):
    def search(self, queries: Sequence[str], k: int) -> Hits: ...


class Generator(Protocol):
    def generate(
        self,
        prompts: Sequence[Any],
        *,
        max_new_tokens: int,
        temperature: Any = 0.0,
        top_k: int | None = None,
        top_p: float = 1.0,
        num_samples: int = 1,
        stop: Sequence[str] | None = None,
        seed: int = 0,
        return_details: bool = False,
    ) -> Any: ...


class Grader(Protocol):
    def grade(self, question: str, answers: Sequence[str], prediction: str) -> Verdict: ...
