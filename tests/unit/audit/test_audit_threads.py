"""Processes with more threads than one sample reads: neither killed nor continued on a guess."""

from __future__ import annotations

import os
import signal

import pytest
from daemon_support import hook_env as env

from enforcer.daemon.audit.procs import stopped
from enforcer.daemon.node import NodeService
from enforcer.nvml.port import GpuProcess
from simulator.fakes import GIB, FakeNode


@pytest.fixture
def service(node: FakeNode) -> NodeService:
    service = node.service()
    settings = service.config.enforcer.audit.model_copy(update={"action": "stop"})
    service.inspector.enforcer.settings = settings
    service.start()
    service.prolog(env(uid=os.getuid()))
    return service


def looks(node: FakeNode, service: NodeService, times: int) -> None:
    for _ in range(times):
        node.clock.advance(1)  # type: ignore[attr-defined]
        service.sample_cards()


def uuid(node: FakeNode) -> str:
    return node.nvml.cards()[0].uuid


def test_process_in_unknown_state_is_stopped_again_and_not_killed(node, service, child, lines):
    node.nvml.put(uuid(node), GpuProcess(child, GIB))
    looks(node, service, 3)
    os.waitpid(child, os.WUNTRACED)
    service.inspector.stopped = lambda pid: None
    looks(node, service, 20)
    assert stopped(child) and not lines("event=audit-again")
    os.kill(child, signal.SIGCONT)
    looks(node, service, 1)
    os.waitpid(child, os.WUNTRACED)
    assert stopped(child)


def test_process_in_unknown_state_is_exempt_for_a_while(node, service, child, lines):
    service.inspector.stopped = lambda pid: None
    node.nvml.put(uuid(node), GpuProcess(child, GIB))
    looks(node, service, 290)
    assert not lines("audit-unregistered"), "as where NVML does not tell who works"
    looks(node, service, 20)
    assert len(lines("audit-unregistered")) == 1


def test_each_sample_begins_with_the_full_thread_budget(node, service):
    budget = service.inspector.threads
    budget._left = 0
    looks(node, service, 1)
    assert budget._left > 0
    budget._left = 0
    service.inspector.pardon(service.grants[9])
    assert budget._left > 0
