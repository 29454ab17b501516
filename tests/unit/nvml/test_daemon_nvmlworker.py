"""NVML behind a deadline: a driver that hangs stalls neither hooks nor audit, and comes back."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from daemon_support import hook_env as env
from daemon_support import sampled

from enforcer.daemon.granting.hookproto import Answer
from enforcer.daemon.node import NodeService
from enforcer.fdwait import readable_within
from enforcer.nvml.port import CardLostError, Nvml, NvmlError
from enforcer.nvml.worker import NvmlStuckError, NvmlThread
from simulator.fakes import GIB, FakeNode, FakeNvml

DEADLINE = 0.5  # s; a driver that answers must do so within it, also on a machine that stalls


class Hanging:
    """A fake driver whose calls can be held up."""

    def __init__(self) -> None:
        self.nvml = FakeNvml.with_cards(2, 80 * GIB)
        self._go = threading.Event()
        self._go.set()
        self.nvml.before = lambda: self._go.wait(30)

    def hang(self) -> None:
        self._go.clear()

    def go(self) -> None:
        self._go.set()


@pytest.fixture
def driver() -> Iterator[Hanging]:
    hanging = Hanging()
    yield hanging
    hanging.go()


@pytest.fixture
def threads(driver: Hanging) -> Iterator[Callable[..., NvmlThread]]:
    """Makes workers; each ends after the test, when its driver goes on."""
    made: list[NvmlThread] = []

    def make(opener: Callable[[], Nvml], deadline: float) -> NvmlThread:
        made.append(NvmlThread(opener, deadline))
        return made[-1]

    yield make
    driver.go()
    for worker in made:
        worker.close()


def until(condition) -> None:
    limit = time.monotonic() + 40
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.002)


def test_call_gives_the_result_and_passes_errors_on(driver, threads):
    worker = threads(lambda: driver.nvml, 10)
    assert len(worker.call(lambda nvml: nvml.cards())) == 2
    with pytest.raises(CardLostError, match="GPU-none"):
        worker.call(lambda nvml: nvml.processes("GPU-none"))
    driver.nvml.failure = "reloaded"
    with pytest.raises(NvmlError, match="reloaded"):
        worker.call(lambda nvml: nvml.cards())


def test_driver_that_was_reloaded_is_opened_again(driver, threads):
    old = FakeNvml.with_cards(1, GIB)
    old.failure = "Driver Not Loaded"
    opened = [old, driver.nvml]
    worker = threads(lambda: opened.pop(0), 10)
    assert len(worker.call(lambda nvml: nvml.cards())) == 2


def test_call_that_hangs_ends_at_the_deadline_and_the_next_fails_at_once(driver, threads):
    worker = threads(lambda: driver.nvml, DEADLINE)
    worker.call(lambda nvml: nvml.cards())
    driver.hang()
    with pytest.raises(NvmlStuckError, match=r"has not answered NVML for 0\.5 s"):
        worker.call(lambda nvml: nvml.cards())
    ran = []
    with pytest.raises(NvmlStuckError):
        worker.call(lambda nvml: ran.append(1))
    assert ran == [], "nothing is queued behind a call that hangs"
    driver.go()
    until(lambda: not worker.overdue())
    assert len(worker.call(lambda nvml: nvml.cards())) == 2


def test_started_call_wakes_the_loop_and_is_delivered_in_its_thread(driver, threads):
    worker = threads(lambda: driver.nvml, 10)
    found: list[object] = []
    assert worker.start(
        lambda nvml: nvml.cards(), lambda r: found.append((len(r), threading.get_ident()))
    )
    assert readable_within(worker.fileno(), 10)
    assert found == [], "not before the loop collects it"
    worker.collect()
    assert found == [(2, threading.get_ident())]
    assert not readable_within(worker.fileno(), 0)


def test_bug_in_an_action_is_delivered_as_an_error_and_the_worker_lives(driver, threads):
    worker = threads(lambda: driver.nvml, 10)
    found: list[object] = []
    worker.start(lambda nvml: 1 // 0, found.append)
    until(lambda: (worker.collect(), found)[1])
    assert isinstance(found[0], NvmlError) and "ZeroDivisionError" in str(found[0])
    assert worker.call(lambda nvml: 5) == 5


# ---- in the daemon -------------------------------------------------------------------------------


@pytest.fixture
def node(node: FakeNode, driver: Hanging) -> FakeNode:
    node.nvml = driver.nvml
    return node


@pytest.fixture
def service(node: FakeNode, threads: Callable[..., NvmlThread]) -> NodeService:
    real = node.service()
    real.ports.caller = lambda opener: threads(opener, DEADLINE)
    real.__post_init__()
    return real


def test_prolog_is_answered_from_the_last_known_cards_while_the_driver_hangs(
    node, service, driver, caplog
):
    logging.getLogger("qgpud").propagate = True
    service.start()
    driver.hang()
    began = time.monotonic()
    for job in range(9, 19):
        assert service.prolog(env(job, "qgpu/1 class=online share=30 mem=1024")) == Answer(0)
        sampled(service)
    assert time.monotonic() - began < 5, "ten prologs, of which one waited for the deadline"
    assert set(node.arbiter.grants) == set(range(9, 19))
    assert sum("event=nvml-stuck" in r.getMessage() for r in caplog.records) == 1, "said once"


def test_prolog_without_known_cards_is_a_broken_node_within_the_deadline(service, driver):
    driver.hang()
    service.start()
    answer = service.prolog(env())
    assert answer is not None and answer.status == 1 and "has not answered NVML" in answer.message


def test_audit_goes_on_when_the_driver_is_back(node, service, driver, caplog):
    logging.getLogger("qgpud").propagate = True
    service.start()
    service.prolog(env())
    driver.hang()
    sampled(service)
    for _ in range(5):
        sampled(service)
        service.nvml.collect()
    until(lambda: (sampled(service), "event=nvml-failed" in caplog.text)[1])
    sampled(service)
    assert caplog.text.count("event=nvml-failed") == 1, "said once"
    driver.go()
    until(lambda: (service.nvml.collect(), not service.inspector._sampling)[1])
    uuid = node.nvml.cards()[0].uuid
    from enforcer.nvml.port import GpuProcess

    node.nvml.put(uuid, GpuProcess(77, 1))
    for _ in range(3):
        sampled(service)
        until(lambda: (service.nvml.collect(), not service.inspector._sampling)[1])
    assert any("audit-stranger" in r.getMessage() for r in caplog.records)
