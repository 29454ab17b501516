"""A ledger of its own for each test."""

from __future__ import annotations

from pathlib import Path

import pytest

from enforcer.ledger.store import Ledger


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.sqlite"


@pytest.fixture
def ledger(path: Path) -> Ledger:
    return Ledger(path)
