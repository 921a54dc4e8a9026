"""A small world for pipeline tests: passages, questions, a tiny decoder and a forecaster on it."""

import jax

from calibjax.forecaster import Forecaster
from calibjax.records import Passage, Question
from calibjax.retrieval import BM25Retriever
from tests.tiny import tiny_decoder

PASSAGES = [
    Passage("a", "Alder", "The alder grows by rivers."),
    Passage("b", "Birch", "The birch has white bark."),
    Passage("c", "Cedar", "The cedar grows on hills by the sea."),
]
QUESTIONS = [
    Question("q1", "Which tree has white bark?", ("birch",), gold_ids=("b",)),
    Question("q2", "Which tree grows by rivers?", ("alder",), gold_ids=("a",)),
    Question("q3", "Xyzzy?", ("nothing",)),
]
QUERIES = ["white bark", "grows by", "xyzzy"]


def retriever() -> BM25Retriever:
    return BM25Retriever(PASSAGES)


def forecaster(method: str = "calibrag") -> Forecaster:
    """Untrained: what it says is arbitrary, but a function of its input."""
    return Forecaster(tiny_decoder(), "fixed", key=jax.random.key(1), method=method)


class Scripted:
    """A generator whose reply is a function of the last message; counts its prompts."""

    name = "scripted"

    def __init__(self, reply) -> None:
        self.reply = reply
        self.prompts: list[list[dict]] = []

    def generate(self, prompts, *, num_samples=1, return_details=False, **settings):
        from calibjax.generation.results import Generation

        self.prompts += prompts
        texts = [[self.reply(prompt)] * num_samples for prompt in prompts]
        if not return_details:
            return texts
        return [[Generation(t, [], [], [], "stop") for t in samples] for samples in texts]


def text_of(prompt: list[dict]) -> str:
    """All that a prompt says."""
    parts = (message["content"] for message in prompt)
    return "\n".join(part if isinstance(part, str) else "".join(map(str, part)) for part in parts)
