"""worldfacts through TFDS: written and read without TensorFlow and without the network."""

import socket
import sys

import pytest

from calibjax.sources import worldfacts

tfds = pytest.importorskip("tensorflow_datasets")


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("the network was asked")

    monkeypatch.setattr(socket.socket, "connect", refuse)


def test_questions_come_back_in_order_and_whole(tmp_path):
    from calibjax.sources.worldfacts.builder import WorldFacts

    WorldFacts(data_dir=tmp_path, config="questions").prepare()
    source = WorldFacts(data_dir=tmp_path, config="questions").as_data_source("validation")
    expected = worldfacts.load("validation").questions
    assert len(source) == len(expected)
    for number in (0, 7, len(expected) - 1):
        example, question = source[number], expected[number]
        assert example["question"].decode() == question.question
        assert tuple(text.decode() for text in example["answers"]) == question.answers
        assert tuple(text.decode() for text in example["gold_ids"]) == question.gold_ids
        assert example["relation"].decode() == question.meta["relation"]
    assert "tensorflow" not in sys.modules


def test_passages_are_a_config_of_their_own(tmp_path):
    from calibjax.sources.worldfacts.builder import WorldFacts

    builder = WorldFacts(data_dir=tmp_path, config="passages").prepare()
    assert str(builder.version) == worldfacts.VERSION
    source, corpus = builder.as_data_source("corpus"), worldfacts.corpus()
    assert len(source) == len(corpus)
    assert source[11]["text"].decode() == corpus[11].text
