"""Stage 4, and all four stages together."""

import pytest

from calibjax.errors import InputError
from calibjax.pipeline.answer import answer
from calibjax.pipeline.decision import USER_TEMPERATURES, Deciding, draw_user_temperature
from calibjax.records import Question
from tests.pipeline import parts


def run(questions=tuple(parts.QUESTIONS), **settings):
    reader = parts.Scripted(lambda prompt: "It is the birch.")
    user = parts.Scripted(lambda prompt: "birch")
    found = answer(
        questions,
        retriever=parts.retriever(),
        forecaster=parts.forecaster(),
        reader=reader,
        user=user,
        k=3,
        **settings,
    )
    return found, reader, user


def test_answers_carry_document_confidence_guidance_and_verdict():
    found, _, _ = run(epsilon=0.0)
    assert [one.id for one in found] == ["q1", "q2", "q3"]
    assert [one.correct for one in found] == [True, False, False]
    assert all(one.guidance == "It is the birch." and one.decision == "birch" for one in found)
    assert all(0 < one.confidence < 1 and one.confidence_shown == one.confidence for one in found)


def test_the_user_reads_the_confidence_only_when_it_is_shown():
    _, _, shown = run(epsilon=0.0)
    found, _, hidden = run(epsilon=0.0, show_confidence=False)
    assert all("(confidence" in parts.text_of(prompt) for prompt in shown.prompts)
    assert not any("(confidence" in parts.text_of(prompt) for prompt in hidden.prompts)
    assert all(one.confidence_shown is None for one in found)


def test_the_user_sees_guidance_and_question_but_no_passage():
    _, _, user = run(epsilon=0.0)
    assert not any("rivers." in parts.text_of(prompt) for prompt in user.prompts)


def test_a_question_without_golds_is_answered_and_not_judged():
    [one], _, _ = run((Question("q", "White bark?", ()),), epsilon=0.0)
    assert one.correct is None and one.decision == "birch"


def test_options_are_part_of_what_the_user_reads():
    question = Question("q", "White bark?", ("birch",), options=("alder", "birch"))
    _, _, user = run((question,), epsilon=0.0)
    assert "A. alder\nB. birch" in parts.text_of(user.prompts[0])


def test_temperatures_are_one_of_six_drawn_by_seed_and_question():
    drawn = [draw_user_temperature(0, f"q{n}") for n in range(200)]
    assert set(drawn) == set(USER_TEMPERATURES)
    assert drawn == [draw_user_temperature(0, f"q{n}") for n in range(200)]
    found, _, _ = run(epsilon=0.0)
    expected = [draw_user_temperature(0, question.id) for question in parts.QUESTIONS]
    assert [one.temperature for one in found] == expected


def test_a_given_temperature_conditions_forecast_and_user():
    found, _, _ = run(epsilon=0.0, temperature=1.25)
    other, _, _ = run(epsilon=0.0, temperature=1.75)
    assert {one.temperature for one in found} == {1.25}
    assert [one.confidence for one in found] != [one.confidence for one in other]


def test_what_was_said_is_not_asked_for_again(tmp_path):
    first, _, _ = run(epsilon=0.0, directory=tmp_path)
    again, reader, user = run(epsilon=0.0, directory=tmp_path)
    assert again == first and not reader.prompts and not user.prompts


def test_more_draws_do_not_change_the_first_answers_shape(tmp_path):
    found, _, user = run(epsilon=0.0, deciding=Deciding(draws=3))
    assert len(found) == 3 and len(user.prompts) == 3


def test_a_query_writer_that_needs_a_model_is_refused():
    with pytest.raises(InputError, match="query_writer=llm"):
        run(query_writer="llm")
