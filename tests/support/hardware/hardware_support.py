"""Support of the tests of the arbiter's hardware preemption: the simulated control device, the
real arbiter, and processes that hold real groups of it but speak the shim's side of the protocol
themselves, so that they can lie.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import arbiter_support as a
import pytest
import sim_tools

from enforcer.fdwait import readable_within
from enforcer.wire.link import ArbiterLink, HardwareSettings, HardwareTenant
from simulator.sim import Simulator

DRIVER = 580
SERVE = """
import ctypes as c, json, os, signal, socket, sys, threading, time
sys.path.insert(0, sys.argv[1])
from hardware_peer import *
names = globals()
for line in sys.stdin:
    try:
        answer = eval(line, names)
    except SyntaxError:
        answer = exec(line, names)
    print(json.dumps(answer), flush=True)
"""


class Program:
    """A process that executes lines from the test (names of hardware_peer.py are defined)."""

    def __init__(self, sim: Simulator, prefix: tuple[str, ...] = ()) -> None:
        self.process = subprocess.Popen(
            [*prefix, sys.executable, "-c", SERVE, str(Path(__file__).resolve().parents[3])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=sim_tools.client_env(sim),
        )

    @property
    def pid(self) -> int:
        return self.process.pid

    def send(self, code: str) -> None:
        assert self.process.stdin
        self.process.stdin.write(code + "\n")
        self.process.stdin.flush()

    def answer(self, seconds: float = 60.0) -> object:
        assert self.process.stdout
        assert readable_within(self.process.stdout.fileno(), seconds), (
            "no answer: the program hangs"
        )
        line = self.process.stdout.readline()
        assert line, self.process.communicate()[1]
        return json.loads(line)

    def ask(self, code: str, seconds: float = 60.0) -> object:
        self.send(code)
        return self.answer(seconds)

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


@dataclass
class Node:
    """One simulated node with an arbiter that has its cards."""

    sim: Simulator
    arbiter: a.Arbiter
    cards: list[str]
    device: tuple[int, int]
    programs: list[Program] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.link: ArbiterLink = self.arbiter.link()

    def hardware(self, **changes: object) -> None:
        """Switch it on for all cards."""
        for uuid in self.cards:
            values = {
                "enabled": True,
                "driver_major": DRIVER,
                "ctl_dev": self.device[0],
                "ctl_ino": self.device[1],
            }
            self.link.hardware(HardwareSettings(uuid, **{**values, **changes}))  # type: ignore[arg-type]

    def sync(self, *jobs: tuple[int, str], **changes: object) -> None:
        """Cards, and a grant of all cards for each (job, class)."""
        grants = [a.grant(job, kind, 50, 8 * a.GIB, *self.cards) for job, kind in jobs]
        values = {"idle_release_ms": 50, "grace_ms": 0, **changes}
        self.link.sync([a.settings(uuid, **values) for uuid in self.cards], grants)

    def program(self) -> Program:
        """A process without groups yet."""
        self.programs.append(Program(self.sim))
        return self.programs[-1]

    def job(self, job: int, kind: str = "offline", card: int = 0, tell: bool = True) -> Program:
        """A process of the job with a context on that card, registered,
        with its groups reported.
        """
        program = self.program()
        cards = ", ".join(repr(uuid) for uuid in self.cards)
        program.ask(
            f"peer = Peer({str(self.arbiter.run_dir)!r}, {job}, {kind!r}, {card}, [{cards}])"
        )
        if tell:
            program.ask("peer.tell()")
        return program

    def tenant(self, job: int, card: int = 0) -> HardwareTenant:
        """The arbiter's report on it."""
        found = [
            t for t in self.link.hardware_tenants() if (t.job_id, t.uuid) == (job, self.cards[card])
        ]
        assert found, f"job {job} is not known"
        return found[0]

    def becomes(self, job: int, state: str, card: int = 0) -> HardwareTenant:
        """Waits for the state; fails at once on `failed`, unless that is what is waited for."""

        def reached() -> bool:
            tenant = self.tenant(job, card)
            assert tenant.state == state or tenant.state != "failed", tenant
            return tenant.state == state

        a.wait_for(reached, f"job {job} becomes {state}; {self.log()[-2000:]}")
        return self.tenant(job, card)

    def log(self) -> str:
        return self.arbiter.log.read_text()

    def descriptors(self) -> int:
        """Files of the control device that the arbiter holds (one belongs to a mount that is
        attached nowhere).
        """
        held = 0
        for entry in Path(f"/proc/{self.arbiter.process.pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                found = entry.stat()
                held += (found.st_dev, found.st_ino) == self.device
        return held


@contextlib.contextmanager
def node(
    tmp_path: Path,
    *args: str,
    cards: int = 1,
    binary: Path = a.ARBITER,
    prefix: tuple[str, ...] = (),
    extra: tuple[str, ...] = (),
) -> Iterator[Node]:
    """Skips where this machine allows no control device."""
    sim = sim_tools.start(tmp_path / "sim", cards=cards, extra=extra)
    try:
        device = sim.control_device()
        if device is None:
            pytest.skip(
                "this machine allows no simulated control device (FUSE on a detached mount)"
            )
        with a.arbiter(
            tmp_path, "--log-level", "debug", *args, binary=binary, prefix=prefix
        ) as one:
            here = Node(sim, one, sim_tools.uuids(sim), device)
            try:
                yield here
            finally:
                sim.control("clear")
                for program in here.programs:
                    program.kill()
                here.link.close()
    finally:
        sim.stop()
