"""The share evaluator against brute force on random traces of one card."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from simulator.judge import evaluate as ev
from simulator.judge import shares as sh


@dataclass(frozen=True)
class S:
    t_start: int
    t_end: int
    pid: int
    t_submit: int = 0
    card: int = 0


@dataclass(frozen=True)
class G:
    t_ns: int
    flags: int
    job_id: int


PIECES = st.lists(
    st.tuples(st.integers(0, 3), st.integers(1, 9), st.integers(1, 3)), min_size=1, max_size=25
)


def card(pieces: list[tuple[int, int, int]]) -> list[S]:
    """Spans that follow each other with gaps, as one card executes them."""
    at, spans = 0, []
    for gap, length, pid in pieces:
        spans.append(S(at + gap, at + gap + length, pid))
        at += gap + length
    return spans


def executed(spans: list[S], pid: int, start: int, end: int) -> int:
    return sum(
        1
        for t in range(start, end)
        if any(s.pid == pid and s.t_start <= t < s.t_end for s in spans)
    )


@given(PIECES, st.integers(0, 100), st.integers(0, 100))
def test_service_is_what_counting_nanoseconds_gives(pieces, a, b):
    spans, (start, end) = card(pieces), sorted((a, b))
    served = sh.services(spans, {pid: [pid] for pid in (1, 2, 3)})
    for pid, service in served.items():
        assert service.within(start, end) == executed(spans, pid, start, end)


@given(
    PIECES,
    st.integers(1, 30),
    st.sampled_from(["burst-share", "fixed-share"]),
    st.sampled_from(["both", "above"]),
)
def test_the_worst_window_is_as_bad_as_the_worst_of_all_windows(pieces, width, rule, sides):
    spans = card(pieces)
    end = spans[-1].t_end
    width = min(width, end)
    served = sh.services(spans, {pid: [pid] for pid in (1, 2, 3)})
    shares = {1: 20, 2: 30, 3: 50}
    found = sh.worst_window(served, shares, (0, end), width, sh.RULES[rule], sides)
    each = [
        sh.worst(sh.errors(served, shares, t, t + width, sh.RULES[rule]), t, sides).points
        for t in range(end - width + 1)
    ]
    assert abs(found.points - max(each)) < 1e-9
    assert 0 <= found.at <= end - width


@given(PIECES)
def test_burst_points_add_up_to_nothing_and_no_figure_leaves_its_range(pieces):
    spans = card(pieces)
    end = spans[-1].t_end
    served = sh.services(spans, {pid: [pid] for pid in (1, 2, 3)})
    points = sh.errors(served, {1: 10, 2: 20, 3: 70}, 0, end, sh.burst_rule)
    assert abs(sum(points.values())) < 1e-9 and all(-100 <= p <= 100 for p in points.values())
    fixed = sh.errors(served, {1: 10, 2: 20, 3: 70}, 0, end, sh.fixed_rule)
    assert sum(fixed.values()) <= 1e-9  # a card cannot execute more than the wall time


@given(PIECES, st.integers(0, 50))
def test_price_is_idle_time_and_changes(pieces, switch_ns):
    spans = card(pieces)
    end = spans[-1].t_end
    paid = sh.price(spans, 0, end, switch_ns)
    idle = end - sum(s.t_end - s.t_start for s in spans)
    assert abs(paid.lost_percent - 100 * idle / end) < 1e-9
    changes = sum(spans[i].pid != spans[i + 1].pid for i in range(len(spans) - 1))
    assert abs(paid.switches_per_s * end / 1e9 - changes) < 1e-9


@given(PIECES, st.integers(0, 60), st.integers(1, 60))
def test_card_free_is_the_last_offline_nanosecond_in_the_burst(pieces, call, length):
    spans = card(pieces)
    inside = [t for t in range(call, call + length) if any(s.t_start <= t < s.t_end for s in spans)]
    expected = (inside[-1] + 1 - call) / 1000 if inside else 0.0
    assert ev.card_free_us([ev.Burst(call, call + length)], spans) == [expected]


@given(
    st.lists(
        st.tuples(st.integers(1, 99), st.booleans(), st.integers(1, 3)),
        unique_by=lambda e: e[0],
        max_size=20,
    ),
    st.integers(1, 80),
    st.integers(1, 40),
)
def test_gate_close_is_when_the_last_gate_was_closed_for_good(changes, call, length):
    """Gates start closed; against a walk over every nanosecond of the burst."""
    events = [G(0, 0x101, job) for job in (1, 2, 3)] + [
        G(t, 0x101 if closed else 0, job) for t, closed, job in sorted(changes)
    ]

    def any_open(t: int) -> bool:
        last = {e.job_id: e.flags for e in sorted(events, key=lambda e: e.t_ns) if e.t_ns <= t}
        return any(not flags & 1 for flags in last.values())

    opened = [t for t in range(call, call + length) if any_open(t)]
    expected = [(opened[-1] + 1 - call) / 1000] if opened else []
    assert ev.gate_close_us([ev.Burst(call, call + length)], events) == expected
