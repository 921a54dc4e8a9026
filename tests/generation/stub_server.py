"""A server on loopback that answers chat completions, or fails, as the prompt's script says."""

import asyncio
import json
import threading
import time
from collections import Counter, defaultdict
from typing import Any

MODEL = "stub"


class StubServer:
    """Speaks HTTP from a thread of its own; use with `with`.

    scripts: prompt text -> what successive calls get (the last entry for ever); "ok" otherwise. An
    entry is a status, (status, headers), or one of the words of `_FAULTS` and `_BODIES`.
    `calls` lists (time, prompt) of completions, `bodies` what was sent, `most_open` how many calls
    were in flight at most. The prompt "Hi" is the client's probe: it is not listed.
    """

    def __init__(self, scripts: dict[str, list[Any]] | None = None, *, delay: float = 0.0) -> None:
        self.scripts = scripts or {}
        self.delay = delay
        self.calls: list[tuple[float, str]] = []
        self.bodies: list[dict[str, Any]] = []
        self.most_open = 0
        self.health_calls = 0
        self.models: Any = {"data": [{"id": MODEL}]}
        self.port = 0
        self._seen: Counter[str] = Counter()
        self._open = 0
        self._writers: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def times(self) -> dict[str, list[float]]:
        """Times of the calls by prompt, seconds."""
        found = defaultdict(list)
        for moment, prompt in self.calls:
            found[prompt].append(moment)
        return found

    def __enter__(self) -> "StubServer":
        self._thread.start()
        self.up()
        return self

    def __exit__(self, *_: object) -> None:
        self.down()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def up(self) -> None:
        """Listens: on a free port the first time, on the same one later."""
        self._server = self._wait(asyncio.start_server(self._serve, "127.0.0.1", self.port))
        self.port = self._server.sockets[0].getsockname()[1]

    def down(self) -> None:
        """Stops listening and drops every connection."""

        async def drop() -> None:
            self._server.close()
            for writer in list(self._writers):
                writer.transport.abort()
            # Every transport must be closed before the loop may be.
            while self._writers:
                await asyncio.sleep(0.005)
            await asyncio.sleep(0.005)

        self._wait(drop())

    def _wait(self, job: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(job, self._loop).result(10)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            while (request := await _read_request(reader)) is not None:
                await self._answer(*request, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _answer(self, path: str, content: bytes, writer: asyncio.StreamWriter) -> None:
        if path == "/health":
            self.health_calls += 1
            return await _send(writer, 200, b"{}")
        if path == "/v1/models":
            step, body = ("ok", {"messages": [{"content": ""}]})
            if isinstance(self.models, dict):
                return await _send(writer, 200, json.dumps(self.models).encode())
            return await self._act(self.models, body, writer)
        body = json.loads(content)
        prompt = body["messages"][-1]["content"]
        if prompt != "Hi":
            self.calls.append((time.monotonic(), prompt))
            self.bodies.append(body)
        script = self.scripts.get(prompt, ["ok"])
        step = script[min(self._seen[prompt], len(script) - 1)]
        self._seen[prompt] += 1
        self._open += 1
        self.most_open = max(self.most_open, self._open)
        try:
            await asyncio.sleep(self.delay)
            await self._act(step, body, writer)
        finally:
            self._open -= 1

    async def _act(self, step: Any, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        if step == "no_log_probs":
            step = 400 if "logprobs" in body else "ok"
        if isinstance(step, int):
            step = (step, {})
        if isinstance(step, tuple):
            status, headers = step
            answer = json.dumps({"error": {"message": f"scripted {status}"}}).encode()
            return await _send(writer, status, answer, headers)
        if step in _FAULTS:
            return await _FAULTS[step](writer)
        await _send(writer, 200, _BODIES[step](completion(body)))


def completion(body: dict[str, Any]) -> dict[str, Any]:
    """An answer that is a function of what was asked."""
    prompt = body["messages"][-1]["content"]
    choices = []
    for n in range(body.get("n", 1)):
        choice = {"message": {"content": f"{prompt} #{n}"}, "finish_reason": "stop"}
        if body.get("logprobs"):
            top = [{"token": "a", "logprob": -0.25}, {"token": "b", "logprob": -2.0}]
            choice["logprobs"] = {"content": [{"logprob": -0.25, "top_logprobs": top}] * 2}
        choices.append(choice)
    return {"choices": choices}


def _changed(answer: dict[str, Any], **changes: Any) -> bytes:
    answer["choices"][0].update(changes)
    return json.dumps(answer).encode()


_BODIES = {
    "ok": lambda answer: json.dumps(answer).encode(),
    "html": lambda answer: b"<html><body>Sign in</body></html>",
    "empty": lambda answer: b"",
    "cut_json": lambda answer: json.dumps(answer).encode()[:-9],
    "no_choices": lambda answer: b'{"choices": []}',
    "list": lambda answer: b"[1, 2]",
    "null": lambda answer: _changed(answer, message={"content": None}),
    "length": lambda answer: _changed(answer, finish_reason="length"),
    "too_few": lambda answer: json.dumps({"choices": answer["choices"][:-1]}).encode(),
}


async def _reset(writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()


async def _silent(writer: asyncio.StreamWriter) -> None:
    while not writer.transport.is_closing():
        await asyncio.sleep(0.01)


async def _drip(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n")
    while not writer.transport.is_closing():
        writer.write(b" ")
        await asyncio.sleep(0.02)


async def _cut_body(writer: asyncio.StreamWriter) -> None:
    writer.write(b'HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n{"choices": [')
    await writer.drain()
    writer.transport.abort()


_FAULTS = {"reset": _reset, "silent": _silent, "drip": _drip, "cut_body": _cut_body}


async def _read_request(reader: asyncio.StreamReader) -> tuple[str, bytes] | None:
    line = await reader.readline()
    if not line:
        return None
    length = 0
    while (header := await reader.readline()) not in (b"\r\n", b""):
        name, _, value = header.decode().partition(":")
        if name.lower() == "content-length":
            length = int(value)
    return line.split()[1].decode(), await reader.readexactly(length)


async def _send(
    writer: asyncio.StreamWriter, status: int, body: bytes, headers: dict[str, str] | None = None
) -> None:
    lines = [f"HTTP/1.1 {status} X", f"Content-Length: {len(body)}"]
    lines += ["Content-Type: application/json"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    writer.write("\r\n".join([*lines, "", ""]).encode() + body)
    await writer.drain()
