"""Constants that `qgpu simulate` copies from the arbiter and the shim have their values."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
NATIVE = ROOT / "enforcer/native"
COPIES = {
    "GATE_WAIT_NS": "arbiter/observe/sample.c",
    "GATE_WAIT_AGAIN_NS": "arbiter/observe/sample.c",
    "DOUBT_MIN_NS": "arbiter/observe/sample.c",
    "DOUBT_MAX_NS": "arbiter/observe/sample.c",
    "STUCK_NS": "arbiter/observe/inputs.c",
    "HOLD_NS": "shim/window/window.c",
    "LONGEST_HOLD_NS": "shim/window/window.c",
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
    original = constants(NATIVE / file)[name]
    assert copies[name] == original, f"{name} of {file} and of whatif/actor.c differ"


def test_the_hang_time_is_the_default_of_the_option() -> None:
    seconds = re.search(
        r"a->hang_s = (\d+);", (NATIVE / "arbiter/main.c").read_text(encoding="utf-8")
    )
    assert seconds
    copy = constants(ROOT / "simulator/native/whatif/actor.c")["STUCK_ONLINE_NS"]
    assert copy == f"({int(seconds[1]) * 1000} * QP_MS)"
