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
from bench.promises import controls, frontier, gaps, harvest, release
from gres.config.site import parse_config
from simulator.judge import shares as sh

MS = 1_000_000
NOISE = 0.01  # of the card: arrivals are random


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
        "a": harvest.Outcome(0.5, 0.96, 0.49, 1.04, 0.5, 1.0, 5.3),
        "b": harvest.Outcome(0.01, 0.2, 0.002, 1.1, 0.5, 1.0, 5.3),
    }
    ratio, p99 = harvest.judged(found)
    assert ratio.detail == {"a": 0.96} and ratio.verdict == "ok"
    assert p99.value == pytest.approx(1.1) and p99.verdict == "short" and "worst at b" in p99.spread
    assert "no pause to speak of at b" in ratio.spread


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


def test_every_pattern_of_the_promise_is_run() -> None:
    assert (
        set(PATTERNS)
        == set(harvest.SECONDS)
        == {
            *(f"Poisson {rate}/s" for rate in (5, 20, 100)),
            *(f"{duty} % of 1 s" for duty in (10, 50)),
        }
    )
    assert set(harvest.QUICK_SECONDS) <= set(PATTERNS) and release.CHOSEN in PATTERNS


def outcomes() -> dict[str, harvest.Outcome]:
    return {
        "0 ms": harvest.Outcome(0.5, 0.9, 0.45, 1.02, 0.55, 1.01, 5.3),
        "auto": harvest.Outcome(0.4, 0.9, 0.4, 1.09, 0.89, 1.04, 5.3),
    }


def test_any_idle_release_is_judged_by_its_worst_and_card_use_stands_beside_it() -> None:
    worst, use = release.judged(outcomes(), False)
    assert (worst.value, worst.verdict, worst.runs) == (1.09, "short", 2)
    assert "worst at auto" in worst.spread and worst.detail["card_use_0 ms"] == 0.55
    assert (use.value, use.verdict) == (0.89, "short")


def test_the_plot_is_an_svg_and_the_same_each_time(tmp_path: Path) -> None:
    for name in ("one.svg", "two.svg"):
        assert frontier.draw(outcomes(), tmp_path / name)
    one = (tmp_path / "one.svg").read_text()
    assert "<svg" in one and one == (tmp_path / "two.svg").read_text()


def test_the_limit_is_what_no_choice_of_gaps_can_better() -> None:
    """Offline in all gaps: the rest of its kernel and a change; two changes for each start."""
    load = frontier.Load(20, 50, 0.2)
    assert frontier.limit(load, 0.5, 0.1) == pytest.approx((0.2, 1 - 20 * 0.5 * 0.0002))
    for found in map(frontier.measure, frontier.LOADS):
        assert found.oracle in gaps.FIXED
        pays, use = frontier.limit(found.load, found.alone.use, frontier.SWITCH_MS)
        slope = (use - found.alone.use) / pays
        for run in found.runs.values():
            paid = run.mean_ms - found.alone.mean_ms
            assert run.use - found.alone.use <= slope * paid + NOISE


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
    assert (str(config.enforcer.idle_release), config.enforcer.online_delay.us) == ("100ms", 1000)
    rig.settings["online_delay_us"] = 2000
    config = parse_config(config_text(rig))
    assert (config.enforcer.idle_release, config.enforcer.online_delay.us) == ("auto", 2000)


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
