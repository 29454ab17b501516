"""A captured program in a trace of `qgpu simulate`: stretches of kernels, gaps and copies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import BeforeValidator, Field

from gres.config.schema import Section, Word
from gres.config.sentences import shown
from gres.units import Duration, UnitError, parse_duration

MAX_STRETCHES, MAX_KERNELS = 4096, 1_000_000
MAX_KERNEL = Duration(60 * 10**9)


@dataclass(frozen=True)
class Stretch:
    """Equal kernels that follow each other, a copy that the program then waits for, and its time on
    the CPU until it launches again.
    """

    kernels: int
    ns: int  # of each kernel
    gap_ns: int
    copy_ns: int = 0


def _between(value: object, low: int, high: Duration) -> int:
    length = parse_duration(value)
    if not low <= length.ns <= high.ns:
        raise UnitError(f"'{shown(value)}' is not between {Duration(low)} and {high}")
    return length.ns


def _stretch(value: object) -> Stretch:
    if isinstance(value, Stretch):
        return value
    if not isinstance(value, list) or len(value) not in (3, 4):
        raise ValueError(
            f"'{shown(value)}' is no stretch; write [kernels, length, gap] or [kernels, length,"
            " gap, copy], for example [8, 12us, 30us]"
        )
    kernels, length, *waits = value
    if type(kernels) is not int or not 1 <= kernels <= MAX_KERNELS:
        raise ValueError(
            f"'{shown(kernels)}' kernels are not possible; write a number from 1 to {MAX_KERNELS}"
        )
    return Stretch(
        kernels, _between(length, 100, MAX_KERNEL), *(_between(w, 0, MAX_KERNEL) for w in waits)
    )


class Program(Section):
    """A captured program: what tenants do again and again."""

    name: Word
    stretches: Annotated[
        list[Annotated[Stretch, BeforeValidator(_stretch)]],
        Field(min_length=1, max_length=MAX_STRETCHES),
    ]
