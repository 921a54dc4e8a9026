"""`launch.label --shard`: jobs that share the questions, each labelled once."""

import json

import pytest

from calibjax.data import supervision
from calibjax.errors import InputError
from launch import label
from tests.launch.command import run
from tests.reliability.chat_server import serving


def test_two_shards_label_every_question_once(tmp_path):
    names = [f"Name{number}" for number in range(5)]
    questions = [
        {"id": name, "question": f"Where does {name} lie?", "answers": ["land 1"]} for name in names
    ]
    corpus = [{"id": f"p{name}", "title": name, "text": f"{name} lies afar."} for name in names]
    for stem, rows in (("questions", questions), ("corpus", corpus)):
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (tmp_path / f"{stem}.jsonl").write_text(text)
    labelled = []
    with serving() as server:
        for number in (0, 1):
            out = tmp_path / f"out{number}"
            done = run(
                "label", "--dataset=own", f"--path={tmp_path / 'questions.jsonl'}",
                f"--corpus={tmp_path / 'corpus.jsonl'}", f"--server={server.url}",
                "--reader=stub", "--draws=2", "--docs_per_question=1", "--k=2",
                f"--shard={number}/2", f"--out={out}",
            )  # fmt: skip
            assert done.code == 0, done.err
            labelled.append({row.question_id for row in supervision.load(out / "supervision")})
    assert sorted(map(len, labelled)) == [2, 3]
    assert labelled[0] | labelled[1] == set(names)


@pytest.mark.parametrize("text", ["2/2", "1", "-1/2", "a/b", "0/0"])
def test_a_shard_that_is_not_there_is_refused(text):
    with pytest.raises(InputError, match=f"shard={text}: expected I/N with I from 0 to N - 1"):
        label._shard(text)
