"""Signals stop a loop between two steps; a second one stops the process."""

import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from calibjax.training import signals


@pytest.fixture
def installed():
    handlers = {signum: signal.getsignal(signum) for signum in signals.HANDLED}
    signals.install()
    yield
    signals.uninstall()
    for signum, handler in handlers.items():
        signal.signal(signum, handler)


@pytest.mark.parametrize(
    "signum, code", [(signal.SIGTERM, 143), (signal.SIGUSR1, 143), (signal.SIGINT, 130)]
)
def test_a_signal_is_seen_at_the_next_check_and_not_before(installed, signum, code):
    signals.check()
    os.kill(os.getpid(), signum)
    assert signals.pending_seconds() is not None
    with pytest.raises(signals.Preempted) as caught:
        signals.check()
    assert caught.value.exit_code == code
    assert caught.value.signum == signum


def test_handlers_of_a_loop_let_it_pass(installed):
    os.kill(os.getpid(), signal.SIGTERM)
    with pytest.raises(signals.Preempted):
        try:
            signals.check()
        except Exception:
            pytest.fail("a broad handler swallowed the signal")


def run_child(body: str, *signums: int, pause: float = 0.1) -> tuple[int, float]:
    """Runs a script that prints "ready", signals it; exit code and seconds it took to end."""
    script = "from calibjax.training import signals\n" + textwrap.dedent(body)
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as child:
        try:
            assert child.stdout is not None and child.stdout.readline() == b"ready\n"
            start = time.monotonic()
            for signum in signums:
                child.send_signal(signum)
                time.sleep(pause)
            return child.wait(timeout=20), time.monotonic() - start
        finally:
            child.kill()


def test_a_second_signal_ends_the_process_at_once():
    body = """
        import time
        signals.install()
        print("ready", flush=True)
        for _ in range(300):
            time.sleep(0.1)
    """
    code, _ = run_child(body, signal.SIGTERM, signal.SIGTERM)
    assert code == 143
    code, _ = run_child(body, signal.SIGINT, signal.SIGTERM)
    assert code == 130


def test_a_forked_child_has_the_default_handlers():
    body = """
        import os, signal, time
        signals.install()
        child = os.fork()
        if child == 0:
            while True:
                signal.pause()
        print("ready", flush=True)
        time.sleep(0.2)
        os.kill(child, signal.SIGTERM)
        _, status = os.waitpid(child, 0)
        raise SystemExit(7 if os.WIFSIGNALED(status) else 0)
    """
    assert run_child(body)[0] == 7
