"""Events that two processes share, on the simulated driver without a shim."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from sim_pair import BOTH, pair, until
from sim_tools import run, spawn, start

from simulator.sim import Simulator

pytestmark = pytest.mark.native


@pytest.fixture
def sim(built: None, tmp_path: Path) -> Iterator[Simulator]:
    with start(tmp_path / "sim", cards=2, memory_mib=4096) as running:
        yield running


def test_an_event_of_another_process_is_waited_for(sim: Simulator) -> None:
    with pair(partial(spawn, sim)) as (maker, opener):
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
    with pair(partial(spawn, sim)) as (maker, opener):
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
    with pair(partial(spawn, sim)) as (maker, opener):
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


def test_a_page_that_was_scribbled_over_harms_nobody_else(sim: Simulator) -> None:
    """It cannot shrink; places that are none count as reached, and half a record as none."""
    with pair(partial(spawn, sim)) as (maker, opener):
        maker.ask("(hold(), record())")
        name = maker.ask(
            "[f for f in os.listdir('/proc/self/fd') if os.path.islink(f'/proc/self/fd/{f}')"
            " and 'qgpu-sim-event' in os.readlink(f'/proc/self/fd/{f}')][0]"
        )
        page = Path(f"/proc/{maker.process.pid}/fd/{name}")
        with pytest.raises(PermissionError), page.open("r+b") as file:
            file.truncate(0)
        whole = page.read_bytes()
        size = len(whole)
        for junk in (b"\xff" * size, whole[:16] + b"\xff" * (size - 16), bytes(size)):
            with page.open("r+b") as file:
                file.write(junk)
            for client in (maker, opener):
                assert client.ask("query()") in ("0", "600")
            assert opener.ask("g.raw('cuStreamWaitEvent', s, event, 0)") == "0"
        maker.ask("go()")
        assert maker.ask("(record(), g.call('cuStreamSynchronize', s))") == "(None, None)"
