"""The packing of grants and the unpacking of messages. tests/unit/tools/test_layouts.py compares
the layouts.
"""

from __future__ import annotations

import ctypes
import dataclasses

import pytest

from enforcer.wire import abi
from enforcer.wire.messages import CardSettings, card_message, grant_messages, stats
from gres.grant.store import Grant, GrantCard

ACTIVE = Grant(
    job_id=4711,
    uid=1000,
    gid=100,
    node="n1",
    state="active",
    job_class="online",
    created_ns=123,
    cards=(
        GrantCard("GPU-abc", 3, 1, 30, 24 << 30, 80 << 30),
        GrantCard("MIG-def", 4, 2, 30, 1 << 30, 9 << 30),
    ),
    run_dir="/run/qgpu",
    driver_path="/usr/lib/libcuda.so.1",
    shim_path="/usr/lib/qgpu/1/libcuda.so.1",
)


def test_grant_round_trip() -> None:
    page = abi.unpack_grant(abi.pack_grant(ACTIVE))
    assert (page.job_id, page.uid, page.gid, page.state, page.job_class) == (4711, 1000, 100, 1, 1)
    assert (page.node, page.run_dir, page.created_ns) == (b"n1", b"/run/qgpu", 123)
    assert page.shim_path == b"/usr/lib/qgpu/1/libcuda.so.1"
    second = page.cards[1]
    assert (second.uuid, second.minor, second.index, second.share) == (b"MIG-def", 4, 2, 30)
    assert (page.ncards, second.mem_cap, second.mem_total) == (2, 1 << 30, 9 << 30)


def test_grant_says_how_managed_memory_is_charged() -> None:
    for managed, flags in (("full", 0), ("resident", abi.GRANT_CARD_MANAGED_RESIDENT)):
        page = abi.unpack_grant(abi.pack_grant(ACTIVE, "preload", managed))
        assert [page.cards[i].flags for i in range(2)] == [flags, flags]


def test_grant_says_that_its_memory_may_be_taken_back() -> None:
    taken = dataclasses.replace(ACTIVE, reclaimable=True)
    page = abi.unpack_grant(abi.pack_grant(taken, managed="resident"))
    flags = abi.GRANT_CARD_MANAGED_RESIDENT | abi.GRANT_CARD_RECLAIMABLE
    assert [page.cards[i].flags for i in range(2)] == [flags, flags]


def test_grant_says_from_where_the_job_was_moved() -> None:
    here, stays = ACTIVE.cards
    moved = dataclasses.replace(here, home="GPU-home", home_minor=1)
    grant = dataclasses.replace(ACTIVE, cards=(moved, stays))
    page = abi.unpack_grant(abi.pack_grant(grant))
    found = [(page.cards[i].uuid, page.cards[i].home, page.cards[i].flags) for i in range(2)]
    assert found == [
        (b"GPU-abc", b"GPU-home", abi.GRANT_CARD_MOVED),
        (b"MIG-def", b"", 0),
    ]
    sent = [(message.uuid, message.home) for message in grant_messages(grant)]
    assert sent == [(b"GPU-abc", b"GPU-home"), (b"MIG-def", b"")]


def test_refused_grant_carries_its_sentence() -> None:
    refused = Grant(job_id=1, uid=1, gid=1, node="n", state="refused", message="no: because")
    page = abi.unpack_grant(abi.pack_grant(refused))
    assert (page.state, page.job_class, page.ncards, page.message) == (2, 0, 0, b"no: because")


def test_long_message_is_cut_at_a_character() -> None:
    refused = Grant(job_id=1, uid=1, gid=1, node="n", state="refused", message="x")
    object.__setattr__(refused, "message", "é" * 400)
    text = abi.unpack_grant(abi.pack_grant(refused)).message.decode()
    assert text.endswith("é...") and len(text.encode()) < 512


@pytest.mark.parametrize("name", ["run_dir", "driver_path", "shim_path"])
def test_active_grant_needs_absolute_paths(name: str) -> None:
    with pytest.raises(abi.AbiError, match=f"job 4711 needs an absolute {name}"):
        abi.pack_grant(dataclasses.replace(ACTIVE, **{name: "relative"}))


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(abi.AbiError, match="holds at most 47"):
        abi.c_text("x" * 48, 48, "card UUID")
    with pytest.raises(abi.AbiError, match="NUL"):
        abi.c_text("a\0b", 48, "card UUID")
    with pytest.raises(abi.AbiError, match="between 1 and 100"):
        abi.bounded(101, 1, 100, "share")


@pytest.mark.parametrize(
    ("offset", "value", "why"),
    [
        (0, b"QGPX", "magic"),
        (4, (2).to_bytes(4, "little"), "version 2"),
        (8, (1).to_bytes(4, "little"), "size 1"),
        (12, (9).to_bytes(4, "little"), "state of the grant is 9"),
        (32, (3).to_bytes(4, "little"), "class code of the grant is 3"),
        (36, (17).to_bytes(4, "little"), "number of cards in the grant is 17"),
        (48, b"n" * 64, "field node of the grant is not terminated"),
        (1536, b"G" * 48, "UUID of card 0 of the grant is not terminated"),
        (1536 + 80, b"G" * 48, "UUID of card 0 of the grant is not terminated"),
    ],
)
def test_damaged_grants_are_named(offset: int, value: bytes, why: str) -> None:
    data = bytearray(abi.pack_grant(ACTIVE))
    data[offset : offset + len(value)] = value
    with pytest.raises(abi.AbiError, match=why):
        abi.unpack_grant(bytes(data))


def test_short_grant_is_refused() -> None:
    with pytest.raises(abi.AbiError, match=r"has 3583 bytes; version . of it has 3584"):
        abi.unpack_grant(abi.pack_grant(ACTIVE)[:-1])


def test_a_tenant_is_read_as_the_structure_says() -> None:
    """`stats` unpacks by place, and keeps what repeats: each field must be the one of its name."""
    at = ctypes.sizeof(abi.MsgHead)
    for salt in range(32):  # the flags among all these bytes are another combination each time
        body = bytes(
            (number * 7 + salt) % 251 for number in range(ctypes.sizeof(abi.CtlTenant) - at)
        )
        message = abi.CtlTenant.from_buffer_copy(bytes(at) + body)
        message.head, message.flags = abi.head(abi.CTL_TENANT, abi.CtlTenant), salt
        message.uuid, message.job_class = f"GPU-{salt}".encode(), abi.CLASS_CODES["offline"]
        found = stats(bytes(message))
        told = {name: getattr(message, name) for name in found._fields if hasattr(message, name)}
        flags = {
            "passed_over": abi.TENANT_PASSED_OVER,
            "ungoverned": abi.TENANT_UNGOVERNED,
            "suspended": abi.TENANT_SUSPENDED,
        }
        told |= {name: bool(salt & bit) for name, bit in flags.items()}
        told |= {
            "uuid": f"GPU-{salt}",
            "job_class": "offline",
            "policy": "",
            "busy": bool(message.busy),
        }
        assert found._asdict() == told | {"close_hist": tuple(message.close_hist)}


def test_the_settings_of_a_card_are_in_its_message() -> None:
    plain, told = (
        card_message(CardSettings("GPU-1", **kw))
        for kw in ({}, {"online_delay_us": 2, "online_share": 5})
    )
    assert (plain.head.size, plain.online_delay_us, plain.online_share) == (104, 0, 0)
    assert (told.idle_release_ms, told.online_delay_us, told.online_share) == (100, 2, 5)
    with pytest.raises(abi.AbiError, match="online_delay_us is -1; it must lie between 0 and"):
        card_message(CardSettings("GPU-1", online_delay_us=-1))
