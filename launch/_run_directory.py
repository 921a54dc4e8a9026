"""The directory of one run: who may write it, what it was made from, how long each stage took."""

import os
import shutil
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from calibjax import storage
from calibjax.errors import InputError, input_error
from calibjax.progress import say
from calibjax.reading import textfiles
from calibjax.training import signals
from launch._run_lock import PREVIOUS, entries_of, locked
from launch._run_record import RECORD, check_own, differs, foreign_entries, new_record, now

REJECTED = "rejected.jsonl"
# What this module and the compilation cache put into a directory.
_OWN = {RECORD, REJECTED, ".cache"}


class RunDirectory:
    """An open run directory: `path`, and `resumed` if an earlier run is being continued."""

    def __init__(self, path: Path, record: dict[str, Any], resumed: bool, strict: bool) -> None:
        self.path = path
        self.resumed = resumed
        self.n_rejected = 0
        self._record = record
        self._strict = strict
        self._cut_files: list[str] = []
        self._rejected_rows: list[Any] = []

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Measures a stage (seconds in run.json); a pending signal stops the run at its ends."""
        signals.check()
        start = time.monotonic()
        try:
            yield
        finally:
            seconds = self._record["seconds"]
            seconds[name] = round(seconds.get(name, 0.0) + time.monotonic() - start, 3)
        self._say(f"{name}: {seconds[name]:.1f} s")
        self._save()
        signals.check()

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds per stage of this attempt so far."""
        return dict(self._record["seconds"])

    @property
    def cut_notes(self) -> list[str]:
        """A line for the report on every input file that ends early."""
        return [
            f"{file} is cut short: its whole rows are here, those after them are not."
            for file in self._cut_files
        ]

    def reject(self, rejected: Sequence[textfiles.Rejected], *, cut: str | None = None) -> None:
        """Sets bad rows aside in rejected.jsonl; with --strict the first one ends the run.

        cut: the name of an input file that ends early; the run works on, then ends with exit 2.
        """
        if rejected and self._strict:
            row = rejected[0]
            fix = "mend the row, or drop --strict"
            raise InputError(f"{row.file}:{row.line}: {row.reason}; fix: {fix}")
        if cut:
            self._cut_files.append(cut)
        self.n_rejected += len(rejected)
        if rejected:
            self._rejected_rows += textfiles.quoted(rejected)
            storage.write_jsonl(self.path / REJECTED, self._rejected_rows)
            row = rejected[0]
            first = f"the first {row.file}:{row.line}: {row.reason}"
            say(f"{len(rejected)} rows set aside, {first}; all will be in {self.path / REJECTED}")

    def check_same(self, name: str, value: Any) -> None:
        """Notes what the run depends on; a resumed run must find the same value."""
        value = storage.plain(value)
        known = self._record["depends_on"]
        if name in known and known[name] != value:
            raise differs(name, value, known[name], self.path)
        known[name] = value
        self._save()

    def note(self, **facts: Any) -> None:
        """Puts facts into run.json."""
        self._record.update(storage.plain(facts))
        self._save()

    def noted(self, name: str, default: Any) -> Any:
        """A fact that this attempt or an earlier one put into run.json by `note`."""
        return self._record.get(name, default)

    def _say(self, text: str) -> None:
        say(text)

    def _save(self) -> None:
        storage.write_json(self.path / RECORD, self._record)

    def _finish(self, status: str) -> None:
        if status == "done":
            self._record["files"] = sorted({*entries_of(self.path)} - {*self._record["foreign"]})
        self._record["attempts"][-1] |= {"status": status, "finished": now()}
        self._save()


class Follower(RunDirectory):
    """The run directory as the other processes of a run see it: process 0 alone writes."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, {"seconds": {}, "depends_on": {}}, resumed=False, strict=False)

    def reject(self, rejected: Sequence[textfiles.Rejected], *, cut: str | None = None) -> None:
        """Process 0 says what was wrong with the rows."""

    def _say(self, text: str) -> None:
        pass

    def _save(self) -> None:
        pass


@contextmanager
def open_run(
    out: str | None,
    *,
    seed: int,
    command: Sequence[str],
    depends_on: Mapping[str, Any],
    resume: bool = False,
    overwrite: bool = False,
    strict: bool = False,
) -> Iterator[RunDirectory]:
    """Opens `out` for one command; see `launch._main.open_out`."""
    if not out:
        raise input_error("out", "", "a directory", "--out=runs/NAME")
    if resume and overwrite:
        raise input_error("overwrite", "true", "not both --resume and --overwrite", "drop one")
    path = Path(out)
    with locked(path, may_hold_files=resume or overwrite):
        for left in path.glob(".*.tmp"):  # by a writer that was killed; now the lock is ours
            if left.is_file():
                left.unlink()
        if overwrite:
            check_own(path)
            _set_previous_aside(path)
        resumed = resume and bool(entries_of(path))
        record = new_record(path, seed, command, depends_on, resumed)
        run = RunDirectory(path, record, resumed, strict)
        run._save()
        try:
            yield run
            if run._cut_files:
                file = run._cut_files[0]
                raise InputError(f"{file}: cut short, its whole rows were used; fix: copy it again")
        except BaseException as error:
            run._finish(f"stopped: {type(error).__name__}")
            if isinstance(error, InputError) and not resumed:
                _undo(path, record["foreign"])
            raise
        run._finish("done")
        shutil.rmtree(path / PREVIOUS, ignore_errors=True)


def _undo(path: Path, foreign: Collection[str]) -> None:
    """Leaves no trace of a run that was refused before it had written anything of its own."""
    entries = set(entries_of(path)) - set(foreign)
    if not entries <= _OWN:
        return
    for entry in entries:
        _remove(path / entry)
    previous = path / PREVIOUS
    if previous.exists():
        for entry in os.listdir(previous):
            os.replace(previous / entry, path / entry)
        previous.rmdir()


def _set_previous_aside(path: Path) -> None:
    """Moves the last finished run to .previous; an unfinished one after it is dropped.

    Files that no run has written stay where they are.
    """
    entries = entries_of(path)
    if RECORD not in entries:
        return
    foreign = foreign_entries(path)
    entries = [entry for entry in entries if entry not in foreign]
    previous = path / PREVIOUS
    if previous.exists():
        for entry in entries:
            _remove(path / entry)
        return
    aside = path / f"{PREVIOUS}.tmp"
    aside.mkdir(exist_ok=True)
    # The record moves last: a kill on the way leaves a directory that the next try completes.
    for entry in sorted(entries, key=lambda entry: entry == RECORD):
        os.replace(path / entry, aside / entry)
    os.replace(aside, previous)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()
