"""How figures are judged."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from bench.harness.daemons import config_text, free_port, scraped
from bench.harness.figures import Figure
from bench.harness.node import Rig, wait_for
from bench.harness.patterns import PATTERNS
from bench.harness.scene import Scene, kernels
from bench.harness.stalls import Stalls
from bench.promises import controls, harvest, release, shares
from bench.tuning import where
from gres.config.site import parse_config
from simulator.judge import shares as sh
from simulator.judge.gatetrace import Gate

MS = 1_000_000


@dataclass(frozen=True)
class S:
    t_start: int
    t_end: int
    pid: int
    t_submit: int = 0
    card: int = 0
    seq: int = 0
    last: bool = True


def test_sense_decides_which_side_is_good() -> None:
    assert Figure("a", 1.0, "us", 2.0, "<=", 1).verdict == "ok"
    assert Figure("a", 1.0, "us", 2.0, ">=", 1).verdict == "short"


def test_a_control_that_meets_its_target_is_blind() -> None:
    assert Figure("a", 1.0, "us", 2.0, "<=", 1, control=True).verdict.startswith("BLIND")
    assert Figure("a", 3.0, "us", 2.0, "<=", 1, control=True).verdict.startswith("short")


def test_a_known_value_that_does_not_come_out_on_either_side_is_blind() -> None:
    assert [controls.latency_by_count([kernels]).verdict for kernels in (6.0, 6.5, 8.5, 9.0)] == [
        "BLIND (must be met)",
        "ok",
        "ok",
        "BLIND (must be met)",
    ]
    assert "target 6.5 to 8.5" in controls.latency_by_count([7.5]).line()


def test_line_says_simulated() -> None:
    assert "simulated" in Figure("a", 1.0, "us", 2.0, "<=", 1).line()
    assert "measured" in Figure("a", 1.0, "us", 2.0, "<=", 1, simulated=False).line()


def test_without_a_target_a_figure_is_reported_and_never_short() -> None:
    figure = Figure("a", 1e9, "1/s", None, "<=", 1)
    assert figure.verdict == "reported" and "no target" in figure.line()


def test_detail_goes_into_the_record() -> None:
    record = Figure("a", 1.0, "us", 2.0, "<=", 1, detail={"x": 1.5}).record()
    assert json.loads(json.dumps(record))["detail"] == {"x": 1.5}


def scene(spans: list[S], start: int, end: int, lines: list[dict[str, int]] | None = None) -> Scene:
    pids = {7: [1], 8: [2]}
    served = sh.services(spans, pids)
    return Scene(spans, [], pids, {}, {7: lines or [], 8: []}, start, end, served)  # type: ignore[arg-type]


def alternating(first_ms: int, second_ms: int, rounds: int) -> list[S]:
    length = (first_ms + second_ms) * MS
    return [
        span
        for i in range(rounds)
        for span in (
            S(i * length, i * length + first_ms * MS, 1),
            S(i * length + first_ms * MS, (i + 1) * length, 2),
        )
    ]


def test_shares_are_judged_over_all_and_over_every_second() -> None:
    """30/70 in turns of 3 and 7 ms is exact over 4 s, and within one turn in any second."""
    errors = shares.judge(
        scene(alternating(3, 7, 400), 0, 4000 * MS), {7: 30, 8: 70}, "burst-share", 1000
    )
    assert errors.total == pytest.approx(0) and errors.worst_1s == pytest.approx(0)
    assert errors.price.switches_per_s == pytest.approx(199.75)
    wrong = shares.judge(
        scene(alternating(3, 7, 400), 0, 4000 * MS), {7: 70, 8: 30}, "burst-share", 1000
    )
    assert wrong.total == pytest.approx(40)


def test_fixed_share_may_finish_one_kernel_beyond_its_part_of_a_second() -> None:
    spans = [S(0, 310 * MS, 1), S(1000 * MS, 1300 * MS, 1)]
    errors = shares.judge(scene(spans, 0, 2000 * MS), {7: 30}, "fixed-share", 10_000)
    assert errors.above_1s == pytest.approx(0) and errors.above == pytest.approx(0.5)


def test_the_worst_combination_is_named() -> None:
    price = sh.Price(100, 3, 1)
    found = {
        "a": shares.Errors(0.4, 2.0, 0.4, -1, price),
        "b": shares.Errors(1.4, 1.0, 0.1, -2, price),
    }
    figures = {f.name: f for f in shares.figures_of("fixed-share", found)}
    total = figures["share_error_points_max_fixed"]
    assert (total.value, total.verdict) == (1.4, "short") and "worst at b" in total.spread
    assert figures["fixed_share_above_1s_and_a_kernel"].verdict == "ok"
    assert figures["drain_loss_percent_fixed"].value == 2 and total.detail == {"a": 0.4, "b": 1.4}


def test_the_figures_of_the_table_are_the_worst_of_both_policies() -> None:
    price = sh.Price(100, 3, 1)
    found = {
        "burst-share": {"a": shares.Errors(0.4, 3.5, 0.4, -1, price)},
        "fixed-share": {"a": shares.Errors(0.9, 1.0, 0.1, -2, price)},
    }
    total, within = shares.worst_of_both(found)
    assert (total.name, total.value, total.verdict) == ("share_error_points_max", 0.9, "ok")
    assert (within.name, within.value, within.verdict) == ("share_error_points_1s", 3.5, "short")
    assert "worst at a, fixed-share" in total.spread and "worst at a, burst-share" in within.spread


def test_of_several_runs_the_median_counts_and_of_a_promise_the_worst() -> None:
    runs = [shares.Errors(e, 3 * e, e / 10, -e, sh.Price(100, e, 1)) for e in (1.5, 0.7, 0.9)]
    assert [run.near for run in runs] == [True, False, True]
    found = shares.of_runs(runs)
    assert (found.total, found.worst_1s, found.price.lost_percent) == (0.9, pytest.approx(2.7), 0.9)
    assert (found.above, found.above_1s) == (0.15, -0.7)
    total = next(shares.figures_of("fixed-share", {"a": found}))
    assert total.runs == 3 and "errors 1.50, 0.70, 0.90" in total.spread


def test_the_full_table_of_shares_is_run() -> None:
    assert len(list(shares.combinations(False))) == 16
    assert len({name for name, _, _ in shares.combinations(False)}) == 16


def test_bursts_begin_with_the_programs_own_calls_and_whole_ones_lie_inside() -> None:
    lines = [
        {"burst": 1, "start_ns": 95 * MS},
        {"request": 1, "due_ns": 120 * MS, "latency_ns": 5000},
    ]
    spans = [
        S(100 * MS, 110 * MS, 1, t_submit=99 * MS),
        S(500 * MS, 600 * MS, 1, t_submit=499 * MS),
    ]
    found = scene(spans, 0, 550 * MS, lines)
    assert [(b.call, b.end) for b in found.bursts(7, 50 * MS)] == [
        (95 * MS, 110 * MS),
        (499 * MS, 600 * MS),
    ]
    assert [b.end for b in found.whole_bursts(7, 50 * MS)] == [110 * MS]
    assert found.latencies_us(7) == [5.0]
    assert [s.pid for s in found.of(7)] == [1, 1]


def test_harvest_is_judged_where_policy_allows_something() -> None:
    found = {
        "a": harvest.Outcome(0.5, 0.98, 0.49, 1.04),
        "b": harvest.Outcome(0.01, 0.2, 0.002, 1.1),
    }
    ratio, p99 = harvest.judged(found)
    assert ratio.detail == {"a": 0.98} and ratio.verdict == "ok"
    assert p99.value == pytest.approx(1.1) and p99.verdict == "short" and "worst at b" in p99.spread
    assert "no pause to speak of at b" in ratio.spread
    assert [found[key].near for key in "ab"] == [False, True]


def test_a_pattern_near_a_target_counts_by_its_median() -> None:
    runs = [harvest.Outcome(0.5, value, 0.4, 1.02) for value in (0.972, 0.95, 0.99)]
    assert [run.near for run in runs] == [True, True, False]
    assert harvest.of_runs(runs) == harvest.Outcome(0.5, 0.972, 0.4, 1.02, 3)


def test_what_16_tenants_give_is_reported_without_a_target() -> None:
    found = {"a": harvest.Outcome(0.5, 0.91, 0.4, 1.02), "b": harvest.Outcome(0.5, 0.95, 0.4, 1.2)}
    ratio, p99 = harvest.reported(found)
    assert (ratio.name, ratio.value, ratio.verdict) == (
        "harvest_ratio_16_tenants",
        0.91,
        "reported",
    )
    assert (p99.name, p99.value, p99.verdict) == ("online_p99_ratio_16_tenants", 1.2, "reported")
    assert "no target: 16 offline tenants change context" in ratio.spread


def test_the_p99_ratio_is_over_all_requests_of_the_run() -> None:
    """5 of 200 requests are late by a tenth; in no order of them is the ratio anything else."""

    def lines(late: int) -> list[dict[str, int]]:
        return [{"due_ns": i * MS, "latency_ns": 5500 if i < late else 5000} for i in range(200)]

    both = scene([], 0, 200 * MS, lines(5))
    both.logged[8].extend(lines(0))  # type: ignore[attr-defined]
    assert harvest.p99_ratio(both, 7, 8) == pytest.approx(1.1)
    both.logged[7][4]["latency_ns"] = both.logged[7][3]["latency_ns"] = both.logged[7][2][
        "latency_ns"
    ] = 5000
    assert harvest.p99_ratio(both, 7, 8) == 1.0, "2 of 200 are beyond p99"


def test_requests_that_a_stall_met_are_left_out_on_both_sides() -> None:
    requests = [{"due_ns": i * 10 * MS, "latency_ns": 5 * MS} for i in range(20)]
    both = scene([], 0, 200 * MS, requests)
    both.logged[8].extend(dict(line) for line in requests)  # type: ignore[attr-defined]
    both.logged[7][4]["latency_ns"], both.logged[8][9]["latency_ns"] = 55 * MS, 80 * MS
    stall = Stalls([(42 * MS, 43 * MS), (92 * MS, 93 * MS)])
    assert harvest.p99_ratio(both, 7, 8) == pytest.approx(55 / 80)
    assert harvest.p99_ratio(both, 7, 8, stall.meet) == 1.0
    assert both.latencies_us(7, stall.meet) == [5000.0] * 18


def test_every_pattern_of_the_promise_is_run() -> None:
    assert set(PATTERNS) == {
        *(f"Poisson {rate}/s" for rate in (5, 20, 100)),
        *(f"{duty} % of {period} s" for duty in (10, 50, 90) for period in (1, 4)),
    }
    assert {*harvest.QUICK, *harvest.QUICK_MANY, *harvest.MANY_SECONDS, *harvest.SELDOM} <= set(
        PATTERNS
    )


def test_the_plot_is_an_svg_and_the_same_each_time(tmp_path: Path) -> None:
    outcomes = [
        harvest.Outcome(0.5, 0.9, 0.45, 1.0),
        harvest.Outcome(0.4, 0.9, 0.4, 0.9),
    ]
    for name in ("one.svg", "two.svg"):
        assert release.draw({"Poisson 5/s": outcomes}, (0, 100), tmp_path / name)
    one = (tmp_path / "one.svg").read_text()
    assert "<svg" in one and one == (tmp_path / "two.svg").read_text()


def test_kernel_options() -> None:
    assert kernels(200) == ("--kernel-us", "200", "--iters", "200000")
    assert kernels(100, 1000)[-2:] == ("--kernel-mix", "100,1000")


def test_the_daemons_configuration_is_valid(tmp_path: Path) -> None:
    rig = Rig(tmp_path, cards=2, settings={"policy_offline": "fixed-share", "slice_us": 3000})
    config = parse_config(config_text(rig, nvml_interval_ms=100, metrics_port=9100))
    assert config.reports.metrics.port == 9100
    assert (
        config.classes["offline"].policy == "fixed-share"
        and config.classes["online"].policy == "burst-share"
    )


def test_idle_time_is_split_at_the_opening_of_the_next_gate() -> None:
    """Job 7 pauses 1 ms inside its turn; 2 ms after its end job 8's gate opens, and 3 ms later
    its kernel starts.
    """
    spans = [S(0, 10 * MS, 1), S(11 * MS, 20 * MS, 1), S(25 * MS, 30 * MS, 2)]
    gates = [
        Gate(0, 8, 0, 0x20D),
        Gate(20 * MS, 7, 0, 0x20D),
        Gate(22 * MS, 8, 0, 0x4),
        Gate(23 * MS, 8, 0, 0xC),
    ]
    found = scene(spans, 0, 30 * MS)
    told = Scene(spans, gates, found.pids, {}, {}, 0, 30 * MS, found.served)  # type: ignore[arg-type]
    assert where.openings(told) == {7: [], 8: [22 * MS]}
    assert where.idle_parts(told) == {
        "gap inside a turn": [1 * MS],
        "last end to next opening": [2 * MS],
        "opening to first kernel": [3 * MS],
        "turn": [20 * MS],
    }
    rows = list(where.timeline(told, 19.5, 22.5))
    assert [row.split(maxsplit=1)[1] for row in rows] == ["ends 7 #0", "gate 7 0x20d", "gate 8 0x4"]


def test_metrics_are_really_read_while_they_are_scraped() -> None:
    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"# HELP\nqgpu_arbiter_up 1\nqgpu_tenants 2\n")

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with scraped(server.server_address[1], 0.001) as samples:
            wait_for("two scrapes", lambda: samples() >= 4)
        server.shutdown()
    with scraped(free_port(), 0.001) as samples:
        pass
    assert samples() == 0, "nobody answers there"
