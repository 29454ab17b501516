"""Lists of the arbiter in packets (QG_CTL_LIST): the same answers as one by one, also beside an older arbiter."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import arbiter_support as a
import pytest

from enforcer import abi
from enforcer.arbiter_link import ArbiterGone, ArbiterLink

GRANTS = [
    a.grant(job, "offline", 1, 1 << 20, *cards)
    for job, cards in ((n, (a.CARD, a.CARD2)) for n in range(1, 121))
]


def asked_one_by_one(link: ArbiterLink) -> ArbiterLink:
    link.hello()
    link._packs = False
    return link


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


def test_a_list_is_the_same_in_packets_and_one_by_one(tmp_path: Path) -> None:
    with (
        a.arbiter(tmp_path) as running,
        ArbiterLink(running.run_dir) as link,
        ArbiterLink(running.run_dir) as other,
    ):
        link.sync([a.settings(a.CARD), a.settings(a.CARD2)], GRANTS)
        found = link.stats()
        assert sorted((t.job_id, t.uuid) for t in found) == sorted(
            (g.job_id, c.uuid) for g in GRANTS for c in g.cards
        )
        assert found == asked_one_by_one(other).stats()
        assert link.stats()[7] is found[7], "what did not change is not read again"
        assert link.processes() == other.processes() == []
        came = packets(link.path, abi.CTL_STATS)
        assert len(came) == 3 and max(map(len, came)) <= abi.LIST_BYTES
        assert sum(map(len, came)) == 240 * 288 + 32


def test_a_list_of_what_is_no_list_is_refused_and_the_connection_goes_on(tmp_path: Path) -> None:
    with a.arbiter(tmp_path) as running, ArbiterLink(running.run_dir) as link:
        link.hello()
        (answer,) = packets(link.path, abi.CTL_HELLO)
        assert abi.CtlAck.from_buffer_copy(answer).status == 22
        assert link.stats() == []


class OldArbiter:
    """Speaks version 2 as it was before lists in packets: one message to a packet, EPROTO for what it does not know."""

    def __init__(self, path: Path, tenants: int) -> None:
        self.asked: list[int] = []
        self._tenants = tenants
        self._server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._server.bind(str(path))
        self._server.listen()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        sock, _ = self._server.accept()
        while data := sock.recv(4096):
            kind = abi.MsgHead.from_buffer_copy(data).type
            self.asked.append(kind)
            ack = abi.CtlAck(abi.head(abi.CTL_ACK, abi.CtlAck), 71 if kind == abi.CTL_LIST else 0)
            if kind == abi.CTL_STATS:
                ack.head.type = abi.CTL_END
                for job in range(self._tenants):
                    sock.send(bytes(abi.CtlTenant(abi.head(abi.CTL_TENANT, abi.CtlTenant), job)))
            sock.send(bytes(ack))


def test_an_arbiter_without_packets_is_asked_for_them_once(tmp_path: Path) -> None:
    old = OldArbiter(tmp_path / abi.SOCK_CONTROL, 3)
    with ArbiterLink(tmp_path) as link:
        link.hello()
        for _ in range(2):
            assert [t.job_id for t in link.stats()] == [0, 1, 2]
    assert old.asked == [abi.CTL_HELLO, abi.CTL_LIST, abi.CTL_STATS, abi.CTL_STATS]


@pytest.mark.parametrize("cut", [1, 20, 300])
def test_a_packet_that_ends_in_the_middle_of_a_message_ends_the_connection(tmp_path: Path, cut: int) -> None:
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
