"""Settings of a card that the arbiter takes and refuses: it does not trust what qgpud checked."""

from __future__ import annotations

import ctypes
import errno
import socket
from pathlib import Path

import pytest
from arbiter_support import DEADLINE_S, arbiter, settings

from enforcer.wire import abi
from enforcer.wire.link import ArbiterError
from enforcer.wire.messages import card_message

pytestmark = pytest.mark.native

BOUNDS = {
    "idle_release_ms": (0, 60_000),
    "window_us": (50, 1_000_000),
    "slice_us": (100, 1_000_000),
    "lease_ms": (100, 600_000),
    "grace_ms": (0, 600_000),
    "online_delay_us": (0, 100_000),
    "online_share": (0, 100),
}


def test_settings_of_a_card_are_taken_within_their_bounds_alone(tmp_path: Path) -> None:
    with arbiter(tmp_path) as one, one.link() as link:
        link.sync([settings()], [])
        for name, (low, high) in BOUNDS.items():
            link.card(settings(**{name: low}))
            link.card(settings(**{name: high}))
            for outside in [high + 1, *([low - 1] if low else [])]:
                with pytest.raises(ArbiterError) as error:
                    link.card(settings(**{name: outside}))
                assert error.value.errno == errno.EINVAL, (name, outside)


def test_card_of_another_size_or_with_unknown_flags_is_refused(tmp_path: Path) -> None:
    good = card_message(settings(online_delay_us=2000))
    used = abi.CtlCard.from_buffer_copy(good)
    used.flags |= 1 << 31
    old = bytearray(bytes(good)[: abi.CtlCard.online_delay_us.offset])
    abi.MsgHead.from_buffer(old).size = len(old)
    with arbiter(tmp_path) as one, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        sock.settimeout(DEADLINE_S)
        sock.connect(str(one.run_dir / abi.SOCK_CONTROL))
        for message, status in ((good, 0), (used, errno.EINVAL), (old, errno.EPROTO), (good, 0)):
            sock.send(bytes(message))
            answer = sock.recv(ctypes.sizeof(abi.CtlAck))
            assert abi.parse(abi.CtlAck, answer, "answer").status == status
