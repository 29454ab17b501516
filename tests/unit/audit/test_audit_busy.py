"""What the driver saw of a job against what is booked for it: pure figures."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enforcer.daemon.arbiter.client import tenant_of
from enforcer.daemon.arbiter.port import Tenant
from enforcer.daemon.audit.busy import SPAN_NS, BusyWatch, Excess, _Point
from enforcer.ledger.store import Sample
from enforcer.wire import abi
from enforcer.wire.messages import stats

SECOND = 10**9
KEY = (9, "GPU-1")


class Told:
    """A job that is looked at each second and polled each two."""

    def __init__(self, window: int = 10, slack: int = 5) -> None:
        self.watch = BusyWatch(window * SECOND, slack, 2 * SECOND)
        self.now, self.booked, self.since, self.found = 10**12, 0.0, 1, 0

    def go(
        self,
        seconds: int,
        busy: int | None,
        booked: float,
        pid: int = 50,
        measured: bool = True,
        polls: bool = True,
    ) -> Told:
        """So many looks at one process that works `busy` percent and is charged `booked`
        percent.
        """
        for _ in range(seconds):
            self.now += SECOND
            self.booked += booked * SECOND / 100
            rows = None if busy is None else {pid: busy}
            if self.now // SECOND % 2 == 0 and polls:
                sample = Sample(9, "GPU-1", 1, self.since, busy_ns=int(self.booked))
                told = [] if busy is None else ["GPU-1"]
                self.watch.note_poll(self.now)
                self.watch.add_poll(self.now, [Tenant(sample, 1, measured=measured)], told)
            self.watch.add_sample(self.now, {"GPU-1": rows}, {KEY: frozenset([pid])})
            self.found += bool(self.watch.over)
        return self


def test_job_that_does_more_than_is_booked_is_found_after_two_windows():
    told = Told().go(13, 25, 2)
    assert not told.found
    (excess,) = told.go(3, 25, 2).watch.over.values()
    assert (excess.busy_percent, excess.window_s) == (25, 10) and excess.booked_percent in (2, 3)


def test_what_is_booked_too_much_or_a_little_too_little_is_nothing_to_say():
    assert not Told().go(60, 60, 72).found and not Told().go(60, 24, 20).found


def test_work_that_nvml_tells_a_second_late_is_nothing_to_say():
    told = Told()
    for _ in range(8):  # in bursts, at the edges of windows too
        told.go(1, 0, 100).go(6, 100, 100).go(1, 100, 0).go(5, 0, 0)
    assert not told.found


def test_time_without_a_sample_is_not_counted():
    told = Told().go(20, 50, 50)
    told.now += 30 * SECOND
    assert not told.go(1, 100, 3000).go(20, 50, 50).found


def test_processes_that_change_are_one_job():
    told = Told()
    for pid in range(50, 90):
        told.go(1, 30, 0, pid)
    assert told.found


def test_unmeasured_time_is_not_compared():
    assert not Told().go(60, None, 0).found, "MIG"
    assert not Told().go(60, 90, 10, measured=False).found, (
        "without isolation the card divides its time itself"
    )


@pytest.mark.parametrize("policy", abi.POLICY_CODES)
def test_time_of_each_policy_is_compared_but_not_without_isolation(policy: str) -> None:
    message = abi.CtlTenant(head=abi.head(abi.CTL_TENANT, abi.CtlTenant))
    message.policy = abi.POLICY_CODES[policy]
    for flags in range(16):
        message.flags = flags
        isolated = not flags & abi.TENANT_UNGOVERNED
        assert tenant_of(stats(bytes(message)), boot_id=1).measured == isolated


def test_a_tenant_that_counts_from_zero_again_begins_a_new_window():
    told = Told().go(30, 40, 40)
    told.since, told.booked = 2, 0.0
    assert not told.go(9, 90, 40).found
    assert told.go(20, 90, 40).found


def test_after_an_action_a_whole_new_window_is_sampled():
    told = Told().go(20, 90, 10)
    assert told.found
    told.watch.forget(KEY)
    told.found = 0
    assert not told.go(12, 90, 10).found and told.go(6, 90, 10).found


@pytest.mark.parametrize("polls_s", [1.5, 1.9, 2.3, 3.0])
@pytest.mark.parametrize("looks_s", [0.7, 1.0, 1.3])
def test_bursts_of_an_honest_job_are_nothing_to_say_whatever_the_pace(polls_s, looks_s):
    """Idle, then busy: the look after a poll tells of work that the poll did not know."""
    for idle, works in [(idle, 20) for idle in range(6, 20)] + [
        (idle, 150) for idle in range(120, 140)
    ]:
        watch, busy, now = BusyWatch(10 * SECOND, 5, int(polls_s * SECOND)), 0, 0
        ran: list[int] = []  # tenths of a second
        look, poll, polled = looks_s, polls_s, 0
        booked = 0
        for tenth in range(1, 1200):
            now = tenth * SECOND // 10
            ran.append(int(tenth % (works + idle) >= idle))
            busy += ran[-1] * SECOND // 10
            if now >= poll * SECOND:
                poll, polled, booked = poll + polls_s, now, busy
                watch.note_poll(now)
            if now >= look * SECOND:
                look += looks_s
                tenant = Tenant(Sample(9, "GPU-1", 1, 1, busy_ns=booked), 1, measured=True)
                watch.add_poll(polled, [tenant], ["GPU-1"])
                watch.add_sample(now, {"GPU-1": {50: 10 * sum(ran[-10:])}}, {KEY: frozenset([50])})
            assert not watch.over, (idle, now)


def test_time_in_which_the_arbiter_could_not_run_begins_a_new_window():
    told = Told().go(20, 80, 80)
    told.go(10, 80, 32, polls=False)  # a freeze, of which the policy books 4 s
    assert not told.go(13, 80, 80).found
    assert told.go(20, 80, 40).found


def told_above_booked(points: list[_Point], window_ns: int) -> Excess | None:
    """By the definition: of the window, and booked from a second before the last look that it
    leaves out.
    """
    now = points[-1]
    begins = [p for p in points if p.at_ns <= now.at_ns - window_ns]
    earlier = [p for p in points if begins and p.at_ns <= begins[-1].sampled_ns - SPAN_NS]
    if not earlier:
        return None
    length = now.at_ns - begins[-1].at_ns
    told, booked = now.nvml_ns - begins[-1].nvml_ns, now.booked_ns - earlier[-1].booked_ns
    found = Excess(100 * told // length, 100 * booked // length, round(length / SECOND))
    return found if told - booked > length * 5 // 100 else None


STEPS = st.tuples(st.integers(1, 6), st.integers(0, 5), st.integers(0, 3), st.integers(0, 3))


@given(st.lists(STEPS, max_size=60))
def test_only_points_before_every_later_window_are_dropped(steps: list[tuple[int, int, int, int]]):
    watch = BusyWatch(4 * SECOND, 5, 2 * SECOND)
    kept, every = deque[_Point](), [_Point(0, 0, 0, 0)]
    for passed, ago, told, booked in steps:
        last, half = every[-1], SECOND // 2
        now = last.at_ns + passed * half
        looked = max(last.sampled_ns, now - ago * half)
        point = _Point(now, looked, last.nvml_ns + told * half, last.booked_ns + booked * half)
        kept.append(point)
        every.append(point)
        assert watch._excess(kept, point) == told_above_booked(every[1:], 4 * SECOND)
        assert kept[0].at_ns >= now - 14 * SECOND, "they do not pile up"


def test_process_that_ended_since_the_last_sample_still_counts():
    watch = BusyWatch(2 * SECOND, 5, SECOND)
    pids = {0: [50], 1: [50], 2: [51]}
    for second in range(30):
        now = (second + 1) * SECOND
        watch.note_poll(now)
        watch.add_poll(now, [Tenant(Sample(9, "GPU-1", 1, 1), 1)], ["GPU-1"])
        # each figure comes at the look after its process was last registered
        told = dict.fromkeys(pids[(second - 1) % 3], 90)
        watch.add_sample(now, {"GPU-1": told}, {KEY: frozenset(pids[second % 3])})
    (excess,) = watch.over.values()
    assert excess.busy_percent == 90
