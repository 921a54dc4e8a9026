"""What the README, the pages and the commands' own help show to be typed works as shown."""

import doctest
import functools
import re
from pathlib import Path

import jax
import pytest

from tests.launch.command import ROOT, run

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
COMMANDS = sorted(
    path.stem for path in (ROOT / "launch").glob("*.py") if not path.name.startswith("_")
)


@functools.cache
def help_of(command: str) -> str:
    done = run(command, "--help")
    assert done.code == 0, done.err
    return done.out


def flags_of(command: str) -> set[str]:
    """Both spellings of a boolean flag."""
    names = set(re.findall(r"^  --([\w.]+)", help_of(command), re.M))
    return names | {f"no{name}" for name in names}


def shown_commands(text: str) -> list[str]:
    """Commands in a page, their continued lines joined."""
    joined = text.replace("\\\n", " ")
    return re.findall(r"python -m launch\.[a-z][^\n`#]*", joined)


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_python_in_a_page_runs_or_at_least_compiles(page):
    text = page.read_text()
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        result = doctest.testfile(str(page), module_relative=False)
    assert result.failed == 0 and (result.attempted > 0) == (">>>" in text)
    for block in re.findall(r"```python\n(.*?)```", text, re.S):
        if ">>>" not in block:
            compile(block, page.name, "exec")


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_commands_in_a_page_exist_with_the_flags_that_it_gives_them(page):
    for shown in shown_commands(page.read_text()):
        check(shown)


@pytest.mark.parametrize("command", COMMANDS)
def test_the_examples_of_a_command_use_its_own_flags(command):
    examples = shown_commands(help_of(command).partition("Examples:")[2])
    assert examples
    for shown in examples:
        check(shown)


def check(shown: str) -> None:
    command = re.match(r"python -m launch\.(\w+)", shown)
    assert command and command[1] in COMMANDS, shown
    given = {name for name in re.findall(r"(?<=\s)--([\w.]+)", shown) if name != "help"}
    given = {name for name in given if not name.startswith("config.")}
    assert given <= flags_of(command[1]), shown


def test_a_forecaster_is_named_alike_everywhere():
    """`--forecaster` takes OUT of launch.train too; what is shown is OUT/checkpoint."""
    texts = [path.read_text() for path in PAGES] + [help_of(command) for command in COMMANDS]
    shown = {name for text in texts for name in re.findall(r"--forecaster=(\S+/\S+)", text)}
    assert shown and all(Path(name.rstrip(",;.`")).name == "checkpoint" for name in shown)
