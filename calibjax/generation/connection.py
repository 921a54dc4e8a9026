"""HTTP to one OpenAI-compatible server: what its answers mean for a row and for the job."""

import asyncio
import json
import urllib.parse
from collections.abc import Awaitable, Callable
from typing import Any

from calibjax.errors import InputError, input_error
from calibjax.generation.retry import Refused, Retryable, RetryPolicy, seconds_to_wait

# What a server says of the job as a whole; any other 4xx is about one row.
_STOP = {401: "a key that it takes", 403: "a key with access", 404: "a path and model it serves"}
_RETRY = (408, 409, 429)


class Connection:
    """An open connection pool; use with `async with`. The library's own retries are off."""

    def __init__(self, base_url: str, model: str, api_key: str, policy: RetryPolicy) -> None:
        import openai

        self._base_url = base_url
        self._model = model
        self._policy = policy
        self._library = openai.AsyncOpenAI(
            base_url=base_url, api_key=api_key, max_retries=0, timeout=policy.timeout
        )

    async def __aenter__(self) -> "Connection":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._library.close()

    async def complete(self, body: dict[str, Any]) -> bytes:
        """The answer to a chat completion. Raises Retryable, Refused or InputError."""

        async def send() -> bytes:
            create: Any = self._library.chat.completions.with_raw_response.create
            return (await create(**body)).content

        return await self._translated(send)

    async def models(self) -> tuple[str, ...]:
        """Names of the models served; () where the server does not list them."""

        async def send() -> bytes:
            return (await self._library.models.with_raw_response.list()).content

        try:
            listing = json.loads(await self._translated(send))
            return tuple(str(model["id"]) for model in listing["data"])
        except InputError as error:
            if "status 404" not in str(error):
                raise
        except (Refused, ValueError, KeyError, TypeError):
            pass
        return ()

    async def is_alive(self) -> bool:
        """Whether the server answers /health at all; one without that path says 404."""
        import openai

        parts = urllib.parse.urlsplit(self._base_url)
        url = f"{parts.scheme}://{parts.netloc}/health"
        try:
            async with asyncio.timeout(self._policy.probe_every):
                await self._library.get(url, cast_to=object)
        except openai.APIStatusError as error:
            return error.status_code < 500
        except (openai.APIConnectionError, TimeoutError):
            return False
        except ValueError:  # a body that is not JSON: the server is there
            pass
        return True

    async def _translated(self, send: Callable[[], Awaitable[bytes]]) -> bytes:
        """The body that `send` gets; its errors as Retryable, Refused or InputError."""
        import openai

        try:
            # The library's own limit is for a pause between bytes; this one is for the whole call.
            async with asyncio.timeout(self._policy.timeout):
                return await send()
        except openai.APIStatusError as error:
            raise self._meaning(error) from error
        except TimeoutError as error:
            raise Retryable(f"no answer within {self._policy.timeout:g} s") from error
        except openai.APIConnectionError as error:
            cause = error.__cause__ or error
            raise Retryable(f"{type(cause).__name__}: {_one_line(str(cause))}") from error

    def _meaning(self, error: Any) -> Exception:
        status, answer = error.status_code, _one_line(error.response.text)
        if status in _STOP:
            return input_error(
                "server",
                f"{self._base_url} (model {self._model})",
                f"{_STOP[status]}, not status {status} ({answer})",
                "check the url, the key and the name of the model",
            )
        if status in _RETRY or status >= 500:
            after = seconds_to_wait(error.response.headers.get("retry-after"))
            return Retryable(f"status {status} ({answer})", after)
        return Refused(f"status {status} ({answer})")


def _one_line(text: str) -> str:
    return " ".join(text.split())[:200]
