"""The program that runs all scenarios: its list, and what it says of a run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from click.testing import CliRunner

from bench import __main__ as program
from bench.harness.figures import Figure

README = Path(__file__).resolve().parents[3] / "docs/measurements/README.md"


def figure(name: str, value: float, control: bool = False) -> Figure:
    return Figure(name, value, "us", 1.0, "<=", 1, control=control)


def scenario(*found: Figure, error: str = "") -> program.Scenario:
    def figures(quick: bool) -> Iterator[Figure]:
        yield from found
        if error:
            raise RuntimeError(error)

    return program.Scenario("a promise", figures, 7, left_alone=True)


def test_all_scenarios_take_at_most_15_minutes() -> None:
    assert sum(each.seconds for each in program.SCENARIOS.values()) <= program.MOST_SECONDS == 900


def test_each_scenario_says_its_promise_its_time_and_what_its_figures_are() -> None:
    text = README.read_text()
    for name, each in program.SCENARIOS.items():
        assert each.promise and each.seconds > 0
        assert f"\n**`{name}`** ({each.seconds} s): " in text, f"{name} is not in {README.name}"


def test_a_scenario_that_fails_takes_nothing_from_the_others() -> None:
    run = program.Run()
    with CliRunner().isolation() as (out, *_):
        run.add("broken", scenario(figure("first", 0.5), error="the machine is too busy"), True)
        run.add("next", scenario(figure("second", 2.0)), True)
    assert [f.name for f in run.figures] == ["first", "second"]
    assert set(run.seconds) == {"broken", "next"}
    assert run.failed == {"broken": "RuntimeError: the machine is too busy"} and run.status == 1
    assert run.summary() == "1 of 2 judged figures short: second"
    assert b"-- next: 0 s (7 is usual), the host took" in out.getvalue()


def test_the_time_of_all_scenarios_is_told() -> None:
    assert program.whole(781.4) == "-- the whole bench: 13 min 1 s"


def test_a_short_figure_is_a_result_and_a_blind_control_is_not() -> None:
    run = program.Run([figure("short", 2.0), figure("control", 2.0, control=True)])
    assert run.status == 0
    run.figures.append(figure("control", 0.5, control=True))
    assert run.status == 3


def test_the_help_says_what_is_judged_and_how_long_it_takes() -> None:
    said = CliRunner().invoke(program.main, ["--help"])
    assert said.exit_code == 0 and "minutes on two cores" in said.output
    for name, each in program.SCENARIOS.items():
        assert f"{name}: {each.promise} ({each.seconds} s)" in said.output
