"""Chat templates: rendered with placeholders for the contents, never with the contents.

What a template writes may hold control tokens; what a message says may not. So a template sees
only placeholders, and its output is cut into literal text and references to messages. The cut
depends on the roles alone and is remembered.
"""

import functools
import json
import re
import subprocess
import sys
from typing import NamedTuple

from calibjax.backbone import template_sandbox
from calibjax.errors import InputError, closest, input_error

ROLES = ("system", "user", "assistant")

# Against a machine that is asleep; the limit that counts is the child's 2 s of CPU time.
_WALL_SECONDS = 60


class Template(NamedTuple):
    """A chat template and what it may refer to.

    origin: the file it came from, for messages. trusted: it is part of an installed package, so it
    is rendered in this process. specials: (name, text) pairs such as ("bos_token", "<s>").
    date: ISO date that `strftime_now` tells; the default is the one Llama 3 templates fall back to.
    """

    source: str
    origin: str
    trusted: bool
    specials: tuple[tuple[str, str], ...]
    date: str = "2024-07-26"


@functools.lru_cache(maxsize=512)
def skeleton(template: Template, roles: tuple[str, ...]) -> tuple[str | int, ...]:
    """What the template makes of messages with these roles: literal texts and message indices.

    The header of the assistant's turn is included. Raises InputError when the template fails,
    leaves the sandbox, passes 2 s of CPU time or 1 MB of output, or drops a message.
    """
    for role in roles:
        if role not in ROLES:
            near = closest(role, ROLES)
            raise input_error("role", role, " or ".join(ROLES), near and f"did you mean {near}")
    nonce = _nonce(template.source)
    messages = [
        {"role": role, "content": f"calibjax{nonce}content{index}end"}
        for index, role in enumerate(roles)
    ]
    pieces = re.split(rf"calibjax{nonce}content(\d+)end", _render(template, messages))
    parts: list[str | int] = list(pieces)
    parts[1::2] = [int(index) for index in pieces[1::2]]
    missing = set(range(len(roles))) - set(parts[1::2])
    if missing or len(set(parts[1::2])) > len(roles):
        raise _failure(template, f"it drops message {min(missing, default=0)} of {list(roles)}")
    return tuple(part for part in parts if part != "")


def _nonce(source: str) -> int:
    """The first number whose placeholders the template's own text does not hold."""
    nonce = 0
    while f"calibjax{nonce}content" in source:
        nonce += 1
    return nonce


def _render(template: Template, messages: list[dict[str, str]]) -> str:
    variables = {
        **dict(template.specials),
        "messages": messages,
        "add_generation_prompt": True,
        "tools": None,
        "documents": None,
    }
    if not template.trusted:
        return _render_in_child(template, variables)
    try:
        return template_sandbox.render(template.source, variables, template.date)
    except Exception as error:  # a template may raise anything; the caller wants one line
        raise _failure(template, template_sandbox.describe(error)) from error


def _render_in_child(template: Template, variables: dict) -> str:
    request = {"template": template.source, "variables": variables, "date": template.date}
    try:
        child = subprocess.run(
            [sys.executable, "-I", template_sandbox.__file__],
            input=json.dumps(request).encode(),
            capture_output=True,
            timeout=_WALL_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise _failure(template, f"no output within {_WALL_SECONDS} s") from error
    if child.returncode:
        seconds = template_sandbox.CPU_SECONDS
        raise _failure(template, f"stopped by the limit of {seconds} s CPU time or 1 GB memory")
    reply = json.loads(child.stdout)
    if "error" in reply:
        raise _failure(template, reply["error"])
    return reply["text"]


def _failure(template: Template, what: str) -> InputError:
    return input_error(
        "chat_template",
        template.origin,
        f"a template that renders within the sandbox ({what})",
        "use the template that the model's authors publish",
    )
