"""Answer normalisation, exact match and token F1.

Two normalisers, both documented because they disagree on real text:

squad: the rules of the SQuAD evaluation: lower case, ASCII punctuation deleted, articles dropped,
  white space collapsed. Curly quotes survive it and "-5" becomes "5". Figures that are compared
  with published ones use it.
unicode: the same idea for all of Unicode: NFKC, case-folded, every punctuation mark deleted; slash,
  underscore and em dash separate words; a sign and a decimal point inside a number stay; an article
  is dropped only before another word ("vitamin A" keeps its A). The alias grader uses it.

In both, a text made only of articles keeps them (a gold "A" is an answer), and a gold that is empty
after normalisation is no gold.
"""

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Sequence
from typing import Literal

Mode = Literal["squad", "unicode"]

ARTICLES = frozenset(("a", "an", "the"))

_ASCII_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLE = re.compile(r"\b(?:a|an|the)\b")
_SEPARATORS = re.compile("[/_\u2014]")  # U+2014 is the em dash
_MINUS = re.compile("[\u2010-\u2013\u2212]")  # hyphens, the en dash and the minus sign
_NUMBER = re.compile(r"-?\d[\d,]*\.\d+|-\d[\d,]*")


def normalize_answer(text: str, mode: Mode = "squad") -> str:
    """`text` as it is compared: see the module's description of the two modes."""
    if mode == "unicode":
        tokens = unicode_tokens(text)
        return " ".join(drop_articles(tokens))
    text = text.lower().translate(_ASCII_PUNCTUATION)
    kept = _ARTICLE.sub(" ", text).split()
    return " ".join(kept or text.split())


def unicode_words(text: str) -> list[str]:
    """White-space words of `text` after NFKC and case folding, punctuation still on them."""
    text = unicodedata.normalize("NFKC", text).casefold()
    return _SEPARATORS.sub(" ", _MINUS.sub("-", text)).split()


def bare_word(word: str) -> str:
    """One word of `unicode_words` without its punctuation; numbers keep sign and decimal point."""
    core = word.strip("\"'()[]{}$%,.;:!?*\u201c\u201d\u2018\u2019")
    if core and _NUMBER.fullmatch(core):
        return core.replace(",", "")
    return "".join(c for c in word if not _is_punctuation(c))


def unicode_tokens(text: str) -> list[str]:
    """Tokens of the unicode mode, articles included."""
    bare = (bare_word(word) for word in unicode_words(text))
    return [token for token in bare if token]


def drop_articles(tokens: Sequence[str]) -> list[str]:
    """`tokens` without articles, except at the very end, where a word cannot be an article."""
    kept = [token for token in tokens[:-1] if token not in ARTICLES]
    return kept + list(tokens[-1:]) if kept or set(tokens) - ARTICLES else list(tokens)


def valid_golds(answers: Sequence[str], mode: Mode = "squad") -> list[str]:
    """Normalised golds, the empty ones left out, repeated ones once, in order."""
    golds = (normalize_answer(answer, mode) for answer in answers)
    return list(dict.fromkeys(gold for gold in golds if gold))


def exact_match(prediction: str, answers: Sequence[str], mode: Mode = "squad") -> float:
    """1.0 if the prediction equals one of the golds, else 0.0; NaN without a valid gold."""
    golds = valid_golds(answers, mode)
    if not golds:
        return float("nan")
    return float(normalize_answer(prediction, mode) in golds)


def f1(prediction: str, answers: Sequence[str], mode: Mode = "squad") -> float:
    """Best token F1 over the golds, in [0, 1] and never below `exact_match`; NaN without a gold."""
    golds = valid_golds(answers, mode)
    if not golds:
        return float("nan")
    predicted = normalize_answer(prediction, mode).split()
    return max(_token_f1(predicted, gold.split()) for gold in golds)


def sub_exact_match(prediction: str, answers: Sequence[str], mode: Mode = "squad") -> float:
    """1.0 if the tokens of a gold stand in a row in the prediction: a lenient metric."""
    golds = valid_golds(answers, mode)
    if not golds:
        return float("nan")
    predicted = normalize_answer(prediction, mode).split()
    return float(any(find_runs(predicted, gold.split()) for gold in golds))


def token_recall(predicted: Sequence[str], gold: Sequence[str]) -> float:
    """Share of the gold's tokens (with repeats) that the prediction holds."""
    return (Counter(predicted) & Counter(gold)).total() / len(gold)


def find_runs(tokens: Sequence[str], run: Sequence[str]) -> list[int]:
    """Places where `run` stands in `tokens` without a gap."""
    width, target = len(run), list(run)
    return [i for i in range(len(tokens) - width + 1) if list(tokens[i : i + width]) == target]


def _token_f1(predicted: Sequence[str], gold: Sequence[str]) -> float:
    common = (Counter(predicted) & Counter(gold)).total()
    return 2 * common / (len(predicted) + len(gold))


def _is_punctuation(character: str) -> bool:
    return character in string.punctuation or unicodedata.category(character).startswith("P")
