"""Normalisers, exact match and F1: the cases that public graders got wrong, and their laws."""

import json
import math
import os
import string
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibjax.supervision import answers

MODES = ("squad", "unicode")
WORDS = ["a", "an", "the", "A", "Paris", "paris,", "of", "-5", "3.5", "“Yes”", "no", "!!!", "É", ""]
TEXTS = st.lists(st.sampled_from(WORDS), max_size=5).map(" ".join) | st.text(max_size=12)


@pytest.mark.parametrize(
    "text, squad, unicode",
    [
        ("The  Beatles!", "beatles", "beatles"),
        ("A", "a", "a"),
        ("the a", "the a", "the a"),
        ("An apple a day", "apple day", "apple day"),
        ("“Yes”", "“yes”", "yes"),
        ("-5", "5", "-5"),
        ("−5", "−5", "-5"),
        ("3.5", "35", "3.5"),
        ("1,500", "1500", "1500"),
        ("vitamin A", "vitamin", "vitamin a"),
        ("CO₂", "co₂", "co2"),
        ("Straße", "straße", "strasse"),
        ("U.S.", "us", "us"),
        ("$1,000.", "1000", "1000"),
        ("NOT_SUPPORTED", "notsupported", "not supported"),
        ("1914–1918", "1914–1918", "19141918"),
        ("...", "", ""),
    ],
)
def test_normalisers_follow_their_documented_rules(text, squad, unicode):
    assert answers.normalize_answer(text) == squad
    assert answers.normalize_answer(text, "unicode") == unicode


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("metric", [answers.exact_match, answers.f1, answers.sub_exact_match])
def test_gold_made_of_an_article_is_an_answer(metric, mode):
    assert metric("A", ["A"], mode) == 1.0
    assert metric("London", ["A"], mode) == 0.0
    assert metric("London", ["the"], mode) == 0.0


@pytest.mark.parametrize("metric", [answers.exact_match, answers.f1, answers.sub_exact_match])
def test_empty_golds_are_skipped_and_a_row_without_gold_has_no_score(metric):
    assert metric("London", ["", "...", "London"]) == 1.0
    assert metric("London", ["", "..."]) != metric("London", ["", "..."])  # NaN
    assert math.isnan(metric("", []))


def test_typographic_quotes_fail_the_squad_mode_only():
    assert answers.exact_match("“Yes”", ["Yes"]) == 0.0
    assert answers.exact_match("“Yes”", ["Yes"], "unicode") == 1.0


def test_f1_counts_repeated_tokens_once_per_gold_token():
    # 2 common tokens of 3 predicted and 2 gold: 2 * 2 / (3 + 2).
    assert answers.f1("new york york", ["New York"]) == pytest.approx(0.8)
    assert answers.f1("York", ["New York", "Boston"]) == pytest.approx(2 / 3)


def test_sub_match_needs_whole_tokens():
    assert answers.sub_exact_match("It was in 1948", ["48"]) == 0.0
    assert answers.sub_exact_match("It was 48 percent", ["48%"]) == 1.0


@pytest.mark.skipif("CALIBJAX_DATA" not in os.environ, reason="CALIBJAX_DATA is not set")
def test_exact_match_equals_what_published_systems_were_given():
    rows = different = 0
    for path in sorted(Path(os.environ["CALIBJAX_DATA"], "results").glob("adaptive_*.test.jsonl")):
        for line in path.read_text().split("\n")[:-1]:
            row = json.loads(line)
            for system in row["meta"]["systems"].values():
                if system["pred"] is not None:
                    rows += 1
                    found = answers.exact_match(system["pred"], row["answers"])
                    different += found != system["em"]
    assert rows > 4000 and different == 0


@settings(max_examples=300, deadline=None, derandomize=True)
@given(TEXTS, st.lists(TEXTS, max_size=3), st.sampled_from(MODES))
def test_exact_match_never_exceeds_f1(prediction, golds, mode):
    exact, f1 = answers.exact_match(prediction, golds, mode), answers.f1(prediction, golds, mode)
    if math.isnan(exact):
        assert math.isnan(f1) and not answers.valid_golds(golds, mode)
    else:
        assert exact <= f1 <= 1.0
        assert exact <= answers.sub_exact_match(prediction, golds, mode)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(TEXTS)
def test_squad_normaliser_is_idempotent(text):
    once = answers.normalize_answer(text)
    # "a.n" loses its point and becomes an article: punctuation inside a word is the exception.
    if not any(c in string.punctuation for c in text):
        assert answers.normalize_answer(once) == once
