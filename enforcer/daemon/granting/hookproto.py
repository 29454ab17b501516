"""Encodes and decodes qgpu-hook/1 (docs/specs/hook.md). Pure: no sockets."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from gres.printable import printable

PROTOCOL = "qgpu-hook/1"
MAX_MESSAGE = 65536  # bytes of one message
MAX_VARIABLES = 64  # variables of one message: the hook sends fewer
MAX_TEXT = 2000  # bytes of a sentence that the client shows

Kind = Literal["prolog", "epilog"]


class ProtocolError(ValueError):
    """A message that is not qgpu-hook/1; the text is a sentence."""


@dataclass(frozen=True)
class Request:
    """One question of the hook."""

    kind: Kind
    env: dict[str, str]


@dataclass(frozen=True)
class Answer:
    """Exit status for the hook (0: go on, 1: the node is broken), and a
    sentence to show or none.
    """

    status: int
    message: str = ""


@dataclass(frozen=True)
class Later:
    """No answer yet: the obstacle may pass, so the request is to be tried again.

    `patient`: it has a deadline of its own, and is given up by another answer.
    """

    why: str
    patient: bool = False


def _variable(raw: bytes) -> tuple[str, str]:
    name, sign, value = raw.decode(errors="replace").partition("=")
    if not sign or not re.fullmatch(r"[A-Z][A-Z0-9_]{0,63}", name):
        raise ProtocolError(f"'{name[:40]}' in the hook's message is not NAME=VALUE")
    return name, value


def parse_request(data: bytes) -> Request:
    """Request of one message. Raises ProtocolError."""
    if len(data) > MAX_MESSAGE:
        raise ProtocolError(f"the hook's message is longer than {MAX_MESSAGE} bytes")
    head, *rest = data.split(b"\0")
    if rest and rest[-1] == b"":
        rest.pop()
    if len(rest) > MAX_VARIABLES:
        raise ProtocolError(f"the hook's message has more than {MAX_VARIABLES} variables")
    if head == f"{PROTOCOL} prolog".encode():
        kind: Kind = "prolog"
    elif head == f"{PROTOCOL} epilog".encode():
        kind = "epilog"
    else:
        raise ProtocolError(f"the message {head[:40]!r} is not a prolog or epilog of {PROTOCOL}")
    env = dict(_variable(raw) for raw in rest)
    if len(env) != len(rest):
        raise ProtocolError("the hook's message names a variable twice")
    return Request(kind, env)


def format_answer(answer: Answer) -> bytes:
    """One message; the sentence is cut to what the client shows."""
    text = printable(answer.message).encode()[:MAX_TEXT].decode(errors="ignore")
    return f"{PROTOCOL} {answer.status}\0{text}".encode()
