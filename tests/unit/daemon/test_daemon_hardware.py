"""Hardware preemption in qgpud: control device, cards, and messages to users."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from metrics_support import Node, grant, seen

from cli.doctor.checks.node import hardware as hardware_check
from cli.doctor.known import Known
from cli.live.card import hardware_words
from enforcer.daemon.arbiter.hardware import (
    DRIVERS,
    UNMEASURED,
    ControlDevice,
    HardwareUse,
    HardwareView,
    find_control,
    major_of,
)
from enforcer.daemon.arbiter.sampling import Sampler
from enforcer.daemon.requests.answers import Asks
from enforcer.daemon.requests.reply import Peer
from enforcer.nvml.port import NvmlError
from enforcer.reporting.attach import seen_of
from enforcer.reporting.state import Seen, Watcher
from gres.config.enforcer import HardwareSettings
from gres.config.levels import plan_card
from gres.config.site import ConfigError, parse_config
from simulator.fakes import CONFIG, FakeNode

SIM = ControlDevice(dev=77, ino=9)
REAL = ControlDevice(dev=5, ino=6, rdev=os.makedev(195, 255))


def view(device: ControlDevice, version: str = "580.95.05", **settings: Any) -> HardwareView:
    return HardwareView(HardwareSettings(**settings), lambda: version, lambda: device)


def plans(hardware: str = "", isolation: str = "governed") -> dict[str, Any]:
    config = parse_config(CONFIG.format(directory="/x", deadline="1s"))
    live = {"isolation.offline": isolation} | ({"hardware": hardware} if hardware else {})
    return {"GPU-a": plan_card(config, config.node("n1"), 0, "GPU-a", live)}


def ordered(
    found: HardwareView, hardware: str = "", isolation: str = "governed"
) -> tuple[bool, str]:
    (order,) = found.order(plans(hardware, isolation))
    return order.enabled, order.why


@pytest.mark.parametrize(
    ("word", "value"), [("on", "on"), ("off", "off"), ("auto", "auto"), ("'on'", "on")]
)
def test_a_bare_on_of_yaml_is_the_word(word: str, value: str) -> None:
    text = CONFIG.format(directory="/x", deadline="1s")
    config = parse_config(
        text.replace("enforcer: {", f"enforcer: {{hardware: {{enabled: {word}}}, ")
    )
    assert config.enforcer.hardware.enabled == value
    assert plan_card(config, config.node("n1"), 0, "GPU-a").hardware == value
    model = parse_config(text.replace("reserve: 2GiB", f"reserve: 2GiB, hardware: {word}"))
    found = plan_card(model, model.node("n1"), 0, "GPU-a")
    assert (found.hardware, found.sources["hardware"]) == (value, "models.h200")


def test_other_words_are_refused_with_those_that_work() -> None:
    text = CONFIG.format(directory="/x", deadline="1s")
    with pytest.raises(ConfigError, match=r"enforcer.hardware.enabled: .*'auto', 'on' or 'off'"):
        parse_config(text.replace("enforcer: {", "enforcer: {hardware: {enabled: yea}, "))


def test_the_control_device_of_a_simulator_is_the_file_that_it_names(tmp_path: Path) -> None:
    told = tmp_path / "control"
    assert "no simulator says" in find_control(str(tmp_path)).why, "no file"
    told.write_text("77 9\n")
    assert find_control(str(tmp_path)) == SIM and SIM.simulated
    told.write_text("none\n")
    assert find_control(str(tmp_path)).why == "this simulator offers no control device"
    told.write_text("seven nine\n")
    assert "no simulator says" in find_control(str(tmp_path)).why, "no numbers"


def test_the_real_control_device_is_a_character_device_of_roots(tmp_path: Path) -> None:
    null = Path("/dev/null").stat()
    assert find_control(None, Path("/dev/null")) == ControlDevice(
        null.st_dev, null.st_ino, null.st_rdev
    )
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("/dev/null")
    for name in ("file", "link"):
        assert "no" in find_control(None, tmp_path / name).why, name
    assert "No such file" in find_control(None, tmp_path / "absent").why


def test_versions() -> None:
    assert [major_of(text) for text in ("580.95.05", "615.1", "", "abc")] == [580, 615, 0, 0]
    assert 535 in DRIVERS and 595 in DRIVERS and 615 not in DRIVERS


def test_auto_means_simulated_cards_and_on_means_every_card() -> None:
    assert ordered(view(SIM)) == (True, "")
    assert ordered(view(REAL)) == (False, UNMEASURED)
    assert ordered(view(REAL), "on") == (True, "")
    assert ordered(view(SIM), "off") == (False, "qgpu card set says off")


def test_nothing_is_ordered_where_it_cannot_be() -> None:
    def silent() -> str:
        raise NvmlError("NVML does not answer")

    assert ordered(view(SIM, "615.20"))[1].startswith("driver 615 is not one of 535 to 595")
    assert ordered(view(ControlDevice(why="no /dev/fuse")), "on") == (False, "no /dev/fuse")
    assert (
        "NVML does not answer" in ordered(HardwareView(HardwareSettings(), silent, lambda: SIM))[1]
    )
    assert ordered(view(SIM), isolation="none")[1] == "offline jobs are not governed on this card"


def test_the_order_carries_what_the_arbiter_must_know() -> None:
    (order,) = view(REAL, enabled="on", method="disable", actor="shim", weights=True).order(
        plans("on")
    )
    assert (order.method, order.actor, order.weights) == ("disable", "shim", True)
    assert (order.driver_major, order.device) == (580, REAL)


def service_of(node: FakeNode, device: ControlDevice = SIM) -> tuple[FakeNode, Any]:
    node.nvml.version = "580.95.05"
    service = node.service()
    service.hardware.control = lambda: device
    return node, service


def test_the_arbiter_gets_orders_with_the_list_and_after_its_restart(node: FakeNode) -> None:
    node, service = service_of(node)
    service.start()
    uuids = {card.uuid for card in node.nvml.cards()}
    assert set(node.arbiter.orders) == uuids and all(
        order.enabled for order in node.arbiter.orders.values()
    )
    node.arbiter.orders.clear()
    node.arbiter.restart()
    service.lose_arbiter("it restarted")
    assert service.reach_arbiter() and set(node.arbiter.orders) == uuids


def test_an_arbiter_that_refuses_does_without(node: FakeNode) -> None:
    node, service = service_of(node)
    node.arbiter.hardware_refusal = "the arbiter refused: there is no room for more"
    service.start()
    assert service.connected and not service.hardware.wanted()
    told = service.hardware.describe([])
    assert {card["why"] for card in told.values()} == {node.arbiter.hardware_refusal}


def test_an_arbiter_that_is_lost_in_between_is_an_arbiter_lost(node: FakeNode) -> None:
    node, service = service_of(node)
    service.start()
    node.arbiter.running = False
    assert service.order_hardware(service.plans()) is False and not service.connected


def test_a_live_change_reaches_the_arbiter_and_is_undone_by_reset(node: FakeNode) -> None:
    node, service = service_of(node)
    service.start()
    asks = Asks(service, os.getuid())
    me = Peer(os.getpid(), os.getuid(), os.getgid(), frozenset(), lambda: -1)
    uuid = node.nvml.cards()[0].uuid
    answer = asks.answer({"op": "card-set", "card": "0", "values": {"hardware": "off"}}, me).body
    assert answer["changed"] == [{"key": "hardware", "before": "auto", "after": "off"}]
    assert not node.arbiter.orders[uuid].enabled
    told = {"enabled": False, "why": "qgpu card set says off", "tenants": [], "tenants_left": 0}
    assert answer["card"]["hardware"] == told
    asks.answer({"op": "card-reset", "card": "0"}, me)
    assert node.arbiter.orders[uuid].enabled
    refused = asks.answer(
        {"op": "card-set", "card": "0", "values": {"hardware": "sometimes"}}, me
    ).body
    assert not refused["ok"] and "hardware=sometimes is refused" in refused["error"]


USE = HardwareUse(
    12, "GPU-a", "stopped", "schedule", "arbiter", 2, 3, 1, 10**9, 900, (0,) * 9 + (3,) + (0,) * 6
)


def test_only_a_node_that_uses_it_asks_for_it(node: FakeNode) -> None:
    node, service = service_of(node)
    service.start()
    uuid = node.nvml.cards()[0].uuid
    node.arbiter.count(12, uuid)
    node.arbiter.count(13, uuid)
    node.arbiter.uses = [replace(USE, uuid=uuid)]
    service.poll_arbiter()
    found = {tenant.sample.job_id: tenant.hardware for tenant in service.sampler.tenants}
    assert found == {12: replace(USE, uuid=uuid), 13: None}
    sampler: Sampler = service.sampler
    sampler.hardware = lambda: False
    node.arbiter.uses = [replace(USE, uuid=uuid, stops=99)]
    service.poll_arbiter()
    assert all(tenant.hardware is None for tenant in service.sampler.tenants)


def test_a_card_that_the_arbiter_gave_up_is_said_to_be_off(
    node: FakeNode, caplog: pytest.LogCaptureFixture
) -> None:
    node, service = service_of(node)
    service.start()
    uuid = node.nvml.cards()[0].uuid
    node.arbiter.count(12, uuid)
    assert service.hardware.describe([])[uuid]["enabled"] is True
    node.arbiter.hung = {uuid: 8, "GPU-unknown": 1}
    with caplog.at_level("ERROR", logger="qgpud"):
        service.poll_arbiter()
        service.poll_arbiter()
    shown = service.hardware.describe([])[uuid]
    assert shown["enabled"] is False and "8 control calls of the driver hang" in str(shown["why"])
    assert sum("gave it up" in record.getMessage() for record in caplog.records) == 1, "said once"


def test_a_stopped_tenant_is_shown_as_stopped() -> None:
    from enforcer.daemon.arbiter.port import Tenant
    from enforcer.ledger.store import Sample
    from enforcer.reporting.state import Card

    sample = Sample(1, "GPU-00000000-0000-0000-0000-000000000001", 1, 5, closed_preempted_ns=0)
    watcher, card = Watcher(), Card(sample.uuid, 0)
    for at, state in ((1, "ready"), (2, "stopped"), (3, "ready")):
        tenant = Tenant(
            sample._replace(closed_preempted_ns=at * 10**9), 1, hardware=replace(USE, state=state)
        )
        node = watcher.sample(
            "n1", [grant(1, "offline")], [seen_of(tenant)], [card], at * 10**9, at * 10**9
        )
        (row,) = node.cards[0].tenants
        assert row.hardware == state
        assert row.state == {1: "idle", 2: "stopped", 3: "preempted"}[at]
        assert (
            row.counters is not None
            and row.counters["hw_stops"] == 3
            and row.counters["hw_le_9"] == 3
        )


def use(job: int, stops: int, hist: tuple[int, ...], **sample: int) -> Seen:
    counters = replace(USE, stops=stops, stop_hist=hist, stopped_ns=stops * 10**9).counters()
    return seen(job, **sample)._replace(hardware="ready", hardware_counters=counters)


def test_metrics_sum_stops_and_their_times_per_class_and_go_on_when_jobs_end() -> None:
    node, none = Node(), (0,) * 16
    both = (grant(1, "offline"), grant(2, "offline"), grant(3, "online"))
    node.sample(use(1, 0, none), use(2, 0, none), seen(3), grants=both)
    hist = (0,) * 8 + (4,) + (0,) * 6 + (1,)
    node.sample(use(1, 5, hist), use(2, 2, (0,) * 10 + (2,) + (0,) * 5), seen(3), grants=both)
    found = node.read()
    assert found["qgpu_hardware_stops_total"] == {("offline",): 7}, "online has no series of it"
    assert found["qgpu_hardware_stopped_seconds_total"] == {("offline",): 7}
    buckets = found["qgpu_hardware_stop_seconds_bucket"]
    assert buckets[("offline", "0.000128")] == 0 and buckets[("offline", "0.000256")] == 4
    assert buckets[("offline", "0.001024")] == 6 and buckets[("offline", "+Inf")] == 7
    node.sample(use(2, 3, (0,) * 10 + (3,) + (0,) * 5), seen(3), grants=both[1:])
    assert node.read()["qgpu_hardware_stops_total"] == {("offline",): 8}


def test_a_node_without_it_has_no_series_of_it() -> None:
    node = Node()
    node.sample(seen(1), grants=(grant(1),))
    node.sample(seen(1), grants=(grant(1),))
    assert not [name for name in node.read() if "hardware" in name]


def card(enabled: bool = True, why: str = "", *tenants: dict[str, Any]) -> dict[str, Any]:
    return {"enabled": enabled, "why": why, "tenants": list(tenants)}


def tenant(state: str, why: str = "") -> dict[str, Any]:
    return {
        "job": 12,
        "state": state,
        "method": "schedule",
        "actor": "arbiter",
        "stops": 3,
        "failures": 0,
        "why": why,
    }


def test_words_for_people() -> None:
    assert hardware_words(card(False, UNMEASURED)) == f"off because {UNMEASURED}"
    assert hardware_words(card()) == "on; no tenant has been tried yet"
    assert hardware_words(card(True, "", tenant("ready"))) == (
        "on; job 12 ready by schedule through the arbiter, 3 stop(s)"
    )
    assert "gating alone because status 0x65" in hardware_words(
        card(True, "", tenant("failed", "status 0x65"))
    )


def test_doctor_has_one_line_and_warns_of_what_failed() -> None:
    known = Known(daemon={"hardware": {"GPU-a": card(False, "x"), "GPU-b": card(False, "x")}})
    assert (
        hardware_check(known).text == "hardware preemption is off because x"
        and hardware_check(known).status == "ok"
    )
    known = Known(
        daemon={
            "hardware": {"GPU-a": card(False, "x"), "GPU-b": card(True, "", tenant("failed", "y"))}
        }
    )
    found = hardware_check(known)
    assert found.status == "warn" and found.todo
    assert "GPU-a: off because x; GPU-b: on; job 12 gating alone because y" in found.text
    assert hardware_check(Known()).status == "ok"
