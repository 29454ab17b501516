"""The event model by itself, under AddressSanitizer and UndefinedBehaviorSanitizer."""

from __future__ import annotations

import subprocess

import pytest
from sim_tools import BUILD, make

pytestmark = pytest.mark.native


@pytest.mark.parametrize(("program", "cases"), [("sim-model-test", 22), ("sim-preempt-test", 16)])
def test_model_cases(program: str, cases: int) -> None:
    make(f"build/test/{program}")
    done = subprocess.run(
        [str(BUILD / "test" / program)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert len([line for line in done.stdout.splitlines() if line.startswith("ok ")]) == cases
