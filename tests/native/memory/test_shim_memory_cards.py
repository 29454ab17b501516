"""Memory of another card is charged to the card that it lies on, whatever context is current."""

from __future__ import annotations

from pathlib import Path

import pytest
from shim_memory_support import MIB, Node, Program, node

pytestmark = pytest.mark.native


def made(running: Node, governed: bool) -> tuple[Program, str]:
    """A program that gave away 64 MiB of the first card, and the handle."""
    maker = running.run("mem_share", "make", "ipc", governed=governed)
    maker.at("begin")
    maker.on()
    handle = maker.line()
    assert maker.at("made") == 64 * MIB
    return maker, handle


def taken(running: Node, maker: Program, handle: str, monkeypatch: pytest.MonkeyPatch) -> Program:
    """A program that opened it in a context of the second card."""
    monkeypatch.setenv("QGPU_TEST_DEVICE", "1")
    taker = running.run("mem_share", "take", "ipc", handle, str(maker.process.pid))
    taker.at("begin")
    taker.on()
    taker.at("taken")
    return taker


def test_memory_of_the_job_that_another_card_opens_is_paid_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It used to be charged to the second card as well, where its name is not known."""
    with node(tmp_path, cards=2) as running:
        maker, handle = made(running, governed=True)
        taker = taken(running, maker, handle, monkeypatch)
        assert [maker.used(card) for card in (0, 1)] == [64 * MIB, 0]
        assert [taker.used(card) for card in (0, 1)] == [0, 0]
        maker.on()
        maker.at("let_go")
        assert maker.used() == 64 * MIB  # the taker keeps it
        assert running.shared_on_card(contexts=1) == 64 * MIB
        taker.on()
        taker.at("closed")
        running.until(lambda: maker.used() == 0)


def test_memory_from_outside_the_job_is_charged_to_its_own_card(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It used to be charged to the card of the context that opened it."""
    with node(tmp_path, cards=2) as running:
        maker, handle = made(running, governed=False)
        taker = taken(running, maker, handle, monkeypatch)
        assert [taker.used(card) for card in (0, 1)] == [64 * MIB, 0]
        taker.on()
        taker.at("closed")
        assert [taker.used(card) for card in (0, 1)] == [0, 0]
