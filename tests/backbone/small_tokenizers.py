"""Three trained tokenizers of a few hundred ids, with added tokens of every awkward kind."""

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, trainers

from calibjax.backbone.tokenizer import Tokenizer

TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think>{% endif %}"
)
# The last two are not "special": they are matched in text all the same.
SPECIAL = ("<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|im|>")
PLAIN_ADDED = ("<think>", "</think>")
_TEXTS = [
    "the quick brown fox jumps over the lazy dog and runs away",
    "a system of rules, an assistant, a user: im start im end think",
    "Paris is the capital of France; Lima is the capital of Peru. 0123456789",
    "<|im_start|> <|im_end|> <think> </think> <s> </s> in a text",
]


def bpe() -> Tokenizer:
    """Byte-level BPE whose merges rebuild control tokens from plain letters."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=700, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator([*_TEXTS, *(SPECIAL + PLAIN_ADDED) * 40], trainer)
    return _finished(tokenizer, "bpe")


def unigram() -> Tokenizer:
    """Unigram over '▁' words; its own pieces include the control tokens."""
    pieces = [("<unk>", 0.0)] + [(text, -0.5) for text in SPECIAL + PLAIN_ADDED]
    letters = sorted({letter for text in _TEXTS for letter in text} | set("▁ABCXYZ"))
    pieces += [(letter, -5.0) for letter in letters] + [("▁the", -2.0), ("▁capital", -2.0)]
    tokenizer = tokenizers.Tokenizer(models.Unigram(pieces, unk_id=0))
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="never")
    return _finished(tokenizer, "unigram", unknown="<unk>")


def word_piece() -> Tokenizer:
    """WordPiece cut at white space alone, so that a control token could be one word."""
    tokenizer = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(
        vocab_size=400, special_tokens=["[UNK]", *SPECIAL], show_progress=False
    )
    tokenizer.train_from_iterator(_TEXTS * 3, trainer)
    return _finished(tokenizer, "word_piece", unknown="[UNK]")


def _finished(tokenizer: tokenizers.Tokenizer, name: str, unknown: str = "") -> Tokenizer:
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in SPECIAL])
    tokenizer.add_tokens([AddedToken(text, special=False) for text in PLAIN_ADDED])
    specials = {"bos_token": "<s>", "eos_token": "<|im_end|>", "unk_token": unknown}
    return Tokenizer.from_tokenizers(
        tokenizer, TEMPLATE, specials=specials, add_bos=True, name=name, trusted=True
    )
