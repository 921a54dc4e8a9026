"""launch.outcomes: flags that would do nothing are refused before anything is read."""

import pytest

from tests.launch.command import run


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--path=q.jsonl", "--split=train"], "split=train: expected no --path"),
        (["--pool=a.jsonl,b.jsonl"], "pool=a.jsonl,b.jsonl: expected --evidence=global"),
        (["--corpus=c.jsonl"], "corpus=c.jsonl: expected --evidence=global"),
        (["--evidence=global", "--corpus=c", "--pool=a"], "pool=a: expected no --corpus"),
        (["--encoder=e5"], "encoder=e5: expected --retriever=dense"),
        (["--backbone=other"], "backbone=other: expected --forecaster=DIR"),
        (["--concurrency=4"], "concurrency=4: expected --server=URL"),
        (["--user_top_k=3"], "user_top_k=3: expected nothing: no user model is asked"),
    ],
)
def test_a_flag_that_would_do_nothing_is_refused(given, said, tmp_path):
    done = run("outcomes", *given, f"--out={tmp_path / 'out'}")
    assert done.code == 2 and len(done.err.splitlines()) == 1, done.err
    assert done.err.startswith(said)
    name = said.partition("=")[0]
    assert done.err.rstrip().endswith(f"fix: drop --{name}")
    assert not (tmp_path / "out").exists()


def test_help_shows_the_flags_of_this_command_alone():
    done = run("outcomes", "--help")
    assert done.code == 0
    for flag in ("--evidence=own|global", "--passages=N", "--backbone", "--forecaster", "--server"):
        assert flag in done.out, flag
    assert "--user_top_k" not in done.out
