"""Queries are open-ended, keep the question's names, and do not give the answer away."""

import doctest

import pytest

from calibjax.errors import InputError
from calibjax.records import Question
from calibjax.supervision import queries
from calibjax.supervision.answers import unicode_tokens

LIMA = Question("q", "What is the capital of Peru?", ("Lima", "Ciudad de los Reyes"))
CHOICE = Question("c", "Which is longer, the Nile or the Rhine?", ("the Nile", "Nile"))


def test_examples_of_the_rule():
    failed, tried = doctest.testmod(queries)
    assert tried >= 2 and not failed


@pytest.mark.parametrize(
    "question",
    [
        "Who wrote Hamlet?",
        "  what   are the neighbours of Chad ",
        "Who is older, Ann or Bob?",
        "Name the element with atomic number 69.",
        "Were A and B of one nationality?",
        "¿Cuál es la capital de Perú?",
        "?",
    ],
)
def test_the_rule_adds_no_names_and_keeps_those_of_the_question(question):
    query = queries.template_query(question)
    frame = set(unicode_tokens("Tell me about what helps to answer this"))
    opening = {"who", "what", "is", "are", "was", "were"}
    asked = set(unicode_tokens(question))
    assert set(unicode_tokens(query)) - frame <= asked
    assert asked - opening <= set(unicode_tokens(query))
    assert "\n" not in query and "  " not in query


def test_none_asks_the_question_itself():
    assert queries.write_queries([LIMA], "none").texts == [LIMA.question]


def test_a_written_query_that_names_the_answer_is_replaced_and_counted():
    replies = ["Describe Lima, the capital of Peru.", '"Describe how the NILE compares."\nmore']
    made = queries.write_queries([LIMA, CHOICE], "llm", replies)
    assert made.texts[0] == "Tell me about the capital of Peru."
    # The question names the answer itself: nothing is given away.
    assert made.texts[1] == "Describe how the NILE compares."
    assert made.counts == {"n": 2, "n_names_answer": 1, "n_leaked": 1, "n_empty": 0}


def test_an_empty_reply_falls_back_to_the_rule():
    for reply in ("", " \n ", '""', "\u200b\n"):
        made = queries.write_queries([LIMA], "llm", [reply])
        assert made.texts == ["Tell me about the capital of Peru."]
        assert made.counts["n_empty"] == 1


def test_a_reply_is_one_line_without_control_characters():
    assert queries.clean("\n\n  'Tell me\tabout\x07 Peru'  \nHere is why") == "Tell me about Peru"


def test_yes_and_no_are_not_given_away_by_words():
    question = Question("y", "Is Lima in Peru?", ("yes",))
    assert not queries.names_answer("yes, say whether Lima is in Peru", question)


def test_an_unknown_writer_is_met_with_the_closest():
    with pytest.raises(InputError, match="query_writer=templat: .*fix: --query_writer=template"):
        queries.check_writer("templat")
