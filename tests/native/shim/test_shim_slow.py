"""A driver call that does not come back stops the thread that made it, and no other
(programs/submit/slow.c).
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.harness.node import BUILD, Rig, wait_for
from enforcer.fdwait import readable_within

pytestmark = [
    pytest.mark.native,
    pytest.mark.skipif(os.getuid() != 0, reason="needs root: sealed grants"),
]
JOB, NEIGHBOUR = 1, 2
OURS = (
    "cuEventCreate",
    "cuEventRecord",
    "cuEventQuery",
    "cuStreamWriteValue32",
    "cuMemHostRegister",
)
WHERE = ("cards", "contexts")  # what the two threads do not share


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with Rig(tmp_path, cards=2) as running:
        running.grant(JOB, "offline", mem_mib=2048, card=(0, 1))
        yield running


class Program:
    """One of the programs as a task of the job; ended when the test ends."""

    def __init__(self, rig: Rig, *words: str) -> None:
        argv: list[str | Path] = [BUILD / "test/shim-slow", *words]
        self.process: subprocess.Popen[str] = rig.spawn(
            argv, rig.grants[JOB], stdin=subprocess.PIPE, bufsize=1
        )

    def line(self, seconds: float = 10.0) -> str:
        assert self.process.stdout
        assert readable_within(self.process.stdout.fileno(), seconds), "the program hangs"
        return self.process.stdout.readline().strip()

    def order(self, word: str) -> str:
        assert self.process.stdin
        self.process.stdin.write(word + "\n")
        return self.line()

    def counts(self) -> tuple[int, int]:
        first, second = self.order("c").split()
        return int(first), int(second)

    def standing(self) -> list[int]:
        """Which of the two threads does not launch within so much of the other's work, or of
        time.
        """
        before = self.counts()
        try:
            wait_for(
                "both launch",
                lambda: all(n > b for n, b in zip(self.counts(), before, strict=True)),
                1.0,
                slack=1,
            )
        except TimeoutError:
            return [i for i in (0, 1) if self.counts()[i] == before[i]]
        return []


def short_window(rig: Rig) -> None:
    """Of 500 us, because an idle online tenant is there."""
    rig.grant(NEIGHBOUR, "online", mem_mib=1024, card=(0, 1))
    idle = rig.spawn([BUILD / "test/shim-task", "hold", "1"], rig.grants[NEIGHBOUR])
    assert idle.stdout and idle.stdout.readline() == "held\n"


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("call", OURS)
def test_call_that_does_not_return_stops_its_thread_alone(rig: Rig, call: str, where: str) -> None:
    program = Program(rig, "pair", where)
    assert program.line() == "ready"
    rig.fault(f"block call={call} times=1 pid={program.process.pid}")
    program.process.stdin.write("\n")  # type: ignore[union-attr]
    wait_for("one of them makes the call", lambda: len(program.standing()) > 0, 20)
    stands = program.standing()
    assert len(stands) == 1, f"{call} blocks one thread, and both stand"
    other = 1 - stands[0]
    before = program.counts()
    wait_for("the other goes on", lambda: program.counts()[other] > before[other] + 500, 10)
    assert program.order(str(other)) == "left", "a new thread with new streams comes and goes"
    assert program.order(str(stands[0])) == "left", "also in the context where the call stands"
    assert program.standing() == stands
    rig.fault(f"clear pid={program.process.pid}")
    wait_for("it goes on too", lambda: not program.standing(), 10)
    last = program.order("e").split()
    assert all(int(n) > b for n, b in zip(last, before, strict=True))
    out, err = program.process.communicate(timeout=60)
    assert (program.process.returncode, err) == (0, ""), (program.process.returncode, out, err)


# Not two contexts of one card with the wide window: there a marker for the other one may wait in
# its full queue, one run in ten (docs/specs/shim.md).
@pytest.mark.parametrize(
    ("where", "window_us"), [("cards", 20000), ("cards", 500), ("contexts", 500)]
)
def test_full_queue_of_one_card_does_not_stop_the_other(
    rig: Rig, where: str, window_us: int
) -> None:
    """It is freed by what the other does: who held a lock while it waited for room would wait
    for ever.
    """
    if window_us < 5000:
        short_window(rig)
    program = Program(rig, "behind", where)
    assert program.line() == "1 1"
    assert program.process.wait(60) == 0, program.process.communicate()


def waits_for_it(rig: Rig, what: str, tells: str) -> bool:
    """Whether a program waits with this until another context's thread, whose marker is blocked,
    has come back.
    """
    program = Program(rig, what, "contexts")
    assert program.process.stdin and program.process.stdout
    assert program.line() == "ready"
    rig.fault(f"block call=cuStreamWriteValue32 times=1 pid={program.process.pid}")
    assert program.order("") == "stands", (
        "the other thread looks for room, and marks what has no marker"
    )
    program.process.stdin.write("\n")
    waits = not readable_within(program.process.stdout.fileno(), 0.5)
    rig.fault(f"clear pid={program.process.pid}")
    out, err = program.process.communicate("\n", timeout=60)
    assert (program.process.returncode, out, err) == (0, f"{tells}\nover\n", "")
    wait_for("nothing of it is on the card", lambda: not rig.link.stats()[0].busy)
    return waits


def test_context_is_not_destroyed_under_a_marker_of_another_ones_thread(rig: Rig) -> None:
    """In a real driver its handles are pointers, and what they point to is gone with it. On a
    machine with much other work the marker may have been the program's own; then once more.
    """
    short_window(rig)
    assert any(waits_for_it(rig, "ends", "gone") for _ in range(10))


def test_marker_of_another_thread_comes_into_no_capture(rig: Rig) -> None:
    """It would become a part of the program's graph, and the stream would look busy for ever."""
    short_window(rig)
    assert any(waits_for_it(rig, "captures", "0 nodes") for _ in range(10))
