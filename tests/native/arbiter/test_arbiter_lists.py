"""Lists of the arbiter (QG_CTL_LIST): as many answers to a packet as fit."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import arbiter_support as a
import pytest

from enforcer.wire import abi
from enforcer.wire.link import ArbiterGone, ArbiterLink

GRANTS = [
    a.grant(job, "offline", 1, 1 << 20, *cards)
    for job, cards in ((n, (a.CARD, a.CARD2)) for n in range(1, 121))
]


def packets(path: Path, of: int) -> list[bytes]:
    """What comes over the wire for one question."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        sock.settimeout(10)
        sock.connect(str(path))
        sock.send(bytes(abi.CtlList(abi.head(abi.CTL_LIST, abi.CtlList), of)))
        found = [sock.recv(1 << 20)]
        while abi.MsgHead.from_buffer_copy(found[-1], len(found[-1]) - 32).type not in (
            abi.CTL_END,
            abi.CTL_ACK,
        ):
            found.append(sock.recv(1 << 20))
        return found


def test_a_list_comes_in_few_packets(tmp_path: Path) -> None:
    with a.arbiter(tmp_path) as running, ArbiterLink(running.run_dir) as link:
        link.sync([a.settings(a.CARD), a.settings(a.CARD2)], GRANTS)
        found = link.stats()
        assert sorted((t.job_id, t.uuid) for t in found) == sorted(
            (g.job_id, c.uuid) for g in GRANTS for c in g.cards
        )
        assert link.stats()[7] is found[7], "what did not change is not read again"
        assert link.processes() == []
        came = packets(link.path, abi.CTL_STATS)
        assert len(came) == 3 and max(map(len, came)) <= abi.LIST_BYTES
        assert sum(map(len, came)) == 240 * 304 + 32


def test_a_list_of_what_is_no_list_is_refused_and_the_connection_goes_on(tmp_path: Path) -> None:
    with a.arbiter(tmp_path) as running, ArbiterLink(running.run_dir) as link:
        link.hello()
        (answer,) = packets(link.path, abi.CTL_HELLO)
        assert abi.CtlAck.from_buffer_copy(answer).status == 22
        assert link.stats() == []


@pytest.mark.parametrize("cut", [1, 20, 300])
def test_a_packet_that_ends_in_the_middle_of_a_message_ends_the_connection(
    tmp_path: Path, cut: int
) -> None:
    message = bytes(abi.CtlTenant(abi.head(abi.CTL_TENANT, abi.CtlTenant), 5)) * 2
    server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    server.bind(str(tmp_path / abi.SOCK_CONTROL))
    server.listen()

    def answer() -> None:
        sock, _ = server.accept()
        for reply in (bytes(abi.CtlAck(abi.head(abi.CTL_ACK, abi.CtlAck))), message[:-cut]):
            sock.recv(4096)
            sock.send(reply)
        sock.recv(4096)

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    with ArbiterLink(tmp_path) as link:
        link.hello()
        with pytest.raises(ArbiterGone):
            link.stats()
        assert not link.connected
    thread.join(10)
