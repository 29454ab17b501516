"""A user who starts one program without limits after the other: the audit's lines are bounded."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator

import pytest

from enforcer.clock import FakeClock
from enforcer.daemon.audit import enforcer
from enforcer.daemon.audit.findings import Finding
from gres.config.enforcer import AuditSettings
from gres.grant.store import Grant, GrantCard

CARD = GrantCard("GPU-00000000-0000-0000-0000-000000000001", 0, 0, 30, 1000, 4000)
GREEDY, HONEST = 300_100, 300_200


def grant(job: int, uid: int) -> Grant:
    return Grant(job, uid, 100, "n1", "active", "online", 1, "", (CARD,), "/r", "/d", "/s")


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> Iterator[object]:
    monkeypatch.setattr(logging.getLogger("qgpud"), "propagate", True)
    caplog.set_level(logging.WARNING, "qgpud")
    yield lambda: [record.getMessage() for record in caplog.records]


def test_one_users_findings_neither_fill_the_log_nor_hide_those_of_another(lines, monkeypatch):
    now, told = 0.0, []
    audit = enforcer.AuditEnforcer(
        AuditSettings(),
        FakeClock(),
        lambda: {1: grant(1, GREEDY), 2: grant(2, HONEST)},
        lambda pid: None,
        notify=lambda finding, action, uid: told.append((finding.job_id, uid)),
    )
    monkeypatch.setattr(audit._lines, "_now", lambda: now)
    many = [Finding("unregistered", CARD.uuid, 1, 10**7 + n, (10**7 + n,)) for n in range(500)]
    audit.act(many, many)
    one = Finding("unregistered", CARD.uuid, 2, 10**8, (10**8,))
    stranger = Finding("stranger", CARD.uuid, None, os.getpid(), (os.getpid(),))
    audit.act([one, stranger], [*many, one, stranger])
    assert sum("job=1 " in line for line in lines()) == enforcer.LINES
    assert sum("job=2 " in line for line in lines()) == 1
    assert sum("event=audit-stranger" in line for line in lines()) == 1
    assert set(told) == {(1, GREEDY), (2, HONEST)}, "whoever is not logged is told all the same"
    now = 1.0
    audit.act([Finding("unregistered", CARD.uuid, 1, 9, (9,))], many)
    assert lines()[-2] == f"event=audit-more uid={GREEDY} lines={500 - enforcer.LINES}"
    assert "pid=9" in lines()[-1]
