"""Metrics of a node: parsed back with prometheus-client's own parser."""

from __future__ import annotations

import contextlib
import http.client
import socket
from pathlib import Path

import pytest
from metrics_support import SECOND, Node, grant, seen
from prometheus_client import CollectorRegistry, generate_latest

from enforcer.reporting.metrics import COUNTERS, MAX_SCRAPES, NodeCollector, Publisher


def test_before_the_first_sample_there_is_nothing_but_no_error():
    assert Node().read() == {}


def test_cards_and_sums_per_class():
    node = Node()
    grants = (grant(1), grant(2), grant(3, "offline"))
    node.sample(seen(1), seen(2), seen(3), grants=grants)
    node.sample(
        seen(1, busy_ns=SECOND // 4, launches=5),
        seen(2, busy_ns=SECOND // 2),
        seen(3),
        grants=grants,
    )
    found = node.read()
    assert found["qgpu_card_utilization_ratio"] == {(): 0.4} and found[
        "qgpu_card_memory_used_bytes"
    ] == {(): 20}
    assert found["qgpu_card_use_ratio"] == {(): 0.75}
    assert found["qgpu_granted_ratio"] == {("online",): 0.6, ("offline",): 0.3}
    assert found["qgpu_used_ratio"][("online",)] == pytest.approx(0.75)
    assert found["qgpu_memory_used_bytes"] == {("online",): 14, ("offline",): 7}
    assert found["qgpu_busy_seconds_total"] == {("online",): 0.75, ("offline",): 0.0}
    assert found["qgpu_launches_total"][("online",)] == 5
    assert found["qgpu_tenants"] == {("online", "running"): 2, ("offline", "idle"): 1}
    assert found["qgpu_state_age_seconds"] == {(): 0.5} and found["qgpu_arbiter_up"] == {(): 1}


def test_what_is_not_measured_has_no_sample_and_not_zero():
    node = Node()
    node.sample(None, grants=(grant(1),), util=None)
    found = node.read()
    assert "qgpu_card_utilization_ratio" not in found and "qgpu_used_ratio" not in found
    assert "qgpu_card_use_ratio" not in found
    assert "qgpu_memory_used_bytes" not in found and found["qgpu_granted_ratio"] == {
        ("online",): 0.3
    }
    assert found["qgpu_arbiter_up"] == {(): 0} and found["qgpu_tenants"] == {
        ("online", "unknown"): 1
    }


def test_sums_per_class_never_run_backwards():
    """Jobs end, come, the arbiter restarts or is away, and nothing counts twice."""
    node = Node()
    both, one = (grant(1), grant(2)), (grant(2),)
    looks = [
        # what was before our start does not count
        ((seen(1, busy_ns=9 * SECOND), seen(2)), both, 0.0),
        ((seen(1, busy_ns=10 * SECOND), seen(2, busy_ns=2 * SECOND)), both, 3.0),
        ((None,), both, 3.0),
        ((seen(1, busy_ns=11 * SECOND), seen(2, busy_ns=2 * SECOND)), both, 4.0),
        ((seen(2, busy_ns=3 * SECOND),), one, 5.0),
        ((seen(2, boot_id=2, busy_ns=SECOND),), one, 6.0),
        ((seen(2, boot_id=2, busy_ns=SECOND), seen(4, busy_ns=SECOND)), (*one, grant(4)), 7.0),
        ((), (), 7.0),
    ]
    for tenants, grants, total in looks:
        node.sample(*tenants, grants=grants)
        assert node.read()["qgpu_busy_seconds_total"][("online",)] == total, (tenants, total)


def test_text_is_what_prometheus_client_would_write():
    node = Node(job_labels=True)
    node.publisher.collector._user_of = lambda uid: f'a"b\\c\nd{uid}'
    node.sample(
        seen(1, busy_ns=SECOND, launches=10**17),
        seen(2),
        grants=(grant(1), grant(2), grant(3, None)),
    )
    node.sample(seen(1, busy_ns=SECOND), seen(2), grants=(grant(1), grant(2), grant(3, None)))
    registry = CollectorRegistry()
    registry.register(node.publisher.collector)
    assert node.publisher.text() == generate_latest(registry)


def test_job_labels_are_a_switch():
    node = Node(job_labels=True)
    node.sample(seen(1, busy_ns=SECOND), grants=(grant(1), grant(3, None)))
    found = node.read()
    assert found["qgpu_busy_seconds_total"] == {("online", "1", "1001"): 1.0}
    assert found["qgpu_granted_ratio"] == {
        ("online", "1", "1001"): 0.3,
        ("whole", "3", "1003"): 0.3,
    }
    node.sample(grants=())
    assert "qgpu_busy_seconds_total" not in node.read(), "a job that ended leaves no series"


def test_whole_jobs_appear():
    node = Node()
    node.sample(grants=(grant(3, None),))
    found = node.read()
    assert found["qgpu_card_whole"] == {(): 1} and found["qgpu_tenants"] == {("whole", "whole"): 1}


def test_every_counter_reaches_its_metric():
    node = Node(job_labels=True)
    values = {name: n * SECOND for n, name in enumerate(COUNTERS, 1)}
    node.sample(seen(1, **values), grants=(grant(1),))
    found = node.read()
    for n, (name, (metric, unit, _)) in enumerate(COUNTERS.items(), 1):
        assert list(found[f"{metric}_total"].values()) == [pytest.approx(n * SECOND * unit)], name


def test_port_answers_on_the_loopback_address_only():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    node = Node(port=port)
    node.sample(seen(1), grants=(grant(1),))
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", "/metrics")
    body = connection.getresponse().read()
    assert b"qgpu_granted_ratio" in body
    listening = [
        line.split()[1]
        for line in Path("/proc/net/tcp").read_text().splitlines()
        if f":{port:04X}" in line
    ]
    assert {entry.split(":")[0] for entry in listening} == {"0100007F"}
    connection.close()
    with pytest.raises(OSError):
        Node(port=port)
    node.publisher.close()


def test_textfile_is_what_a_scrape_would_get(tmp_path: Path):
    node = Node(textfile=tmp_path / "qgpu.prom")
    node.sample(seen(1), grants=(grant(1),))
    assert (tmp_path / "qgpu.prom").read_bytes() == node.publisher.text()
    assert (tmp_path / "qgpu.prom").stat().st_mode & 0o777 == 0o644


def test_slow_scrapes_delay_no_other():
    with contextlib.closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    made: list[int] = []

    class Counted(Publisher):
        def text(self) -> bytes:
            made.append(1)
            return b"x 1\n"

    publisher = Counted(NodeCollector(lambda: None, False, lambda: 0.0), port)
    try:
        with contextlib.ExitStack() as stack:
            for _ in range(MAX_SCRAPES - 2):
                stack.enter_context(
                    contextlib.closing(socket.create_connection(("127.0.0.1", port)))
                ).sendall(b"GET")
            for _ in range(20):
                client = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
                client.request("GET", "/metrics")
                assert client.getresponse().read() == b"x 1\n"
                client.close()
        assert 1 <= len(made) < 20, "one text for all who ask in the same moment"
    finally:
        publisher.close()
