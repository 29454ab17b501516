"""Support of the packaging tests."""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def make(*words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    """`make` with these words in the checkout."""
    run = subprocess.run(["make", "-s", *words], cwd=ROOT, capture_output=True, text=True)
    assert not check or run.returncode == 0, run.stdout + run.stderr
    return run
