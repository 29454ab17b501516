"""Faults of Slurm's releases: which version has which, and their table in the docs."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_plugin import releases

DOCTOR = Path(__file__).resolve().parents[3] / "docs/specs/doctor.md"


def test_the_page_has_the_table() -> None:
    rows = [
        line for line in DOCTOR.read_text().splitlines() if line[:4] in ("| 22", "| 23", "| 24")
    ]
    rows += [line for line in DOCTOR.read_text().splitlines() if line[:4] in ("| 25", "| 26")]
    assert rows == releases.table()


def test_every_range_is_one_and_mending_comes_in_order() -> None:
    assert all(fault.first < fault.mended for fault in releases.FAULTS)
    assert all(fault.first >= releases.OLDEST for fault in releases.FAULTS)
    ends = [fault.mended for fault in releases.FAULTS]
    assert ends == sorted(ends)


@pytest.mark.parametrize(
    ("version", "severe", "tickets"),
    [
        ("22.05.8", 0, {16121, 19110, 20244, 22235, 22617}),
        ("23.02.1", 1, {16545, 16121, 17184, 19110, 20244, 22235, 22617}),
        ("23.11.1", 1, {17433, 19110, 20244, 21262, 22235, 22617}),
        ("24.11.5", 0, {22235, 22617}),
        ("25.05.0", 1, {23043}),
        ("25.11.1", 0, set()),
        ("26.05.5", 0, set()),
    ],
)
def test_a_version_has_the_faults_of_its_time(version: str, severe: int, tickets: set[int]) -> None:
    parsed = releases.parse(version)
    assert parsed
    found = releases.faults_of(parsed)
    assert [fault.weight for fault in found].count("fail") == severe
    weights = [["fail", "warn", "note"].index(fault.weight) for fault in found]
    assert weights == sorted(weights)
    assert {fault.ticket for fault in found} - {0} == tickets
