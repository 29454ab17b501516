"""The memory cap: per job, shown by the driver's calls, refused in one line."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest
import shim_support as s

pytestmark = pytest.mark.native
GIB, MIB = s.GIB, s.MIB


def test_unit_under_sanitizers() -> None:
    done = subprocess.run(
        [s.BUILD / "test" / "shim-unit"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr


def test_pool_that_was_set_while_the_old_one_was_asked_for_is_not_missed() -> None:
    done = subprocess.run(
        [s.BUILD / "test" / "shim-pool-unit"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_cap_is_exact_and_said_once(tmp_path: Path, arbiter: s.FakeArbiter) -> None:
    with s.governed(tmp_path, [24 * GIB]) as probe:
        s.started(probe)
        assert probe.ask(f"alloc 0 {24 * GIB - MIB}") == 0
        assert probe.ask(f"alloc 1 {MIB + 1}") == s.OUT_OF_MEMORY
        assert probe.ask(f"alloc 1 {2 * GIB}") == s.OUT_OF_MEMORY
        assert probe.ask(f"alloc 1 {MIB}") == 0
        assert probe.ask("alloc 2 1") == s.OUT_OF_MEMORY
        assert arbiter.card.proc("mem_used") == 24 * GIB
        assert arbiter.card.proc("mem_denied") == 3
        assert arbiter.card.proc("mem_pending") == 0
        assert probe.ask("free 1") == 0
        assert probe.ask("alloc 2 4096") == 0
        error = probe.finish()
    assert error == (
        "qgpu: allocation of 1.0 MiB refused: job 4711 holds 24.0 of 24.0 GiB on this card. "
        "Ask for more with vram (for example --gres=qgpu:30,vram:28G) or use less.\n"
    )


@pytest.mark.parametrize(
    ("size", "usable", "words"),
    [
        (60 * GIB, 0, "--gres=qgpu:30,vram:72G) or use less"),
        (70 * GIB, 78 * 1024, "--gres=qgpu:30,vram:78G) or use less"),
        (70 * GIB, 79000, "--gres=qgpu:30,vram:79000M) or use less"),
        (74 * GIB + 1, 78 * 1024, "Ask for a whole card with --gres=gpu:1 or use less"),
        (76 * GIB, 78 * 1024, "Use less: shares have 78.0 GiB of this card"),
        (2**62, 78 * 1024, "Use less: shares have 78.0 GiB of this card"),
    ],
)
def test_refusal_names_what_would_have_been_enough(
    tmp_path: Path, arbiter: s.FakeArbiter, size: int, usable: int, words: str
) -> None:
    with s.governed(tmp_path, [24 * GIB], usable=usable) as probe:
        s.started(probe)
        assert probe.ask(f"alloc 0 {4 * GIB}") == 0
        assert probe.ask(f"alloc 1 {size}") == s.OUT_OF_MEMORY
        assert arbiter.card.proc("mem_refused") == size + 4 * GIB
        assert arbiter.card.proc("mem_peak") == 4 * GIB
        error = probe.finish()
    assert words in error


def test_memory_info_tells_the_cap(tmp_path: Path, arbiter: s.FakeArbiter) -> None:
    with s.governed(tmp_path, [24 * GIB]) as probe:
        s.started(probe)
        assert probe.text("info") == f"0 {24 * GIB} {24 * GIB}"
        assert probe.ask(f"alloc 0 {4 * GIB}") == 0
        assert probe.text("info") == f"0 {20 * GIB} {24 * GIB}"
        assert probe.text("total") == f"0 {24 * GIB}"


def test_smaller_cap_of_the_gate_page_wins(tmp_path: Path) -> None:
    arbiter = s.FakeArbiter(tmp_path, [GIB])
    with s.governed(tmp_path, [24 * GIB]) as probe:
        s.started(probe)
        assert probe.ask(f"alloc 0 {GIB + 1}") == s.OUT_OF_MEMORY
        assert probe.ask(f"alloc 0 {GIB}") == 0
    arbiter.stop()


@pytest.mark.parametrize("kind", ["alloc", "managed", "create", "alloc_async"])
def test_every_way_to_allocate_counts(tmp_path: Path, arbiter: s.FakeArbiter, kind: str) -> None:
    back = {
        "alloc": "free 0",
        "managed": "free 0",
        "create": "release 0",
        "alloc_async": "free_async 0 0",
    }[kind]
    with s.governed(tmp_path, [24 * GIB]) as probe:
        s.started(probe)
        assert probe.ask("stream 0") == 0
        assert probe.ask(f"{kind} 0 {24 * GIB + 1}") == s.OUT_OF_MEMORY
        assert probe.ask(f"{kind} 0 {20 * GIB}") == 0
        assert arbiter.card.proc("mem_used") == 20 * GIB
        assert probe.ask(f"{kind} 1 {5 * GIB}") == s.OUT_OF_MEMORY
        assert probe.ask(back) == 0
        assert arbiter.card.proc("mem_used") == 0


def test_pitch_charges_rows_as_the_driver_lays_them(tmp_path: Path, arbiter: s.FakeArbiter) -> None:
    with s.governed(tmp_path, [24 * GIB]) as probe:
        s.started(probe)
        assert probe.ask("pitch 0 100 1000") == 0
        assert arbiter.card.proc("mem_used") == 512 * 1000
        assert probe.ask("pitch 1 18446744073709551615 18446744073709551615") == s.OUT_OF_MEMORY


def test_physical_memory_lives_until_its_last_mapping(
    tmp_path: Path, arbiter: s.FakeArbiter
) -> None:
    with s.governed(tmp_path, [24 * GIB]) as probe:
        s.started(probe)
        assert probe.ask(f"create 0 {GIB}") == 0
        assert probe.ask(f"map 0 0x10000000 {GIB}") == 0
        assert probe.ask("release 0") == 0
        assert arbiter.card.proc("mem_used") == GIB
        assert probe.ask(f"unmap 0x10000000 {GIB}") == 0
        assert arbiter.card.proc("mem_used") == 0


def test_refusal_of_the_card_itself_charges_nothing(tmp_path: Path, arbiter: s.FakeArbiter) -> None:
    with s.governed(tmp_path, [24 * GIB]) as probe:
        s.started(probe)
        assert probe.ask("refuse_allocs 1") == 0
        assert probe.ask(f"alloc 0 {GIB}") == s.OUT_OF_MEMORY
        assert (arbiter.card.proc("mem_used"), arbiter.card.proc("mem_pending")) == (0, 0)
        assert arbiter.card.proc("mem_denied") == 0
        assert probe.finish() == ""


def test_destroyed_context_gives_back(tmp_path: Path, arbiter: s.FakeArbiter) -> None:
    with s.governed(tmp_path, [24 * GIB]) as probe:
        s.started(probe)
        assert probe.ask(f"alloc 0 {GIB}") == 0
        assert probe.ask("ctx_destroy 0") == 0
        assert arbiter.card.proc("mem_used") == 0


def test_cap_spans_processes_and_survives_kill_9(tmp_path: Path, arbiter: s.FakeArbiter) -> None:
    with s.governed(tmp_path, [24 * GIB]) as first, s.governed(tmp_path, [24 * GIB]) as second:
        s.started(first)
        s.started(second)
        assert first.ask(f"alloc 0 {20 * GIB}") == 0
        assert second.ask(f"alloc 0 {5 * GIB}") == s.OUT_OF_MEMORY
        assert second.ask(f"alloc 0 {4 * GIB}") == 0
        assert second.text("info") == f"0 0 {24 * GIB}"
        os.kill(first.process.pid, signal.SIGKILL)
        first.process.wait()
        arbiter.card.clear(0)
        assert second.ask(f"alloc 1 {20 * GIB}") == 0


def test_two_announcements_do_not_starve(tmp_path: Path, arbiter: s.FakeArbiter) -> None:
    """A pending announcement of another process is waited for, not taken for memory that is
    held.
    """
    with s.governed(tmp_path, [24 * GIB]) as probe:
        s.started(probe)
        arbiter.card.job_page.procs[1].mem_pending = 20 * GIB
        arbiter.card.job_page.pad[0] = 2  # slots in use: a word in the padding
        probe.send(f"alloc 0 {10 * GIB}")
        assert not probe.answered(0.1)
        arbiter.card.job_page.procs[1].mem_pending = 0
        assert int(probe.answer()) == 0


def test_nothing_is_allocated_before_any_registration(tmp_path: Path) -> None:
    """Each process of the job would have the whole cap; once an arbiter is there it gets its
    part.
    """
    with s.governed(tmp_path, [GIB]) as probe:  # no arbiter at all
        assert probe.ask("init") == 0
        assert probe.ask("ctx 0") == s.OUT_OF_MEMORY
        arbiter = s.FakeArbiter(tmp_path, [GIB])
        s.until(lambda: probe.ask("ctx 0") == 0)
        assert probe.ask(f"alloc 0 {GIB}") == 0
        assert probe.ask("alloc 1 1") == s.OUT_OF_MEMORY
        assert arbiter.card.proc("mem_used") == GIB
        error = probe.finish()
    arbiter.stop()
    assert (
        "no device memory: the arbiter of this node did not register process" in error
        and "does not answer" in error
    )


def test_held_memory_is_reported_when_the_arbiter_comes_back(tmp_path: Path) -> None:
    arbiter = s.FakeArbiter(tmp_path, [24 * GIB])
    with s.governed(tmp_path, [24 * GIB]) as probe:
        s.started(probe)
        assert probe.ask(f"alloc 0 {20 * GIB}") == 0
        arbiter.stop()
        assert probe.ask(f"alloc 1 {5 * GIB}") == s.OUT_OF_MEMORY
        arbiter.start()
        s.until(lambda: arbiter.card.asked == [20 * GIB])
        s.until(lambda: arbiter.card.proc("mem_used") == 20 * GIB)
        assert probe.ask(f"alloc 1 {4 * GIB}") == 0
        assert arbiter.card.proc("mem_used") == 24 * GIB
    arbiter.stop()


def test_a_refusal_is_counted_once_however_often_the_arbiter_begins_anew(tmp_path: Path) -> None:
    """The ledger adds the count of each page, so a new one must begin at 0."""
    arbiter = s.FakeArbiter(tmp_path, [GIB])
    with s.governed(tmp_path, [GIB]) as probe:
        s.started(probe)
        assert [probe.ask(f"alloc 0 {2 * GIB}") for _ in range(3)] == [s.OUT_OF_MEMORY] * 3
        assert arbiter.card.proc("mem_denied") == 3
        for _ in range(2):
            arbiter.stop()
            arbiter.start()
            s.until(lambda: arbiter.card.asked)
            s.until(lambda: probe.ask(f"alloc 0 {GIB // 4}") == 0)
            s.until(lambda: arbiter.card.proc("mem_used") > 0)  # the new page is in use
            assert arbiter.card.proc("mem_denied") == 0
            assert probe.ask(f"alloc 1 {GIB}") == s.OUT_OF_MEMORY
            assert arbiter.card.proc("mem_denied") == 1
            assert probe.ask("free 0") == 0
    arbiter.stop()


def test_card_that_was_not_granted_gives_nothing(tmp_path: Path, arbiter: s.FakeArbiter) -> None:
    with s.governed(tmp_path, [24 * GIB]) as probe:
        assert probe.ask("devices 2") == 0
        assert probe.ask("init") == 0
        assert probe.ask("ctx 1") == s.NOT_PERMITTED
        assert probe.ask("ctx 0") == 0
        assert probe.ask("alloc 0 4096") == 0
        assert "this card is not part of job 4711" in probe.finish()


def test_two_cards_are_counted_apart(tmp_path: Path) -> None:
    arbiter = s.FakeArbiter(tmp_path, [GIB, 2 * GIB])
    with s.governed(tmp_path, [GIB, 2 * GIB]) as probe:
        assert probe.ask("devices 2") == 0
        s.started(probe)
        assert probe.ask(f"alloc 0 {GIB}") == 0
        assert probe.ask("ctx 1") == 0
        assert probe.ask(f"alloc 1 {2 * GIB}") == 0
        assert probe.ask("alloc 2 1") == s.OUT_OF_MEMORY
        used = [arbiter.tenants[s.UUID.format(n)].proc("mem_used") for n in (1, 2)]
    assert used == [GIB, 2 * GIB]
    arbiter.stop()


def test_threads_leave_the_books_even(tmp_path: Path, arbiter: s.FakeArbiter) -> None:
    with s.governed(tmp_path, [24 * GIB]) as probe:
        s.started(probe)
        assert probe.ask("threads 4 4000") == 0
        assert (arbiter.card.proc("mem_used"), arbiter.card.proc("mem_pending")) == (0, 0)
        assert arbiter.card.proc("mem_peak") <= 4 * 4096
        assert arbiter.card.proc("launches") == 16000
        assert arbiter.card.proc("unfenced") in (0, 1)
        assert probe.finish() == ""


def test_what_is_bound_to_an_endpoint_is_charged_until_it_is_not(
    arbiter: s.FakeArbiter, probe: s.Probe
) -> None:
    """Each device binds at the same place; one call may undo bindings that follow each other;
    the end undoes all.
    """

    def used() -> int:
        return arbiter.card.proc("mem_used") // MIB

    for orders, after in (
        (
            [
                f"create 0 {64 * MIB}",
                f"endpoint 0 0 0 {32 * MIB}",
                f"endpoint 0 0 {32 * MIB} {32 * MIB}",
            ],
            64,
        ),
        (["release 0"], 64),
        ([f"invoke cuLogicalEndpointUnbind 7 1 0 {64 * MIB}"], 64),  # another device's
        ([f"invoke cuLogicalEndpointUnbind 7 0 0 {64 * MIB}"], 0),
        (
            [
                f"create 0 {8 * MIB}",
                f"endpoint 0 0 0 {8 * MIB}",
                f"endpoint 0 1 0 {8 * MIB}",
                "release 0",
            ],
            8,
        ),
        ([f"invoke cuLogicalEndpointUnbind 7 0 0 {8 * MIB}"], 8),
        ([f"invoke cuLogicalEndpointUnbind 7 1 0 {8 * MIB}"], 0),
        (
            [
                f"create 0 {8 * MIB}",
                f"endpoint 0 0 0 {8 * MIB}",
                f"endpoint 0 0 {8 * MIB} {8 * MIB}",
                "release 0",
            ],
            8,
        ),
        (["invoke cuLogicalEndpointDestroy 8"], 8),
        (["invoke cuLogicalEndpointDestroy 7"], 0),
        ([f"create 0 {8 * MIB}", f"map 0 0x10000000 {8 * MIB}"], 8),
        (
            [
                f"invoke cuLogicalEndpointBindAddr 7 0 0 0x10000000 {8 * MIB} 0",
                "release 0",
                f"unmap 0x10000000 {8 * MIB}",
            ],
            8,
        ),
        ([f"invoke cuLogicalEndpointUnbind 7 0 0 {8 * MIB}"], 0),
    ):
        assert [probe.ask(order) for order in orders] == [0] * len(orders)
        assert used() == after, orders
