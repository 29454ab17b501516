"""Who watches deaths and does not read misses none, with as little room in its socket as the
unit file leaves it.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from arbiter_support import arbiter, confined, grant, settings, wait_for

from enforcer.wire.link import ProcessStats
from enforcer.wire.watch import DeathWatch

pytestmark = pytest.mark.native
JOBS, PROCESSES = 5, 120  # far more deaths than a socket of the usual size holds
HELD = 1000
CROWD = f"""
import os, sys
sys.path.insert(0, {str(Path(__file__).resolve().parents[2] / "support/node")!r})
from arbiter_support import Tenant, grant
from pathlib import Path
(held, hold), (told, tell) = os.pipe(), os.pipe()
for number in range({JOBS * PROCESSES}):
    if os.fork() == 0:
        os.close(hold)
        Tenant(Path(sys.argv[1]), grant(1 + number % {JOBS}), mem_used={HELD})
        os.write(tell, b"x")
        os.read(held, 1)
        os._exit(0)
    os.read(told, 1)
print("ready", flush=True)
sys.stdin.readline()
os.close(hold)
for _ in range({JOBS * PROCESSES}):
    assert os.wait()[1] == 0
"""


def all_told(watch: DeathWatch) -> list[ProcessStats]:
    """Every death, from a watch that was not read so far."""
    told: list[ProcessStats] = []
    wait_for(
        lambda: told.extend(watch.died()) or len(told) >= JOBS * PROCESSES,
        "every death is told",
        60,
    )
    return told


def test_a_late_watcher_gets_every_death_once(tmp_path: Path) -> None:
    grants = [grant(job) for job in range(1, JOBS + 1)]
    with (
        arbiter(tmp_path, "--answer-ms", "600000", prefix=confined()) as one,
        one.link() as link,
        DeathWatch(one.run_dir) as late,
    ):
        link.sync([settings()], grants)
        words = [sys.executable, "-c", CROWD, str(one.run_dir)]
        with subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as crowd:
            assert crowd.stdout is not None and crowd.stdout.readline() == "ready\n"
            pids = {process.pid for process in link.processes()}
            crowd.communicate("go\n", timeout=60)
        assert crowd.returncode == 0 and len(pids) == JOBS * PROCESSES
        extra = JOBS * PROCESSES * HELD
        wait_for(
            lambda: sum(t.mem_extra for t in link.stats()) == extra, "all died and are charged"
        )
        told = all_told(late)
        assert len(told) == JOBS * PROCESSES and {death.pid for death in told} == pids
        with DeathWatch(one.run_dir) as later:
            again = all_told(later)
            assert [death.pid for death in again] == [death.pid for death in told], "in their order"
            for death in again:
                link.gone(death.job_id, death.uuid, death.pid)
            assert not any(t.mem_extra for t in link.stats())
            assert later.died() == [] and late.died() == [], "nothing is told twice"
