"""kill -9 of the writer at random instants: what was committed stays, the file is whole, sums do
not run backwards.
"""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import time
from dataclasses import replace
from pathlib import Path

from enforcer.fdwait import readable_within
from enforcer.ledger.prune import Limits, prune
from enforcer.ledger.read import read_usage
from enforcer.ledger.store import Ledger, Sample
from gres.grant.store import Grant, GrantCard

KILLS = 200
START = 1_700_000_000 * 10**9
CARDS = tuple(
    GrantCard(f"GPU-00000000-0000-0000-0000-00000000000{n}", n, n, 30, 1000, 4000) for n in range(2)
)


def write_until_killed(path: Path, begin: int, out: int) -> None:
    """The daemon's writes as fast as they go; after each commit the sum that must never be lost."""
    ledger = Ledger(path)
    grant = Grant(9, 1000, 100, "n1", "active", "online", START, "", CARDS, "/r", "/d", "/s")
    ledger.open_grant(grant)
    step = begin
    while True:
        step += 1
        base = Sample(
            9,
            CARDS[0].uuid,
            1,
            5,
            busy_ns=step,
            launches=2 * step,
            mem_used=step,
            close_hist=(step,),
        )
        ledger.record([base, base._replace(uuid=CARDS[1].uuid)], START + step * 10**8)
        os.write(out, step.to_bytes(8, "little"))
        ledger.open_grant(replace(grant, job_id=100 + step % 50, created_ns=START + step))
        ledger.end(100 + step % 50, "epilog", START + step)
        prune(ledger, Limits(60, 1 << 20), START + step * 10**8)


def killed_after(path: Path, begin: int, seconds: float) -> int:
    """The last sum that a writer said it had committed before it was killed."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(reader)
            write_until_killed(path, begin, writer)
        finally:
            os._exit(1)  # only reached by an error: the parent sees no signal
    os.close(writer)
    readable_within(reader, 10)  # it is writing now
    time.sleep(seconds)
    os.kill(pid, signal.SIGKILL)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    said = b""
    while part := os.read(reader, 65536):
        said += part
    os.close(reader)
    return int.from_bytes(said[len(said) // 8 * 8 - 8 : len(said) // 8 * 8], "little")


def test_no_kill_loses_what_was_committed_or_harms_the_file(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    dice = random.Random(20261121)
    reached = 0
    for _ in range(KILLS):
        said = killed_after(path, reached, dice.random() * 0.02)
        database = sqlite3.connect(path)
        assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert database.execute("PRAGMA foreign_key_check").fetchall() == []
        database.close()
        rows = read_usage(path, [9])
        sums = {row.busy_ns for row in rows}
        assert len(rows) == 2 and len(sums) == 1, "both cards of one commit, or neither"
        (now,) = sums
        assert now is not None and max(said, reached) <= now <= said + 1
        assert all(row.launches == 2 * now for row in rows)
        reached = now
    assert reached >= KILLS
