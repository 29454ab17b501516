"""The daemon's service against the real qgpu-arbiter: grants arrive, its restarts are noticed at
once.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from arbiter_support import Tenant
from daemon_support import hook_env as env

from enforcer.clock import SystemClock
from enforcer.daemon.arbiter.client import SocketArbiter
from enforcer.daemon.arbiter.port import ArbiterError, MemoryAction, ProcessUse, Want
from enforcer.daemon.granting.hookproto import Answer
from enforcer.daemon.node import NodeService
from enforcer.fdwait import readable_within
from enforcer.nvml.port import GpuProcess
from enforcer.wire.abi import GATE_WHY_MEMORY
from simulator.fakes import FakeNode

ARBITER = Path(__file__).parents[3] / "build/bin/qgpu-arbiter"

pytestmark = [
    pytest.mark.native,
    pytest.mark.skipif(os.geteuid() != 0, reason="the arbiter believes root alone"),
]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[], subprocess.Popen[bytes]]]:
    running: list[subprocess.Popen[bytes]] = []

    def launch() -> subprocess.Popen[bytes]:
        reader, writer = os.pipe()
        command = [
            str(ARBITER),
            "--run-dir",
            str(tmp_path / "run"),
            "--no-rt",
            "--ready-fd",
            str(writer),
        ]
        running.append(subprocess.Popen(command, pass_fds=[writer], stderr=subprocess.DEVNULL))
        os.close(writer)
        assert os.read(reader, 16), "the arbiter ended before it was ready"
        os.close(reader)
        return running[-1]

    yield launch
    for process in running:
        process.kill()
        process.wait()


@pytest.fixture
def node(tmp_path: Path, nodes: Callable[..., FakeNode]) -> FakeNode:
    return nodes(tmp_path, clock=SystemClock())


@pytest.fixture
def service(
    tmp_path: Path, node: FakeNode, start: Callable[[], subprocess.Popen[bytes]]
) -> Iterator[NodeService]:
    node.arbiter = SocketArbiter(str(tmp_path / "run"), node.config)  # type: ignore[assignment]
    yield node.service()
    node.arbiter.close()


def tenants(service: NodeService) -> list[tuple[int, str, int]]:
    found = service.ports.arbiter.tenants()
    return sorted((t.sample.job_id, t.sample.uuid[-1], t.procs) for t in found)


def test_grant_is_with_the_arbiter_when_the_prolog_is_answered(service, start):
    start()
    service.start()
    assert service.connected
    assert service.prolog(env()) == Answer(0)
    assert tenants(service) == [(9, "0", 0)]
    service.poll_arbiter()
    service.epilog(env())
    assert tenants(service) == []


def test_grants_come_back_after_the_arbiter_was_killed(service, start):
    first = start()
    service.start()
    assert service.prolog(env()) == Answer(0)
    first.kill()
    first.wait()
    service.poll_arbiter()
    assert not service.connected and not service.reach_arbiter()
    assert service.prolog(env(10)) is None, "it waits for the arbiter"
    start()
    until = time.monotonic() + 10
    while not service.reach_arbiter():
        assert time.monotonic() < until
        time.sleep(0.01)
    assert service.arbiter_answer(10) == Answer(0)
    assert [job for job, _, _ in tenants(service)] == [9, 10]


@pytest.mark.parametrize(
    "found_by",
    [
        lambda service: service.inspector.poll_dead(),
        lambda service: service.inspector.note_deaths(),
        lambda service: service.sample_cards(),
    ],
)
def test_new_arbiter_gets_everything_however_the_end_of_the_old_one_was_found(
    service, node, start, found_by
):
    """A call whose caller has no use for the error must not leave a connection to somebody who
    knows of no grant.
    """
    first = start()
    service.start()
    assert service.prolog(env()) == Answer(0)
    uuid = node.nvml.cards()[0].uuid
    node.nvml.put(uuid, GpuProcess(os.getpid(), 1 << 30))
    service.inspector._dead[uuid, os.getpid()] = (ProcessUse(9, uuid, os.getpid(), 1 << 30), 20)
    first.kill()
    first.wait()
    found_by(service)
    assert service.connected and service.ports.arbiter.ended
    start()
    for call in (service.ports.arbiter.tenants, service.ports.arbiter.processes):
        with pytest.raises(ArbiterError, match="ended"):
            call()
    service.poll_arbiter()
    assert not service.connected and service.reach_arbiter()
    assert tenants(service) == [(9, "0", 0)]


def test_descriptor_tells_the_end_of_the_arbiter(service, start):

    arbiter = start()
    service.start()
    fd = service.ports.arbiter.fileno()
    assert fd is not None and not readable_within(fd, 0)
    arbiter.kill()
    assert readable_within(fd, 10)


def test_grants_of_a_daemon_that_was_away_are_replaced_by_the_full_list(service, start):
    start()
    service.start()
    service.prolog(env(9))
    service.prolog(env(10))
    service.ports.arbiter.close()
    service.connected = False
    service.store.remove(9)
    del service.grants[9]
    assert service.reach_arbiter()
    assert [job for job, _, _ in tenants(service)] == [10]


def test_a_job_stays_held_over_restarts_of_both(service, node, start, tmp_path):
    """The gate of a process that comes shows it: also after a new arbiter, or a new daemon that
    knows from elsewhere that the job is held.
    """
    first = start()
    service.start()
    assert service.prolog(env()) == Answer(0)
    grant = service.grants[9]
    uuid = grant.cards[0].uuid
    service.ports.arbiter.hold(9, True)
    assert Tenant(tmp_path / "run", grant, uuid).flags & GATE_WHY_MEMORY
    first.kill()
    first.wait()
    with pytest.raises(ArbiterError):
        service.ports.arbiter.hold(9, True)
    service.poll_arbiter()
    start()
    assert service.reach_arbiter()
    assert Tenant(tmp_path / "run", grant, uuid).flags & GATE_WHY_MEMORY

    later = SocketArbiter(str(tmp_path / "run"), node.config)
    later.hold(9, True)  # before it is connected
    later.connect(service.plans, [grant])
    tenant = Tenant(tmp_path / "run", grant, uuid)
    assert tenant.flags & GATE_WHY_MEMORY
    later.hold(9, False)
    assert not tenant.flags & GATE_WHY_MEMORY
    later.hold(9, True)
    later.revoke(9)
    later.grant(grant)
    assert not tenant.flags & GATE_WHY_MEMORY, "it is another job"
    later.close()


def test_waits_are_ordered_again_after_a_restart(service, start, tmp_path):
    first = start()
    service.start()
    service.prolog(env(9))
    service.prolog(env(10))
    uuid = service.grants[9].cards[0].uuid
    arbiter = service.ports.arbiter
    arbiter.memory(0, uuid, MemoryAction.WAIT)
    arbiter.memory(10, uuid, MemoryAction.NOWAIT)
    arbiter.memory(9, uuid, MemoryAction.RETRY)
    first.kill()
    first.wait()
    service.poll_arbiter()
    start()
    arbiter.connect(service.plans, list(service.grants.values()))
    gates = [Tenant(tmp_path / "run", service.grants[job], uuid).gate for job in (9, 10)]
    assert [(gate.mem_wait, gate.mem_retry) for gate in gates] == [(1, 0), (0, 0)]


def test_the_daemon_hears_what_is_wanted_and_who_died(service, start, tmp_path):
    start()
    service.start()
    service.prolog(env())
    grant = service.grants[9]
    uuid = grant.cards[0].uuid
    tenant = Tenant(tmp_path / "run", grant, uuid)
    tenant.slot.mem_wanted = 4096
    tenant.ring()
    arbiter = service.ports.arbiter
    assert readable_within(arbiter.watch_fileno(), 30)
    assert arbiter.died() == [], "one call takes both kinds off the socket"
    assert arbiter.wants() == [Want(9, uuid, os.getpid(), 4096)]
    assert arbiter.wants() == []
