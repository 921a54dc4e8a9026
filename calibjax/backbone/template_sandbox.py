"""Renders one chat template in jinja2's sandbox; also the program of the limited child process.

As a program it reads one JSON request on stdin and writes one JSON reply on stdout. It imports
nothing of the package, so that the child starts fast and without JAX.
"""

import datetime
import json
import sys
from typing import Any

import jinja2
import jinja2.ext
import jinja2.sandbox

MAX_OUTPUT_CHARS = 1_000_000
CPU_SECONDS = 2
MEMORY_BYTES = 1 << 30


class _GenerationTag(jinja2.ext.Extension):
    """`{% generation %}...{% endgeneration %}` marks assistant turns for training: shown as is."""

    tags = {"generation"}

    def parse(self, parser: Any) -> Any:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def render(template: str, variables: dict[str, Any], date: str) -> str:
    """The rendered template; `date` (ISO) is what `strftime_now` tells, so prompts are repeatable.

    Raises jinja2's errors, and OverflowError beyond 1,000,000 characters.
    """
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_GenerationTag, jinja2.ext.loopcontrols],
    )
    environment.filters["tojson"] = _to_json
    day = datetime.datetime.fromisoformat(date)
    environment.globals.update(raise_exception=_raise_exception, strftime_now=day.strftime)
    pieces, size = [], 0
    for piece in environment.from_string(template).generate(**variables):
        size += len(piece)
        if size > MAX_OUTPUT_CHARS:
            raise OverflowError(f"the output passes {MAX_OUTPUT_CHARS} characters")
        pieces.append(piece)
    return "".join(pieces)


def _to_json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def describe(error: BaseException) -> str:
    """One line about what the template did."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]


def _child() -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    request = json.load(sys.stdin)
    try:
        reply = {"text": render(request["template"], request["variables"], request["date"])}
    except Exception as error:  # whatever a hostile template raises is one line for the parent
        reply = {"error": describe(error)}
    json.dump(reply, sys.stdout)


if __name__ == "__main__":
    _child()
