"""Every prompt of the pipeline, as chat messages.

A message's content is a text or a list of parts. Parts are tokenised apart from one another, so a
passage can neither become a control token nor merge with the words around it. In prompts that hold
a passage the order is always: system, instruction, question, passage, cue. All passages of a query
then share the tokens before `*_DOCUMENT_PART`.
"""

from collections.abc import Sequence
from typing import Any

Message = dict[str, Any]

# (message index, part index) of the passage in `guidance_messages`.
GUIDANCE_DOCUMENT_PART = (1, 1)

NO_ANSWER = "no answer"

# One letter per point of the 0-10 scale: "10" is two tokens in many vocabularies, letters are one.
NUMBER_CLASSES = tuple("ABCDEFGHIJK")

_READER = "You answer questions from a passage in a few words."
_USER = (
    "You answer questions in a few words, with the help of a note that another model wrote. "
    f'If you cannot tell, reply "{NO_ANSWER}".'
)
_ANSWERER = (
    "You answer questions with the answer alone: a name, a date, a number, yes or no. "
    "You use no other words."
)
# Small models learn the form of an answer from examples, not from the instruction.
_ANSWERED = (
    ("In which country is the city of Lyon?", "France"),
    ("Who wrote the play that Verdi's opera Otello is based on?", "William Shakespeare"),
    ("Are both the Danube and the Rhine rivers in Europe?", "yes"),
    ("In which year did the war that began in 1939 end?", "1945"),
)


def passage_text(title: str, text: str) -> str:
    """Title and body the way every prompt shows a passage."""
    return f"{title}. {text}" if title else text


def guidance_messages(query: str, document: str | Sequence[int]) -> list[Message]:
    """What the reader M sees to write guidance z; also what the forecaster f reads (q, d).

    document: `passage_text`, or its token ids when the caller has cut it to a length.
    """
    # The query comes twice: before the passage, so that all passages of a query share those tokens,
    # and after it, where a small reader looks for what to do.
    cue = f"\n\n{query} Answer in a few words."
    return [
        {"role": "system", "content": _READER},
        {"role": "user", "content": [f"Question: {query}\n\nPassage:\n", document, cue]},
    ]


def decision_messages(
    question: str,
    guidance: str,
    *,
    confidence: float | None = None,
    options: Sequence[str] = (),
) -> list[Message]:
    """What the user model U decides on x from: z and, if shown, the confidence c in [0, 1]."""
    # The confidence stands beside the note it is about: after it, a small model answers with it.
    sure = "" if confidence is None else f" (confidence {100 * confidence:.2f} of 100)"
    choices = "".join(f"\n{chr(65 + i)}. {option}" for i, option in enumerate(options))
    cue = "\nReply with the letter of the answer." if options else " Answer in a few words."
    return [
        {"role": "system", "content": _USER},
        {"role": "user", "content": [f"Note{sure}:\n", guidance, "\n\n", question, choices + cue]},
    ]


def answer_messages(
    question: str,
    documents: Sequence[str | Sequence[int]] = (),
    *,
    options: Sequence[str] = (),
) -> list[Message]:
    """What the reader sees when it answers a question by itself, without evidence or with some.

    The two arms differ in the passages alone. documents: best first, each `passage_text` or its
    token ids when the caller has cut it to a length.
    """
    choices = "".join(f"\n{chr(65 + i)}. {option}" for i, option in enumerate(options))
    passages = [
        part
        for number, document in enumerate(documents, start=1)
        for part in (f"\n\nPassage {number}: ", document)
    ]
    cue = "Letter of the answer" if options else "Short answer"
    messages: list[Message] = [{"role": "system", "content": _ANSWERER}]
    for asked, answered in () if options else _ANSWERED:
        messages.append({"role": "user", "content": f"Question: {asked}\n\nShort answer:"})
        messages.append({"role": "assistant", "content": answered})
    content = ["Question: ", f"{question}{choices}", *passages, f"\n\n{cue}:"]
    return [*messages, {"role": "user", "content": content}]


def query_messages(question: str) -> list[Message]:
    """Ask the reader to turn the question x into an open-ended query q."""
    return [
        {
            "role": "system",
            "content": "You turn questions into requests for background. You never answer them.",
        },
        {
            "role": "user",
            "content": [
                "Write one line that asks for a paragraph on the topic of this question. "
                "Keep its names. Do not answer it.\n\nQuestion: ",
                question,
                "\nRequest:",
            ],
        },
    ]


def rewrite_messages(query: str) -> list[Message]:
    """Ask the reader for a sharper search query (stage 3). It sees the query alone."""
    return [
        {"role": "system", "content": "You improve queries for a document search."},
        {
            "role": "user",
            "content": [
                "Rewrite the query so that a search finds better documents: stress its key words, "
                "add no new facts. Reply with the query only.\n\nQuery: ",
                query,
                "\nBetter query:",
            ],
        },
    ]


def grade_messages(question: str, answers: Sequence[str], prediction: str) -> list[Message]:
    """Ask a grader whether the prediction means the same as a gold answer. No passage is shown."""
    return [
        {"role": "system", "content": "You grade answers. You reply with yes or no."},
        {
            "role": "user",
            "content": [
                "Question: ",
                question,
                "\nCorrect answer: ",
                " / ".join(answers),
                "\nAnswer to grade: ",
                prediction,
                "\n\nDoes the answer to grade mean the same as a correct answer? "
                "Two different answers at once do not count. Reply yes or no.",
            ],
        },
    ]


def p_true_messages(question: str, guidance: str, decision: str) -> list[Message]:
    """Ask the plain reader whether a decision is true; P(true) is read from the next token."""
    return [
        {"role": "system", "content": "You check answers. You reply with yes or no."},
        {
            "role": "user",
            "content": [
                "Note: ",
                guidance,
                "\nQuestion: ",
                question,
                "\nProposed answer: ",
                decision,
                "\n\nIs the proposed answer correct? Reply yes or no.",
            ],
        },
    ]


def verbal_number_messages(question: str, guidance: str, decision: str) -> list[Message]:
    """Ask the plain reader for a confidence from 0 to 10, to be read out as a class letter."""
    legend = ", ".join(f"{letter} = {number}" for number, letter in enumerate(NUMBER_CLASSES))
    return [
        {"role": "system", "content": "You state how sure one can be of an answer."},
        {
            "role": "user",
            "content": [
                "Note: ",
                guidance,
                "\nQuestion: ",
                question,
                "\nProposed answer: ",
                decision,
                "\n\nHow likely is the proposed answer to be correct, from 0 (impossible) to 10 "
                f"(certain)? Reply with one letter: {legend}.",
            ],
        },
    ]


# What a judge of passages can say, from 2 (supports) to 0 (none).
JUDGE_CLASSES = ("A", "B", "C")


def judge_messages(question: str, bridge: str, document: str | Sequence[int]) -> list[Message]:
    """Ask a judge how far a passage supports an answer, given what the first hop has found.

    document: as for `guidance_messages`. The answer is one of `JUDGE_CLASSES`.
    """
    return [
        {"role": "system", "content": "You judge passages. You reply with one letter."},
        {
            "role": "user",
            "content": [
                "How much does the passage help to answer the question? A = it states a fact that "
                "the answer needs, B = it is about the same topic, C = it does not help.\n\n"
                "Question: ",
                question,
                "\nAlready found: ",
                bridge,
                "\n\nPassage: ",
                document,
                "\n\nLetter:",
            ],
        },
    ]


def bridge_messages(question: str, document: str | Sequence[int]) -> list[Message]:
    """Ask the reader for search queries of a second hop, one a line."""
    return [
        {"role": "system", "content": "You write search queries."},
        {
            "role": "user",
            "content": [
                "The passage answers a part of the question. Write up to three short queries, one "
                "a line, that search for what is still missing. Each names a person, place or "
                "thing from the passage.\n\nQuestion: ",
                question,
                "\n\nPassage: ",
                document,
                "\n\nQueries:",
            ],
        },
    ]
