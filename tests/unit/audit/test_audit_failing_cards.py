"""One card of several whose NVML fails: others are sampled, and its last state stays."""

from __future__ import annotations

import os
import signal

import pytest
from daemon_support import hook_env as env
from daemon_support import new_arbiter, sampled

from enforcer.daemon.arbiter.port import ProcessUse
from enforcer.daemon.audit.procs import stopped
from enforcer.daemon.node import NodeService
from enforcer.nvml.port import CardInfo, GpuProcess, NvmlError
from enforcer.nvml.worker import NvmlStuckError
from simulator.fakes import GIB, FakeNode, FakeNvml


class Failing(FakeNvml):
    """Cards may answer with an error that is not about a lost card."""

    def __init__(self, cards: tuple[CardInfo, ...] = ()) -> None:
        super().__init__(cards)
        self.bad: set[str] = set()
        self.stuck = False
        self.opened = 0

    def processes(self, uuid: str) -> tuple[GpuProcess, ...]:
        if uuid in self.bad:
            raise (
                NvmlStuckError("no answer") if self.stuck else NvmlError("NVML says: Unknown Error")
            )
        return super().processes(uuid)

    def close(self) -> None:
        self.opened += 1


@pytest.fixture
def nvml(node: FakeNode) -> Failing:
    node.nvml = Failing.with_cards(2, 80 * GIB)
    assert isinstance(node.nvml, Failing)
    return node.nvml


@pytest.fixture
def service(node: FakeNode, nvml: Failing) -> NodeService:
    """Job 9 on card 0, job 10 on card 1."""
    service = node.service()
    service.start()
    service.prolog(env(9, uid=os.getuid()))
    service.prolog(env(10, gpus="1", uid=os.getuid()))
    return service


def cards(node: FakeNode) -> tuple[str, str]:
    first, second = node.nvml.cards()
    return first.uuid, second.uuid


def looks(service: NodeService, times: int) -> None:
    for _ in range(times):
        sampled(service)


def test_others_are_judged_and_the_failure_is_said_once(node, nvml, service, lines):
    bad, good = cards(node)
    nvml.bad = {bad}
    nvml.put(good, GpuProcess(77, GIB))
    looks(service, 5)
    assert len(lines("audit-stranger")) == 1
    (said,) = lines("event=card-failed")
    assert bad in said and "Unknown Error" in said and lines("event=nvml-failed") == []
    nvml.bad = set()
    looks(service, 1)
    assert len(lines("event=card-answers")) == 1
    nvml.bad = {bad}
    looks(service, 1)
    assert len(lines("event=card-failed")) == 2


def test_library_is_reopened_for_a_new_failure_and_not_for_each_sample(node, nvml, service):
    """A handle may be of before a reset; but anew it is asked for samples that were counted
    already.
    """
    nvml.bad = {cards(node)[0]}
    looks(service, 50)
    assert nvml.opened == 1
    looks(service, 60)
    assert nvml.opened == 2


def test_no_card_that_answers_is_a_driver_that_fails(node, nvml, service, lines):
    nvml.bad = set(cards(node))
    looks(service, 3)
    assert len(lines("event=nvml-failed")) == 1 and lines("event=card-failed") == []
    nvml.bad, nvml.stuck = {cards(node)[0]}, True
    looks(service, 1)
    assert lines("event=card-failed") == [], "one that hangs is no matter of a card"


def test_a_stop_outlasts_a_failure(node, nvml, service, child, lines):
    bad, _ = cards(node)
    settings = service.config.enforcer.audit.model_copy(update={"action": "stop"})
    service.inspector.enforcer.settings = settings
    node.arbiter.procs = [ProcessUse(9, bad, child, GIB)]
    nvml.put(bad, GpuProcess(child, 40 * GIB))
    looks(service, 2)
    os.waitpid(child, os.WUNTRACED)
    assert stopped(child)
    nvml.bad = {bad}
    looks(service, 3)
    os.kill(child, signal.SIGCONT)
    looks(service, 1)
    os.waitpid(child, os.WUNTRACED)
    assert stopped(child), "nobody saw that it holds less"


def test_dead_on_a_healthy_card_are_released_and_on_the_other_not(node, nvml, service):
    bad, good = cards(node)
    nvml.bad = {bad}
    node.dead_pids.update((50, 51))
    node.arbiter.deaths = [ProcessUse(9, bad, 50, GIB), ProcessUse(10, good, 51, GIB)]
    service.inspector.note_deaths()
    assert "gone 10 51" in node.arbiter.calls and "gone 9 50" not in node.arbiter.calls
    looks(service, 1)
    asked: list[int] = []
    nvml.before = lambda: asked.append(1)
    for _ in range(40):
        service.inspector.poll_dead()
    assert len(asked) == 0 and "gone 9 50" not in node.arbiter.calls, "it is known to fail"
    nvml.bad = set()
    for _ in range(20):
        service.inspector.poll_dead()
    assert "gone 9 50" in node.arbiter.calls


def test_who_was_registered_on_a_failing_card_is_remembered_for_the_next_arbiter(
    node, nvml, service
):
    bad, _ = cards(node)
    node.arbiter.procs = [ProcessUse(9, bad, 50, GIB)]
    nvml.put(bad, GpuProcess(50, 2 * GIB))
    looks(service, 1)
    nvml.bad = {bad}
    looks(service, 2)
    node.dead_pids.add(50)
    new_arbiter(node, service)
    looks(service, 1)
    nvml.bad = set()
    looks(service, 2)
    assert node.arbiter.overheads[9, bad] == 2 * GIB
