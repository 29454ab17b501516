"""Faults of drivers, programs and the arbiter, injected into the whole chain: simulated card,
shim, real arbiter.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.harness.node import BUILD, MIB, Rig, wait_for
from enforcer.wire import abi
from enforcer.wire.link import TenantStats

pytestmark = [
    pytest.mark.native,
    pytest.mark.skipif(os.getuid() != 0, reason="needs root: sealed grants"),
]
ONLINE, OFFLINE, NEIGHBOUR, PEER = 1, 2, 3, 4
ENDLESS = ("--length", "600", "--iters", "200000", "--no-sync-each=16")


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with Rig(tmp_path, settings={"idle_release_ms": 20, "lease_ms": 400}) as running:
        running.grant(ONLINE, "online", mem_mib=1024)
        running.grant(OFFLINE, "offline", mem_mib=1024)
        running.grant(NEIGHBOUR, "offline", mem_mib=1024)
        yield running


def task(rig: Rig, *words: str, job: int = OFFLINE) -> subprocess.Popen[str]:
    """One of the odd programs (tests/native/programs/submit/task.c)."""
    return rig.spawn(
        [BUILD / "test/shim-task", *words], rig.grants[job], stdin=subprocess.PIPE, bufsize=1
    )


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout
    return process.stdout.readline().strip()


def on(process: subprocess.Popen[str]) -> None:
    assert process.stdin
    process.stdin.write("\n")
    process.stdin.flush()


def tenant(rig: Rig, job: int = OFFLINE) -> TenantStats:
    return next(t for t in rig.link.stats() if t.job_id == job)


def works(rig: Rig, job: int, what: str, seconds: float = 5.0, launches: int = 100) -> None:
    """So many launches of the job are counted within the time."""
    before = tenant(rig, job).launches
    wait_for(what, lambda: tenant(rig, job).launches >= before + launches, seconds)


def closed(rig: Rig, job: int = OFFLINE) -> bool:
    return bool(tenant(rig, job).gate & abi.GATE_CLOSED)


def both_closed(rig: Rig) -> bool:
    """Waited for: online that got no processor for 20 ms has opened them in between."""
    return closed(rig) and closed(rig, NEIGHBOUR)


def kill(process: subprocess.Popen[str]) -> str:
    """Kills it; what it had said on stderr."""
    process.kill()
    return process.communicate()[1]


# ---- the driver ----------------------------------------------------------------------------------


def test_sticky_error_of_one_tenant_harms_no_other(rig: Rig) -> None:
    ill = rig.workload(rig.grants[OFFLINE], *ENDLESS, "--memory", "256MiB")
    well = rig.workload(rig.grants[NEIGHBOUR], *ENDLESS, "--memory", "256MiB")
    works(rig, OFFLINE, "both work")
    works(rig, NEIGHBOUR, "both work")
    rig.fault(f"sticky pid={ill.pid}")
    assert ill.wait(60) == 1, "its program learns of the error"
    works(rig, NEIGHBOUR, "the other goes on")
    wait_for(
        "the sick one's charge is gone", lambda: (tenant(rig).procs, tenant(rig).mem_used) == (0, 0)
    )
    assert (tenant(rig, NEIGHBOUR).mem_used, well.poll()) == (256 * MIB, None)
    assert kill(well) == ""


def test_sticky_error_does_not_keep_the_card_while_its_process_lives(rig: Rig) -> None:
    """The dead context's markers never end; nobody waits for them for long."""
    ill = rig.workload(rig.grants[OFFLINE], *ENDLESS)
    works(rig, OFFLINE, "it works")
    ill.send_signal(signal.SIGSTOP)
    rig.fault(f"sticky pid={ill.pid}")
    well = rig.workload(rig.grants[NEIGHBOUR], *ENDLESS)
    works(rig, NEIGHBOUR, "the other has the card")
    kill(ill)
    kill(well)


def test_hung_kernel_of_an_offline_tenant_costs_others_a_bounded_time(rig: Rig) -> None:
    hung = rig.workload(rig.grants[OFFLINE], *ENDLESS)
    well = rig.workload(rig.grants[NEIGHBOUR], *ENDLESS)
    works(rig, OFFLINE, "both work")
    works(rig, NEIGHBOUR, "both work")
    rig.fault(f"hang pid={hung.pid}")
    stands = tenant(rig).launches
    works(rig, NEIGHBOUR, "the other goes on within the drain's limit", 5)
    wait_for("it is passed over, 2 s after its last launch", lambda: tenant(rig).passed_over, 15)
    works(rig, NEIGHBOUR, "and then without the hung one's turns", 2, 500)
    service = rig.workload(rig.grants[ONLINE], *ENDLESS)
    works(rig, ONLINE, "online preempts as ever")
    wait_for("offline is closed", lambda: both_closed(rig))
    kill(service)
    works(rig, NEIGHBOUR, "and gives back")
    assert tenant(rig).launches < stands + 200
    kill(hung)
    wait_for("it is gone", lambda: tenant(rig).procs == 0)
    works(rig, NEIGHBOUR, "alone again", 2, 500)
    kill(well)


def test_hung_kernel_of_an_online_tenant_takes_no_turns_of_its_peers(rig: Rig) -> None:
    rig.grant(PEER, "online", mem_mib=1024)
    hung, well = (rig.workload(rig.grants[job], *ENDLESS) for job in (ONLINE, PEER))
    batch = rig.workload(rig.grants[OFFLINE], *ENDLESS)
    for job in (ONLINE, PEER):
        works(rig, job, "both work")
    assert not tenant(rig, ONLINE).passed_over
    wait_for("offline is closed", lambda: closed(rig))
    rig.fault(f"hang pid={hung.pid}")
    wait_for(
        "it is passed over, 2 s after its last progress",
        lambda: tenant(rig, ONLINE).passed_over,
        15,
    )
    works(rig, PEER, "the other goes on without its turns", 5, 500)
    waited = tenant(rig, PEER).closed_share_ns
    works(rig, PEER, "the other goes on without its turns", 5, 500)
    assert tenant(rig, PEER).closed_share_ns - waited < 20e6, "its gate stays open"
    kill(well)
    wait_for("offline is closed", lambda: closed(rig))
    stands = tenant(rig).launches
    time.sleep(0.5)
    assert closed(rig) and tenant(rig).launches < stands + 20, (
        "a kernel of online may take its time"
    )
    kill(hung)
    works(rig, OFFLINE, "offline has the card", 5)
    kill(batch)


def test_lease_of_hung_work_is_an_option(rig: Rig) -> None:
    rig.arbiter.kill()
    rig.arbiter.wait()
    rig.arbiter_options = ("--hang-s", "2")
    rig.start_arbiter()
    service, batch = (rig.workload(rig.grants[job], *ENDLESS) for job in (ONLINE, OFFLINE))
    works(rig, ONLINE, "online works")
    rig.fault(f"hang pid={service.pid}")
    works(rig, OFFLINE, "offline has the card although the hung process lives", 10)
    kill(service)
    kill(batch)


def test_hung_kernel_of_an_online_tenant_ends_with_its_process(rig: Rig) -> None:
    service = rig.workload(rig.grants[ONLINE], *ENDLESS)
    batch = rig.workload(rig.grants[OFFLINE], *ENDLESS)
    works(rig, ONLINE, "online works")
    rig.fault(f"hang pid={service.pid}")
    wait_for("offline is closed", lambda: closed(rig))
    kill(service)
    works(rig, OFFLINE, "offline has the card again", 2)
    kill(batch)


def test_stalls_of_the_card_leave_everything_in_order(rig: Rig) -> None:
    """50 ms each: gates close for online all the same, nothing fails, and work goes on
    afterwards.
    """
    batch = [rig.workload(rig.grants[job], *ENDLESS) for job in (OFFLINE, NEIGHBOUR)]
    for _ in range(5):
        service = rig.workload(rig.grants[ONLINE], *ENDLESS)
        works(rig, ONLINE, "online works")
        rig.fault("stall us=50000")
        wait_for("offline is closed while the card stands still", lambda: both_closed(rig))
        works(rig, ONLINE, "online goes on", 5, 50)
        wait_for("offline is closed", lambda: both_closed(rig))
        kill(service)
        rig.fault("stall us=50000")
        works(rig, OFFLINE, "offline goes on", 5, 50)
        works(rig, NEIGHBOUR, "offline goes on", 5, 50)
        rig.fault("stall us=50000")
        few = rig.workload(
            rig.grants[ONLINE], "--requests", "20", "--iters", "100000", "--poisson", "200"
        )
        assert rig.summary(few)["requests"] == 20, "online comes to a card that stands still"
    assert [kill(process) for process in batch] == ["", ""]


def test_slow_driver_calls_hold_up_their_caller_alone(rig: Rig) -> None:
    slow = rig.workload(rig.grants[OFFLINE], *ENDLESS)
    well = rig.workload(rig.grants[NEIGHBOUR], *ENDLESS)
    works(rig, OFFLINE, "both work")
    rig.fault(f"delay call=cuLaunchKernel us=50000 pid={slow.pid}")
    before = tenant(rig).launches
    works(rig, NEIGHBOUR, "the other goes on", 5, 1000)
    assert tenant(rig).launches < before + 500, "while it launches every 50 ms"
    kill(slow)
    kill(well)


# ---- the arbiter ---------------------------------------------------------------------------------


def test_arbiter_that_hangs_is_given_up_and_taken_back(rig: Rig) -> None:
    service = rig.workload(rig.grants[ONLINE], *ENDLESS)
    batch = rig.workload(rig.grants[OFFLINE], *ENDLESS, "--memory", "512MiB")
    works(rig, ONLINE, "online works")
    wait_for("offline waits", lambda: closed(rig) and tenant(rig).busy)
    rig.arbiter.send_signal(signal.SIGSTOP)
    try:
        wait_for("offline goes on after three leases", lambda: pieces_of(rig, batch.pid) > 50, 10)
        late = task(rig, "hold", "768")
        time.sleep(0.5)
    finally:
        rig.arbiter.send_signal(signal.SIGCONT)
    assert line(late) == "refused", "memory stays shut: two processes of the job share one cap"
    wait_for("the gate is obeyed again", lambda: closed(rig) and stands_still(rig, batch.pid), 15)
    kill(late)
    kill(service)
    works(rig, OFFLINE, "offline has the card again")
    error = kill(batch)
    assert error.count("qgpu: the arbiter of this node does not answer") == 1


def pieces_of(rig: Rig, pid: int) -> int:
    """What the card has executed for a process."""
    return sum(piece.pid == pid for piece in rig.trace())


def stands_still(rig: Rig, pid: int) -> bool:
    """It executes nothing for a while."""
    before = pieces_of(rig, pid)
    time.sleep(0.3)
    return pieces_of(rig, pid) == before


# ---- programs ------------------------------------------------------------------------------------


def test_two_hundred_kills_leave_no_byte_behind(rig: Rig) -> None:
    """Four processes that allocate, free and launch, killed at random instants; the neighbour
    keeps what it has.
    """
    rng = random.Random(20)
    holder = task(rig, "hold", "512", job=NEIGHBOUR)
    assert line(holder) == "held"
    running = [task(rig, "churn", str(i)) for i in range(4)]
    with contextlib.closing(rig.nvml()) as nvml:
        for number in range(200):
            time.sleep(rng.random() * 0.02)
            at = rng.randrange(4)
            kill(running[at])
            running[at] = task(rig, "churn", str(100 + number))
            held = {p.pid: p.mem_used or 0 for p in nvml.processes(rig.uuids[0])}
            held.pop(holder.pid)
            assert sum(held.values()) <= 1024 * MIB + 300 * MIB * len(held), (
                "the job is above its cap"
            )
    errors = [kill(process) for process in running]
    assert not [text for text in errors if text and "allocation of" not in text], errors
    wait_for(
        "all are gone",
        lambda: (tenant(rig).procs, tenant(rig).mem_used + tenant(rig).mem_extra) == (0, 0),
    )
    assert (tenant(rig, NEIGHBOUR).mem_used, tenant(rig, NEIGHBOUR).procs) == (512 * MIB, 1)
    everything = task(rig, "hold", "1024")
    assert line(everything) == "held", "the whole cap is free again"
    kill(everything)
    kill(holder)


def test_many_processes_share_one_cap_from_its_first_byte(rig: Rig) -> None:
    """More processes than a job may have on a card, all at once: none of them counts itself
    alone.
    """
    crowd = task(rig, "fork", "150", "64")
    assert line(crowd) == "16 134", "16 x 64 MiB are the cap of 1 GiB"
    assert (tenant(rig).procs, tenant(rig).mem_used) == (abi.MAX_PROCS, 1024 * MIB)
    on(crowd)
    assert line(crowd) == "over"
    wait_for("all are gone", lambda: (tenant(rig).procs, tenant(rig).mem_used) == (0, 0))
    on(crowd)
    assert crowd.wait(60) == 0
    assert "GiB on this card" in crowd.communicate()[1]


def test_process_beyond_the_limit_is_informed_and_gets_a_slot_later(rig: Rig) -> None:
    crowd = task(rig, "fork", str(abi.MAX_PROCS), "1")
    assert line(crowd) == f"{abi.MAX_PROCS} 0"
    late = task(rig, "hold", "1", "launch")
    assert line(late) == "refused"
    other = task(rig, "hold", "1", "launch", job=NEIGHBOUR)
    assert [line(other), line(other)] == ["held", "launched"], "another job is not concerned"
    assert stands_still(rig, late.pid) and pieces_of(rig, late.pid) == 0
    on(crowd)
    assert line(crowd) == "over"
    assert line(late) == "launched", "it got the place of one that ended"
    error = kill(late)
    assert "did not register process" in error and "too many processes on this card" in error
    on(crowd)
    kill(crowd)
    kill(other)


def test_program_that_closes_all_descriptors_is_still_governed(rig: Rig) -> None:
    odd = task(rig, "close", "3")
    works(rig, OFFLINE, "it works", 5, 1000)
    service = rig.workload(rig.grants[ONLINE], *ENDLESS)
    works(rig, ONLINE, "online works")
    wait_for("it stands", lambda: closed(rig) and stands_still(rig, odd.pid), 15)
    assert tenant(rig).procs == 1
    kill(service)
    launches = int(line(odd))
    assert odd.wait(60) == 0, odd.communicate()
    wait_for("its launches are counted, each once", lambda: tenant(rig).launches == launches)


def test_program_that_executes_itself_is_one_process(rig: Rig) -> None:
    odd = task(rig, "exec", "10")
    for _ in range(11):
        assert line(odd) == "again"
        assert tenant(rig).procs == 1 and tenant(rig).mem_used <= 64 * MIB
    assert odd.wait(60) == 0, odd.communicate()
    wait_for("nothing is left", lambda: (tenant(rig).procs, tenant(rig).mem_used) == (0, 0))


def test_kernels_that_spin_for_another_stream_come_through_a_full_window(rig: Rig) -> None:
    idle = task(rig, "hold", "1", job=ONLINE)  # so that offline has a window of half a millisecond
    assert line(idle) == "held"
    begun = time.monotonic()
    odd = task(rig, "spin", "40")
    assert line(odd) == "done"
    assert time.monotonic() - begun < 30, "each round waits a few milliseconds, not for ever"
    kill(idle)
    assert odd.wait(60) == 0
