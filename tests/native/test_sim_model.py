"""The event model by itself, under AddressSanitizer and UndefinedBehaviorSanitizer."""

from __future__ import annotations

import subprocess

import pytest
from sim_tools import BUILD, make

pytestmark = pytest.mark.native


def test_model_cases() -> None:
    make("build/test/sim-model-test")
    done = subprocess.run(
        [str(BUILD / "test/sim-model-test")], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert len([line for line in done.stdout.splitlines() if line.startswith("ok ")]) == 22
