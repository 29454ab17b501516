"""The checks of `qgpu doctor`. Each is a function of what is known so far; none changes anything."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

from cli import doctor_gres, doctor_slurm, doctor_system
from cli.card import hardware_words
from cli.daemon import node_name
from cli.doctor_result import Check
from enforcer.daemon.askproto import AskError, NoDaemonError, ask
from enforcer.daemon.driver import BrokenNodeError, find_driver
from enforcer.nvml import CardInfo, NvmlError
from enforcer.nvml_driver import PynvmlNvml
from gres.config import Config, ConfigError, load_config
from gres.identity import IdentityError, identify
from gres.units import MIB, format_mib

__all__ = ["Check", "examine"]

NAMED = 10  # jobs in one line; of the others it says how many


@dataclass
class Known:
    """What the checks found out; later ones use it."""

    config: Config | None = None
    node: str = ""
    cards: tuple[CardInfo, ...] | None = None
    shim: bool = False
    daemon: dict[str, object] = field(default_factory=dict)


def examine(config_path: str, node: str | None) -> list[Check]:
    """All checks of this node, in the order in which things depend on each other."""
    known = Known()
    checks = [_config(known, config_path, node)]
    config = known.config
    steps: list[Callable[[], Check]] = [doctor_system.sealing, doctor_system.membarrier]
    if config is not None:
        steps = [
            lambda: _driver(known, config),
            lambda: _nvml(known, config),
            lambda: _cards(known, config),
            lambda: _shim(known, config),
            lambda: _qgpud(known, config),
            lambda: _arbiter(known, config),
            lambda: _memory(known),
            lambda: _hardware(known),
            *steps,
        ]
    steps.append(doctor_system.cgroups)
    if config is not None:
        steps += [
            lambda: doctor_gres.gres_conf(config, known.node, known.cards),
            lambda: doctor_gres.native_plugins(config),
            lambda: doctor_slurm.plugstack(config),
            lambda: doctor_slurm.hooks(config),
            lambda: doctor_slurm.private_data(config),
        ]
    steps += [doctor_slurm.slurm, doctor_slurm.munge]
    return checks + [step() for step in steps]


def _config(known: Known, path: str, node: str | None) -> Check:
    try:
        config = load_config(path)
        known.node = node_name(node, config)
        known.config = load_config(path, known.node)
    except ConfigError as error:
        text = str(error).splitlines()[0]
        return Check("config", "fail", text, "docs/specs/config.md has every key; --node names another node")
    return Check("config", "ok", f"{path}, node {known.node}")


def _driver(known: Known, config: Config) -> Check:
    try:
        return Check("driver", "ok", find_driver(config.driver.libcuda, config.shim))
    except BrokenNodeError as error:
        return Check("driver", "fail", str(error), "install the NVIDIA driver, or set driver.libcuda")


def _nvml(known: Known, config: Config) -> Check:
    try:
        nvml = PynvmlNvml(config.driver.nvml)
        known.cards = nvml.cards()
        version = nvml.driver_version()
        nvml.close()
    except NvmlError as error:
        return Check("nvml", "fail", str(error), "is the kernel module loaded? nvidia-smi must work")
    return Check("nvml", "ok", f"driver {version}, {len(known.cards)} card(s)")


def _cards(known: Known, config: Config) -> Check:
    if known.cards is None:
        return Check("cards", "fail", "not compared, since NVML does not answer")
    node = config.node(known.node)
    try:
        named = identify(node, range(len(node.cards)))
    except IdentityError as error:
        return Check("cards", "fail", str(error), "correct files under nodes in qgpu.yaml")
    by_place = {card.place: card for card in known.cards}
    for card in named:
        info = by_place.get(card.place)
        if info is None:
            text = f"card {card.spec.index} ({','.join(card.spec.paths)}) is not seen by NVML"
            return Check("cards", "fail", text, "look for Xid errors, or correct nodes in qgpu.yaml")
        if info.mem_total < card.spec.usable * MIB:
            text = f"card {card.spec.index} has {format_mib(info.mem_total // MIB)}, not {format_mib(card.spec.memory)}"
            return Check("cards", "fail", text, f"correct models.{node.model}.memory in qgpu.yaml")
    spare = len(known.cards) - len(named)
    if spare > 0:
        return Check(
            "cards", "warn", f"{spare} card(s) of this node are not in qgpu.yaml", "add them to nodes"
        )
    kind = "MIG instance(s)" if any(card.instance for card in named) else ""
    return Check("cards", "ok", " ".join(filter(None, (f"{len(named)}", kind, "as in qgpu.yaml"))))


def _shim(known: Known, config: Config) -> Check:
    path = Path(config.shim)
    fault = doctor_system.shim_fault(path)
    if fault:
        return Check(
            "shim", "fail", f"{path}: {fault}", "install the package again, or correct shim in qgpu.yaml"
        )
    known.shim = True
    if not path.parent.name.isdigit():
        todo = (
            "install it as .../qgpu/VERSION/libcuda.so.1, so that an upgrade does not replace it under jobs"
        )
        return Check("shim", "warn", f"{path} loads, but its directory has no version", todo)
    how = config.node(known.node).injection
    return Check("shim", "ok", f"{path} loads, version {path.parent.name}, injected by {how}")


def _qgpud(known: Known, config: Config) -> Check:
    run_dir = config.node(known.node).run_dir
    try:
        known.daemon, _ = ask(run_dir, {"op": "status"}, timeout=5)
    except NoDaemonError as error:
        return Check("qgpud", "fail", str(error), "systemctl start qgpud; its journal has the reason")
    except AskError as error:
        return Check(
            "qgpud", "fail", str(error), "run qgpu doctor again; the journal of qgpud has the reason"
        )
    return Check("qgpud", "ok", f"serves {known.daemon['node']}, {known.daemon['grants']} grant(s)")


def _arbiter(known: Known, config: Config) -> Check:
    run_dir = config.node(known.node).run_dir
    if not known.daemon:
        return Check("arbiter", "fail", "not asked, since qgpud does not answer")
    if not known.daemon.get("arbiter"):
        text = f"qgpud does not reach it at {run_dir}/arbiter.sock"
        return Check("arbiter", "fail", text, "systemctl start qgpu-arbiter")
    policies = doctor_system.arbiter_policies(run_dir)
    if policies is None:
        return Check(
            "arbiter", "warn", "reached; its process is not to be seen", "run qgpu doctor in its pid space"
        )
    if "SCHED_FIFO" in policies or "SCHED_RR" in policies:
        return Check("arbiter", "ok", "reached, its card threads run with SCHED_FIFO")
    todo = "LimitRTPRIO=99 and CAP_SYS_NICE for its unit; with RT_GROUP_SCHED not in a child cpu cgroup"
    return Check("arbiter", "warn", "reached, but without real-time scheduling: gates close late", todo)


def _hardware(known: Known) -> Check:
    """One line for all cards; what fails for a tenant is a warning, since gating remains."""
    told = cast("dict[str, dict[str, Any]]", known.daemon.get("hardware") or {})
    if not told:
        return Check(
            "hardware", "ok", "hardware preemption is off: qgpud has told the arbiter of no card yet"
        )
    texts = list(dict.fromkeys(hardware_words(card) for card in told.values()))
    if len(texts) > 1:
        texts = [f"{uuid}: {hardware_words(card)}" for uuid, card in told.items()]
    text = "hardware preemption is " + "; ".join(texts)
    if any(row["state"] == "failed" for card in told.values() for row in card["tenants"]):
        todo = "kernels that run are not stopped; docs/specs/hardware.md explains each reason"
        return Check("hardware", "warn", text, todo)
    return Check("hardware", "ok", text)


def _softer(known: Known) -> str:
    """Jobs of a hard node whose own cap is not: programs of qgpu run, and jobs that begin just now."""
    rows = cast("list[dict[str, Any]]", known.daemon.get("memory_jobs") or [])
    soft = sorted({row["job"] for row in rows if row["strength"] != "hard"})
    if not soft:
        return ""
    count = len(soft) + cast("int", known.daemon.get("memory_jobs_left") or 0)
    named = ", ".join(map(str, soft[:NAMED])) + (f" and {count - NAMED} more" if count > NAMED else "")
    return f", except job {named}: {count} with the shim alone now"


def _memory(known: Known) -> Check:
    strength: Literal["hard", "cooperative", "none"] = "none"
    if known.daemon and known.shim:
        strength = "hard" if known.daemon.get("memory") == "hard" else "cooperative"
    if strength == "hard":
        text = "hard: the driver refuses what is above the cap, whatever a program does" + _softer(known)
        return Check("memory caps", "ok", text)
    if strength == "cooperative":
        why = known.daemon.get("memory_why") or "the driver's own limits are not used"
        text = f"cooperative: the shim refuses; a program that goes around it is found by the audit ({why})"
        return Check("memory caps", "warn", text, "see enforcer.audit in qgpu.yaml for what is then done")
    return Check("memory caps", "fail", "none: shim and qgpud are both needed", "see above")
