"""One sentence per fault of a file that pydantic read: the key, what is wrong with it, and what would work."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any


def fault_sentence(error: Any, key: str, known: Sequence[str]) -> str:
    """`error` is one item of ValidationError.errors(), `key` its place as the user wrote it, `known` the keys there."""
    if error["type"] == "extra_forbidden":
        near = difflib.get_close_matches(str(error["loc"][-1]), known, n=1)
        return f"{key}: there is no such key; {f'did you mean {near[0]}?' if near else f'known are {list(known)}'}"
    if error["type"] == "missing":
        return f"{key}: this key is required"
    text = str(error["msg"]).removeprefix("Value error, ")
    return f"{key}: {text}" if error["type"] == "value_error" else f"{key}: {text} (found {error['input']!r})"
