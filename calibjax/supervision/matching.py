"""Rules that read a free-text prediction: refusals, alias matches, yes/no words, choices."""

import re
from collections.abc import Sequence
from typing import NamedTuple

from calibjax.supervision import answers as text_rules

YES_NO = ("yes", "no", "maybe")

# Compared after `unicode_tokens`, so apostrophes are gone ("don't" is "dont").
_REFUSALS = tuple(
    tuple(phrase.split())
    for phrase in (
        "no answer",
        "i do not know",
        "i dont know",
        "i am not sure",
        "im not sure",
        "i cannot answer",
        "i cant answer",
        "cannot be answered",
        "cannot be determined",
        "cannot determine",
        "cannot provide",
        "cannot find",
        "unable to answer",
        "unable to determine",
        "unable to find",
        "unable to provide",
        "unable to verify",
        "i do not have access",
        "i dont have access",
        "i do not have enough",
        "i dont have enough",
        "i do not have information",
        "i dont have information",
        "could not find",
        "couldnt find",
        "not enough information",
        "insufficient information",
        "no information",
        "not available",
        "not mentioned",
        "not provided",
        "not specified",
        "not stated",
        "does not mention",
        "doesnt mention",
        "does not provide",
        "doesnt provide",
        "does not specify",
        "does not contain",
        "does not say",
    )
)
_REFUSALS_ALONE = frozenset(("unknown", "na", "unanswerable", "unsure", "not sure", "not known"))

_CONTRACTED = frozenset(
    "isnt wasnt arent werent dont doesnt didnt cant couldnt wont wouldnt hasnt havent hadnt "
    "shouldnt cannot aint".split()
)
_NEGATIONS = _CONTRACTED | {"not", "never", "neither", "nor"}
_NEGATION_REACH = 5  # tokens: "I do not think that it is Paris"
_JUST_BEFORE = tuple(
    tuple(words.split())
    for words in "no|except|excluding|without|rather than|instead of|other than".split("|")
)
_AUXILIARIES = frozenset(
    "is was are were be does did do has have had can could would will should".split()
)
_NO_NEGATION_AFTER = frozenset(("only", "just", "merely", "sure"))
_DENIALS = frozenset(("wrong", "incorrect", "false"))

_CHOICE_ALONE = re.compile(r"\W*([A-Za-z])\W*")
_CHOICE_FIRST = re.compile(r"\s*[*\"'(\[]*([A-Z])[*\"']*(?:[).:\]]|\s+-\s)")
_CHOICE_NAMED = re.compile(
    r"\b(?:answer|option|choice)(?:\s+is|\s*:|\s)\s*[*\"'(\[]*([A-Z])(?![\w'])(?!\s+[a-z])",
    re.IGNORECASE,
)
_MORE_CHOICES = re.compile(r"[*\"')\].]*\s*(?:,|/|&|\band\b|\bor\b)\s*[*\"'(\[]*[A-Z](?!\w)")


class _Token(NamedTuple):
    text: str
    clause: int


def is_refusal(prediction: str) -> bool:
    """Whether the prediction is "no answer", another refusal of the list, or empty."""
    tokens = text_rules.unicode_tokens(prediction)
    if not tokens or " ".join(tokens) in _REFUSALS_ALONE:
        return True
    return any(text_rules.find_runs(tokens, phrase) for phrase in _REFUSALS)


def yes_no_word(prediction: str) -> str | None:
    """The first of yes, no and maybe in the prediction."""
    return next((t for t in text_rules.unicode_tokens(prediction) if t in YES_NO), None)


def matches_alias(prediction: str, answers: Sequence[str]) -> bool:
    """Whether an alias stands in the prediction, its tokens in a row, and is nowhere negated."""
    found = False
    for answer in answers:
        for tokens, start, end in _occurrences(prediction, answer):
            if _negated(tokens, start, end):
                return False
            found = True
    return found


def chosen_option(prediction: str, options: Sequence[str]) -> int | None:
    """Index of the option that the prediction picks by its letter or by its text, if only one."""
    letter = _letter(prediction)
    if letter is not None:
        index = ord(letter) - ord("A")
        return index if index < len(options) else None
    named = [i for i, option in enumerate(options) if matches_alias(prediction, [option])]
    # "eye" also stands inside "compound eye": the longest of nested options is the one meant.
    longest = [i for i in named if not any(_nested(options[i], options[j]) for j in named)]
    return longest[0] if len(longest) == 1 else None


def gold_option(answers: Sequence[str], options: Sequence[str]) -> int | None:
    """Index of the right option; the golds may be its text or its letter."""
    texts = [text_rules.normalize_answer(option, "unicode") for option in options]
    for gold in text_rules.valid_golds(answers, "unicode"):
        if gold in texts:
            return texts.index(gold)
    letters = [answer.strip().upper() for answer in answers]
    indices = [ord(letter) - ord("A") for letter in letters if re.fullmatch("[A-Z]", letter)]
    return next((index for index in indices if index < len(options)), None)


def _occurrences(prediction: str, answer: str) -> list[tuple[list[_Token], int, int]]:
    """Places of an alias in the prediction: tokens, start, end."""
    gold = text_rules.unicode_tokens(answer)
    tokens = _clause_tokens(prediction)
    if not set(gold) - text_rules.ARTICLES:
        # Every sentence holds an article: a gold of articles alone must be the whole prediction.
        whole = bool(gold) and [token.text for token in tokens] == gold
        return [(tokens, 0, len(tokens))] if whole else []
    if gold[-1] not in text_rules.ARTICLES:
        gold = [token for token in gold if token not in text_rules.ARTICLES]
        tokens = [token for token in tokens if token.text not in text_rules.ARTICLES]
    starts = text_rules.find_runs([token.text for token in tokens], gold)
    return [(tokens, start, start + len(gold)) for start in starts]


def _clause_tokens(text: str) -> list[_Token]:
    """Tokens with the number of their clause; commas, stops and "but" end a clause."""
    tokens, clause = [], 0
    for word in text_rules.unicode_words(text):
        bare = text_rules.bare_word(word)
        clause += bare == "but"
        if bare:
            tokens.append(_Token(bare, clause))
        clause += word[-1] in ",;:.!?"
    return tokens


def _negated(tokens: Sequence[_Token], start: int, end: int) -> bool:
    """Whether the tokens around tokens[start:end], in its own clause, deny it."""
    first, last = tokens[start].clause, tokens[end - 1].clause
    before = [token.text for token in tokens[:start] if token.clause == first]
    after = [token.text for token in tokens[end : end + 3] if token.clause == last]
    if any(tuple(before[-len(words) :]) == words for words in _JUST_BEFORE):
        return True
    reach = before[-_NEGATION_REACH:] + [tokens[start].text]
    if any(_is_negation(word, then) for word, then in zip(reach, reach[1:])):
        return True
    if not after:
        return False
    if after[0] in _CONTRACTED:
        return True
    if after[0] not in _AUXILIARIES or len(after) < 2:
        return False
    then = after[2] if len(after) > 2 else ""
    return after[1] in _DENIALS or _is_negation(after[1], then)


def _is_negation(word: str, then: str) -> bool:
    return word in _NEGATIONS and then not in _NO_NEGATION_AFTER


def _letter(prediction: str) -> str | None:
    """The one choice letter that the prediction names, upper case."""
    alone = _CHOICE_ALONE.fullmatch(prediction)
    if alone:
        return alone[1].upper()
    match = _CHOICE_FIRST.match(prediction) or _CHOICE_NAMED.search(prediction)
    if match is None or not match[1].isupper():
        return None
    rest = prediction[match.end(1) :]
    return None if _MORE_CHOICES.match(rest) else match[1]


def _nested(option: str, other: str) -> bool:
    """Whether `option` stands inside the longer text `other`."""
    inner = text_rules.normalize_answer(option, "unicode").split()
    outer = text_rules.normalize_answer(other, "unicode").split()
    return len(inner) < len(outer) and bool(text_rules.find_runs(outer, inner))
