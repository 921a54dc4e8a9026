"""Words of a text as the lexical index sees them."""

import re
import unicodedata
from collections.abc import Callable

TOKENIZERS = ("plain", "cjk")

# Han, kana, Hangul, Thai, Lao, Myanmar, Khmer: written without spaces, or with few.
_SPACELESS = (
    "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uac00-\ud7af\uff66-\uff9f"
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\U00020000-\U0003134f"
)
_WORD = re.compile(r"\w+")
_RUN_OR_WORD = re.compile(rf"[{_SPACELESS}]+|[^\W{_SPACELESS}]+")
_SPACELESS_CHARACTER = re.compile(f"[{_SPACELESS}]")
_MOSTLY = 0.3  # share of a text's characters above which words cannot be found by spaces


def splitter(tokenizer: str) -> Callable[[str], list[str]]:
    """The function text -> words of `plain` or `cjk`.

    Both: NFC, lower case, no stop words, no stemming, one-letter words kept. `plain` takes runs of
    letters, digits and underscores. `cjk` besides cuts scripts without spaces into single
    characters and pairs of neighbours.
    """
    return _plain_words if tokenizer == "plain" else _cjk_words


def is_mostly_spaceless(text: str) -> bool:
    """Whether a large part of the text is in a script without spaces between words."""
    return len(_SPACELESS_CHARACTER.findall(text)) > _MOSTLY * len(text)


def _normal(text: str) -> str:
    return unicodedata.normalize("NFC", text).lower()


def _plain_words(text: str) -> list[str]:
    return _WORD.findall(_normal(text))


def _cjk_words(text: str) -> list[str]:
    words: list[str] = []
    for run in _RUN_OR_WORD.findall(_normal(text)):
        if _SPACELESS_CHARACTER.match(run):
            words += list(run)
            words += [run[i : i + 2] for i in range(len(run) - 1)]
        else:
            words.append(run)
    return words
