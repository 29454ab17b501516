"""Constants that `qgpu simulate` copies from the arbiter have the arbiter's values."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
ARBITER = ROOT / "enforcer/native/arbiter"
COPIES = {
    "GATE_WAIT_NS": "observe/sample.c",
    "GATE_WAIT_AGAIN_NS": "observe/sample.c",
    "DOUBT_MIN_NS": "observe/sample.c",
    "DOUBT_MAX_NS": "observe/sample.c",
    "STUCK_NS": "observe/inputs.c",
}


def constants(path: Path) -> dict[str, str]:
    """Names and values of a C file's #define lines."""
    found = re.findall(
        r"^#define (\w+) +(\S.*?)(?: +/\*.*)?$", path.read_text(encoding="utf-8"), re.M
    )
    return dict(found)


@pytest.mark.parametrize(("name", "file"), COPIES.items())
def test_the_copy_is_equal(name: str, file: str) -> None:
    copies = constants(ROOT / "simulator/native/whatif/actor.c")
    original = constants(ARBITER / file)[name]
    assert copies[name] == original, f"{name} of {file} and of whatif/actor.c differ"


def test_the_hang_time_is_the_default_of_the_option() -> None:
    seconds = re.search(r"a->hang_s = (\d+);", (ARBITER / "main.c").read_text(encoding="utf-8"))
    assert seconds
    copy = constants(ROOT / "simulator/native/whatif/actor.c")["STUCK_ONLINE_NS"]
    assert copy == f"({int(seconds[1]) * 1000} * QP_MS)"
