"""Answers every question without evidence and with it.

Entropies and probabilities are those of the very answer that is graded. Every answer is kept in a
stage file; what is there is not asked for again.
"""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from calibjax.generation import prompts
from calibjax.records import Passage, Question
from calibjax.routing.probes import Probe
from calibjax.supervision.asking import Model, cut_document
from calibjax.supervision.stages import Request, Stage

ARMS = ("without", "with")
# An answer ends with its line.
_STOP = ("\n",)


class Settings(NamedTuple):
    """passages: given as evidence.

    temperature 0 is greedy. repeat: ask both arms a second time, as a control of how much harm is
    noise. Passages longer than max_document_tokens are cut.
    """

    passages: int = 3
    max_new_tokens: int = 32
    max_document_tokens: int = 256
    temperature: float = 0.0
    repeat: bool = False
    batch_size: int = 32
    seed: int = 0


class Answerer:
    """The reader of both arms; its stage files lie in `directory`."""

    def __init__(self, reader: Model, directory: Path, settings: Settings) -> None:
        self.reader, self.settings = reader, settings
        names = ARMS if not settings.repeat else (*ARMS, *(f"{arm}_repeat" for arm in ARMS))
        self.stages = {
            name: Stage(directory, name, batch_size=settings.batch_size) for name in names
        }

    def answer(
        self, questions: Sequence[Question], probes: Sequence[Probe]
    ) -> dict[str, list[dict[str, Any]]]:
        """Stage -> one row a question: text, tokens, log-probabilities, entropies, seconds."""
        evidence = [
            [self._cut(passage) for passage in probe.passages[: self.settings.passages]]
            for probe in probes
        ]
        bare: list[list[Any]] = [[] for _ in questions]
        return {
            name: self._ask(stage, questions, bare if name.startswith("without") else evidence)
            for name, stage in self.stages.items()
        }

    def _cut(self, passage: Passage) -> str | list[int]:
        return cut_document(self.reader, passage, self.settings.max_document_tokens)[0]

    def _ask(
        self, stage: Stage, questions: Sequence[Question], evidence: Sequence[list[Any]]
    ) -> list[dict[str, Any]]:
        messages = [
            prompts.answer_messages(question.question, documents, options=question.options)
            for question, documents in zip(questions, evidence, strict=True)
        ]
        # A repeat must be another draw: greedy answers come out alike, sampled ones do not.
        seed = self.settings.seed + stage.name.endswith("_repeat")
        sampling: dict[str, Any] = {
            "max_new_tokens": self.settings.max_new_tokens,
            "temperature": self.settings.temperature,
            "seed": seed,
            "stop": list(_STOP),
        }
        requests = [
            Request(question.id, "", [self.reader.name, sampling, message])
            for question, message in zip(questions, messages)
        ]

        def ask(numbers: list[int]) -> Iterator[tuple[int, dict[str, Any]]]:
            batch = [messages[number] for number in numbers]
            start = time.monotonic()
            found = self.reader.generator.generate(batch, return_details=True, **sampling)
            seconds = (time.monotonic() - start) / len(batch)
            for number, samples in zip(numbers, found):
                yield number, self._result(messages[number], samples[0], seconds)

        return stage.run(requests, ask)

    def _result(self, message: Any, sample: Any, seconds: float) -> dict[str, Any]:
        if sample.finish_reason == "rejected":
            return {"text": "", "error": sample.error or "refused by the server"}
        tokenizer = self.reader.tokenizer
        return {
            "text": sample.text.strip().encode("utf-8", "replace").decode("utf-8"),
            "finish_reason": sample.finish_reason,
            "n_prompt_tokens": None if tokenizer is None else len(tokenizer.encode_prompt(message)),
            "n_tokens": len(sample.token_ids or sample.log_probs),
            "log_probs": list(sample.log_probs),
            "entropies": list(sample.entropies),
            "approximate": sample.approximate,
            "seconds": seconds,
        }
