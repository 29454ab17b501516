"""docs/specs/limits.md has each bound as the sources have it, and leaves none out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs/specs/limits.md").read_text()
ROWS = re.findall(r"^\| `([A-Z_]+)` \| (\d+) \| `([^`]+)` \|$", PAGE, re.M)
# a name that tells a bound of what is kept, counted or held
BOUND = (
    r"(?:[A-Z_]*MAX_[A-Z_]+|[A-Z_]*RECORDS|[A-Z_]*CLIENTS|[A-Z_]*BROKERS(?:_PER_USER)?|[A-Z_]*LINES"
    r"|[A-Z_]*PER_SECOND|[A-Z_]*BURST|BACKLOG|AT_ONCE|REMEMBERED|UNSENT|ROOT_PLACES|UNKNOWN_TIMES)"
)
SET = (
    r"^(?:#define\s+|local\s+|\s*(?:enum\s*\{\s*)?){name}"
    r"(?:\s+|\s*=\s*)([\d_]+(?:\s*<<\s*\d+)?)(?:\.0)?u?\b"
)
FOLDERS = (
    "enforcer/native/arbiter",
    "enforcer/daemon",
    "enforcer/reporting",
    "enforcer",
    "slurm_plugin/lua",
)
# Bounds of one message, text, step or read, or of what one job may show: no user fills them for
# another.
NOT_SHARED = {
    "AR_MAX_WATCHED", "MAX_EVENTS", "MAX_REDO", "MAX_BYTES",
    "MAX_FD", "HW_MAX_HUNG", "HW_MAX_ESCAPES", "HW_TESTS_PER_SECOND", "MAX_REQUEST", "MAX_SERIES",
    "MAX_DEPTH", "MAX_THREADS", "MAX_MESSAGE", "MAX_VARIABLES", "MAX_TEXT", "MAX_ANCESTORS",
    "CONTINUE_MAX", "MAX_ROWS", "MAX_WAKE", "MAX_VALUE", "_MAX_RECORD",
}  # fmt: skip


def value(name: str, text: str) -> int | None:
    found = re.search(SET.replace("{name}", re.escape(name)), text, re.M)
    return eval(found[1]) if found else None


def test_the_page_has_constants() -> None:
    assert len(ROWS) > 40 and len({(name, file) for name, _, file in ROWS}) == len(ROWS)


@pytest.mark.parametrize(("name", "said", "file"), ROWS, ids=[f"{r[0]} {r[2]}" for r in ROWS])
def test_each_constant_is_what_the_source_says(name: str, said: str, file: str) -> None:
    assert value(name, (ROOT / file).read_text()) == int(said)


def sources() -> list[Path]:
    found = {p for folder in FOLDERS for p in (ROOT / folder).rglob("*") if folder != "enforcer"}
    found |= set((ROOT / "enforcer").glob("*.py"))
    return sorted(
        p for p in found if p.suffix in (".c", ".h", ".py", ".lua") and "policy" not in p.parts
    )


def test_each_bound_of_the_daemons_is_on_the_page() -> None:
    listed = {(name, file) for name, _, file in ROWS}
    missing = []
    for path in sources():
        text, file = path.read_text(), str(path.relative_to(ROOT))
        for name in re.findall(SET.replace("{name}", f"({BOUND})"), text, re.M):
            if name[0] not in NOT_SHARED and (name[0], file) not in listed:
                missing.append((name[0], file))
    assert missing == []


def test_each_table_names_its_bound_in_the_list() -> None:
    """Numbers of the tables are numbers of the list, or of what the line refers to."""
    known = {int(said) for _, said, _ in ROWS} | {100, 64, 10}
    for row in re.findall(r"^\| (?!---|table|message|constant|what|`)(.*) \|$", PAGE, re.M):
        for number in re.findall(r"(?<![\w.`])(\d+)(?=[,/ |]|$)", "|".join(row.split("|")[1:3])):
            assert int(number) in known, row


def test_places_of_a_card_are_enough_for_slurm_and_programs() -> None:
    """100 shares of a card by Slurm, and all programs without it."""
    of = {(name, file.rpartition("/")[2]): int(said) for name, said, file in ROWS}
    assert 100 + of["MAX_RUNS", "answers.py"] <= of["QP_MAX_TENANTS", "policy.h"]
