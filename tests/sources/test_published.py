"""Each reader on a small file in the published layout: fields, ids, gold passages, bad rows."""

import csv
import json
from pathlib import Path

import pytest

from calibjax.errors import InputError
from calibjax.records import passage_id
from calibjax.sources import DATASETS, load_questions


def write(path: Path, value: object) -> Path:
    path.write_text(json.dumps(value), encoding="utf-8")
    return path


def write_lines(path: Path, rows: list[dict]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def write_tsv(path: Path, rows: list[list[str]]) -> Path:
    path.write_text("".join("\t".join(row) + "\n" for row in rows), encoding="utf-8")
    return path


def hotpot_row(**change) -> dict:
    row = {
        "_id": "a1",
        "question": "Who wrote it?",
        "answer": "Ada",
        "type": "bridge",
        "level": "hard",
        "supporting_facts": [["Book", 0], ["Ada", 1]],
        "context": [
            ["Book", ["A book.", " By Ada."]],
            ["Ada", ["Ada was born.", " She wrote."]],
            ["Other", ["Nothing here."]],
        ],
    }
    return row | change


def test_hotpotqa_joins_sentences_and_marks_supporting_titles_as_gold(tmp_path):
    loaded = load_questions("hotpotqa", write(tmp_path / "dev.json", [hotpot_row()]))
    (question,) = loaded.questions
    assert (question.id, question.answers) == ("a1", ("Ada",))
    assert [p.text for p in question.passages] == [
        "A book. By Ada.",
        "Ada was born. She wrote.",
        "Nothing here.",
    ]
    assert question.gold_ids == (
        passage_id("Book", "A book. By Ada."),
        passage_id("Ada", "Ada was born. She wrote."),
    )
    assert question.meta["type"] == "bridge" and "context" not in question.meta


def test_hotpotqa_reads_the_columns_of_parquet_copies(tmp_path):
    pq = pytest.importorskip("pyarrow.parquet")
    import pyarrow

    row = {
        "id": "a1",
        "question": "Who?",
        "answer": "Ada",
        "supporting_facts": {"title": ["Ada"], "sent_id": [0]},
        "context": {"title": ["Ada", "Bob"], "sentences": [["Ada was."], ["Bob was."]]},
    }
    pq.write_table(pyarrow.Table.from_pylist([row]), tmp_path / "dev.parquet")
    (question,) = load_questions("hotpotqa", tmp_path / "dev.parquet").questions
    assert [p.title for p in question.passages] == ["Ada", "Bob"]
    assert question.gold_ids == (passage_id("Ada", "Ada was."),)


def test_a_damaged_hotpotqa_item_is_set_aside_with_its_place_and_reason(tmp_path):
    rows = [hotpot_row(), hotpot_row(_id="a2", context="gone"), hotpot_row(_id="a3", answer=" ")]
    rows += [hotpot_row(_id="a4"), "not an object", hotpot_row(_id="a5")]
    loaded = load_questions("hotpotqa", write(tmp_path / "dev.json", rows))
    assert [q.id for q in loaded.questions] == ["a1", "a4", "a5"]
    assert [(row.line, row.reason) for row in loaded.rejected] == [
        (2, "context, supporting_facts: expected pairs of title and sentences"),
        (3, 'answer=" ": expected text that is not blank'),
        (5, "expected a JSON object"),
    ]


def test_questions_of_a_hidden_test_set_have_no_answers_and_are_counted(tmp_path):
    row = hotpot_row()
    del row["answer"], row["supporting_facts"]
    loaded = load_questions("hotpotqa", write(tmp_path / "test.json", [row]))
    assert loaded.questions[0].answers == ()
    assert loaded.counts["n_without_answers"] == 1 and loaded.counts["n_unanswerable"] == 0


def test_2wiki_puts_spaces_between_sentences_and_keeps_a_repeated_passage_once(tmp_path):
    twice = [["A", ["One.", "Two."]], ["A", ["One.", "Two."]], ["B", ["Three."]]]
    row = hotpot_row(context=twice, supporting_facts=[["A", 0]], evidences=[["A", "is", "B"]])
    (question,) = load_questions("2wikimultihopqa", write(tmp_path / "d.json", [row])).questions
    assert [p.text for p in question.passages] == ["One. Two.", "Three."]
    assert len(question.gold_ids) == 1 and question.meta["evidences"] == [["A", "is", "B"]]


def test_musique_keeps_aliases_and_marks_unanswerable_questions(tmp_path):
    paragraph = {"idx": 0, "title": "T", "paragraph_text": "Text.", "is_supporting": True}
    row = {"id": "2hop__1", "question": "Q?", "paragraphs": [paragraph], "answer": "UK"}
    rows = [
        row | {"answer_aliases": ["Britain", "UK", ""], "answerable": True},
        row | {"id": "2hop__2", "answerable": False},
    ]
    loaded = load_questions("musique", write_lines(tmp_path / "m.jsonl", rows))
    assert loaded.questions[0].answers == ("UK", "Britain")
    assert loaded.questions[1].answers == () and loaded.questions[1].meta["unanswerable"] is True
    assert loaded.counts["n_unanswerable"] == 1
    assert loaded.questions[0].gold_ids == (passage_id("T", "Text."),)


def test_hover_claims_have_no_passages_but_keep_their_gold_titles(tmp_path):
    row = {
        "uid": "u1",
        "claim": "A was B.",
        "supporting_facts": [["A", 0], ["B", 2], ["A", 1]],
        "label": "NOT_SUPPORTED",
        "num_hops": 2,
    }
    rows = [row, row | {"uid": "u2", "label": "MAYBE"}, row | {"uid": "u3", "label": "SUPPORTED"}]
    loaded = load_questions("hover", write(tmp_path / "h.json", rows))
    question = loaded.questions[0]
    assert question.passages == () and question.gold_ids == ()
    assert question.meta["gold_titles"] == ["A", "B"]
    assert question.answers == ("NOT_SUPPORTED",)
    assert question.options == ("SUPPORTED", "NOT_SUPPORTED")
    assert [r.line for r in loaded.rejected] == [2]


def test_nq_open_ids_depend_on_content_alone(tmp_path):
    rows = [{"question": "who", "answer": ["A", "B"]}, {"question": "when", "answer": ["NA"]}]
    first = load_questions("nq_open", write_lines(tmp_path / "a.jsonl", rows)).questions
    second = load_questions("nq", write_lines(tmp_path / "b.jsonl", rows[::-1])).questions
    assert {q.id: q for q in first} == {q.id: q for q in second}
    assert first[1].answers == ("NA",)


def test_webquestions_reads_s_expressions_and_the_copies_on_hubs(tmp_path):
    target = '(list (description "Jamaican \\"Creole\\"") (description Patois))'
    published = {"url": "u", "utterance": "what language?", "targetValue": target}
    (question,) = load_questions("webquestions", write(tmp_path / "w.json", [published])).questions
    assert question.answers == ('Jamaican "Creole"', "Patois")
    copy = {"url": "u", "question": "what language?", "answers": list(question.answers)}
    (again,) = load_questions("webqa", write_lines(tmp_path / "w.jsonl", [copy])).questions
    assert (again.id, again.answers) == (question.id, question.answers)


def squad_document() -> dict:
    blue = {"text": "blue", "answer_start": 11}
    answers = [blue, blue, {"text": "deep blue", "answer_start": 6}]
    asked = {"id": "s1", "question": "What colour?", "answers": answers, "is_impossible": False}
    none = {"id": "s2", "question": "What weight?", "answers": [], "is_impossible": True}
    paragraph = {"context": "It is deep blue.", "qas": [asked, none]}
    return {"version": "v2.0", "data": [{"title": "Deep_Sea", "paragraphs": [paragraph]}]}


@pytest.mark.parametrize("indent", [None, 1])  # on one line, and spread over many
def test_squad2_keeps_unanswerable_questions_flagged(tmp_path, indent):
    path = tmp_path / "dev-v2.0.json"
    path.write_text(json.dumps(squad_document(), indent=indent))
    loaded = load_questions("squad2", path)
    first, second = loaded.questions
    assert first.answers == ("blue", "deep blue") and len(first.gold_ids) == 1
    assert first.passages[0].title == "Deep Sea"
    assert second.answers == () and second.meta["unanswerable"] is True and second.gold_ids == ()
    assert loaded.counts["n_without_answers"] == loaded.counts["n_unanswerable"] == 1


def test_squad2_reads_the_rows_of_copies_on_hubs(tmp_path):
    spans = {"text": ["blue"], "answer_start": [6]}
    row = {"id": "s1", "title": "Sea", "context": "It is blue.", "question": "Q?", "answers": spans}
    (question,) = load_questions("squad_v2", write_lines(tmp_path / "s.jsonl", [row])).questions
    assert question.answers == ("blue",)


def test_triviaqa_collects_value_aliases_and_normalised_aliases(tmp_path):
    answer = {
        "Value": "Sunset Blvd",
        "Aliases": ["Sunset Boulevard", "Sunset Blvd"],
        "NormalizedAliases": ["sunset blvd", "west sunset boulevard"],
        "Type": "WikipediaEntity",
    }
    row = {"Question": "Which road?", "QuestionId": "tc_1", "Answer": answer, "SearchResults": [{}]}
    document = {"Data": [row, {"Question": "Hidden?", "QuestionId": "tc_2"}], "Domain": "Web"}
    loaded = load_questions("triviaqa", write(tmp_path / "web-dev.json", document))
    assert loaded.questions[0].answers == (
        "Sunset Blvd",
        "Sunset Boulevard",
        "west sunset boulevard",
    )
    assert loaded.questions[1].answers == () and loaded.counts["n_without_answers"] == 1
    copy = {
        "question": "Which road?",
        "question_id": "tc_1",
        "answer": {"value": "Sunset Blvd", "aliases": [], "normalized_aliases": []},
    }
    (other,) = load_questions("triviaqa", write_lines(tmp_path / "t.jsonl", [copy])).questions
    assert (other.id, other.answers) == ("tc_1", ("Sunset Blvd",))


WIKIQA = [
    ["QuestionID", "Question", "DocumentID", "DocumentTitle", "SentenceID", "Sentence", "Label"],
    ["Q1", "how big", "D1", "Size", "D1-0", 'It is "very big', "0"],
    ["Q1", "how big", "D1", "Size", "D1-1", "It is ten metres long.", "1"],
    ["Q2", "how old", "D2", "Age", "D2-0", "Nobody knows.", "0"],
    ["Q3", "how far", "D3", "Way", "D3-0", "Far.", "yes"],
]


def test_wikiqa_makes_one_question_of_its_lines_and_reads_quotes_as_text(tmp_path):
    loaded = load_questions("wikiqa", write_tsv(tmp_path / "WikiQA-dev.tsv", WIKIQA))
    first, second = loaded.questions
    assert first.answers == ("It is ten metres long.",)
    assert first.passages[0].text == 'It is "very big It is ten metres long.'
    assert first.meta["sentence_answers"] is True
    assert second.meta["unanswerable"] is True and second.gold_ids == ()
    assert [row.reason for row in loaded.rejected] == [
        "Label: expected 0 or 1 on every line of the question"
    ]


def test_wikiqa_reads_the_rows_of_copies_on_hubs(tmp_path):
    row = {"question_id": "Q1", "question": "how big", "document_title": "Size", "label": 0}
    rows = [row | {"answer": "It is big."}, row | {"answer": "It is ten metres.", "label": 1}]
    (question,) = load_questions("wikiqa", write_lines(tmp_path / "w.jsonl", rows)).questions
    assert question.answers == ("It is ten metres.",)
    assert question.passages[0].text == "It is big. It is ten metres."


def pubmed_row(**change) -> dict:
    row = {
        "QUESTION": "Does it help?",
        "CONTEXTS": ["We asked.", "We found."],
        "LABELS": ["AIMS", "RESULTS"],
        "final_decision": "maybe",
        "LONG_ANSWER": "It may.",
    }
    return row | change


def test_pubmedqa_answers_are_words_and_all_sections_are_gold(tmp_path):
    document = {
        "11": pubmed_row(),
        "12": pubmed_row(final_decision="perhaps"),
        "13": pubmed_row(LABELS=["AIMS"]),
        "14": pubmed_row(final_decision="no"),
        "15": pubmed_row(final_decision="yes"),
    }
    loaded = load_questions("pubmedqa", write(tmp_path / "ori_pqal.json", document))
    assert [(q.id, q.answers) for q in loaded.questions] == [
        ("11", ("maybe",)),
        ("14", ("no",)),
        ("15", ("yes",)),
    ]
    question = loaded.questions[0]
    assert [p.title for p in question.passages] == ["AIMS", "RESULTS"]
    assert question.gold_ids == tuple(p.id for p in question.passages)
    # Answered with the word and not with a letter.
    assert question.options == () and question.meta["choices"] == ["yes", "no", "maybe"]
    assert [row.line for row in loaded.rejected] == [2, 3]


def test_bioasq_keeps_yes_no_questions_and_counts_the_others(tmp_path):
    address = "http://www.ncbi.nlm.nih.gov/pubmed/123"
    snippet = {"text": "It is.", "document": address, "offsetInBeginSection": 0}
    asked = {"id": "b1", "body": "Is it?", "type": "yesno", "exact_answer": "Yes."}
    document = {
        "questions": [
            asked | {"snippets": [snippet]},
            {"id": "b2", "body": "Which?", "type": "factoid", "exact_answer": [["A"]]},
            asked | {"id": "b3", "exact_answer": ["no"]},
            asked | {"id": "b4", "exact_answer": "unclear"},
        ]
    }
    loaded = load_questions("bioasq", write(tmp_path / "golden.json", document))
    assert [(q.id, q.answers) for q in loaded.questions] == [("b1", ("yes",)), ("b3", ("no",))]
    assert loaded.questions[0].passages[0].title == "123"
    assert loaded.counts["n_other_type"] == 1 and loaded.counts["n_rejected"] == 1


@pytest.mark.parametrize("dataset", ["bioasq", "pubmedqa", "mmlu"])
@pytest.mark.parametrize("nested", [True, False])
def test_mirage_files_are_read_by_the_three_medical_sets(tmp_path, dataset, nested):
    row = {"question": "Is it?", "options": {"B": "no", "A": "yes"}, "answer": "B", "PMID": [1]}
    rows = {"0001": row, "0002": row | {"answer": "C"}, "0003": row | {"answer": "A"}}
    document = {dataset: rows, "medqa": {}} if nested else rows
    loaded = load_questions(dataset, write(tmp_path / "benchmark.json", document))
    assert [(q.id, q.answers) for q in loaded.questions] == [("0001", ("no",)), ("0003", ("yes",))]
    assert [r.line for r in loaded.rejected] == [2]


def test_mmlu_reads_tables_without_header_and_takes_the_subject_from_the_name(tmp_path):
    path = tmp_path / "college_biology_test.csv"
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(
            [
                ["Which, of these?", "None", "a\nb", 'the "c"', "d", "A"],
                ["Which?", "w", "x", "y", "z", "E"],
                ["And?", "w", "x", "y", "z", "D"],
            ]
        )
    loaded = load_questions("mmlu", path)
    question = loaded.questions[0]
    assert question.options == ("None", "a\nb", 'the "c"', "d")
    assert question.answers == ("None",) and question.meta["answer_letter"] == "A"
    assert question.meta["subject"] == "college_biology"
    assert [q.answers for q in loaded.questions[1:]] == [("z",)]
    assert len(loaded.rejected) == 1


POPQA = [
    ["id", "subj", "prop", "s_pop", "o_pop", "question", "possible_answers"],
    ["7", "Ada", "job", "12", "9", "What is Ada?", '"[""writer"", ""NA""]"'],
    ["8", "Bob", "job", "1", "2", "What is Bob?", '["smith"]'],
    ["9", "Cid", "job", "many", "2", "What is Cid?", '["smith"]'],
    ["10", "Dan", "job", "3", "2", "What is Dan?", "smith"],
]


def test_popqa_parses_the_list_inside_the_cell_quoted_or_not(tmp_path):
    loaded = load_questions("popqa", write_tsv(tmp_path / "popQA.tsv", POPQA))
    assert [(q.id, q.answers) for q in loaded.questions] == [
        ("7", ("writer", "NA")),
        ("8", ("smith",)),
    ]
    assert loaded.questions[0].meta["s_pop"] == 12
    assert [row.line for row in loaded.rejected] == [4, 5]


def test_flashrag_reads_golden_answers_and_choices(tmp_path):
    rows = [
        {"id": "test_0", "question": "Q?", "golden_answers": ["A"], "metadata": {"k": 1}},
        {"id": "test_1", "question": "Q2?", "golden_answers": ["B"], "choices": ["A", "B"]},
    ]
    loaded = load_questions("flashrag", write_lines(tmp_path / "test.jsonl", rows))
    assert loaded.questions[0].meta["metadata"] == {"k": 1}
    assert loaded.questions[1].options == ("A", "B")


def test_an_unknown_data_set_names_the_closest_and_all():
    with pytest.raises(InputError) as error:
        load_questions("hotpot", "x.json")
    message = str(error.value)
    assert message.startswith("dataset=hotpot: expected one of")
    assert message.endswith("fix: did you mean hotpotqa")
    assert all(name in message for name in DATASETS)


def test_a_file_of_another_set_is_refused_with_its_fields(tmp_path):
    path = write_lines(tmp_path / "x.jsonl", [{"claim": "A.", "uid": "1"}])
    with pytest.raises(InputError, match="found fields claim, uid: expected fields id question"):
        load_questions("hotpotqa", path)


def test_a_document_of_another_layout_is_refused(tmp_path):
    path = write(tmp_path / "x.json", {"rows": [1, 2]})
    with pytest.raises(InputError, match="found an object with rows"):
        load_questions("squad2", path)


def test_a_file_that_is_mostly_bad_is_refused_with_counts(tmp_path):
    rows = [hotpot_row(), hotpot_row(_id="b", question=""), hotpot_row(_id="c", question=3)]
    with pytest.raises(InputError, match="kept 1 of 3 rows"):
        load_questions("hotpotqa", write(tmp_path / "dev.json", rows))
