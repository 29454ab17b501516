"""A job moves to another card of its node, as qgpud does it: arbiter, shim, qgpu-checkpoint and the
simulated cards together.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from programs_support import HEAD, HELPERS, OFFLINE, ended, line

from bench.harness.node import BUILD, MIB, Rig, wait_for
from enforcer.fdwait import readable_within
from enforcer.wire import abi
from enforcer.wire.link import CardSettings, TenantStats
from gres.grant.store import Grant
from simulator.sim import Kind

pytestmark = pytest.mark.native
MOST = 8 * 1024  # MiB of the job
BIG = 4 * 1024  # MiB of one program
TOO_MUCH = MOST - BIG + 2  # beside that program
PROGRAM = f"""
d = big = data = None
def start():
    global d; d = Cuda(); return "up"
def fill():
    global big, data
    big, data = d.alloc({BIG} * MIB), os.urandom(4 * MIB)
    for at in (0, {BIG - 4} * MIB):
        d.call("cuMemcpyHtoD_v2", c.c_uint64(big.value + at), data, c.c_size_t(len(data)))
    return "there"
def work():
    d.launch(200); d.call("cuCtxSynchronize"); return "worked"
def more(mib):
    return d.try_alloc(mib * MIB) != 0
def compare():
    back, good = c.create_string_buffer(4 * MIB), True
    for at in (0, {BIG - 4} * MIB):
        d.call("cuMemcpyDtoH_v2", back, c.c_uint64(big.value + at), c.c_size_t(4 * MIB))
        good &= back.raw == data
    return good
def fork():
    pid = os.fork()
    if not pid:
        print(start(), work(), flush=True); os._exit(0)
    return os.waitpid(pid, 0)[1]
for word in sys.stdin:
    print(eval(word), flush=True)
"""


class Program:
    """A program of the job, which does what it is told."""

    def __init__(self, rig: Rig, grant: Grant, *begin: str, **env: str) -> None:
        argv = [sys.executable, "-c", HEAD + textwrap.dedent(PROGRAM)]
        self.process = rig.spawn(argv, grant, env=HELPERS | env, stdin=subprocess.PIPE)
        for word in begin:
            self.ask(word)

    def tell(self, word: str) -> None:
        assert self.process.stdin
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()

    def ask(self, word: str) -> str:
        self.tell(word)
        return self.heard()

    def heard(self) -> str:
        return line(self.process)

    @property
    def waits(self) -> bool:
        """Nothing came of what it was told."""
        assert self.process.stdout
        return not readable_within(self.process.stdout.fileno(), 0.3)

    def end(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()
        self.process.stdin = None
        assert ended(self.process)[0] == ""


class Moves:
    """The job's place, and the steps of a move."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.home = self.now = rig.grant(OFFLINE, "offline", 50, MOST)

    def there(self, card: int) -> Grant:
        """The grant of the job on that card; Slurm booked card 0."""
        uuid, booked = self.rig.uuids[card], self.home.cards[0]
        moved = replace(booked, uuid=uuid, minor=card, index=card, home=booked.uuid, home_minor=0)
        return replace(self.home, cards=(moved if card else booked,))

    def hold(self, held: bool = True) -> None:
        self.rig.link.grant(self.now, held=held)

    def helper(self, action: str, *programs: Program, **to: str) -> None:
        """qgpu-checkpoint."""
        if not programs:
            return
        pairs = [word for old, new in to.items() for word in ("--map", f"{old}={new}")]
        words = [action, *pairs, *(str(p.process.pid) for p in programs)]
        done = subprocess.run(
            [BUILD / "bin/qgpu-checkpoint", "--driver", str(self.rig.driver), *words],
            env={"QGPU_SIM_DIR": str(self.rig.sim_dir)},
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, (done.stdout, done.stderr)

    def leave(self, *programs: Program) -> None:
        self.hold()
        self.helper("leave", *programs)

    def place(self, card: int) -> str:
        """The arbiter and new programs are told. Returns the card where it was."""
        old, self.now = self.now.cards[0].uuid, self.there(card)
        self.rig.link.grant(self.now, held=True)
        path = self.rig.grant_path(OFFLINE)
        path.write_bytes(abi.pack_grant(self.now))
        self.rig.link.revoke(OFFLINE, old)
        return old

    def come_back(self, old: str, *programs: Program) -> None:
        self.helper("return", *programs, **{old: self.now.cards[0].uuid})
        self.hold(False)

    def move(self, card: int, *programs: Program) -> None:
        self.leave(*programs)
        self.come_back(self.place(card), *programs)

    def told_anew(self, held: bool) -> None:
        """A new arbiter gets the list that qgpud has."""
        self.rig.start_arbiter(told=False)
        link = self.rig.link
        link.hello()
        for uuid in self.rig.uuids:
            link.card(CardSettings(uuid, **self.rig.settings))
        link.grant(self.now, held=held)
        link.synced()

    def tenant(self) -> TenantStats:
        """The only one that there is: on the card where the job is."""
        (one,) = self.rig.link.stats()
        assert one.uuid == self.now.cards[0].uuid
        return one

    def on_cards(self) -> list[int]:
        """Number of processes that the driver lists on each card."""
        with contextlib.closing(self.rig.nvml()) as nvml:
            return [len(nvml.processes(uuid)) for uuid in self.rig.uuids]


@pytest.fixture
def moves(tmp_path: Path) -> Iterator[Moves]:
    with Rig(tmp_path, cards=3, settings={"lease_ms": 300}) as rig:
        yield Moves(rig)


@pytest.mark.parametrize("visible", [{}, {"CUDA_VISIBLE_DEVICES": "0"}])
def test_a_job_goes_on_another_card(moves: Moves, visible: dict[str, str]) -> None:
    """Its memory is the same bit for bit. It is gated, counted and charged there."""
    program = Program(moves.rig, moves.home, "start()", "fill()", "work()", **visible)
    held, before = moves.tenant().mem_used, moves.on_cards()
    assert held >= BIG * MIB and before == [1, 0, 0]
    moves.leave(program)
    program.tell("work()")
    old = moves.place(1)
    wait_for("it registers by the name that it knows", lambda: moves.tenant().procs == 1)
    assert moves.tenant().mem_used == held, "charged at once"
    moves.helper("return", program, **{old: moves.now.cards[0].uuid})
    assert program.waits, "at the gate of the new card"
    moves.hold(False)
    assert program.heard() == "worked" and program.ask("compare()") == "True"
    assert moves.on_cards() == [0, 1, 0]
    assert program.ask(f"more({TOO_MUCH})") == "False", "the cap holds"
    assert program.ask("more(1024)") == "True"
    assert moves.tenant().mem_used == held + 1024 * MIB
    wait_for("its launches count there", lambda: moves.tenant().launches > 0)
    moves.hold()
    program.tell("work()")
    assert program.waits
    moves.hold(False)
    assert program.heard() == "worked"
    program.end()
    wait_for("all is free", lambda: moves.tenant().procs == moves.tenant().mem_used == 0)
    assert moves.on_cards() == [0, 0, 0]
    kernels = [i.card for i in moves.rig.trace() if i.kind == Kind.KERNEL]
    assert kernels == [0, 1, 1]


def test_there_on_and_back(moves: Moves) -> None:
    """Programs that began on each of the cards go along, and each counts the others' memory."""
    programs = [Program(moves.rig, moves.home, "start()", "fill()")]
    for card in (1, 2, 0, 1):
        moves.move(card, *programs)
        here = {"CUDA_VISIBLE_DEVICES": str(card)}
        late = Program(moves.rig, moves.home, "start()", **here)
        programs.append(late)
        assert [p.ask("work()") for p in programs] == ["worked"] * len(programs)
        assert programs[0].ask("compare()") == "True"
        assert moves.tenant().procs == len(programs) == sum(moves.on_cards())
        assert late.ask(f"more({TOO_MUCH})") == "False"
    for program in programs:
        program.end()
    wait_for("all is free", lambda: moves.tenant().procs == moves.tenant().mem_used == 0)


def test_programs_that_start_after_the_move(moves: Moves) -> None:
    """Their sealed grant names the card that was booked, and only the new one is there."""
    there = {"CUDA_VISIBLE_DEVICES": "1"}
    early = [Program(moves.rig, moves.home, **there) for _ in range(2)]
    assert [p.ask("1") for p in early] == ["1"] * 2  # loaded, and CUDA not used
    first = Program(moves.rig, moves.home, "start()", "fill()")
    moves.move(1, first)
    assert early[0].ask("fork()") == "up worked" and early[0].heard() == "0"
    late = Program(moves.rig, moves.home, **there)
    renewed = Program(moves.rig, moves.now, **there)
    for number, program in enumerate((*early, late, renewed), 2):
        assert program.ask("start()") == "up" and program.ask("work()") == "worked"
        assert moves.tenant().procs == number
        assert program.ask(f"more({TOO_MUCH})") == "False"
    moves.move(0, first, *early, late, renewed)
    for program in (first, *early, late, renewed):
        assert program.ask("work()") == "worked"
    assert moves.tenant().procs == 5


@pytest.mark.parametrize("spoil", ["no file", "uid", "job", "state", "cards", "mode", "owner"])
def test_a_file_that_is_not_the_jobs_changes_nothing(moves: Moves, spoil: str) -> None:
    path, other = moves.rig.grant_path(OFFLINE), moves.there(1)
    changes: dict[str, dict[str, object]] = {
        "uid": {"uid": 12345},
        "job": {"job_id": 99},
        "state": {"state": "refused", "job_class": None, "message": "no", "cards": ()},
        "cards": {"cards": (replace(moves.home.cards[0], uuid=moves.rig.uuids[1]),)},
    }
    spoiled = replace(other, **changes.get(spoil, {}))  # type: ignore[arg-type]
    path.write_bytes(abi.pack_grant(spoiled))
    if spoil == "no file":
        path.unlink()
    elif spoil == "mode":
        path.chmod(0o666)
    elif spoil == "owner":
        os.chown(path, 12345, 12345)
    program = Program(moves.rig, moves.home, "start()")
    assert program.ask("work()") == "worked" and moves.tenant().procs == 1


@pytest.mark.parametrize("when", ["left", "placed", "returned"])
def test_the_arbiter_ends_in_the_midst(moves: Moves, when: str) -> None:
    """It is away for longer than the lease; the driver holds the job meanwhile."""

    def away(now: str) -> None:
        if now == when:
            moves.rig.arbiter.kill()
            moves.rig.arbiter.wait()
            program.tell("work()")
            assert when == "returned" or program.waits
            moves.told_anew(held=True)

    program = Program(moves.rig, moves.home, "start()", "fill()")
    moves.leave(program)
    away("left")
    old = moves.place(1)
    away("placed")
    moves.helper("return", program, **{old: moves.now.cards[0].uuid})
    away("returned")
    moves.hold(False)
    assert program.heard() == "worked" and program.ask("compare()") == "True"
    assert moves.tenant().procs == 1 and moves.on_cards() == [0, 1, 0]


def test_the_old_gate_stays_shut_until_the_new_page_is_there(moves: Moves) -> None:
    """However long that takes: its heartbeat ends with the tenant, and no lease may open it."""
    rig, socket = moves.rig, moves.rig.run_dir / abi.SOCK_REGISTER
    program = Program(rig, moves.home, "start()", "fill()")
    moves.hold()
    socket.rename(socket.with_suffix(".away"))  # so it cannot register
    moves.place(1)
    program.tell("work()")
    assert all(program.waits for _ in range(4)), "four leases"
    rig.arbiter.kill()
    rig.arbiter.wait()
    assert all(program.waits for _ in range(4)), "as its arbiter said"
    moves.told_anew(held=False)
    assert program.heard() == "worked"


def test_an_allocation_waits_as_well(moves: Moves) -> None:
    """No allocation is admitted by the old page, which counts no process any more."""
    rig, socket = moves.rig, moves.rig.run_dir / abi.SOCK_REGISTER
    program = Program(rig, moves.home, "start()")
    moves.hold()
    socket.rename(socket.with_suffix(".away"))
    moves.place(1)
    program.tell("more(1024)")
    assert program.waits
    socket.with_suffix(".away").rename(socket)
    assert program.waits
    moves.hold(False)
    assert program.heard() == "True"
    assert moves.tenant().mem_used >= 1024 * MIB


def test_a_monitor_finds_the_job_where_it_is(moves: Moves) -> None:
    """NVML shows the cards themselves. The one where the job is has the job's limit as its size."""
    code = """
    import sys, pynvml as n
    n.nvmlInit()
    for word in sys.stdin:
        cards = [n.nvmlDeviceGetHandleByIndex(i) for i in range(3)]
        print([n.nvmlDeviceGetMemoryInfo(card).total >> 20 for card in cards], flush=True)
    """
    rig = moves.rig
    preload = f"{rig.shim} {rig.shim.with_name('libnvidia-ml.so.1')}"
    monitor = rig.spawn(
        [sys.executable, "-c", textwrap.dedent(code)],
        moves.home,
        env={"LD_PRELOAD": preload},
        stdin=subprocess.PIPE,
    )
    whole = 81_920
    for card in (0, 1, 2, 0):
        if card or moves.now is not moves.home:
            moves.move(card)
        assert monitor.stdin
        monitor.stdin.write("\n")
        monitor.stdin.flush()
        assert line(monitor) == str([MOST if i == card else whole for i in range(3)])
