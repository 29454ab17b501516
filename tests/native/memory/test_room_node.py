"""A full card: real arbiter, shim and simulated card. The test is qgpud; a program without qgpu
fills the card.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from programs_support import OFFLINE, line, python, tenant

from bench.harness.node import BUILD, MIB, Rig, wait_for
from enforcer.fdwait import readable_within
from enforcer.wire.link import CardSettings, MemoryAction, Want
from enforcer.wire.watch import DeathWatch

pytestmark = pytest.mark.native
OUT_OF_MEMORY = "2"
NEED = 6144  # MiB that a way takes
LEFT = 1024  # MiB that the card has left: enough for contexts, far too few for that
ROOM = {"plain", "pitch", "managed", "create", "async", "from_pool", "array", "mipmap"}
ROOM |= {"graph_launch", "graph_upload", "graph_at_once", "module", "limit"}
# they do not know what they need
UNKNOWN = {"library", "context", "primary"}
FILL = """
d = Cuda(); held = d.alloc(d.free_memory() - (LEFT << 20)); print("full", flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with Rig(tmp_path) as one:
        one.grant(OFFLINE, "offline", 50, 32 * 1024)
        yield one


@pytest.fixture
def watch(rig: Rig) -> Iterator[DeathWatch]:
    with DeathWatch(rig.run_dir) as one:
        yield one


class Filler:
    """A process without qgpu that leaves so many MiB of the card."""

    def __init__(self, rig: Rig, left: int) -> None:
        code = FILL.replace("LEFT", str(left))
        rig.grants[0] = None  # type: ignore[assignment]
        self.process = python(rig, code, job=0, stdin=subprocess.PIPE)
        del rig.grants[0]
        assert line(self.process) == "full"

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


class Taker:
    """mem_room as a task of the job, ready to take its memory."""

    def __init__(self, rig: Rig, way: str, mib: int = NEED) -> None:
        program = BUILD / "test/shim-mem_room"
        self.process = rig.spawn(
            [program, way, str(mib)], rig.grants[OFFLINE], stdin=subprocess.PIPE
        )
        assert line(self.process) == "ready"

    def go(self) -> None:
        assert self.process.stdin
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def result(self) -> str:
        return line(self.process)

    def end(self) -> str:
        """What it said on its stderr."""
        self.go()
        _, err = self.process.communicate(timeout=60)
        assert self.process.returncode == 0, err
        return err


class Held:
    """A new process of the job, which wants a context."""

    def __init__(self, rig: Rig) -> None:
        self.process = python(rig, "d = Cuda(); print('made', flush=True); sys.stdin.readline()")
        self.rig = rig
        wait_for("it is registered", lambda: tenant(rig).procs == 2)

    def stays(self, other: Taker) -> None:
        """Neither goes on for a while."""
        assert self.process.stdout and other.process.stdout
        assert not readable_within(self.process.stdout.fileno(), 0.3)
        assert not readable_within(other.process.stdout.fileno(), 0)


def order(rig: Rig, action: MemoryAction, job: int = OFFLINE) -> None:
    rig.link.memory(job, rig.uuids[0], action)


def told(watch: DeathWatch) -> Want:
    """The next report."""
    found: list[Want] = []
    wait_for("it is told", lambda: bool(found.extend(watch.wants()) or found))
    return found[-1]


@pytest.mark.parametrize("way", sorted(ROOM))
def test_each_way_waits_until_the_card_has_room(rig: Rig, watch: DeathWatch, way: str) -> None:
    filler, taker = Filler(rig, LEFT), Taker(rig, way)
    order(rig, MemoryAction.WAIT, 0)
    taker.go()
    want = told(watch)
    assert (want.job_id, want.uuid, want.pid) == (OFFLINE, rig.uuids[0], taker.process.pid)
    # a limit asks for what it does not have yet
    assert (NEED - 16) * MIB <= want.wanted <= 2 * NEED * MIB
    order(rig, MemoryAction.RETRY)  # it fails: the card is as full as before
    filler.end()
    order(rig, MemoryAction.RETRY)
    assert taker.result() == "0"
    assert told(watch).wanted == 0
    assert taker.end() == ""


@pytest.mark.parametrize("way", sorted(UNKNOWN))
def test_who_does_not_know_its_need_waits_too(rig: Rig, watch: DeathWatch, way: str) -> None:
    taker = Taker(rig, way)
    filler = Filler(rig, 4)
    order(rig, MemoryAction.WAIT)
    taker.go()
    assert told(watch).wanted >= 2 * MIB
    filler.end()
    order(rig, MemoryAction.RETRY)
    assert taker.result() == "0"
    assert told(watch).wanted == 0
    assert taker.end() == ""


@pytest.mark.parametrize("way", sorted(ROOM | UNKNOWN))
@pytest.mark.parametrize("end", ["final", "off", "never on"])
def test_a_refusal_that_stands_is_as_without_waiting(
    rig: Rig, watch: DeathWatch, way: str, end: str
) -> None:
    """Nothing of it stays charged, and nothing is printed."""
    taker = Taker(rig, way)
    Filler(rig, 4)
    before = tenant(rig).mem_used
    if end != "never on":
        order(rig, MemoryAction.WAIT)
    taker.go()
    if end != "never on":
        assert told(watch).wanted
        order(rig, MemoryAction.FINAL if end == "final" else MemoryAction.NOWAIT)
    assert taker.result() == OUT_OF_MEMORY
    assert tenant(rig).mem_used == before and tenant(rig).mem_denied == 0
    assert [p.mem_pending for p in rig.link.processes()] == [0]
    assert taker.end() == ""


def test_a_process_that_is_killed_in_its_wait_leaves_nothing(rig: Rig, watch: DeathWatch) -> None:
    taker = Taker(rig, "plain")
    Filler(rig, 4)
    order(rig, MemoryAction.WAIT)
    taker.go()
    assert told(watch).wanted == NEED * MIB
    taker.process.kill()
    assert told(watch).wanted == 0
    wait_for("its end is told", lambda: bool(watch.died()))


def test_it_waits_for_the_next_arbiter(rig: Rig) -> None:
    """Killed in the midst: the successor hears what is wanted, and the wait goes on."""
    filler, taker = Filler(rig, LEFT), Taker(rig, "plain")
    order(rig, MemoryAction.WAIT, 0)
    taker.go()
    with DeathWatch(rig.run_dir) as watch:
        assert told(watch).wanted == NEED * MIB
    rig.arbiter.kill()
    rig.arbiter.wait()
    rig.start_arbiter(told=False)
    rig.link.hello()
    cards_then_waits(rig)
    with DeathWatch(rig.run_dir) as watch:
        assert told(watch).wanted == NEED * MIB
        filler.end()
        order(rig, MemoryAction.RETRY)
        assert taker.result() == "0"
    assert taker.end() == ""


def cards_then_waits(rig: Rig) -> None:
    """As qgpud's client orders it: before the first grant."""
    rig.link.card(CardSettings(rig.uuids[0]))
    order(rig, MemoryAction.WAIT, 0)
    for grant in rig.grants.values():
        rig.link.grant(grant)
    rig.link.synced()


@pytest.mark.parametrize("way", ["plain", "create", "async", "graph_launch", "context", "module"])
def test_a_held_job_takes_nothing_until_it_is_released(rig: Rig, way: str) -> None:
    taker = Taker(rig, way)
    before = tenant(rig).mem_used
    rig.link.grant(rig.grants[OFFLINE], held=True)
    newcomer = Held(rig)
    taker.go()
    newcomer.stays(taker)
    assert tenant(rig).mem_used == before
    rig.link.grant(rig.grants[OFFLINE])
    assert taker.result() == "0" and line(newcomer.process) == "made"
    assert taker.end() == ""
