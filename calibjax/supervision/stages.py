"""One JSON-lines file per stage of labelling: what is in it is never asked for again.

A row is known by its key (question, passage, stage) and by a SHA-256 over everything that its
result depends on (prompt, sampling parameters, model). A changed prompt therefore invalidates its
own rows and no others; a kill at any byte costs the row that was being written.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from calibjax import storage
from calibjax.progress import bar
from calibjax.reading import textfiles
from calibjax.training import signals

_KEY = ("question_id", "passage_id", "sha256")
Key = tuple[str, str, str]
Ask = Callable[[list[int]], Iterator[tuple[int, dict[str, Any]]]]


class Request(NamedTuple):
    """Something to ask for: `content` is all that the result depends on, as JSON can hold it.

    prompt: its text, by which requests of like length, and equal ones, are asked for together.
    """

    question_id: str
    passage_id: str
    content: Any
    prompt: str = ""


class Stage:
    """The results of one stage.

    counts: n (rows), n_kept (found on disk), n_asked (new), n_stale (on disk, but made from
    something else: dropped at the end), n_tokens (written by the model). Rows of other questions,
    which a run over fewer of them does not ask for, stay.
    """

    def __init__(self, directory: Path, name: str, *, batch_size: int = 32) -> None:
        self.name = name
        self.path = directory / f"{name}.jsonl"
        self.counts = dict.fromkeys(("n", "n_kept", "n_asked", "n_stale", "n_tokens"), 0)
        self._batch_size = batch_size

    def run(self, requests: Sequence[Request], ask: Ask) -> list[dict[str, Any]]:
        """Results in the order of `requests`.

        ask: given the numbers of some requests, yields (number, result) for each; a result is on
        disk before the next is taken. A signal ends the stage between two batches.
        """
        keys = [self._key(request) for request in requests]
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with storage.JsonlLog(self.path) as log:  # repairs a torn end
            known = self._read()
            missing = [number for number, key in enumerate(keys) if key not in known]
            # Little padding, and one prefill for prompts that differ in temperature alone.
            texts = [request.prompt for request in requests]
            missing.sort(key=lambda number: (-len(texts[number]), texts[number]))
            self.counts |= {"n": len(keys), "n_kept": len(keys) - len(missing)}
            others = _not_of(keys, known)
            self.counts["n_stale"] = len(known.keys() - set(keys)) - len(others)
            with bar(len(keys), self.name) as advance:
                advance(self.counts["n_kept"])
                for start in range(0, len(missing), self._batch_size):
                    signals.check()
                    numbers = missing[start : start + self._batch_size]
                    for number, result in ask(numbers):
                        known[keys[number]] = self._row(keys[number], result)
                        log.append(known[keys[number]])
                        self.counts["n_asked"] += 1
                    advance(len(numbers))
        rows = [known[key] for key in keys]
        self.counts["n_tokens"] = sum(row.get("n_tokens", 0) for row in rows)
        self._compact([*rows, *others])
        return rows

    def _row(self, key: Key, result: dict[str, Any]) -> dict[str, Any]:
        question_id, passage_id, sha = key
        row = {"question_id": question_id, "passage_id": passage_id, "stage": self.name}
        return row | {"sha256": sha, **storage.plain(result)}

    def _key(self, request: Request) -> Key:
        sha = storage.sha256_json([self.name, request.content])
        return request.question_id, request.passage_id, sha

    def _read(self) -> dict[Key, dict[str, Any]]:
        """Rows on disk; a damaged line counts as missing."""
        if self.path.stat().st_size == 0:
            return {}
        rows = textfiles.read_records(self.path, name="stage").rows
        return {
            (row.data["question_id"], row.data["passage_id"], row.data["sha256"]): row.data
            for row in rows
            if all(isinstance(row.data.get(name), str) for name in _KEY)
        }

    def _compact(self, rows: Sequence[dict[str, Any]]) -> None:
        """Leaves these rows, in order: the same bytes after any interruption."""
        text = "".join(storage.to_line(row) + "\n" for row in rows)
        if self.path.read_bytes() != text.encode("utf-8", "replace"):
            storage.write_text(self.path, text)


def _not_of(keys: Sequence[Key], known: dict[Key, dict[str, Any]]) -> list[dict[str, Any]]:
    """Known rows of pairs that are not among the keys at all."""
    pairs = {key[:2] for key in keys}
    return [row for key, row in known.items() if key[:2] not in pairs]
