"""Flags of every command, one-line faults for wrong ones, and a --help that teaches."""

import math
import os
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from absl import flags

from calibjax.errors import InputError, closest, input_error

FLAGS = flags.FLAGS

SEED = flags.DEFINE_integer(
    "seed", 0, "root of all random draws", lower_bound=0, upper_bound=2**32 - 1
)
OUT = flags.DEFINE_string("out", None, "directory of the results; created")
RESUME = flags.DEFINE_boolean("resume", False, "go on where an earlier run in --out stopped")
OVERWRITE = flags.DEFINE_boolean(
    "overwrite", False, "replace the run in --out; its files go once the new run is done"
)
STRICT = flags.DEFINE_boolean("strict", False, "stop at the first bad row of an input file")
COMMON = ("out", "seed", "resume", "overwrite", "strict")

# 2 / (1 - level) at level 95 %: from so many replicates on, one lies beyond either end of the
# interval on average. Of fewer it is but their range, which need not hold the estimate.
MIN_REPLICATES = 40

_WIDTH = 100
# The flag that a stray file name most likely belongs to, by what a command takes.
_FILE_FLAGS = ("predictions", "examples", "path", "data", "config")
_TYPES = {"int": "an integer", "float": "a number", "bool": "true or false", "string": "text"}


def own_flags(main: Callable[[], Any]) -> list[flags.Flag]:
    """The flags that the command itself defines or adopts, without the common ones."""
    # absl files the flags of the module that runs as __main__ under the script's name.
    module = sys.argv[0] if main.__module__ == "__main__" else main.__module__
    found = FLAGS.get_flags_for_module(module) + FLAGS.get_key_flags_for_module(module)
    return list({flag.name: flag for flag in found if flag.name not in COMMON}.values())


def parse(argv: Sequence[str], main: Callable[[], Any]) -> None:
    """Sets absl's FLAGS. Raises InputError for anything that is wrong with the command line."""
    try:
        rest = FLAGS(list(argv))
    except flags.UnrecognizedFlagError as error:
        raise _unknown(error.flagname, str(error.flagvalue), _names(main)) from None
    except flags.Error as error:
        stray = _positional(argv)
        raise _stray(stray[0], _names(main)) if stray else flag_fault(error) from None
    if rest[1:]:
        raise _stray(rest[1], _names(main))
    for flag in own_flags(main):
        if isinstance(flag.value, float) and not math.isfinite(flag.value):
            raise input_error(flag.name, flag.value, "a finite number", _example(flag))


def _names(main: Callable[[], Any]) -> list[str]:
    config = [name for name in FLAGS if name.startswith("config.")]
    return [flag.name for flag in own_flags(main)] + config


def _positional(argv: Sequence[str]) -> list[str]:
    """Arguments that are neither a flag nor the value that follows one."""
    found, takes_value = [], False
    for argument in argv[1:]:
        name, equals, _ = argument.lstrip("-").partition("=")
        if argument.startswith("-"):
            takes_value = not equals and name in FLAGS and not FLAGS[name].boolean
        elif takes_value:
            takes_value = False
        else:
            found.append(argument)
    return found


def flag_fault(error: flags.Error) -> InputError:
    """What absl says of a flag's value, in house style."""
    text = " ".join(str(error).split())
    match = re.match(r"flag --(\w[\w.]*)=(.*?): (.*)", text)
    if match and match[1] in FLAGS:
        return _wrong_value(FLAGS[match[1]], match[2], match[3])
    match = re.match(r"Missing value for flag --?(\w[\w.]*)", text)
    if match and match[1] in FLAGS:
        return input_error(match[1], "", "a value", _example(FLAGS[match[1]]))
    return InputError(text)


def help_text(main: Callable[[], Any], examples: Iterable[str]) -> str:
    """What the command does, its own flags, the common ones, and commands to copy."""
    doc = (sys.modules[main.__module__].__doc__ or "").strip()
    parts = [f"Usage: {command_name(main)} --FLAG=VALUE ...", doc]
    shown = [_describe(flag) for flag in own_flags(main)]
    if shown:
        parts.append("Flags of this command:\n" + "\n".join(shown))
    parts.append("Flags of every command:\n" + "\n".join(_describe(FLAGS[n]) for n in COMMON))
    if examples:
        parts.append("Examples:\n" + "\n".join(f"  {example}" for example in examples))
    return "\n\n".join(parts) + "\n"


def command_name(main: Callable[[], Any]) -> str:
    """How the command is started: `python -m launch.NAME`."""
    name = main.__module__
    if name == "__main__":
        name = f"launch.{os.path.basename(sys.argv[0]).removesuffix('.py')}"
    return f"python -m {name}"


def _describe(flag: flags.Flag) -> str:
    kind = "" if flag.boolean else f"={_kind(flag)}"
    default = f" (default: {flag.default})" if flag.default not in (None, False, "", []) else ""
    told = re.sub(r"^<[^>]*>: ", "", " ".join((flag.help or "").split()))
    text = textwrap.fill(told + default, _WIDTH - 8)
    head = f"  --{flag.name}{kind}"
    return head + "\n" + textwrap.indent(text, " " * 6)


def _kind(flag: flags.Flag) -> str:
    values = getattr(flag.parser, "enum_values", None)
    if values:
        return "|".join(values)
    return {"int": "N", "float": "X"}.get(flag.flag_type(), "TEXT")


def _unknown(name: str, argument: str, own: Sequence[str]) -> InputError:
    near = closest(name.removeprefix("no"), [*own, *COMMON])
    fix = f"did you mean --{near}" if near else "--help lists the flags"
    shown = f"={argument.partition('=')[2]}" if "=" in argument else ""
    return InputError(f"{name}{shown}: no such flag; fix: {fix}")


def _stray(argument: str, own: Sequence[str]) -> InputError:
    name, equals, value = argument.partition("=")
    if equals and (name in own or name in COMMON):
        fix = f"--{name}={value}"
    else:
        target = next((flag for flag in _FILE_FLAGS if flag in own), None)
        fix = f"--{target}={argument}" if target else "write --NAME=VALUE; --help lists the names"
    return input_error("argument", argument, "flags only", fix)


def _wrong_value(flag: flags.Flag, value: str, reason: str) -> InputError:
    values = getattr(flag.parser, "enum_values", None)
    if values:
        near = closest(value, values)
        expected = f"one of {', '.join(values)}"
        return input_error(flag.name, value, expected, f"--{flag.name}={near or values[0]}")
    if flag.value is None and value == "None":
        return input_error(flag.name, "", "a value", _example(flag))
    expected = _TYPES.get(flag.flag_type(), f"another value ({reason})")
    return input_error(flag.name, value, expected + _bounds(flag), _example(flag))


def _bounds(flag: flags.Flag) -> str:
    low = getattr(flag.parser, "lower_bound", None)
    high = getattr(flag.parser, "upper_bound", None)
    if low is not None and high is not None:
        return f" in [{low}, {high}]"
    if low is not None:
        return f" >= {low}"
    return f" <= {high}" if high is not None else ""


def _example(flag: flags.Flag) -> str:
    default = flag.default if flag.default not in (None, "") else _kind(flag)
    return f"--{flag.name}={str(default).lower() if flag.boolean else default}"
