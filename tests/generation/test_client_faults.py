"""The client while its server hangs, drips, falls over and comes back."""

import logging
import os
import signal
import threading
import time

import pytest

from calibjax.generation import OpenAIClient, RetryPolicy
from calibjax.generation.retry import ServerLost
from calibjax.training import signals
from tests.generation.stub_server import MODEL, StubServer

pytestmark = pytest.mark.faults

# Times divided by about a hundred; patience is that of half a minute.
POLICY = RetryPolicy(
    base=0.005, cap=0.05, retry_after_limit=2.0, probe_every=0.1, patience=1.0, timeout=0.5
)
PROMPTS = [f"row {i}" for i in range(120)]
ANSWERS = [[f"{prompt} #0"] for prompt in PROMPTS]


def _client(server: StubServer, **options) -> OpenAIClient:
    return OpenAIClient(server.url, MODEL, **({"policy": POLICY} | options))


@pytest.mark.parametrize("fault", ["silent", "drip"])
def test_a_call_that_never_ends_is_cut_and_made_again(fault):
    with StubServer({"a": [fault, "ok"]}) as server:
        assert _client(server).generate(["a"], max_new_tokens=4) == [["a #0"]]
        assert len(server.calls) >= 2, "the first call was never answered"


def test_a_thousand_rows_with_faults_all_arrive_within_the_concurrency():
    prompts = [f"row {i}" for i in range(1000)]
    faults = ["html", 500, "reset", "no_choices", "empty", "cut_body", 429]
    scripts = {p: [faults[i % 7], "ok"] for i, p in enumerate(prompts) if i % 11 == 0}
    with StubServer(scripts, delay=0.002) as server:
        client = _client(server, concurrency=32, policy=POLICY._replace(timeout=60.0))
        texts = client.generate(prompts, max_new_tokens=4)
        assert texts == [[f"{prompt} #0"] for prompt in prompts]
        assert len(server.calls) == 1000 + len(scripts)
        assert 16 <= server.most_open <= 32


def test_a_server_that_goes_down_and_comes_back_costs_no_row(caplog):
    caplog.set_level(logging.WARNING)
    with StubServer(delay=0.02) as server:

        def outage() -> None:
            while len(server.calls) < 30:
                time.sleep(0.005)
            server.down()
            time.sleep(0.5)
            server.up()

        thread = threading.Thread(target=outage)
        thread.start()
        texts = _client(server, concurrency=8, policy=POLICY._replace(patience=20.0)).generate(
            PROMPTS, max_new_tokens=4
        )
        thread.join()
        assert server.health_calls >= 1
    assert texts == ANSWERS
    waiting = [line for line in caplog.messages if "20 failures in a row" in line]
    assert len(waiting) == 1 and f"server={server.url}" in waiting[0]


def test_a_server_that_stays_away_ends_the_job_with_the_way_to_resume():
    with StubServer(delay=0.02) as server:
        client = _client(server, concurrency=8)
        client.probe()
        server.down()
        start = time.monotonic()
        with pytest.raises(ServerLost, match="no answer for 1 s .*--resume"):
            client.generate(PROMPTS, max_new_tokens=4)
        server.up()
        assert client.generate(PROMPTS, max_new_tokens=4) == ANSWERS
    assert time.monotonic() - start < 20


def test_a_signal_ends_the_wait_for_a_silent_server():
    with StubServer({"a": ["silent"]}) as server:
        client = _client(server, policy=POLICY._replace(timeout=60.0))
        signals.install()
        timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGTERM))
        try:
            timer.start()
            start = time.monotonic()
            with pytest.raises(signals.Preempted):
                client.generate(["a"], max_new_tokens=4)
            assert time.monotonic() - start < 10
        finally:
            timer.join()
            signals.uninstall()
