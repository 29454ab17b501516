"""How figures are judged."""

from bench.figures import Figure


def test_sense_decides_which_side_is_good() -> None:
    assert Figure("a", 1.0, "us", 2.0, "<=", 1).verdict == "ok"
    assert Figure("a", 1.0, "us", 2.0, ">=", 1).verdict == "short"


def test_a_control_that_meets_its_target_is_blind() -> None:
    assert Figure("a", 1.0, "us", 2.0, "<=", 1, control=True).verdict.startswith("BLIND")
    assert Figure("a", 3.0, "us", 2.0, "<=", 1, control=True).verdict.startswith("short")


def test_line_says_simulated() -> None:
    assert "simulated" in Figure("a", 1.0, "us", 2.0, "<=", 1).line()
    assert "measured" in Figure("a", 1.0, "us", 2.0, "<=", 1, simulated=False).line()
