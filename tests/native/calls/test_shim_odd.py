"""Programs that do what few do: jump out of waits, cancel threads, use more streams than there
are markers, ...
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
import shim_support as s

from enforcer.wire import abi

pytestmark = pytest.mark.native
EARLY = s.BUILD / "test" / "early.so"


# ---- waits that are left -------------------------------------------------------------------------


def test_jump_out_of_a_closed_gate_leaves_no_waiting_thread(
    arbiter: s.FakeArbiter, probe: s.Probe
) -> None:
    arbiter.card.set(s.CLOSED | s.TRACK)
    assert probe.ask("timeout 0 0x10 50") == 1, "the handler left the launch"
    s.until(lambda: arbiter.card.proc("waiting") == 0)
    probe.send("launch 0 0x10 1")  # and the thread is governed as before
    s.until(lambda: arbiter.card.proc("waiting") == 1)
    assert not probe.answered(1.5), "the helper takes back what was left, not who really waits"
    assert arbiter.card.proc("waiting") == 1
    arbiter.card.set(s.TRACK)
    assert int(probe.answer()) == 0
    assert arbiter.card.proc("waiting") == 0
    assert probe.counts()["launches"] == 1, "the launch that was left never reached the driver"


def test_jump_out_twice_and_return_at_once(arbiter: s.FakeArbiter, probe: s.Probe) -> None:
    """The thread's next wait takes the place of the one it left: one thread waits once."""
    arbiter.card.set(s.CLOSED | s.TRACK)
    for _ in range(3):
        assert probe.ask("timeout 0 0x10 20") == 1
    assert arbiter.card.proc("waiting") <= 1
    arbiter.card.set(s.TRACK)
    assert probe.ask("launch 0 0x10 1") == 0
    s.until(lambda: arbiter.card.proc("waiting") == 0)


def test_jump_out_of_a_full_window(arbiter: s.FakeArbiter, probe: s.Probe) -> None:
    """No lock stays taken, the thread stays governed, and the window is what it was."""
    s.learned(arbiter, probe, 400)
    assert probe.ask("hold 1") == 0
    assert probe.ask("launch 0 0x10 1") == 0
    left = [probe.ask("timeout 0 0x10 1") for _ in range(20)]
    assert 1 in left, "at least one wait was left before the 2 ms were over"
    assert probe.ask("hold 0") == 0
    assert probe.ask("reach 100") >= 1
    arbiter.card.set(s.CLOSED | s.TRACK)
    probe.send("launch 0 0x10 1")
    s.until(lambda: arbiter.card.proc("waiting") == 1)
    arbiter.card.set(s.TRACK)
    assert int(probe.answer()) == 0


def test_cancelled_thread_launches_first(arbiter: s.FakeArbiter, probe: s.Probe) -> None:
    """A launch is no cancellation point: the thread dies at its next one, with nothing of ours
    half done.
    """
    arbiter.card.set(s.CLOSED | s.TRACK)
    assert probe.ask("thread_waits 0") == 0
    s.until(lambda: arbiter.card.proc("waiting") == 1)
    assert probe.ask("cancel") == 0
    probe.send("cancelled")
    assert not probe.answered(0.2)
    arbiter.card.set(s.TRACK)
    assert int(probe.answer()) == 1
    assert arbiter.card.proc("waiting") == 0
    assert probe.counts()["launches"] == 1
    assert probe.ask("launch 0 0x10 1") == 0


def test_thread_killed_at_the_gate_waits_no_more(arbiter: s.FakeArbiter, probe: s.Probe) -> None:
    """Asynchronous cancellation kills it in the middle; its place is given back when it ends."""
    arbiter.card.set(s.CLOSED | s.TRACK)
    assert probe.ask("thread_waits 1") == 0
    s.until(lambda: arbiter.card.proc("waiting") == 1)
    assert probe.ask("cancel") == 0
    assert probe.ask("cancelled") == 1
    assert arbiter.card.proc("waiting") == 0


def test_fork_while_a_thread_stands_at_the_gate(arbiter: s.FakeArbiter, probe: s.Probe) -> None:
    arbiter.card.set(s.CLOSED | s.TRACK)
    assert probe.ask("thread_waits 0") == 0
    s.until(lambda: arbiter.card.proc("waiting") == 1)
    probe.send("fork_launch")
    s.until(lambda: arbiter.card.proc("waiting", slot=1) == 1)
    assert arbiter.card.proc("waiting") == 1, "the child lowers nothing of its parent"
    arbiter.card.set(s.TRACK)
    assert int(probe.answer()) == 0
    assert probe.ask("cancelled") == 0
    assert arbiter.card.proc("launches", slot=1) == 3
    assert [arbiter.card.proc("waiting", slot=n) for n in (0, 1)] == [0, 0]


# ---- more streams than markers -------------------------------------------------------------------


def all_done(arbiter: s.FakeArbiter) -> bool:
    pairs = [arbiter.card.marker(index) for index in range(64)]
    return arbiter.card.proc("unfenced") == 0 and all(
        submitted == done for submitted, done in pairs
    )


def test_hundred_streams_that_take_turns(arbiter: s.FakeArbiter, probe: s.Probe) -> None:
    """Who rests gives its index away: each of a hundred streams is seen to end."""
    for _ in range(3):
        assert probe.ask("many 1 100 0x10") == 0
        assert probe.ask("ctx_sync") == 0
        assert all_done(arbiter)
    assert probe.ask("many 1 100 0x10") == 0
    for stream in range(100, 0, -1):
        assert probe.ask(f"sync {stream}") == 0
    assert all_done(arbiter)


def test_hundred_streams_at_once(arbiter: s.FakeArbiter, probe: s.Probe) -> None:
    """While 64 work, the rest keep the process unmarked; when all are done, that is seen."""
    assert probe.ask("hold 1") == 0
    assert probe.ask("many 1 100 0x10") == 0
    assert probe.ask("ctx_sync") == 0
    assert arbiter.card.proc("unfenced") == 1
    assert sum(1 for index in range(64) if arbiter.card.marker(index)[0]) == 64
    assert probe.ask("hold 0") == 0
    assert probe.ask("reach 1000") >= 64
    assert probe.ask("sync 1") == 0, "any wait that ends well looks after the others"
    s.until(lambda: probe.ask("sync 1") == 0 and all_done(arbiter), 2)


def test_window_bounds_a_hundred_streams(arbiter: s.FakeArbiter, probe: s.Probe) -> None:
    """Five kernels of 100 us fit into 500 us, and one more when the first is overdue, however many
    streams they come from.
    """
    s.learned(arbiter, probe, 100)
    assert probe.ask("hold 1") == 0
    before = probe.counts()["launches"]
    probe.send("many 1 100 0x10")
    s.until(lambda: arbiter.card.proc("window_bypass") >= 4, 10)
    arbiter.card.set(s.CLOSED | s.TRACK)
    s.until(lambda: arbiter.card.proc("waiting") == 1)
    bypassed = arbiter.card.proc("window_bypass")
    arbiter.card.set(s.TRACK)
    assert int(probe.answer()) == 0
    assert probe.counts()["launches"] == before + 100
    assert arbiter.card.proc("inflight_us") <= 500 + 100 * (1 + bypassed)


def test_long_kernels_do_not_pile_up_in_the_window(arbiter: s.FakeArbiter, probe: s.Probe) -> None:
    """A kernel known to take 200 ms makes no progress for 200 ms: that is not what the 2 ms are
    for.
    """
    s.learned(arbiter, probe, 200000)
    assert probe.ask("hold 1") == 0
    assert probe.ask("launch 0 0x10 1") == 0
    bypassed = arbiter.card.proc("window_bypass")
    # one is queued behind it, shortly before the 200 ms are over; the next one is not
    for _ in range(2):
        probe.send("launch 0 0x10 1")
        assert not probe.answered(0.1)
        assert arbiter.card.proc("window_bypass") == bypassed
        assert int(probe.answer()) == 0
    assert (
        arbiter.card.proc("window_bypass") == bypassed + 1
    )  # it looks like a kernel that waits for another now


# ---- starts and ends -----------------------------------------------------------------------------


def test_library_whose_constructor_uses_cuda_before_ours(
    tmp_path: Path, arbiter: s.FakeArbiter
) -> None:
    """Preloaded after the shim it is initialised before it; cap and registration hold all the
    same.
    """
    with s.governed(tmp_path, s.CAP, env={"LD_PRELOAD": f"{s.SHIM} {EARLY}"}) as probe:
        assert probe.ask("init") == 0
        assert arbiter.card.asked == [0]
        assert arbiter.card.proc("mem_used") == s.MIB
        error = probe.finish()
    assert error.splitlines()[-1] == "early 0 0 0 2"


def test_program_that_closes_its_handle(arbiter: s.FakeArbiter, probe: s.Probe) -> None:
    arbiter.card.set(s.CLOSED | s.TRACK)
    probe.send("dlclose 10")
    s.until(lambda: arbiter.card.proc("waiting") == 1)
    arbiter.card.set(s.TRACK)
    assert int(probe.answer()) == 0


@pytest.mark.parametrize("order", ["12", "21", "2", "31"])
def test_cards_are_known_by_uuid_in_any_order(tmp_path: Path, order: str) -> None:
    """CUDA_VISIBLE_DEVICES by index, UUID or in another order: each device is its own card."""
    caps = [s.GIB, 2 * s.GIB]
    arbiter = s.FakeArbiter(tmp_path, caps)
    with s.governed(tmp_path, caps, env={"QGPU_STUB_CARDS": order}) as probe:
        assert probe.ask(f"devices {len(order)}") == 0
        assert probe.ask("init") == 0
        for device, card in enumerate(order):
            tenant = arbiter.tenants.get(s.UUID.format(int(card)))
            assert probe.ask(f"ctx {device}") == (0 if tenant else s.NOT_PERMITTED)
            if tenant:
                assert probe.ask(f"alloc {device} {s.GIB // 2}") == 0
                assert probe.ask("launch 0 0x10 7") == 0
                assert (tenant.proc("mem_used"), tenant.proc("launches")) == (s.GIB // 2, 7)
        unseen = [t for u, t in arbiter.tenants.items() if str(int(u[-2:], 16)) not in order]
        assert [tenant.asked for tenant in unseen] == [[]] * len(unseen), (
            "not visible: not registered"
        )
    arbiter.stop()


def test_mig_instance_is_known_by_its_own_uuid(tmp_path: Path) -> None:
    """Two instances of one card: version 1 of the query names the card, so only version 2 tells
    them apart.
    """
    arbiter = s.FakeArbiter(tmp_path, s.CAP)
    uuid = s.UUID.format(1).replace("GPU-", "MIG-")
    arbiter.tenants[uuid] = arbiter.tenants.pop(s.UUID.format(1))
    content = s.grant_bytes(tmp_path, s.CAP).replace(s.UUID.format(1).encode(), uuid.encode())
    fd = s.sealed("grant", content)
    env = {"QGPU_GRANT_FD": str(fd), "QGPU_STUB_CARDS": "21", "QGPU_STUB_MIG": "1"}
    probe = s.launch(tmp_path, env, (fd,))
    os.close(fd)
    assert probe.ask("devices 2") == 0
    assert probe.ask("init") == 0
    assert probe.ask("ctx 0") == s.NOT_PERMITTED, "the other instance was not granted"
    assert probe.ask("ctx 1") == 0
    assert probe.ask("alloc 0 4096") == 0
    assert arbiter.tenants[uuid].proc("mem_used") == 4096
    probe.finish()
    arbiter.stop()


def test_legacy_stream_gets_no_marker_unless_launched_into(
    arbiter: s.FakeArbiter, probe: s.Probe
) -> None:
    """One in it would order all other streams of the context."""
    assert probe.ask("stream 1") == 0
    for order in ("launch 0 0x10 5", "launch 1 0x10 5", "ctx_sync", "invoke cuStreamSynchronize 0"):
        assert probe.ask(order) == 0
    assert probe.ask("legacy_writes") == 0
    time.sleep(0.002)
    assert probe.ask("invoke cuLaunchKernel 0x10 1 1 1 1 1 1 0 0 0 0") == 0
    assert probe.ask("invoke cuStreamSynchronize 0") == 0
    assert probe.ask("legacy_writes") >= 1


def test_child_that_no_handler_of_fork_saw_does_not_crash(
    tmp_path: Path, arbiter: s.FakeArbiter
) -> None:
    """_Fork and clone(2) run none; such a child cannot use CUDA, but it is the driver that says
    so.
    """
    with s.governed(tmp_path, s.CAP) as probe:
        s.started(probe)
        assert probe.ask(f"alloc 0 {20 * s.GIB}") == 0
        assert probe.ask(f"clone {4 * s.GIB}") == 0
        assert arbiter.card.proc("mem_used") == 20 * s.GIB
        assert len(arbiter.card.asked) == 1
        assert probe.ask(f"alloc 1 {1 * s.GIB}") == 0
        assert arbiter.card.proc("mem_used") == 21 * s.GIB


def test_stream_that_is_lost_spoils_no_other_of_its_context(
    arbiter: s.FakeArbiter, probe: s.Probe
) -> None:
    """Its markers are refused because of it, not because the driver has none."""
    assert probe.ask("stream 1") == 0
    assert probe.ask(f"refuse_writes {s.INVALID_HANDLE}") == 0
    assert probe.ask("launch 1 0x10 10") == 0
    assert probe.ask("sync 1") == 0
    assert probe.ask("refuse_writes 0") == 0
    assert arbiter.card.proc("unfenced") == 0, "nothing of it is on the card"
    assert probe.ask("launch 0 0x10 10") == 0
    assert probe.ask("sync 0") == 0
    assert max(arbiter.card.marker(at)[0] for at in range(4)) > 0
    assert arbiter.card.proc("unfenced") == 0


# ---- an arbiter that is late ---------------------------------------------------------------------


def test_an_arbiter_that_answers_late_is_asked_again(
    tmp_path: Path, arbiter: s.FakeArbiter
) -> None:
    """It was stopped for a while, or got no processor."""
    arbiter.unanswered = 1
    with s.governed(tmp_path, s.CAP) as probe:
        assert probe.ask("init") == 0
        s.until(lambda: len(arbiter.card.asked) == 1, seconds=5)
        assert probe.ask("ctx 0") == 0 and probe.ask("launch 0 0x10 1") == 0
        assert arbiter.versions == [abi.ABI_VERSION] * 2
        assert sum(arbiter.card.lanes()) == 1
