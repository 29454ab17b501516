"""Hostile jobs against hardware preemption: no other job's groups are touched, none waits, nothing
is kept.

The arbiter is the sanitized one.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import arbiter_support as a
import pytest
from hardware_support import Node, Program, node
from steps_support import start_of

from enforcer.wire import abi

pytestmark = pytest.mark.native
LIES = {
    "another device's groups": "device=peer.client",
    "a subdevice that is a group": "subdevice=peer.groups[0]",
    "a group that is a channel": "groups=[peer.channels[0][0]]",
    "a group that is the device": "groups=[peer.device]",
    "a channel that is a group": "channels=[(peer.groups[1], peer.groups[0])]",
    "a channel of no told group": "groups=peer.groups[:1], channels=peer.channels[-1:]",
    "a channel of another group": "channels=[(peer.channels[0][0], peer.groups[1])]",
    "a handle of nobody": "groups=[0x12345678]",
    "a client of nobody": "client=0xc1d0ffff",
}


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Node]:
    """Job 2 is hostile, job 3 is not; both are offline."""
    with node(tmp_path, cards=2, binary=a.ARBITER_ASAN) as here:
        here.sync((1, "online"), (2, "offline"), (3, "offline"))
        here.hardware(actor="arbiter")
        yield here


def still_stops(here: Node, honest: Program) -> None:
    """The other tenant is stopped and goes on as ever."""
    before = here.becomes(3, "ready")
    online = here.job(1, "online", tell=False)
    honest.ask("peer.work(20000)")
    online.ask("peer.tenant.begin() and peer.tenant.ring()")
    here.becomes(3, "stopped")
    online.ask("peer.tenant.finish()")
    after = here.becomes(3, "ready")
    assert (after.stops, after.failures) == (before.stops + 1, 0)


def refused(here: Node, card: int = 0) -> str:
    """Job 2 fails, and nothing of it is kept; the sentence why."""
    a.wait_for(lambda: here.tenant(2, card).state == "failed", "the lie is found out")
    return here.tenant(2, card).why


@pytest.mark.parametrize("lie", sorted(LIES))
def test_lies_about_handles(place: Node, lie: str) -> None:
    honest, hostile = place.job(3), place.job(2, tell=False)
    place.becomes(3, "ready")
    hostile.ask("peer.cuda.launch(200000)")
    hostile.ask(f"peer.tell({LIES[lie]})")
    refused(place)
    a.wait_for(lambda: place.descriptors() == 1, "its descriptor is closed")
    still_stops(place, honest)


def test_groups_of_another_card(place: Node) -> None:
    honest, hostile = place.job(3), place.job(2, tell=False)
    hostile.ask("other = (peer.client, peer.device, peer.subdevice, peer.groups, peer.channels)")
    hostile.ask(f"peer.uuid = {place.cards[1]!r}")
    hostile.ask("peer.register()")
    hostile.ask("peer.tell()")
    assert "another card" in refused(place, 1)
    still_stops(place, honest)


def test_the_client_of_another_process(place: Node) -> None:
    honest, hostile = place.job(3), place.job(2, tell=False)
    theirs = honest.ask("[peer.client, peer.device, peer.subdevice, peer.groups, peer.channels]")
    hostile.ask(f"theirs = {theirs}")
    hostile.ask(
        "peer.tell(client=theirs[0], device=theirs[1], subdevice=theirs[2], groups=theirs[3], "
        "channels=theirs[4])"
    )
    refused(place)
    still_stops(place, honest)


FILES = {
    "nothing": "None",
    "/dev/null": "os.open('/dev/null', os.O_RDWR)",
    "a directory": "os.open('/', os.O_RDONLY)",
    "a FIFO": "os.pipe()[0]",
    "a socket": "socket.socketpair()[0].detach()",
    "an eventfd": "os.eventfd(0)",
    "a memfd": "os.memfd_create('x')",
    "the control device by name only": "os.open(f'/proc/self/fd/{peer.rm.fd}', os.O_PATH)",
    "a terminal": "os.open('/dev/ptmx', os.O_RDWR)",
}


@pytest.mark.parametrize("what", sorted(FILES))
def test_descriptors_that_are_not_the_control_device(place: Node, what: str) -> None:
    honest, hostile = place.job(3), place.job(2, tell=False)
    hostile.ask(f"peer.tell(fd={FILES[what]})")
    assert "control device" in refused(place)
    still_stops(place, honest)


def test_handles_that_vanish_between_check_and_use(place: Node) -> None:
    honest, hostile = place.job(3), place.job(2)
    place.becomes(2, "ready")
    hostile.ask("peer.work(500000)")
    hostile.ask("[peer.rm.free(peer.client, g, peer.device) for g in peer.groups]")
    online = place.job(1, "online", tell=False)
    online.ask("peer.tenant.begin() and peer.tenant.ring()")
    assert "does not exist" in refused(place)
    online.ask("peer.tenant.finish()")
    online.kill()
    still_stops(place, honest)


def test_ten_thousand_messages(place: Node) -> None:
    """Faster than allowed the connection ends; as fast as allowed nobody else notices, and no
    descriptor stays.
    """
    honest = place.job(3)
    flood = place.job(2)
    place.becomes(2, "ready")
    flood.send("peer.flood(10000)")
    for _ in range(3):
        still_stops(place, honest)
    assert int(str(flood.answer(120))) > 1000
    flood.ask("peer.register()")  # what a connection told ends with it, and the last one may have
    flood.ask("peer.tell()")
    place.becomes(2, "ready")
    a.wait_for(lambda: place.descriptors() <= 2, "descriptors of the flood are closed")


def test_more_clients_than_are_followed(place: Node) -> None:
    honest, hostile = place.job(3), place.job(2, tell=False)
    for i in range(8):
        hostile.ask(f"peer.tell(client=peer.client + 1000 + {i})")
    refused(place)
    a.wait_for(lambda: place.descriptors() == 1, "what it sent is closed")
    still_stops(place, honest)


@pytest.mark.parametrize("count", [0, 33, 65, 2**32 - 1])
def test_counts_out_of_range_end_the_connection(place: Node, count: int) -> None:
    hostile = place.job(2, tell=False)
    hostile.ask("m = abi.Groups.from_buffer_copy(peer.message())")
    hostile.ask(f"setattr(m, 'ngroups' if {count} in (33, 2**32 - 1) else 'nchannels', {count})")
    hostile.ask("peer.send(bytes(m))")
    if count:
        assert hostile.ask("peer.tenant.sock.recv(10) == b''") is True
    else:
        place.becomes(2, "ready")


def test_an_unregistered_process_is_ignored(place: Node) -> None:
    hostile = place.job(2, tell=False)
    hostile.ask(f"peer.tell(uuid={place.cards[1]!r})")  # not registered there
    hostile.ask("peer.tell(job=3)")  # another job's
    hostile.ask("peer.tell(job=77)")
    hostile.ask("peer.tell()")
    place.becomes(2, "ready")
    assert [place.tenant(3, card).state for card in (0, 1)] == ["none", "none"]
    stranger = place.program()
    stranger.ask(
        "sock = __import__('arbiter_support').connect("
        f"__import__('pathlib').Path({str(place.arbiter.run_dir)!r}))"
    )
    stranger.ask("sock.send(bytes(abi.Groups(head=abi.head(abi.MSG_GROUPS, abi.Groups))))")
    assert place.tenant(2).state == "ready"


def test_forged_answers_of_a_shim(place: Node) -> None:
    """Answers to orders that nobody gave change nothing, also where another process waits for
    one.
    """
    place.hardware(actor="shim", method="schedule")
    hostile, honest = place.job(2), place.job(3)
    order = honest.ask("peer.order()")
    hostile.ask(
        f"[peer.acted(dict({order}, serial=s), status=0x65, do=False) for s in range(1, 50)]"
    )
    honest.ask(f"peer.acted({order})")
    place.becomes(3, "ready")


def test_a_job_that_keeps_its_groups_running_never_keeps_the_arbiter_busy(place: Node) -> None:
    hostile = place.job(2)
    place.becomes(2, "ready")
    hostile.ask("peer.work(800000)")
    online = place.job(1, "online", tell=False)
    hostile.ask(
        "threading.Thread(target=lambda: [([peer.rm.schedule(peer.client, g, True) for g in "
        "peer.groups],"
        " setattr(peer.tenant.slot.fences[1], 'done', i)) for i in range(20000)], "
        "daemon=True).start()"
    )
    online.ask("peer.tenant.begin() and peer.tenant.ring()")
    before = cpu_seconds(place)
    assert "continues its own groups" in refused(place)
    time.sleep(0.2)
    assert cpu_seconds(place) - before < 10


def cpu_seconds(here: Node) -> float:
    """CPU time that the arbiter used so far."""
    fields = Path(f"/proc/{here.arbiter.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


assert abi.MAX_GROUPS == 32 and abi.MAX_CHANNELS == 64


HONEST = 300_200
AS_HONEST = (
    "from pathlib import Path",
    "from arbiter_support import GIB, grant",
    "from sim_client import Cuda",
    "peer = Peer.__new__(Peer)",
    "peer.cuda, peer.tenant, peer.job = Cuda(0), None, 3",
    "peer.grant = grant(3, 'offline', 50, 8 * GIB, peer_card)",
    "peer.uuid, peer.run_dir = peer_card, Path(peer_dir)",
    "peer.learn()",
    f"os.seteuid({HONEST})",
    "peer.register()",
    "os.seteuid(0)",
    "peer.tell()",
)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user to play")
def test_no_user_may_have_more_clients_than_are_free(tmp_path: Path) -> None:
    """root plays the greedy one: his next job is left to its gate, and another user's is not."""
    with node(tmp_path, binary=a.ARBITER_FEW) as here:
        a.let_others_in(tmp_path)
        here.sync((1, "online"), (2, "offline"), (4, "offline"))
        here.link.grant(replace(a.grant(3, "offline", 50, 8 * a.GIB, *here.cards), uid=HONEST))
        here.hardware(actor="arbiter")
        for _ in range(4):
            here.job(2)
        here.becomes(2, "ready")
        here.job(4)
        a.wait_for(lambda: here.tenant(4).state == "failed", "there is no room for it")
        full = "its user has as many clients of the driver as there is room for"
        assert here.tenant(4).why == full
        honest = here.program()
        program = json.dumps({"pid": honest.pid, "start": start_of(honest.pid)})
        (here.arbiter.run_dir / "grants").mkdir(exist_ok=True)
        (here.arbiter.run_dir / "grants/3.run").write_text(program)
        honest.ask(f"peer_card, peer_dir = {here.cards[0]!r}, {str(here.arbiter.run_dir)!r}")
        for line in AS_HONEST:
            honest.ask(line)
        here.becomes(3, "ready")
        still_stops(here, honest)
        assert here.tenant(2).state == "ready" and here.tenant(2).failures == 0
