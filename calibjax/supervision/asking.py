"""Asking a model for texts, with what it said kept in a stage's file."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from calibjax.generation.prompts import passage_text
from calibjax.generation.results import Generation
from calibjax.records import Passage
from calibjax.supervision.stages import Request, Stage

# Rough length of a token, for cutting documents where the tokenizer is on a server.
_CHARACTERS_PER_TOKEN = 4


class Model(NamedTuple):
    """A generator (`Sampler`, `OpenAIClient`) with the name that its results are filed under.

    tokenizer: cuts documents to whole tokens; None (a server) cuts by characters.
    """

    generator: Any
    name: str
    tokenizer: Any = None


class Asked(NamedTuple):
    """One prompt and whose it is; temperature 0 is greedy."""

    question_id: str
    passage_id: str
    messages: list[dict[str, Any]]
    temperature: float = 0.0


class Sampling(NamedTuple):
    """What all prompts of a stage are asked with."""

    max_new_tokens: int
    top_k: int | None = None
    top_p: float = 1.0
    num_samples: int = 1
    seed: int = 0


class Reply(NamedTuple):
    """The samples of one prompt; `error` says why a server refused it (then there are none)."""

    texts: list[str]
    error: str = ""


def generate(
    model: Model, stage: Stage, asked: Sequence[Asked], sampling: Sampling
) -> list[Reply]:
    """The model's reply to each prompt; from the stage's file where it has one."""
    settings = sampling._asdict()
    requests = [
        Request(
            one.question_id,
            one.passage_id,
            [model.name, settings, one.temperature, one.messages],
            repr(one.messages),
        )
        for one in asked
    ]

    def ask(numbers: list[int]) -> Iterator[tuple[int, dict[str, Any]]]:
        found = model.generator.generate(
            [asked[number].messages for number in numbers],
            temperature=[asked[number].temperature for number in numbers],
            return_details=True,
            **settings,
        )
        for number, samples in zip(numbers, found):
            yield number, _result(samples)

    rows = stage.run(requests, ask)
    return [Reply(row["texts"], row.get("error", "")) for row in rows]


def cut_document(model: Model, passage: Passage, max_tokens: int) -> tuple[str | list[int], bool]:
    """A passage for a prompt, cut to `max_tokens` before any template sees it; whether it was cut.

    Token ids where the tokenizer is at hand (the forecaster reads the same ids), else text.
    """
    text = passage_text(passage.title, passage.text)
    if model.tokenizer is None:
        room = max_tokens * _CHARACTERS_PER_TOKEN
        return text[:room], len(text) > room
    ids = list(model.tokenizer.encode(text))
    return ids[:max_tokens], len(ids) > max_tokens


def _result(samples: Sequence[Generation]) -> dict[str, Any]:
    refusals = [sample.error for sample in samples if sample.finish_reason == "rejected"]
    if refusals:
        return {"texts": [], "error": refusals[0] or "refused by the server"}
    return {
        "texts": [_storable(sample.text) for sample in samples],
        "finish_reasons": [sample.finish_reason for sample in samples],
        # A server tells no ids; one log-probability per token, if it has them.
        "n_tokens": sum(len(sample.token_ids or sample.log_probs) for sample in samples),
    }


def _storable(text: str) -> str:
    """Half characters (lone surrogates) as the file will hold them: now equals after a resume."""
    return text.strip().encode("utf-8", "replace").decode("utf-8")
