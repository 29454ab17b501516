"""The judge of the bench of hardware preemption: lost work is found, the arbiter's counters are
summed.
"""

from __future__ import annotations

from bench.promises.hardware import NODES, Run, long_kernels, wrong_work
from bench.promises.hardware_report import HardwareReports
from enforcer.wire.messages import HardwareTenant
from simulator.judge import evaluate as ev
from simulator.sim import Interval, Kind, Piece

MS = 1_000_000


def piece(
    start: float, end: float, seq: int, flags: int = 0, work: float = 0, pid: int = 7
) -> Interval:
    """Times in ms."""
    return Interval(
        round(start * MS),
        round(end * MS),
        0,
        pid,
        0,
        1,
        17,
        Kind.KERNEL,
        flags,
        seq,
        round(work * MS),
    )


def test_a_kernel_in_pieces_has_its_work_and_no_more() -> None:
    whole = [piece(0, 200, 1, work=500), piece(300, 600, 1, Piece.LAST, 500)]
    assert wrong_work(whole) == (0, 1)
    assert wrong_work([*whole, piece(600, 700, 2, Piece.LAST, 500)]) == (1, 2), (
        "400 ms of it were lost"
    )
    assert wrong_work([piece(0, 600, 1, Piece.LAST, 500)]) == (1, 1), "100 ms were done twice"
    assert wrong_work([piece(0, 9, 1, work=500)]) == (0, 0), "it has not ended"
    assert wrong_work([piece(0, 9, 1, Piece.LAST | Piece.CUT, 500)]) == (0, 0), "its process died"
    two = [piece(0, 1, 1, Piece.LAST, 1), piece(1, 2, 1, Piece.LAST, 1, pid=8)]
    assert wrong_work(two) == (0, 2), "the same number in two processes is two kernels"


def test_last_progress_is_that_inside_the_burst() -> None:
    bursts = [ev.Burst(100 * MS, 102 * MS), ev.Burst(200 * MS, 202 * MS)]
    offline = [piece(0, 100.25, 1), piece(110, 400, 1)]
    run = Run(None, bursts, offline, HardwareReports("/nowhere"))  # type: ignore[arg-type]
    assert run.last_progress_us() == [250.0, 2000.0], (
        "a kernel that goes on counts to the burst's end"
    )


def test_long_kernels_and_graphs_take_as_long_and_queue_no_second_one() -> None:
    assert long_kernels(500_000).args[:4] == ("--kernel-us", "500000", "--iters", "500000000")
    assert long_kernels(500_000).args[-2:] == ("--in-flight", "1")
    graph = long_kernels(500_000, graph=True).args
    assert graph[1] == f"{500_000 / NODES:g}" and "--graph" in graph and str(NODES) in graph


def tenant(job: int, state: str, stops: int, failures: int = 0, why: str = "") -> HardwareTenant:
    return HardwareTenant(
        job,
        "GPU-a",
        state,
        "arbiter",
        "schedule",
        3,
        stops,
        stops,
        failures,
        0,
        stops * 1000,
        (),
        0,
        why,
    )


def test_what_the_arbiter_says_is_added_up() -> None:
    told = HardwareReports("/nowhere")
    rows = [
        tenant(1, "ready", 5),
        tenant(2, "failed", 0, 1, "refused"),
        tenant(3, "none", 0),
        tenant(4, "stopped", 7),
    ]
    told.tenants = {(row.job_id, row.uuid): row for row in rows}
    assert (told.stops, told.failures, told.failed, told.usable, told.stop_max_us) == (
        12,
        1,
        1,
        2,
        7.0,
    )
    assert (
        "job 2 failed" in told.words() and "refused" in told.words() and "job 3" not in told.words()
    )
