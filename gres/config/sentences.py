"""One sentence per fault of a file that pydantic read: the key, the fault, and what would work."""

from __future__ import annotations

import difflib
import reprlib
from collections.abc import Sequence
from typing import Any

from gres.printable import printable

# A value may be as large as the file, or far larger by YAML's aliases of aliases.
_SHORT = reprlib.Repr()
_SHORT.maxlevel, _SHORT.maxstring, _SHORT.maxother, _SHORT.maxlong = 3, 160, 160, 160


def shown(value: object) -> str:
    """A value for a sentence: text as it is, others as Python writes them; printable, shortened."""
    return printable(value if isinstance(value, str) else _SHORT.repr(value), 160)


def fault_sentence(error: Any, key: str, known: Sequence[str]) -> str:
    """The sentence of one fault.

    `error` is an item of ValidationError.errors(), `key` its place as the user wrote it, `known`
    the keys there.
    """
    if error["type"] == "extra_forbidden":
        near = difflib.get_close_matches(str(error["loc"][-1]), known, n=1)
        return (
            f"{key}: there is no such key;"
            f" {f'did you mean {near[0]}?' if near else f'known are {list(known)}'}"
        )
    if error["type"] == "missing":
        return f"{key}: this key is required"
    if error["type"] in ("model_type", "model_attributes_type", "dict_type"):
        found = "nothing" if error["input"] is None else _SHORT.repr(error["input"])
        return f"{key}: write its keys below it, indented, or leave {key} out (found {found})"
    text = str(error["msg"]).removeprefix("Value error, ")
    return (
        f"{key}: {text}"
        if error["type"] == "value_error"
        else f"{key}: {text} (found {_SHORT.repr(error['input'])})"
    )
