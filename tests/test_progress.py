"""Progress: all items pass through; lines are rare off a terminal; a lost stderr stops nothing."""

import io
import sys

import pytest

from calibjax import progress


@pytest.fixture
def clock(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def test_items_pass_through_and_one_line_ends_a_quick_loop(capsys):
    assert list(progress.track(["a", "b"], "reading", "files")) == ["a", "b"]
    assert list(progress.track(3, "counting")) == [0, 1, 2]
    assert list(progress.track(iter("xy"), "streaming")) == ["x", "y"]
    err = capsys.readouterr().err.splitlines()
    assert err == [
        "reading: 2/2 files, 0 s",
        "counting: 3/3 rows, 0 s",
        "streaming: 2 rows, 0 s",
    ]


def test_a_long_loop_says_where_it_is_every_thirty_seconds(capsys, clock):
    with progress.bar(100, "labelling") as advance:
        for _ in range(100):
            clock[0] += 1.0
            advance(1)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "labelling: 30/100 rows, 30 s, about 70 s left"
    assert len(lines) == 4 and lines[-1] == "labelling: 100/100 rows, 100 s"


def test_a_terminal_gets_a_bar(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    assert list(progress.track(5, "labelling")) == [0, 1, 2, 3, 4]
    assert "labelling" in terminal.getvalue() and "5/5" in terminal.getvalue()


def test_a_lost_stderr_stops_nothing(monkeypatch):
    class Broken(io.StringIO):
        def write(self, text):
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stderr", Broken())
    assert list(progress.track(2, "counting")) == [0, 1]
    monkeypatch.setattr(sys, "stderr", None)
    assert list(progress.track(2, "counting")) == [0, 1]
