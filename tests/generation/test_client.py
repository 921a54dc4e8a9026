"""The client against a local server: what it asks, what it makes of every kind of answer."""

import asyncio
import math

import pytest

from calibjax.errors import InputError
from calibjax.generation import BudgetSpent, OpenAIClient, RetryPolicy, Spending
from calibjax.generation.retry import seconds_to_wait
from tests.generation.stub_server import MODEL, StubServer

# The policy with its waits divided by about a hundred; no call here is meant to time out.
POLICY = RetryPolicy(
    base=0.005,
    cap=0.05,
    retry_after_limit=2.0,
    probe_every=0.1,
    patience=0.6,
    timeout=60.0,
)

# Script of the server, then: calls made, finish reason (or "stopped": the job ends).
CASES = {
    "three errors": ([500, 502, 503, "ok"], 4, "stop"),
    "conflict and timeout": ([408, 409, "ok"], 3, "stop"),
    "retry after": ([(429, {"Retry-After": "0.2"}), "ok"], 2, "stop"),
    "retry after an hour": ([(429, {"Retry-After": "3600"}), "ok"], 1, "rejected"),
    "html": (["html", "ok"], 2, "stop"),
    "empty": (["empty", "ok"], 2, "stop"),
    "cut json": (["cut_json", "ok"], 2, "stop"),
    "cut body": (["cut_body", "ok"], 2, "stop"),
    "another shape": (["list", "ok"], 2, "stop"),
    "no choices": (["no_choices", "ok"], 2, "stop"),
    "content null": (["null", "ok"], 2, "stop"),
    "too few samples": (["too_few", "ok"], 2, "stop"),
    "reset": (["reset", "ok"], 2, "stop"),
    "length": (["length"], 1, "length"),
    "never well": ([503], 9, "rejected"),
    "never json": (["html"], 9, "rejected"),
    "bad request": ([400], 1, "rejected"),
    "too large": ([413], 1, "rejected"),
    "unprocessable": ([422], 1, "rejected"),
    "wrong key": ([401], 1, "stopped"),
    "forbidden": ([403], 1, "stopped"),
    "not found": ([404], 1, "stopped"),
}


def _client(server: StubServer, **options) -> OpenAIClient:
    return OpenAIClient(server.url, MODEL, **({"policy": POLICY} | options))


@pytest.mark.parametrize("name", CASES)
def test_calls_and_outcome_of_every_fault(name):
    script, calls, outcome = CASES[name]
    with StubServer({name: script}) as server:
        client = _client(server)
        if outcome == "stopped":
            with pytest.raises(InputError, match=f"status {script[0]}.*scripted"):
                client.generate([name], max_new_tokens=4)
        else:
            (samples,) = client.generate([name], max_new_tokens=4, return_details=True)
            assert samples[0].finish_reason == outcome
            assert samples[0].text == ("" if outcome == "rejected" else f"{name} #0")
            assert bool(samples[0].error) == (outcome == "rejected")
        assert len(server.calls) == calls


def test_no_call_comes_before_its_retry_after():
    script = [(429, {"Retry-After": "0.3"}), (503, {"Retry-After": "0.4"}), "ok"]
    with StubServer({"a": script}) as server:
        _client(server).generate(["a"], max_new_tokens=4)
        first, second, third = server.times()["a"]
    assert second - first >= 0.3 and third - second >= 0.4


def test_retry_after_is_read_as_seconds_or_as_a_date():
    assert seconds_to_wait("12") == 12.0
    assert seconds_to_wait("Thu, 01 Jan 1970 00:00:00 GMT") == 0.0
    assert seconds_to_wait("Wed, 01 Jan 2200 00:00:00 GMT") > 1e9
    assert seconds_to_wait("soon") is None and seconds_to_wait(None) is None


def test_a_rejected_row_leaves_the_others_whole_and_in_place():
    prompts = [f"row {i}" for i in range(40)]
    scripts = {"row 7": [422], "row 20": [400], "row 30": ["html", "reset", 500, "ok"]}
    with StubServer(scripts) as server:
        texts = _client(server).generate(prompts, max_new_tokens=4)
    expected = [[f"{prompt} #0"] for prompt in prompts]
    expected[7] = expected[20] = [""]
    assert texts == expected


def test_a_wrong_key_ends_the_job_without_asking_every_row():
    prompts = [f"row {i}" for i in range(200)]
    with StubServer({"row 3": [401]}, delay=0.01) as server:
        with pytest.raises(InputError, match="check the url, the key"):
            _client(server, concurrency=4).generate(prompts, max_new_tokens=4)
        assert len(server.calls) < 20


def test_what_is_asked_of_the_server():
    messages = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": ["a ", "<|im_end|>", " b"]},
    ]
    with StubServer() as server:
        texts = _client(server).generate(
            [messages, "plain"],
            max_new_tokens=7,
            temperature=[0.0, 1.5],
            num_samples=3,
            top_k=9,
            top_p=0.5,
            stop=["\n"],
        )
        first, second = sorted(server.bodies, key=lambda body: body["temperature"])
    assert texts[0] == ["a <|im_end|> b #0"] * 3, "greedy samples are asked for once"
    assert texts[1] == ["plain #0", "plain #1", "plain #2"]
    assert first["messages"][1]["content"] == "a <|im_end|> b"
    assert second["messages"] == [{"role": "user", "content": "plain"}]
    assert (first["n"], second["n"]) == (1, 3)
    shared = {"model": MODEL, "max_tokens": 7, "top_k": 9, "top_p": 0.5, "stop": ["\n"]}
    assert shared.items() <= first.items() and shared.items() <= second.items()


def test_seeds_follow_the_prompt_not_its_place():
    with StubServer() as server:
        client = _client(server)
        for prompts in (["a", "b", "a"], ["b"]):
            client.generate(prompts, max_new_tokens=4, temperature=1.0, seed=5)
        client.generate(["b"], max_new_tokens=4, temperature=1.0, seed=6)
        seeds = {}
        for body in server.bodies:
            seeds.setdefault(body["messages"][0]["content"], []).append(body["seed"])
    assert len(set(seeds["a"])) == 2, "equal prompts of one call differ"
    assert seeds["b"][0] == seeds["b"][1] != seeds["b"][2]


def test_log_probs_and_entropies_come_from_the_top_tokens_and_say_so():
    with StubServer() as server:
        ((sample,),) = _client(server).generate(["a"], max_new_tokens=4, return_details=True)
        assert server.bodies[-1]["top_logprobs"] == 20
    top = [math.exp(-0.25), math.exp(-2.0)]
    expected = -sum(p * math.log(p) for p in [*top, 1 - sum(top)])
    assert sample.log_probs == (-0.25, -0.25) and sample.approximate
    assert sample.entropies == pytest.approx((expected, expected))


def test_a_server_without_log_probs_is_found_out_and_not_asked_again():
    with StubServer({"Hi": ["no_log_probs"]}) as server:
        client = _client(server)
        assert client.probe() == ((MODEL,), False)
        ((sample,),) = client.generate(["a"], max_new_tokens=4, return_details=True)
        assert "logprobs" not in server.bodies[-1]
    assert sample.log_probs == () and not sample.approximate


@pytest.mark.parametrize(
    "models, model, match",
    [
        ({"data": [{"id": "stub-large"}]}, MODEL, "model=stub: expected one of stub-large"),
        (401, MODEL, "status 401"),
        (500, MODEL, "status 500"),
    ],
)
def test_the_probe_names_what_is_wrong_before_any_work(models, model, match):
    with StubServer() as server:
        server.models = models
        with pytest.raises(InputError, match=match):
            OpenAIClient(server.url, model, policy=POLICY).generate(["a"], max_new_tokens=4)
        assert server.calls == []


@pytest.mark.parametrize("models", [404, "html", "list"])
def test_a_server_that_lists_no_models_is_taken_at_its_word(models):
    with StubServer() as server:
        server.models = models
        assert _client(server).probe() == ((), True)


def test_a_server_that_is_not_there_is_an_input_error():
    with StubServer() as server:
        url = server.url
    with pytest.raises(InputError, match=f"server={url}"):
        OpenAIClient(url, MODEL, policy=POLICY).probe()


@pytest.mark.parametrize(
    "url, fix",
    [
        ("localhost:8000", "http://localhost:8000"),
        ("ftp://host/v1", None),
        ("http://", None),
    ],
)
def test_a_url_without_scheme_or_host_is_refused_at_once(url, fix):
    with pytest.raises(InputError, match=f"server={url}") as caught:
        OpenAIClient(url, MODEL)
    assert fix is None or fix in str(caught.value)


def test_a_url_without_path_means_version_1():
    assert OpenAIClient("http://host:1", MODEL).base_url == "http://host:1/v1"
    assert OpenAIClient("https://host/api/", MODEL).base_url == "https://host/api"


@pytest.mark.parametrize("prompt", [[1, 2, 3], [{"role": "user", "content": ["a", [1, 2]]}]])
def test_token_ids_are_refused(prompt):
    with StubServer() as server:
        with pytest.raises(InputError, match="texts, for a server tokenises"):
            _client(server).generate([prompt], max_new_tokens=4)


def test_it_works_inside_a_running_loop():
    async def notebook(server: StubServer) -> list[list[str]]:
        return _client(server).generate(["a"], max_new_tokens=4)

    with StubServer() as server:
        assert asyncio.run(notebook(server)) == [["a #0"]]


def test_a_budget_of_calls_is_never_passed_and_no_answer_is_lost_to_it():
    with StubServer({"a": [500, "ok"]}) as server:
        client = _client(server, spending=Spending(max_calls=5))
        assert len(client.generate(["a", "b", "c"], max_new_tokens=4)) == 3
        assert client.spending.calls == 4  # one was made again
        with pytest.raises(BudgetSpent, match="max_calls=5: 2 more do not fit after 4 calls"):
            client.generate(["d", "e"], max_new_tokens=4)
        assert client.spending.calls == 4
        client.generate(["d"], max_new_tokens=4)
        with pytest.raises(BudgetSpent, match="--resume"):
            client.generate(["e"], max_new_tokens=4)
    with StubServer({"a": [500]}) as server:
        client = _client(server, spending=Spending(max_calls=3))
        with pytest.raises(BudgetSpent, match="retries have used it up"):
            client.generate(["a"], max_new_tokens=4)
        assert client.spending.calls == 3


def test_a_budget_of_money_counts_the_tokens_that_the_server_reports():
    spending = Spending(max_cost=1.0, prices=(1.0, 4.0))
    spending.begin(8)
    spending.add({"prompt_tokens": 200_000, "completion_tokens": 100_000})
    for nothing in (None, {}, [], {"prompt_tokens": None, "completion_tokens": -1}):
        spending.add(nothing)
    assert spending.cost == pytest.approx(0.6)
    spending.begin(8)
    spending.add({"prompt_tokens": 0, "completion_tokens": 100_000})
    with pytest.raises(BudgetSpent, match="max_cost=1.0: it is spent"):
        spending.begin(1)
    with pytest.raises(InputError, match="prices of a million tokens beside it"):
        Spending(max_cost=1.0)
