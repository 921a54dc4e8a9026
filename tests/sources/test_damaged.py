"""Random damage to published files: a fault of ours or fewer questions, never another exception."""

import copy
import json
import random

import pytest

from calibjax.errors import InputError
from calibjax.sources import load_questions

SWAPS = [None, 1, True, "x", "", [], {}, [1], [None], [["a"]], {"a": 1}, -1.5]
CONTEXT = [["A", ["One.", " Two."]], ["B", ["Three."]]]
HOTPOT = {"question": "Q?", "answer": "A", "supporting_facts": [["A", 0]], "context": CONTEXT}
PARAGRAPH = {"idx": 0, "title": "T", "paragraph_text": "Text.", "is_supporting": True}
SPAN = [{"text": "a", "answer_start": 0}]
ASKED = {"id": "s1", "question": "Q?", "answers": SPAN, "is_impossible": False}
PUBMED = {"QUESTION": "Q?", "CONTEXTS": ["C."], "LABELS": ["L"], "final_decision": "yes"}
BIOASQ = {"body": "Q?", "type": "yesno", "exact_answer": "yes", "snippets": [{"text": "t"}]}
CHOICE = {"question": "Q?", "options": {"A": "x", "B": "y"}, "answer": "A"}
DOCUMENTS = {
    "hotpotqa": [HOTPOT | {"_id": str(i)} for i in range(3)],
    "2wiki": [HOTPOT | {"_id": str(i)} for i in range(3)],
    "hover": [
        {"uid": str(i), "claim": "C.", "supporting_facts": [["A", 0]], "label": "SUPPORTED"}
        for i in range(3)
    ],
    "musique": [
        {"id": str(i), "question": "Q?", "paragraphs": [PARAGRAPH], "answer": "A"}
        | {"answer_aliases": ["B"], "answerable": True}
        for i in range(3)
    ],
    "webquestions": [
        {"url": "u", "utterance": f"q{i}", "targetValue": "(list (description A))"}
        for i in range(3)
    ],
    "squad2": {"data": [{"title": "T", "paragraphs": [{"context": "C.", "qas": [ASKED]}]}]},
    "triviaqa": {
        "Data": [
            {"Question": "Q?", "QuestionId": str(i), "Answer": {"Value": "A", "Aliases": ["B"]}}
            for i in range(3)
        ]
    },
    "wikiqa": [
        {"QuestionID": f"Q{i // 2}", "Question": "q", "DocumentTitle": "T"}
        | {"Sentence": f"S{i}.", "Label": i % 2}
        for i in range(4)
    ],
    "pubmedqa": {str(i): PUBMED for i in range(3)},
    "bioasq": {"questions": [BIOASQ | {"id": str(i)} for i in range(3)]},
    "mmlu": {"mmlu": {str(i): CHOICE for i in range(3)}},
    "popqa": [
        {"id": i, "question": "Q?", "possible_answers": '["a"]', "s_pop": 1} for i in range(3)
    ],
    "flashrag": [{"id": str(i), "question": "Q?", "golden_answers": ["A"]} for i in range(3)],
    "own": [{"id": str(i), "question": "Q?", "answers": ["A"], "meta": {}} for i in range(3)],
}


def places(value: object, path: tuple = ()) -> list[tuple]:
    if isinstance(value, dict):
        children = value.items()
    elif isinstance(value, list):
        children = enumerate(value)
    else:
        children = ()
    return [path, *(place for key, child in children for place in places(child, (*path, key)))]


def damage(document: object, rng: random.Random) -> object:
    damaged = copy.deepcopy(document)
    *parents, last = rng.choice(places(damaged)[1:])
    inner = damaged
    for key in parents:
        inner = inner[key]
    if isinstance(inner, dict) and rng.random() < 0.25:
        del inner[last]
    else:
        inner[last] = copy.deepcopy(rng.choice(SWAPS))
    return damaged


@pytest.mark.parametrize("dataset", DOCUMENTS)
def test_damaged_documents_raise_nothing_but_our_own_fault(tmp_path, dataset):
    rng = random.Random(dataset)
    path = tmp_path / "file.json"
    path.write_text(json.dumps(DOCUMENTS[dataset]))
    whole = len(load_questions(dataset, path).questions)
    assert whole
    fewer = 0
    for _ in range(150):
        document = damage(DOCUMENTS[dataset], rng)
        for _ in range(rng.choice((0, 0, 1, 3))):
            document = damage(document, rng) if len(places(document)) > 1 else document
        path.write_text(json.dumps(document))
        try:
            fewer += len(load_questions(dataset, path).questions) < whole
        except InputError as error:
            assert str(error).startswith(f"path={path}") and "\n" not in str(error)
            fewer += 1
    assert fewer > 20  # the damage really strikes
