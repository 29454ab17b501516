"""`qgpu simulate`: traces that are refused, the shipped example, and what is printed."""

from __future__ import annotations

import csv
import json
import re
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pydantic import BaseModel

from cli.main import main
from cli.simulate import profile_line
from simulator.whatif import simtrace
from simulator.whatif.simulate import placed, program_input, simulate

ROOT = Path(__file__).resolve().parents[3]
EXAMPLE = ROOT / "configs/examples/simulate.yaml"
MINIMAL = "tenants: [{name: a, class: offline, share: 50, kernel: 1ms}]"


def tenant(**changes: Any) -> str:
    """A trace of one tenant, as JSON (which is YAML)."""
    return json.dumps(
        {"tenants": [{"name": "a", "class": "offline", "share": 50, "kernel": "1ms"} | changes]}
    )


def with_program(*stretches: Any, **changes: Any) -> str:
    """A trace of a program with these stretches, and one tenant that runs it."""
    one = {"name": "a", "class": "offline", "share": 50, "program": "p"} | changes
    programs = [{"name": "p", "stretches": list(stretches) or [[8, "12us", "30us"]]}]
    return json.dumps({"programs": programs, "tenants": [one]})


REFUSED = {
    "[1, 2]": "the file must hold keys such as duration, cards and tenants",
    "{": "this is neither YAML nor JSON",
    "{}": "tenants: this key is required",
    "tenants: []": "tenants: List should have at least 1 item",
    tenant(share=0): "tenants.0.share: Input should be greater than or equal to 1",
    tenant(share=101): "tenants.0.share: Input should be less than or equal to 100",
    tenant(kernel=200): "'200' is not a duration; write a number with ns, us, ms, s",
    tenant(kernel="2h"): "'2h' is not between 1us and 1min",
    tenant(kernel=[]): "tenants.0.kernel: List should have at least 1 item",
    tenant(program="p"): "tenants.0: write either kernel (a length, or several to draw from) or",
    with_program(program=None): "tenants.0: write either kernel",
    with_program(program="q"): "tenant 'a' runs the program 'q'; there is ['p']",
    with_program(pause="1ms"): "pause 1ms: the program 'p' has gaps of its own; leave pause out",
    with_program([8, "12us"]): "programs.0.stretches.0: '[8, '12us']' is no stretch; write"
    " [kernels, length, gap] or [kernels, length, gap, copy], for example [8, 12us, 30us]",
    with_program([0, "12us", "0s"]): "'0' kernels are not possible; write a number from 1 to",
    with_program([True, "12us", "0s"]): "'True' kernels are not possible",
    with_program([1, "2h", "0s"]): "programs.0.stretches.0: '2h' is not between 100ns and 1min",
    with_program([1, "1us", 5]): "'5' is not a duration; write a number with ns, us, ms, s",
    with_program([1, "1us", "0s", "2min"]): "'2min' is not between 0ns and 1min",
    with_program(*[[1, "1us", "0s"]] * 4097): "programs.0.stretches: List should have at most 4096",
    with_program().replace('"programs": [', '"programs": [{"name": "p", "stretches": []}, '): (
        "programs.0.stretches: List should have at least 1 item"
    ),
    "programs: [{name: p, stretches: [[1, 1us, 0s]]}, {name: p, stretches: [[1, 1us, 0s]]}]\n"
    + MINIMAL: "two programs have the name 'p'",
    tenant(klass="x"): "tenants.0.klass: there is no such key; did you mean class?",
    tenant(**{"class": "batch"}): "tenants.0.class: Input should be 'online' or 'offline'",
    tenant(
        load="often"
    ): "'often' is not a load; write endless, or for example {per_second: 20, kernels: 50}",
    tenant(load={"kernels": 5}): "write either every (one request each 1s, say) or per_second",
    tenant(load={"every": "1s", "per_second": 2, "kernels": 5}): "write either every",
    tenant(load={"every": "1s"}): "write either kernels (how many) or busy",
    tenant(load={"every": "0s", "kernels": 1}): "every must be more than 0s",
    tenant(load={"per_second": 0, "kernels": 1}): "greater than or equal to 0.001",
    tenant(load={"per_second": 1e-300, "kernels": 1}): "greater than or equal to 0.001",
    tenant(card=["card", "card"]): "tenant 'a' names a card twice; count: 2 makes two alike",
    MINIMAL.replace(
        "name: a", "name: on"
    ): "tenants.0.name: YAML reads on, off, yes and no as truth values",
    "tenants: [{name: a1, class: offline, share: 5, kernel: 1ms},"
    " {name: a, count: 2, class: offline, share: 5, kernel: 1ms}]": "two tenants are called 'a1'",
    "[" * 20_000: "brackets are nested too deeply to be a trace",
    tenant(
        load={"per_second": 1, "kernel": 1}
    ): "tenants.0.load.kernel: there is no such key; did you mean kernels?",
    tenant(start="2s", stop="1s"): "stop 1s is not after start 2s",
    tenant(halted=[["2s", "1s"]]): "halted must be pairs of rising times",
    tenant(halted=[["1s"]]): "List should have at least 2 items",
    tenant(card="other"): "tenant 'a' names the card 'other'; there is ['card']",
    tenant(count=257): "card 'card' has 257 tenants; it takes at most 256",
    MINIMAL + "\nduration: 10": "'10' is not a duration",
    MINIMAL + "\nduration: 2000h": "'2000h' is not between 1ms and 1000h",
    MINIMAL + "\ncards: [{policy: {offline: fair}}]": "cards.0.policy.offline: Input should be "
    "'best-effort'",
    MINIMAL + "\ncards: [{slice: 1us}]": "cards.0.slice: '1us' is not between 100us and 1s",
    MINIMAL + "\ncards: [{name: x}, {name: x}]": "two cards have the name 'x'",
    MINIMAL + "\ncards: [{count: 1000}]": "less than or equal to 512",
    MINIMAL.replace(
        "]", ", {name: a, class: online, share: 1, kernel: 1ms}]"
    ): "two tenants have the name 'a'",
    "cards: [{name: c, count: 40}]\n"
    + tenant(count=250)[1:-1].replace('"tenants"', "tenants"): "10000 tenants",
}


@pytest.mark.parametrize("text", REFUSED, ids=range(len(REFUSED)))
def test_a_bad_trace_is_refused_with_a_sentence(text: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.yaml"
    path.write_text(text)
    done = CliRunner().invoke(main, ["simulate", str(path)])
    assert done.exit_code == 1 and isinstance(done.exception, SystemExit)
    assert REFUSED[text] in done.output and str(path) in done.output
    assert "Traceback" not in done.output and "pydantic" not in done.output


def test_a_trace_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    for path, why in (
        (tmp_path / "none", "No such file or directory"),
        (tmp_path, "Is a directory"),
        (tmp_path / "binary", "is not UTF-8 text"),
        (tmp_path / "large", "is larger than 1048576 bytes"),
    ):
        if path.name == "binary":
            path.write_bytes(b"\xff\xfe")
        elif path.name == "large":
            path.write_text("#" * (1 << 20) + "##")
        done = CliRunner().invoke(main, ["simulate", str(path)])
        assert done.exit_code == 1 and why in done.output


@pytest.mark.parametrize("bad", ["7", "0s", "1001h"])
def test_a_bad_duration_on_the_command_line_is_refused(bad: str) -> None:
    done = CliRunner().invoke(main, ["simulate", str(EXAMPLE), "--duration", bad])
    assert done.exit_code == 1 and "--duration: " in done.output


def _models() -> list[type[BaseModel]]:
    found = (simtrace.Trace, simtrace.CardTrace, simtrace.TenantTrace, simtrace.Requests)
    return [*found, simtrace.Policies, simtrace.Latency, simtrace.Program]


def test_every_key_is_documented() -> None:
    text = (ROOT / "docs/specs/simulate.md").read_text()
    for model in _models():
        for name, field in model.model_fields.items():
            assert re.search(rf"[`{{ ]{field.alias or name}[`:]", text), (
                f"{field.alias or name} is not there"
            )


def test_busy_becomes_kernels() -> None:
    trace = simtrace.parse_trace(
        tenant(kernel=["1ms", "3ms"], load={"every": "1s", "busy": "100ms"})
    )
    (one,) = trace.tenants
    assert simtrace.kernels_per_request(one.load, trace.work(one)) == 50


def test_busy_becomes_kernels_of_a_program() -> None:
    load = {"every": "1s", "busy": "100ms"}
    trace = simtrace.parse_trace(with_program([3, "1ms", "0s"], [1, "5ms", "9ms"], load=load))
    (one,) = trace.tenants
    assert simtrace.kernels_per_request(one.load, trace.work(one)) == 50


def test_a_tenant_without_a_card_is_on_all_of_them() -> None:
    trace = simtrace.parse_trace("cards: [{name: c, count: 3}]\n" + tenant(count=2)[1:-1])
    assert [(item.name, item.card) for item in placed(trace)] == [
        (n, c) for c in range(3) for n in ("a0", "a1")
    ]
    assert program_input(trace, placed(trace)).count("\ntenant ") == 6


def test_profile() -> None:
    assert profile_line((0.0, 0.004, 0.01, 0.5, 0.97, 1.0)) == "  ▁▄██"


@pytest.mark.native
class TestRun:
    def test_the_example(self) -> None:
        done = CliRunner().invoke(main, ["simulate", str(EXAMPLE)])
        assert done.exit_code == 0, done.output
        assert "chat" in done.output and "decisions/s" in done.output and "simulated" in done.output

    def test_json_says_what_the_example_promises(self) -> None:
        done = CliRunner().invoke(main, ["simulate", str(EXAMPLE), "--json"])
        result = json.loads(done.output)
        by_name = {(t["card"], t["name"]): t for t in result["tenants"]}
        assert by_name["card1", "search"]["got_percent"] == pytest.approx(50, abs=1)
        assert by_name["card0", "chat"]["p50_ms"] < 6
        train, sweep = by_name["card0", "train"], by_name["card0", "sweep"]
        assert train["got_percent"] > sweep["got_percent"] > 10
        assert abs(train["error_points"]) < 1.5 and train["p50_ms"] is None
        assert by_name["card1", "stuck"]["requests"] == 0
        for t in result["tenants"]:
            assert sum(t["profile"]) * result["duration_s"] / 60 == pytest.approx(
                t["busy_s"], rel=0.01
            )

    def test_equal_traces_give_equal_results_with_any_number_of_threads(self) -> None:
        trace = simtrace.load_trace(EXAMPLE)
        first = simulate(trace, jobs=1)
        assert simulate(trace, jobs=4) == first
        assert simulate(trace.model_copy(update={"seed": 2}), jobs=1) != first

    def test_a_program_is_replayed_in_its_order_with_its_gaps(self) -> None:
        stretches = ([3, "2ms", "1ms"], [1, "4ms", "0s"], [2, "1ms", "5ms", "3ms"])
        trace = simtrace.parse_trace(with_program(*stretches))  # 12 of 21 ms
        (alone,) = simulate(trace).tenants
        assert alone.busy_s == pytest.approx(10 * 12 / 21, abs=0.02)
        load = {"every": "500ms", "kernels": 7}  # one time through, and one kernel more
        trace = simtrace.parse_trace(with_program(*stretches, load=load))
        (asked,) = simulate(trace).tenants
        assert asked.requests == 20 and asked.busy_s == pytest.approx(20 * 14e-3)
        assert asked.p50_ms == pytest.approx(23, rel=0.02)

    def test_a_copy_is_work_on_the_card_and_leaves_compute_to_nobody(self) -> None:
        """A pause of 3 ms passes the quantum on, a copy of 3 ms does not."""
        beside = {"name": "b", "class": "offline", "share": 50, "kernel": "100us"}
        busy = []
        for waits in (["3ms"], ["0s", "3ms"]):
            text = json.loads(with_program([1, "1ms", *waits]))
            text["tenants"].append(beside)
            busy.append(simulate(simtrace.parse_trace(json.dumps(text))).cards[0].busy_percent)
        assert busy[0] > 90 and busy[1] < 80

    def test_the_timeline_agrees_with_the_result(self, tmp_path: Path) -> None:
        path = tmp_path / "timeline.csv"
        result = simulate(simtrace.load_trace(EXAMPLE), timeline=path)
        changes: dict[tuple[str, str], list[tuple[int, str]]] = defaultdict(list)
        with path.open() as file:
            for row in csv.DictReader(file):
                changes[row["card"], row["tenant"]].append((int(row["t_ns"]), row["state"]))
        end = round(result.duration_s * 1e9)
        for t in result.tenants:
            mine = [*changes[t.card, t.name], (end, "")]
            spans: dict[str, int] = defaultdict(int)
            for (since, state), (until, _) in pairwise(mine):
                assert until >= since
                spans[state] += until - since
            assert spans["wait-preempted"] / 1e9 == pytest.approx(t.waited_preempted_s, abs=1e-6)
            assert spans["run"] / 1e9 >= t.busy_s - 1e-6

    def test_a_timeline_that_cannot_be_written_is_a_sentence(self, tmp_path: Path) -> None:
        done = CliRunner().invoke(
            main, ["simulate", str(EXAMPLE), "--timeline", str(tmp_path / "no/such/dir.csv")]
        )
        assert done.exit_code == 1 and "No such file or directory" in done.output
