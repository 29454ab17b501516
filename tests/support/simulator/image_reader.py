"""The reader of modules of the simulated driver, as a program under sanitizers, and damage to
modules.
"""

from __future__ import annotations

import os
import struct
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field

from hypothesis import strategies as st
from sim_tools import BUILD

INVALID_IMAGE, NO_BINARY, INVALID_PTX = 200, 209, 218
READ = (0, INVALID_IMAGE, NO_BINARY, INVALID_PTX)

WORDS = st.sampled_from([0, 1, 7, 0x7F, 0xFF, 0xFFFF, 0x7FFFFFFF, 2**32 - 1, 2**63, 2**64 - 1])


@dataclass
class Seen:
    status: int
    arch: int
    words: list[str]
    kernels: dict[str, list[str]] = field(default_factory=dict)
    globals: dict[str, list[str]] = field(default_factory=dict)


class Reader:
    """The test program; it stays for many images."""

    def __init__(self, **env: str) -> None:
        self.process = subprocess.Popen(
            [str(BUILD / "test/sim-image-test")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **env},
        )

    def lines(self, image: bytes) -> Iterator[str]:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(struct.pack("<I", len(image)) + image)
        self.process.stdin.flush()
        while (line := self.process.stdout.readline()) != b".\n":
            assert line.endswith(b"\n"), self.process.communicate()[1].decode()
            yield line[:-1].decode(errors="replace")

    def read(self, image: bytes) -> Seen:
        head, *rest = list(self.lines(image))
        status, arch, *words = head.split(" ")
        seen = Seen(int(status), int(arch), words)
        for line in rest:
            kind, name, *values = line.split(" ")
            (seen.kernels if kind == "kernel" else seen.globals)[name] = values
        return seen

    def status(self, image: bytes) -> int:
        """Of an image whose names may be anything."""
        return int(next(iter(list(self.lines(image)))).split(" ")[0])

    def end(self) -> None:
        """What was never freed is a fault, too."""
        err = self.process.communicate(timeout=60)[1]
        assert self.process.returncode == 0, err.decode()


@st.composite
def damaged(draw: st.DrawFn, bases: list[bytes]) -> bytes:
    """A module with bytes and numbers written over, and cut or continued."""
    data = bytearray(draw(st.sampled_from(bases)))
    for _ in range(draw(st.integers(0, 6))):
        at = draw(st.integers(0, len(data) - 1))
        if draw(st.booleans()):
            data[at] = draw(st.integers(0, 255))
        else:
            width = draw(st.sampled_from([2, 4, 8]))
            at -= at % width
            word = struct.pack("<Q", draw(WORDS))[:width]
            data[at : at + width] = word[: len(data) - at]
    if draw(st.booleans()):
        del data[draw(st.integers(0, len(data))) :]
    return bytes(data + draw(st.binary(max_size=9)))
