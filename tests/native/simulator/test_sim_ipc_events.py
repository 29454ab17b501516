"""Events that two processes share, on the simulated driver and through the shim."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sim_tools import run, spawn, start

from simulator.sim import Simulator

pytestmark = pytest.mark.native


@pytest.fixture
def sim(built: None, tmp_path: Path) -> Iterator[Simulator]:
    with start(tmp_path / "sim", cards=2, memory_mib=4096) as running:
        yield running


# The maker's work waits for a word of its own that `go` sets. Both answer each line of stdin.
BOTH = """
g = Cuda(); event, s = c.c_void_p(), g.stream(); page = c.c_void_p()
handle = (c.c_ubyte * 64)()
class ByValue(c.Structure): _fields_ = [("bytes", c.c_ubyte * 64)]
g.call("cuMemHostAlloc", c.byref(page), c.c_size_t(4096), 0)
word = c.c_uint32.from_address(page.value)
def hold():
    word.value = 0; g.call("cuStreamWaitValue32_v2", s, page, 1, 0)
def record(): g.call("cuEventRecord", event, s)
def query(stream=None): return g.raw("cuStreamQuery", s) if stream else g.raw("cuEventQuery", event)
def serve():
    for line in sys.stdin:
        print(eval(line), flush=True)
def go(): word.value = 1
"""
MAKER = (
    BOTH
    + """
INTERPROCESS = 6  # and no timing
g.call("cuEventCreate", c.byref(event), INTERPROCESS)
g.call("cuIpcGetEventHandle", handle, event); print(bytes(handle).hex(), flush=True); serve()
"""
)
OPENER = (
    BOTH
    + """
data = bytes.fromhex(sys.stdin.readline())
g.call("cuIpcOpenEventHandle", c.byref(event), ByValue((c.c_ubyte * 64)(*data)))
print("open", flush=True); serve()
"""
)


class Client:
    """A program that evaluates what it is sent."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def line(self) -> str:
        assert self.process.stdout
        got = self.process.stdout.readline().strip()
        if not got:
            raise AssertionError(self.process.communicate()[1])
        return got

    def ask(self, code: str) -> str:
        self.send(code)
        return self.line()

    def send(self, code: str) -> None:
        assert self.process.stdin
        self.process.stdin.write(code + "\n")
        self.process.stdin.flush()


@contextmanager
def pair(sim: Simulator) -> Iterator[tuple[Client, Client]]:
    maker, opener = Client(spawn(sim, MAKER)), Client(spawn(sim, OPENER))
    try:
        opener.send(maker.line())
        assert opener.line() == "open"
        yield maker, opener
    finally:
        for client in (maker, opener):
            client.process.kill()
            client.process.communicate()


def until(client: Client, code: str, answer: str) -> None:
    wait = f"next(True for _ in iter(int, 1) if {code} == {answer})"
    assert client.ask(wait) == "True"


def test_an_event_of_another_process_is_waited_for(sim: Simulator) -> None:
    with pair(sim) as (maker, opener):
        assert opener.ask("query()") == "0", "never recorded"
        assert maker.ask("(hold(), record())") == "(None, None)"
        assert (maker.ask("query()"), opener.ask("query()")) == ("600", "600")
        assert opener.ask("g.call('cuStreamWaitEvent', s, event, 0)") == "None"
        assert opener.ask("query(True)") == "600", "the stream waits"
        assert maker.ask("go()") == "None"
        assert opener.ask("g.call('cuEventSynchronize', event)") == "None"
        assert opener.ask("g.call('cuStreamSynchronize', s)") == "None"
        assert (maker.ask("query()"), opener.ask("query()")) == ("0", "0")


def test_either_process_records_and_the_newest_record_counts(sim: Simulator) -> None:
    with pair(sim) as (maker, opener):
        assert opener.ask("(hold(), record())") == "(None, None)"
        assert (maker.ask("query()"), opener.ask("query()")) == ("600", "600")
        assert maker.ask("g.call('cuStreamWaitEvent', s, event, 0)") == "None"
        assert maker.ask("query(True)") == "600"
        opener.ask("go()")
        assert maker.ask("g.call('cuEventSynchronize', event)") == "None"
        until(maker, "query(True)", "0")
        opener.ask("hold()")
        assert maker.ask("[record() for _ in range(200)] and None") == "None"
        until(opener, "query()", "0")


def test_the_end_of_the_recording_process_ends_the_wait(sim: Simulator) -> None:
    with pair(sim) as (maker, opener):
        maker.ask("(hold(), record())")
        opener.ask("g.call('cuStreamWaitEvent', s, event, 0)")
        opener.send("g.call('cuStreamSynchronize', s)")
        maker.process.kill()
        assert opener.line() == "None"
        until(opener, "query()", "0")
        assert opener.ask("g.call('cuEventDestroy_v2', event)") == "None"


def test_handles_that_are_none_are_refused(sim: Simulator) -> None:
    """Of an event without the flags, of this process, of one that ended, and invented ones."""
    out = run(
        sim,
        BOTH
        + """
import struct
make = lambda flags: g.raw("cuEventCreate", c.byref(event), flags)
def opened(data):
    return g.raw("cuIpcOpenEventHandle", c.byref(event), ByValue((c.c_ubyte * 64)(*data)))
print(make(4), make(2), g.raw("cuIpcGetEventHandle", handle, event))
make(6)
print(g.raw("cuIpcGetEventHandle", None, event), g.raw("cuIpcGetEventHandle", handle, None))
g.call("cuIpcGetEventHandle", handle, event)
magic, card, pid, file, nonce = struct.unpack("IIiiQ", bytes(handle)[:24])
ticket = lambda *parts: struct.pack("IIiiQ", *parts) + bytes(40)
print(opened(bytes(handle)), opened(bytes(64)), opened(ticket(magic, card + 1, 1, file, nonce)))
child = os.fork() or os._exit(time.sleep(60) or 0)
print(opened(ticket(magic, card, child, 0, nonce)), opened(ticket(magic, card, child, 9999, nonce)),
      opened(ticket(magic, card, child, file, nonce + 1)), opened(ticket(magic, card, -1, -1, 0)))
os.kill(child, 9); os.waitpid(child, 0); print(opened(ticket(magic, card, child, file, nonce)))
""",
    )
    assert out.splitlines() == ["1 0 400", "1 400", "201 1 201", "400 400 400 400", "400"]
