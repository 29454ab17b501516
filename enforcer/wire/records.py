"""Many equal records of a structure: `struct` unpacks them several times faster than ctypes reads
their fields.
"""

from __future__ import annotations

import ctypes
import struct
from typing import Any

_CODES: dict[Any, str] = {
    ctypes.c_int32: "i",
    ctypes.c_uint32: "I",
    ctypes.c_int64: "q",
    ctypes.c_uint64: "Q",
}


def _format(kind: type[ctypes.Structure]) -> str:
    text = ""
    fields: Any = kind._fields_
    for _, field in fields:
        if issubclass(field, ctypes.Structure):
            text += _format(field)
        elif issubclass(field, ctypes.Array):
            text += (
                f"{field._length_}{'s' if field._type_ is ctypes.c_char else _CODES[field._type_]}"
            )
        else:
            text += _CODES[field]
    return text


def record(kind: type[ctypes.Structure]) -> struct.Struct:
    """The layout as a struct.Struct. Raises ValueError for padding,
    which `struct` would not skip.
    """
    found = struct.Struct(f"={_format(kind)}")
    if found.size != ctypes.sizeof(kind):
        raise ValueError(
            f"{kind.__name__} has {ctypes.sizeof(kind)} bytes, its fields {found.size}"
        )
    return found
