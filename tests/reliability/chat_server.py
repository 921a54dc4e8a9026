"""An OpenAI-compatible server on loopback whose answers are a function of the prompt.

It counts every call, knows which answers it has given, and can fail in all the ways servers do.
"""

import hashlib
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

MODEL = "stub"
FAULTS = ("500", "429", "html", "cut body", "dropped", "no choices")


class ChatServer(ThreadingHTTPServer):
    """fault_share of the calls fail at first, chosen by the prompt; a repeated call passes.

    key: what callers must show; None lets everybody in.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(
        self, *, fault_share: float = 0.0, delay: float = 0.0, key: str | None = None
    ) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.fault_share, self.delay, self.key = fault_share, delay, key
        self.lock = threading.Lock()
        self.calls: list[str] = []  # names of the prompts, in order of arrival
        self.faults: dict[str, int] = {}
        self._failed: set[str] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A killed client breaks its connections; that is no error of the server."""

    def fault_of(self, name: str) -> str | None:
        """The fault of a prompt's first call, if it has one."""
        draw = int(name[:8], 16) / 2**32
        with self.lock:
            self.calls.append(name)
            if draw >= self.fault_share or name in self._failed:
                return None
            self._failed.add(name)
            fault = FAULTS[int(name[8:12], 16) % len(FAULTS)]
            self.faults[fault] = self.faults.get(fault, 0) + 1
            return fault


@contextmanager
def serving(**options: Any) -> Iterator[ChatServer]:
    """A running server, stopped at the end."""
    server = ChatServer(**options)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def name_of(body: dict[str, Any]) -> str:
    """Names a call by all that its answer may depend on."""
    kept = {key: body.get(key) for key in ("messages", "temperature", "n", "max_tokens", "top_k")}
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()


def answer(name: str, sample: int) -> str:
    """The text of one sample: the beginning names the prompt, the end is right now and then."""
    digest = hashlib.sha256(f"{name} {sample}".encode()).hexdigest()
    return f"{name[:16]} land {int(digest[:2], 16) % 4}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: ChatServer

    def log_message(self, *arguments: Any) -> None:
        """Silent."""

    def do_GET(self) -> None:
        self._send(200, {"object": "list", "data": [{"id": MODEL, "object": "model"}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.server.key and self.headers["Authorization"] != f"Bearer {self.server.key}":
            self._send(401, {"error": {"message": "no such key"}})
            return
        if body["max_tokens"] == 1:  # the probe before the work
            self._send(200, _completion(["x"]))
            return
        name = name_of(body)
        fault = self.server.fault_of(name)
        time.sleep(self.server.delay)
        if fault:
            self._fail(fault)
        else:
            self._send(200, _completion([answer(name, n) for n in range(body.get("n") or 1)]))

    def _fail(self, fault: str) -> None:
        if fault in ("500", "429"):
            self._send(int(fault), {"error": {"message": "not now"}})
        elif fault == "no choices":
            self._send(200, {"choices": []})
        elif fault == "html":
            self._raw(b"<html>back soon</html>", 22)
        elif fault == "cut body":
            self._raw(b'{"choices": [', 500)
        self.close_connection = True

    def _send(self, status: int, value: Any) -> None:
        data = json.dumps(value).encode()
        self._raw(data, len(data), status)

    def _raw(self, data: bytes, length: int, status: int = 200) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(length))
        self.end_headers()
        self.wfile.write(data)


def _completion(texts: list[str]) -> dict[str, Any]:
    choices = [
        {
            "index": index,
            "message": {"role": "assistant", "content": text},
            "finish_reason": "stop",
        }
        for index, text in enumerate(texts)
    ]
    about = {"id": "x", "object": "chat.completion", "created": 0, "model": MODEL}
    return {**about, "choices": choices}
