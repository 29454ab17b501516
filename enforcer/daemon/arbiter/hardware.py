"""Decides hardware preemption: for which cards, through which control device, and why not for
others.

The arbiter acts (docs/specs/hardware.md). A control device is named by what only root can make: the
device number of /dev/nvidiactl, or the file that the simulator of this node serves.
"""

from __future__ import annotations

import logging
import os
import re
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from enforcer.daemon.log import emit
from enforcer.nvml.port import NvmlError
from gres.config.enforcer import HardwareSettings
from gres.config.levels import CardPlan

CONTROL = Path("/dev/nvidiactl")
# driver versions whose structures qgpu_rm.h declares; the arbiter refuses others as well
DRIVERS = range(535, 596)
MAX_ROWS = 128  # tenants in one answer, about 25 KiB: a message of qgpud.sock has 64 KiB
UNMEASURED = (
    "auto leaves real cards alone until make gpu PART=experiments was run on such a one;"
    " enforcer.hardware.enabled: on forces it"
)


@dataclass(frozen=True)
class ControlDevice:
    """How the arbiter recognises the control device; rdev 0: a simulated
    one. `why`: there is none.
    """

    dev: int = 0
    ino: int = 0
    rdev: int = 0
    why: str = ""

    @property
    def simulated(self) -> bool:
        """Whether a simulator of this node serves it."""
        return self.rdev == 0


@dataclass(frozen=True)
class HardwareOrder:
    """The order for one card. `why` gives the reason if `enabled` is not set."""

    uuid: str
    enabled: bool
    method: str = "auto"
    actor: str = "auto"
    weights: bool = False
    driver_major: int = 0
    device: ControlDevice = ControlDevice()
    why: str = ""


@dataclass(frozen=True)
class HardwareUse:
    """The arbiter's report on one tenant; state: none, ready, stopped or
    failed, for reason `why`.
    """

    job_id: int
    uuid: str
    state: str
    method: str = ""
    actor: str = ""
    groups: int = 0
    stops: int = 0
    failures: int = 0
    stopped_ns: int = 0
    stop_max_ns: int = 0
    stop_hist: tuple[int, ...] = ()
    why: str = ""

    def counters(self) -> dict[str, int]:
        """Counters for the live state and the metrics."""
        found = {
            "hw_stops": self.stops,
            "hw_failures": self.failures,
            "hw_stopped_ns": self.stopped_ns,
        }
        return found | {f"hw_le_{bucket}": count for bucket, count in enumerate(self.stop_hist)}


@dataclass(frozen=True)
class HardwareReport:
    """The arbiter's report on all tenants, and on cards where it gave hardware preemption up.

    `hung`: number of driver calls that hang, per such card.
    """

    uses: list[HardwareUse]
    hung: Mapping[str, int] = field(default_factory=dict)


def _simulated(sim_dir: str) -> ControlDevice:
    """Read the simulator's file: device and inode, or one word if it offers none."""
    try:
        text = Path(sim_dir, "control").read_text()
        if text == "none\n":
            return ControlDevice(why="this simulator offers no control device")
        device, inode = map(int, text.split())
    except (OSError, ValueError) as error:
        return ControlDevice(
            why=f"no simulator says in {sim_dir} which its control device is: {error}"
        )
    return ControlDevice(device, inode)


def find_control(sim_dir: str | None, path: Path = CONTROL) -> ControlDevice:
    """The control device of this node: the simulator's where QGPU_SIM_DIR is set, else the
    driver's.
    """
    if sim_dir:
        return _simulated(sim_dir)
    try:
        info = os.lstat(path)
    except OSError as error:
        return ControlDevice(why=f"{path}: {error.strerror}")
    if not stat.S_ISCHR(info.st_mode) or info.st_uid != 0:
        return ControlDevice(why=f"{path} is not a character device of root's")
    return ControlDevice(info.st_dev, info.st_ino, info.st_rdev)


def major_of(version: str) -> int:
    """580 for 580.95.05; 0 for what is no version."""
    found = re.match(r"(\d+)\.", version)
    return int(found[1]) if found else 0


@dataclass
class HardwareView:
    """The orders for the node's cards. `driver_version` asks NVML."""

    settings: HardwareSettings
    driver_version: Callable[[], str]
    control: Callable[[], ControlDevice] = lambda: find_control(os.environ.get("QGPU_SIM_DIR"))
    orders: dict[str, HardwareOrder] = field(default_factory=dict)

    def order(self, plans: Mapping[str, CardPlan]) -> list[HardwareOrder]:
        """The orders for these cards."""
        device, major, why = self.control(), 0, ""
        try:
            major = major_of(self.driver_version())
        except NvmlError as error:
            why = f"the driver does not tell its version: {error}"
        why = device.why or why
        if not why and major not in DRIVERS:
            why = (
                f"driver {major} is not one of {DRIVERS[0]} to {DRIVERS[-1]}, whose control calls"
                " are known"
            )
        return [self._one(uuid, plan, device, major, why) for uuid, plan in plans.items()]

    def _one(
        self, uuid: str, plan: CardPlan, device: ControlDevice, major: int, why: str
    ) -> HardwareOrder:
        settings = self.settings
        order = HardwareOrder(
            uuid, True, settings.method, settings.actor, settings.weights, major, device, ""
        )
        if plan.hardware == "off":
            why = f"{plan.sources['hardware']} says off"
        elif plan.hardware == "auto" and not device.simulated and not why:
            why = UNMEASURED
        elif not plan.governed("offline"):
            why = "offline jobs are not governed on this card"
        return replace(order, enabled=not why, why=why)

    def send_orders(
        self, plans: Mapping[str, CardPlan], send: Callable[[HardwareOrder], str]
    ) -> None:
        """Send the orders for these cards; changes since the last call are logged."""
        for order in self.order(plans):
            refused = send(order)
            if refused and order.enabled:
                order = replace(order, enabled=False, why=refused)
            before = self.orders.get(order.uuid)
            if before is None or (before.enabled, before.why) != (order.enabled, order.why):
                why = order.why or None
                emit(logging.INFO, "hardware", card=order.uuid, enabled=not why, why=why)
            self.orders[order.uuid] = order

    def note_off(self, hung: Mapping[str, int]) -> None:
        """Note and log the cards where the arbiter gave hardware preemption up."""
        for uuid, calls in hung.items():
            order = self.orders.get(uuid)
            if order is not None and order.enabled:
                why = f"the arbiter gave it up: {calls} control calls of the driver hang there"
                self.orders[uuid] = replace(order, enabled=False, why=why)
                emit(logging.ERROR, "hardware", card=uuid, enabled=False, why=why)

    def wanted(self) -> bool:
        """Whether hardware preemption is ordered on any card."""
        return any(order.enabled for order in self.orders.values())

    def describe(self, uses: list[HardwareUse]) -> dict[str, dict[str, object]]:
        """Report per card for `qgpu doctor` and `qgpu card`.

        At most MAX_ROWS tenants of all cards together, failed ones first; and how many more each
        card has.
        """
        by_card: dict[str, list[HardwareUse]] = {uuid: [] for uuid in self.orders}
        for use in sorted(uses, key=lambda use: use.state != "failed"):
            if use.uuid in by_card:
                by_card[use.uuid].append(use)
        shown: dict[str, dict[str, object]] = {}
        room, cards = MAX_ROWS, len(self.orders)
        # Cards with few tenants come first: the rows that they leave are for the others.
        for number, uuid in enumerate(sorted(by_card, key=lambda uuid: len(by_card[uuid]))):
            rows = [_row(use) for use in by_card[uuid][: room // (cards - number)]]
            room -= len(rows)
            shown[uuid] = {"tenants": rows, "tenants_left": len(by_card[uuid]) - len(rows)}
        return {
            uuid: {"enabled": order.enabled, "why": order.why, **shown[uuid]}
            for uuid, order in self.orders.items()
        }


def _row(use: HardwareUse) -> dict[str, object]:
    row: dict[str, object] = {
        "job": use.job_id,
        "state": use.state,
        "method": use.method,
        "actor": use.actor,
    }
    return row | {"stops": use.stops, "failures": use.failures, "why": use.why}
