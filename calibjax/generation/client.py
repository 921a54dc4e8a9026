"""Text generation by an OpenAI-compatible server (vLLM and the like)."""

import asyncio
import json
import logging
import os
import urllib.parse
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

from calibjax.backbone.tokenizer import Prompt
from calibjax.errors import InputError, closest, input_error
from calibjax.generation.connection import Connection
from calibjax.generation.names import content_names
from calibjax.generation.requests import Request
from calibjax.generation.responses import parse_body, samples_of
from calibjax.generation.results import Generation
from calibjax.generation.retry import Line, Refused, Retryable, RetryPolicy
from calibjax.generation.spending import Spending
from calibjax.training import signals

_log = logging.getLogger(__name__)

_Result = TypeVar("_Result")

_PROBE_CALLS = 3
_TOP_LOG_PROBS = 20
_SIGNAL_SECONDS = 0.2


class ServerInfo(NamedTuple):
    """What the probe found: names of the models served (empty: not told), log-prob support."""

    models: tuple[str, ...]
    log_probs: bool


class OpenAIClient:
    """The `generate` of `Sampler` over HTTP, with a retry policy of its own.

    base_url: such as http://localhost:8000/v1; concurrency: calls in flight at most; spending:
    counts the calls (not those of the probe) and may limit them. The server
    tokenises and applies its chat template. Samples are as reproducible as the server makes them,
    at temperature 0 too; a server's own default truncation applies where top_k is None.
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        api_key: str | None = None,
        concurrency: int = 32,
        policy: RetryPolicy = RetryPolicy(),
        spending: Spending | None = None,
    ) -> None:
        self.base_url = _checked_url(base_url)
        self.model = model
        if concurrency < 1:
            raise input_error("concurrency", concurrency, "an integer >= 1")
        self._api_key = api_key or os.environ.get("OPENAI_API_KEY") or "unused"
        self._concurrency = concurrency
        self._policy = policy
        self.spending = spending or Spending()
        self._info: ServerInfo | None = None

    def probe(self) -> ServerInfo:
        """Checks url, key, model and log-prob support with one-token calls, once.

        Raises InputError saying what was tried and what the server answered.
        """
        if self._info is None:
            self._info = _run(self._probe())
        return self._info

    def generate(
        self,
        prompts: Sequence[Prompt],
        *,
        max_new_tokens: int,
        temperature: float | Sequence[float] = 0.0,
        top_k: int | None = None,
        top_p: float = 1.0,
        num_samples: int = 1,
        stop: Sequence[str] | None = None,
        seed: int = 0,
        return_details: bool = False,
    ) -> Any:
        """As `Sampler.generate`; token ids are not known, entropies come from the top 20 tokens.

        A prompt that the server refuses, or fails on to the last retry, gives samples with
        finish_reason "rejected", the reason in `error` and an empty text. Raises InputError when
        the server refuses the job (401, 403, 404), ServerLost when it stays away, BudgetSpent
        before a batch that `spending` has no room for.
        """
        request = Request.checked(
            len(prompts), max_new_tokens, temperature, top_k, top_p, num_samples, stop, seed
        )
        info = self.probe()
        chats = [_chat(prompt) for prompt in prompts]
        bodies = self._bodies(chats, request, return_details and info.log_probs)
        self.spending.begin(len(bodies))
        found = _run(self._complete_all(bodies))
        # Greedy samples are all the same, and some servers refuse to send more than one.
        results = [samples * (num_samples // len(samples)) for samples in found]
        rejected = sum(samples[0].finish_reason == "rejected" for samples in results)
        if rejected:
            _log.warning("server=%s: %d prompts rejected", self.base_url, rejected)
        if return_details:
            return results
        return [[sample.text for sample in samples] for samples in results]

    def _bodies(
        self, chats: list[list[dict[str, str]]], request: Request, log_probs: bool
    ) -> list[dict[str, Any]]:
        contents = [
            json.dumps([request.seed, t, chat]).encode()
            for chat, t in zip(chats, request.temperatures)
        ]
        shared: dict[str, Any] = {"model": self.model, "max_tokens": request.max_new_tokens}
        if request.top_p < 1.0:
            shared["top_p"] = request.top_p
        if request.top_k is not None:
            shared["extra_body"] = {"top_k": request.top_k}
        if request.stop:
            shared["stop"] = list(request.stop)
        if log_probs:
            shared.update(logprobs=True, top_logprobs=_TOP_LOG_PROBS)
        return [
            {
                **shared,
                "messages": chat,
                "temperature": t,
                "n": request.num_samples if t > 0.0 else 1,
                "seed": int(name[0]) >> 1,
            }
            for chat, t, name in zip(chats, request.temperatures, content_names(contents))
        ]

    async def _complete_all(self, bodies: list[dict[str, Any]]) -> list[list[Generation]]:
        """The samples of every body; at most `concurrency` calls are open at a time."""
        results: list[list[Generation]] = [[] for _ in bodies]
        places = iter(range(len(bodies)))
        async with self._connect() as connection:
            line = Line(self.base_url, self._policy, connection.is_alive)

            async def work() -> None:
                for place in places:
                    results[place] = await self._complete(connection, line, bodies[place])

            await _all_or_none([work() for _ in range(min(self._concurrency, len(bodies)))])
        return results

    async def _complete(
        self, connection: Connection, line: Line, body: dict[str, Any]
    ) -> list[Generation]:
        async def once() -> list[Generation]:
            self.spending.call()
            answer = parse_body(await connection.complete(body))
            self.spending.add(answer.get("usage"))
            return samples_of(answer, body["n"])

        try:
            return await line.call(once)
        except Refused as error:
            return [Generation("", finish_reason="rejected", error=str(error))] * body["n"]

    async def _probe(self) -> ServerInfo:
        body: dict[str, Any] = {
            "model": self.model,
            "messages": [{"role": "user", "content": "Hi"}],
            "max_tokens": 1,
        }
        asking = {**body, "logprobs": True, "top_logprobs": _TOP_LOG_PROBS}
        async with self._connect() as connection:
            try:
                models = await connection.models()
                self._check_model(models)
                try:
                    samples = await self._try(connection, asking)
                except (Refused, Retryable):  # some servers answer 500 to what they do not know
                    samples = await self._try(connection, body)
            except (Refused, Retryable) as error:
                expected = f"a server that completes chats ({error})"
                fix = "check that it runs, and its url"
                raise input_error("server", self.base_url, expected, fix) from error
        return ServerInfo(models, bool(samples[0].log_probs))

    def _check_model(self, models: Sequence[str]) -> None:
        if models and self.model not in models:
            near = closest(self.model, models)
            fix = f"did you mean {near}" if near else None
            raise input_error("model", self.model, f"one of {', '.join(models)}", fix)

    async def _try(self, connection: Connection, body: dict[str, Any]) -> list[Generation]:
        for attempt in range(_PROBE_CALLS):
            try:
                return samples_of(parse_body(await connection.complete(body)), 1)
            except Retryable:
                if attempt == _PROBE_CALLS - 1:
                    raise
                await asyncio.sleep(self._policy.base * 2**attempt)
        raise AssertionError("the last attempt returns or raises")

    def _connect(self) -> Connection:
        return Connection(self.base_url, self.model, self._api_key, self._policy)


async def _all_or_none(workers: list[Coroutine[Any, Any, None]]) -> None:
    """Waits for all workers; the first that raises, or a signal, ends the others."""
    tasks = [asyncio.ensure_future(worker) for worker in workers]
    pending = set(tasks)
    try:
        while pending:
            done, pending = await asyncio.wait(
                pending, timeout=_SIGNAL_SECONDS, return_when=asyncio.FIRST_EXCEPTION
            )
            signals.check()
            for task in done:
                task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _run(job: Coroutine[Any, Any, _Result]) -> _Result:
    """Runs a coroutine to its end; in a thread where a loop runs already (a notebook)."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(job)
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, job).result()


def _checked_url(url: str) -> str:
    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        fix = None if "://" in url else f"http://{url}"
        raise input_error("server", url, "a url that starts with http:// or https://", fix)
    return url.rstrip("/") if parts.path.strip("/") else f"{url.rstrip('/')}/v1"


def _chat(prompt: Prompt) -> list[dict[str, str]]:
    """The prompt as messages of plain text. Raises InputError for token ids."""
    if isinstance(prompt, str):
        return [{"role": "user", "content": prompt}]
    return [{"role": str(_as_message(m).get("role")), "content": _text(m)} for m in prompt]


def _as_message(message: Any) -> Mapping[str, Any]:
    if not isinstance(message, Mapping):
        raise _needs_text("prompt", message)
    return message


def _text(message: Any) -> str:
    content = message.get("content")
    parts = [content] if isinstance(content, str) else content
    if not isinstance(parts, list | tuple) or not all(isinstance(part, str) for part in parts):
        raise _needs_text("content", content)
    return "".join(parts)


def _needs_text(name: str, value: object) -> InputError:
    return input_error(name, repr(value)[:60], "texts, for a server tokenises by itself")
