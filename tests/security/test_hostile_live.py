"""Hostile programs at full speed beside honest ones on the simulated card: what they may cost
others, as bounds.

The attacker's process is a task of a job like any other (programs/submit/evil.c). Judged is by the
card's own trace.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from arbiter_support import ARBITER, ARBITER_ASAN, ARBITER_TSAN, let_others_in

from bench.harness.node import BUILD, MIB, Rig, wait_for
from enforcer.wire import abi
from enforcer.wire.link import TenantStats
from simulator.sim import busy_ns

pytestmark = [
    pytest.mark.native,
    pytest.mark.skipif(os.getuid() != 0, reason="needs root: sealed grants"),
]
ONLINE, EVIL, HONEST = 1, 2, 3
ATTACKS = ("random", "ones", "zeros", "busy", "idle", "counters", "ring", "drain", "hide")
ENDLESS = ("--length", "600", "--iters", "200000", "--no-sync-each=16")
SETTINGS = {"idle_release_ms": 20}


@contextlib.contextmanager
def node(
    path: Path,
    binary: Path = ARBITER,
    job_class: str = "offline",
    policy: str = "burst-share",
    pages: str = "file",
) -> Iterator[Rig]:
    """A node where attacker and honest tenant are of this class, under this policy."""
    settings = SETTINGS | {f"policy_{job_class}": policy}
    options = ("--job-memory", pages)
    with Rig(path, settings=settings, arbiter_binary=binary, arbiter_options=options) as rig:
        rig.grant(ONLINE, "online", mem_mib=1024)
        rig.grant(EVIL, job_class, mem_mib=1024)
        rig.grant(HONEST, job_class, mem_mib=1024)
        yield rig
        assert rig.arbiter.poll() is None, (rig.directory / "arbiter.log").read_text()
        rig.arbiter.terminate()
        assert rig.arbiter.wait(60) == 0, (rig.directory / "arbiter.log").read_text()


def tenant(rig: Rig, job: int) -> TenantStats:
    return next(t for t in rig.link.stats() if t.job_id == job)


def evil(rig: Rig, attack: str) -> subprocess.Popen[str]:
    """The attacker, attacking."""
    process = rig.spawn(
        [BUILD / "test/shim-evil", attack], rig.grants[EVIL], stdin=subprocess.PIPE, bufsize=1
    )
    assert process.stdin and process.stdout
    process.stdin.write("\n")
    process.stdin.flush()
    assert [process.stdout.readline().strip() for _ in range(2)] == ["begin", "begun"]
    return process


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def end(process: subprocess.Popen[str]) -> str:
    process.kill()
    return process.communicate()[1]


@dataclass(frozen=True)
class Harm:
    """What a second of an attack did: parts of one."""

    part: float  # of what the card did, the honest tenant's
    shut: float  # of the time, the honest tenant at a closed gate
    cost: float  # of a core, the arbiter's


def harm(rig: Rig, honest: subprocess.Popen[str], seconds: float = 1.0) -> Harm:
    """Looks on for so long; counters of either tenant must not go back."""
    begun, used = time.monotonic_ns(), cpu_seconds(rig.arbiter.pid)
    before = tenant(rig, HONEST), tenant(rig, EVIL)
    time.sleep(seconds)
    over = time.monotonic_ns()
    cost = cpu_seconds(rig.arbiter.pid) - used
    after = tenant(rig, HONEST), tenant(rig, EVIL)
    for earlier, later in zip(before, after, strict=True):
        assert later.launches >= earlier.launches and later.busy_ns >= earlier.busy_ns
    time.sleep(0.15)  # the trace is flushed each 0.1 s
    busy = busy_ns(rig.trace(), begun, over)
    wall = over - begun
    shut = after[0].closed_share_ns - before[0].closed_share_ns
    return Harm(busy.get(honest.pid, 0) / sum(busy.values()), shut / wall, cost / (wall / 1e9))


def assert_bounded(
    rig: Rig, honest: subprocess.Popen[str], attack: str, seconds: float = 1.0
) -> None:
    """An attack that works is out of bounds in every sample; a busy machine in one or two.

    The attacker spins on a processor, so the card may well be idle for part of the time.
    """
    for _ in range(9):
        found = harm(rig, honest, seconds)
        if found.part > 0.3 and found.shut < 0.8 and found.cost < 0.7:
            return
    found = harm(rig, honest, seconds)
    assert found.part > 0.3, (
        f"{attack}: the honest tenant had {found.part:.0%} of what the card did, not half"
    )
    assert found.shut < 0.8, (
        f"{attack}: the honest tenant's gate was closed for {found.shut:.0%} of the time"
    )
    assert found.cost < 0.7, f"{attack}: the arbiter used {found.cost:.0%} of a core"


@pytest.mark.parametrize("attack", ATTACKS)
def test_attack_costs_an_equal_neighbour_no_more_than_an_equal_share(
    tmp_path: Path, attack: str
) -> None:
    with node(tmp_path) as rig:
        honest = rig.workload(rig.grants[HONEST], *ENDLESS, "--memory", "256MiB")
        wait_for("it works", lambda: tenant(rig, HONEST).launches > 100)
        enemy = evil(rig, attack)
        assert_bounded(rig, honest, attack)
        service = rig.workload(rig.grants[ONLINE], "--requests", "10", "--iters", "100000")
        assert rig.summary(service, 20)["requests"] == 10, "online is served"
        assert tenant(rig, HONEST).mem_used == 256 * MIB and tenant(rig, EVIL).mem_used <= 1 << 48
        end(enemy)
        wait_for(
            "what it wrote is gone with it",
            lambda: (tenant(rig, EVIL).procs, tenant(rig, EVIL).mem_used) == (0, 0),
        )
        late = rig.workload(rig.grants[EVIL], "--requests", "5", "--iters", "100000")
        assert rig.summary(late, 20)["requests"] == 5, "its job's next process finds clean pages"
        assert end(honest) == ""


@pytest.mark.parametrize("job_class", ["offline", "online"])
@pytest.mark.parametrize("policy", ["best-effort", "fixed-share", "burst-share"])
def test_no_policy_and_no_class_gives_an_attacker_more(
    tmp_path: Path, job_class: str, policy: str
) -> None:
    """All attacks in turn beside one honest tenant; the last one's job is then as good as any."""
    with node(tmp_path, job_class=job_class, policy=policy) as rig:
        honest = rig.workload(rig.grants[HONEST], *ENDLESS)
        wait_for("it works", lambda: tenant(rig, HONEST).launches > 100)
        for attack in ATTACKS:
            enemy = evil(rig, attack)
            assert_bounded(rig, honest, f"{job_class} {policy} {attack}", 0.6)
            end(enemy)
            wait_for("it is gone", lambda: tenant(rig, EVIL).procs == 0)
        service = rig.workload(rig.grants[ONLINE], "--requests", "10", "--iters", "100000")
        assert rig.summary(service, 20)["requests"] == 10, "online is served"
        assert end(honest) == ""


@pytest.mark.parametrize("binary", [ARBITER_ASAN, ARBITER_TSAN], ids=["asan", "tsan"])
def test_every_attack_against_a_sanitized_arbiter(tmp_path: Path, binary: Path) -> None:
    with node(tmp_path, binary) as rig:
        honest = rig.workload(rig.grants[HONEST], *ENDLESS)
        for attack in ATTACKS:
            enemy = evil(rig, attack)
            before = tenant(rig, HONEST).launches
            wait_for(
                "the honest tenant goes on",
                lambda b=before: tenant(rig, HONEST).launches > b + 200,
                20,
            )
            end(enemy)
        end(honest)


def test_several_attackers_of_one_job_harm_it_alone(tmp_path: Path) -> None:
    with node(tmp_path) as rig:
        honest = rig.workload(rig.grants[HONEST], *ENDLESS)
        enemies = [evil(rig, attack) for attack in ("drain", "ring", "busy", "random")]
        assert_bounded(rig, honest, "four attackers")
        for process in enemies:
            end(process)
        end(honest)


FLOOD = """
import os, resource, socket, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (16384, 16384))
os.setgid(65534); os.setuid(65534)
held, refused = [], 0
for n in range(10000):
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); sock.settimeout(5)
    try:
        sock.connect(sys.argv[1]); held.append(sock)
    except OSError:
        refused += 1
    if n == 5000: print("half", flush=True)
print(len(held), refused, flush=True)
sys.stdin.read()
"""


def test_ten_thousand_connections_of_one_user_keep_no_other_out(tmp_path: Path) -> None:
    with node(tmp_path) as rig:
        let_others_in(tmp_path)
        before = len(list(Path(f"/proc/{rig.arbiter.pid}/fd").iterdir()))
        flood = subprocess.Popen(
            [sys.executable, "-c", FLOOD, str(rig.run_dir / abi.SOCK_REGISTER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        rig.adopt(flood)
        assert flood.stdout
        assert flood.stdout.readline() == "half\n"
        honest = rig.workload(rig.grants[HONEST], *ENDLESS)
        wait_for(
            "an honest process registers and works meanwhile",
            lambda: tenant(rig, HONEST).launches > 100,
            5,
        )
        made, refused = map(int, flood.stdout.readline().split())
        assert made + refused == 10_000 and made > 1000
        wait_for(
            "one user's silent connections keep few descriptors; the closing of the others may be "
            "under way",
            lambda: len(list(Path(f"/proc/{rig.arbiter.pid}/fd").iterdir())) - before < 800,
            3,  # the arbiter forgets silent ones after 5
        )
        used, begun = cpu_seconds(rig.arbiter.pid), time.monotonic()
        time.sleep(0.5)
        assert (cpu_seconds(rig.arbiter.pid) - used) / (time.monotonic() - begun) < 0.5
        end(honest)
        flood.communicate("")


def test_holder_that_is_stopped_again_and_again_takes_little_from_others(tmp_path: Path) -> None:
    """SIGSTOP and SIGCONT in turns, as a program would that wants to keep the card without using
    it.
    """
    import signal

    with node(tmp_path) as rig:
        honest = rig.workload(rig.grants[HONEST], *ENDLESS)
        odd = rig.workload(rig.grants[EVIL], *ENDLESS)
        wait_for("both work", lambda: min(tenant(rig, j).launches for j in (HONEST, EVIL)) > 100)

        def keeps_its_half() -> bool:
            begun = time.monotonic_ns()
            for _ in range(20):
                odd.send_signal(signal.SIGSTOP)
                time.sleep(0.04)
                odd.send_signal(signal.SIGCONT)
                time.sleep(0.01)
            over = time.monotonic_ns()
            time.sleep(0.15)  # the trace is flushed each 0.1 s
            busy = busy_ns(rig.trace(), begun, over)
            ours = busy.get(honest.pid, 0)
            return ours > 0.8 * busy.get(odd.pid, 0) and ours > 0.25 * (over - begun)

        wait_for(
            "the honest tenant keeps its half of a card that does not stand still", keeps_its_half
        )
        end(odd)
        end(honest)
