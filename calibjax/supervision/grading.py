"""Graders: is the decision right? By aliases (the default), by exact match, or by a model.

A grader sees the question, the golds and the prediction, never a passage.
"""

import json
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from calibjax import errors
from calibjax.generation import prompts
from calibjax.protocols import Generator, Grader
from calibjax.records import Verdict
from calibjax.supervision import answers as text_rules
from calibjax.supervision import matching

GRADERS = ("auto", "exact", "llm")

# A gold of this many tokens or more is a sentence (WikiQA): no decision repeats it word for word.
_SENTENCE_TOKENS = 10
_SENTENCE_RECALL = 0.5

_MAX_WORDS = 64
_MAX_CHARACTERS = 512  # bounds text without spaces too
_MAX_NEW_TOKENS = 4

_VERDICT = re.compile(r"[\s\"'*(]*(yes|no)(?=$|[\s.,;:!*\"')])", re.IGNORECASE)
_BOTH = re.compile(r"[\s\"'*(]*(yes|no)\W+(?:and|or)\W+(?:yes|no)\b", re.IGNORECASE)

_NO_GOLD = Verdict(correct=False, invalid=True)


class GradingTask(NamedTuple):
    """One prediction to grade."""

    question: str
    answers: Sequence[str]
    prediction: str
    options: Sequence[str] = ()


class AliasGrader:
    """Rules by kind of gold.

    Open answers: the tokens of an alias stand in a row in the prediction and are not negated; a
    gold sentence of ten tokens or more is met by half of its tokens and flagged `lenient`. Golds of
    yes, no and maybe: the first such word of the prediction. Choices: the letter, or the text of
    one option only. Refusals and "no answer" count as not answered, unless the gold says just that.
    Rows without a valid gold are `invalid`.
    """

    name = "auto"

    def grade(
        self, question: str, answers: Sequence[str], prediction: str, options: Sequence[str] = ()
    ) -> Verdict:
        """Verdict on one prediction; `options` are the choices of a multiple-choice question."""
        golds = text_rules.valid_golds(answers, "unicode")
        if not golds:
            return _NO_GOLD
        if text_rules.normalize_answer(prediction, "unicode") in golds:
            return Verdict(correct=True)
        if matching.is_refusal(prediction):
            return Verdict(correct=False, answered=False)
        if set(golds) <= set(matching.YES_NO):
            return Verdict(correct=matching.yes_no_word(prediction) in golds)
        if options:
            return _grade_choice(answers, prediction, options)
        if matching.matches_alias(prediction, answers):
            return Verdict(correct=True)
        lenient = _recalls_sentence(prediction, golds)
        return Verdict(correct=lenient, lenient=lenient)


class ExactGrader:
    """SQuAD exact match against any gold."""

    name = "exact"

    def grade(
        self, question: str, answers: Sequence[str], prediction: str, options: Sequence[str] = ()
    ) -> Verdict:
        """Verdict on one prediction; `options` are not used."""
        if not text_rules.valid_golds(answers):
            return _NO_GOLD
        if text_rules.exact_match(prediction, answers):
            return Verdict(correct=True)
        return Verdict(correct=False, answered=not matching.is_refusal(prediction))


class LLMGrader:
    """A model answers "yes" or "no"; any other reply makes the row `invalid`.

    The prediction enters the prompt as one line of at most 64 words. Refusals, choices and rows
    without a valid gold are settled by rule. Replies are kept by (question, golds, prediction,
    grader), so an equal row is asked once.
    """

    def __init__(self, generator: Generator, *, name: str = "llm"):
        self.name = name
        self._generator = generator
        self._replies: dict[str, str] = {}

    def grade(
        self, question: str, answers: Sequence[str], prediction: str, options: Sequence[str] = ()
    ) -> Verdict:
        """Verdict on one prediction; `options` are the choices of a multiple-choice question."""
        return self.grade_many([GradingTask(question, answers, prediction, options)])[0]

    def grade_many(self, tasks: Sequence[GradingTask]) -> list[Verdict]:
        """Verdicts of many predictions; the unknown ones go to the model in one call."""
        settled = [_settled_by_rule(task) for task in tasks]
        keys = [self._key(task) for task in tasks]
        unknown: dict[str, Any] = {}
        for task, key, verdict in zip(tasks, keys, settled):
            if verdict is None and key not in self._replies:
                unknown[key] = _grade_messages(task)
        if unknown:
            texts = self._generator.generate(
                list(unknown.values()), max_new_tokens=_MAX_NEW_TOKENS, temperature=0.0
            )
            self._replies.update(zip(unknown, (samples[0] for samples in texts)))
        return [
            read_verdict(self._replies[key]) if verdict is None else verdict
            for key, verdict in zip(keys, settled)
        ]

    def _key(self, task: GradingTask) -> str:
        return json.dumps([task.question, list(task.answers), task.prediction, self.name])


def grade_many(grader: Grader, tasks: Sequence[GradingTask]) -> list[Verdict]:
    """Verdicts of many predictions, in one model call where the grader can batch."""
    if isinstance(grader, LLMGrader):
        return grader.grade_many(tasks)
    # The protocol that users implement has no options; ours take them.
    if isinstance(grader, (AliasGrader, ExactGrader)):
        return [grader.grade(*task) for task in tasks]
    return [grader.grade(task.question, task.answers, task.prediction) for task in tasks]


def make_grader(
    name: str, generator: Generator | None = None
) -> AliasGrader | ExactGrader | LLMGrader:
    """The grader called `name`: auto, exact or llm (which needs a generator)."""
    if name == "auto":
        return AliasGrader()
    if name == "exact":
        return ExactGrader()
    if name == "llm":
        if generator is None:
            raise errors.input_error("grader", name, "a model to ask", "--server or --grader=auto")
        return LLMGrader(generator)
    near = errors.closest(name, GRADERS)
    fix = f"did you mean {near}" if near else None
    raise errors.input_error("grader", name, f"one of {', '.join(GRADERS)}", fix)


def read_verdict(reply: str) -> Verdict:
    """Verdict of a grader's reply: its first word if that is yes or no, else `invalid`."""
    match = _VERDICT.match(reply)
    if match is None or _BOTH.match(reply):
        return Verdict(correct=False, invalid=True)
    return Verdict(correct=match[1].lower() == "yes")


def one_line(text: str) -> str:
    """`text` on one line, without control characters, at most 64 words and 512 characters."""
    words = "".join(c if c.isprintable() else " " for c in text).split()
    return " ".join(words[:_MAX_WORDS])[:_MAX_CHARACTERS]


def _grade_messages(task: GradingTask) -> Any:
    golds = [answer for answer in task.answers if text_rules.normalize_answer(answer)]
    return prompts.grade_messages(task.question, golds, one_line(task.prediction))


def _settled_by_rule(task: GradingTask) -> Verdict | None:
    if not text_rules.valid_golds(task.answers):
        return _NO_GOLD
    if text_rules.exact_match(task.prediction, task.answers):
        return None
    if matching.is_refusal(task.prediction):
        return Verdict(correct=False, answered=False)
    # A bare letter means nothing to a model that sees no choices.
    return _grade_choice(task.answers, task.prediction, task.options) if task.options else None


def _grade_choice(answers: Sequence[str], prediction: str, options: Sequence[str]) -> Verdict:
    gold = matching.gold_option(answers, options)
    if gold is None:
        return _NO_GOLD
    return Verdict(correct=matching.chosen_option(prediction, options) == gold)


def _recalls_sentence(prediction: str, golds: Sequence[str]) -> bool:
    predicted = text_rules.normalize_answer(prediction, "unicode").split()
    sentences = [gold.split() for gold in golds if len(gold.split()) >= _SENTENCE_TOKENS]
    return any(text_rules.token_recall(predicted, gold) >= _SENTENCE_RECALL for gold in sentences)
