"""Templates see placeholders only, and a hostile one is stopped within its limits."""

import json
import time

import pytest

from calibjax.backbone.chat_template import Template, skeleton
from calibjax.errors import InputError
from tests.backbone import small_tokenizers

CHAT = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"


def _template(source: str, *, trusted: bool = False) -> Template:
    return Template(source, "dir/tokenizer_config.json", trusted, (("bos_token", "<s>"),))


HOSTILE = {
    "attribute": "{{ ''.__class__.__mro__ }}",
    "globals": "{{ cycler.__init__.__globals__.os.system('true') }}",
    "range": "{% for i in range(10**6) %}{% endfor %}",
    "loops": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "output": "{% for i in range(99999) %}0123456789abcdef{% endfor %}" + CHAT,
    "memory": "{% set x = 'a' * 10**10 %}" + CHAT,
    "recursion": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "mutation": "{{ messages.append(1) }}" + CHAT,
    "power": "{{ 9 ** (9 ** 9) }}" + CHAT,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_template_is_an_input_error_that_names_its_file(name):
    start = time.monotonic()
    with pytest.raises(InputError, match="chat_template=dir/tokenizer_config.json"):
        skeleton(_template(HOSTILE[name]), ("user",))
    # 2 s of CPU time, and ample room for a machine that runs other tests beside.
    assert time.monotonic() - start < 30


@pytest.mark.parametrize("name", ["attribute", "range", "output", "mutation"])
def test_templates_of_installed_packages_are_rendered_in_the_sandbox_too(name):
    with pytest.raises(InputError, match="chat_template"):
        skeleton(_template(HOSTILE[name], trusted=True), ("user",))


@pytest.mark.parametrize("trusted", [True, False])
def test_the_skeleton_is_literals_around_message_numbers(trusted):
    template = _template("{{ bos_token }}" + CHAT, trusted=trusted)
    assert skeleton(template, ("system", "user")) == ("<s>[system]", 0, "[user]", 1)


def test_the_date_is_fixed_so_that_prompts_repeat():
    template = _template('{{ strftime_now("%d %b %Y") }}' + CHAT, trusted=True)
    assert skeleton(template, ("user",))[0] == "26 Jul 2024[user]"
    later = template._replace(date="2030-01-02")
    assert skeleton(later, ("user",))[0] == "02 Jan 2030[user]"


def test_what_published_templates_use_is_there():
    source = (
        "{%- if tools is none and documents is none and not date_string is defined %}\n"
        "  {%- for m in messages %}\n"
        "    {%- if m.content is not string %}{{ raise_exception('no') }}{% endif %}\n"
        "    {%- if loop.index > 2 %}{% break %}{% endif %}\n"
        "{{ m.role | tojson }}: {% generation %}{{ m['content'] | trim }}{% endgeneration %};\n"
        "  {%- endfor %}{% if add_generation_prompt %}go{% endif %}\n"
        "{%- endif %}"
    )
    parts = skeleton(_template(source, trusted=True), ("user", "assistant"))
    assert [part for part in parts if isinstance(part, int)] == [0, 1]
    assert "".join(part for part in parts if isinstance(part, str)).split() == [
        '"user":',
        ';"assistant":',
        ";go",
    ]


def test_a_template_that_drops_or_refuses_a_message_is_refused():
    with pytest.raises(InputError, match="drops message 0"):
        skeleton(_template("{{ messages[1].content }}", trusted=True), ("system", "user"))
    refusing = "{{ raise_exception('System role not supported') }}"
    with pytest.raises(InputError, match="System role not supported"):
        skeleton(_template(refusing, trusted=True), ("user",))


def test_a_template_cannot_forge_a_placeholder_of_another_message():
    """Text that looks like our placeholder makes us choose another one."""
    source = "calibjax0content1end" + CHAT
    assert skeleton(_template(source, trusted=True), ("user",)) == (
        "calibjax0content1end[user]",
        0,
    )
    built = "{{ 'calibjax0con' ~ 'tent7end' }}" + CHAT
    with pytest.raises(InputError, match="drops message"):
        skeleton(_template(built, trusted=True), ("user",))


def test_a_hostile_directory_is_stopped_when_it_is_used(tmp_path):
    from calibjax.backbone.tokenizer import Tokenizer

    small_tokenizers.bpe()._full.save(str(tmp_path / "tokenizer.json"))
    settings = {"chat_template": "{{ ''.__class__.__mro__ }}"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    with pytest.raises(InputError, match="SecurityError"):
        Tokenizer.from_directory(tmp_path).encode_prompt("hi")
