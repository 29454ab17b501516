"""Checks of a node: driver, cards, shim, daemons, and how strong caps are here."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal, cast

from cli.doctor.checks import system
from cli.doctor.known import Known
from cli.doctor.result import Check
from cli.live.card import hardware_words
from enforcer.daemon.granting.driver import BrokenNodeError, find_driver
from enforcer.daemon.requests.protocol import AskError, NoDaemonError, ask
from enforcer.nvml.driver import PynvmlNvml
from enforcer.nvml.port import NvmlError
from gres.grant.identity import IdentityError, identify
from gres.units import MIB, format_mib

LEAST_FREE_MIB = 64  # free MiB that the ledger needs at least, to grow for a while
LOST = (
    "journalctl -k -g Xid says whether it died: then drain and reboot this node, or exchange the"
    " card; where it is gone for good, correct count and files under nodes in qgpu.yaml"
)
NAMED = 10  # jobs named in one line; more are counted


def driver(known: Known) -> Check:
    """The real libcuda."""
    try:
        return Check("driver", "ok", find_driver(known.need.driver.libcuda, known.need.shim))
    except BrokenNodeError as error:
        return Check(
            "driver", "fail", str(error), "install the NVIDIA driver, or set driver.libcuda"
        )


def nvml(known: Known) -> Check:
    """Whether the driver answers. Its library is loaded here, so root loads none that others could
    exchange.
    """
    library = known.need.driver.nvml
    doubt = known.host.distrust(library) if library != "auto" and known.host.uid == 0 else None
    if doubt:
        return Check("nvml", "fail", f"{library} is not loaded, since {doubt}", doubt.todo)
    try:
        driver_ = PynvmlNvml(library)
        known.cards = driver_.cards()
        version = driver_.driver_version()
        driver_.close()
    except NvmlError as error:
        return Check(
            "nvml", "fail", str(error), "is the kernel module loaded? nvidia-smi must work"
        )
    return Check("nvml", "ok", f"driver {version}, {len(known.cards)} card(s)")


def cards(known: Known) -> Check:
    """Whether the cards of qgpu.yaml are there."""
    if known.cards is None:
        return Check("cards", "fail", "not compared, since NVML does not answer", "see nvml")
    node = known.need.node(known.node)
    try:
        named = identify(node, range(len(node.cards)))
    except IdentityError as error:
        return Check("cards", "fail", str(error), LOST)
    by_place = {card.place: card for card in known.cards}
    for card in named:
        info = by_place.get(card.place)
        if info is None:
            text = f"card {card.spec.index} ({','.join(card.spec.paths)}) is not seen by NVML"
            return Check("cards", "fail", text, LOST)
        if info.mem_total < card.spec.usable * MIB:
            text = (
                f"card {card.spec.index} has {format_mib(info.mem_total // MIB)}, not"
                f" {format_mib(card.spec.memory)}"
            )
            return Check("cards", "fail", text, f"correct models.{node.model}.memory in qgpu.yaml")
    spare = len(known.cards) - len(named)
    if spare > 0:
        return Check(
            "cards",
            "warn",
            f"{spare} card(s) of this node are not in qgpu.yaml",
            "add them to nodes",
        )
    kind = "MIG instance(s)" if any(card.instance for card in named) else ""
    return Check("cards", "ok", " ".join(filter(None, (f"{len(named)}", kind, "as in qgpu.yaml"))))


def shim(known: Known) -> Check:
    """Whether jobs can load the shim."""
    path = Path(known.need.shim)
    fault = system.shim_fault(path, known.host)
    if fault:
        doubt = known.host.distrust(path)
        todo = doubt.todo if doubt else "install qgpu-node again, or correct shim in qgpu.yaml"
        return Check("shim", "fail", f"{path}: {fault}", todo)
    known.shim = True
    if not path.parent.name.isdigit():
        todo = (
            "install it as .../qgpu/VERSION/libcuda.so.1, so that an upgrade does not replace it"
            " under jobs"
        )
        return Check("shim", "warn", f"{path} loads, but its directory has no version", todo)
    return Check("shim", "ok", f"{path} loads, version {path.parent.name}")


def nvml_shim(known: Known) -> Check:
    """Without the job's own NVML, nvidia-smi and frameworks see the whole card's memory."""
    path = Path(known.need.shim).with_name("libnvidia-ml.so.1")
    fault = system.file_fault(path, known.host)
    if fault:
        text = f"{path}: {fault}: programs that ask NVML see the whole card"
        doubt = known.host.distrust(path)
        todo = doubt.todo if doubt else "install qgpu-node again"
        return Check("nvml shim", "fail", text, todo)
    return Check("nvml shim", "ok", f"{path} is there")


def qgpud(known: Known) -> Check:
    """Whether the daemon answers, and whether it has read this qgpu.yaml."""
    try:
        known.daemon, _ = ask(known.run_dir, {"op": "status"}, timeout=5)
    except NoDaemonError as error:
        return Check(
            "qgpud", "fail", str(error), "systemctl start qgpud; its journal has the reason"
        )
    except AskError as error:
        todo = "run qgpu doctor again; the journal of qgpud has the reason"
        return Check("qgpud", "fail", str(error), todo)
    read = known.daemon.get("config")
    if read and read != known.digest:
        text = f"serves {known.daemon['node']}, but has not read {known.path} since it was changed"
        return Check("qgpud", "fail", text, "systemctl restart qgpud; running jobs go on")
    return Check("qgpud", "ok", f"serves {known.daemon['node']}, {known.daemon['grants']} grant(s)")


def injection(known: Known) -> Check:
    """How tasks get the shim. LD_PRELOAD is the weaker way: an absolute path or a clean environment
    loses it.
    """
    wanted = known.need.node(known.node).injection
    mode = known.daemon.get("injection")
    why = known.daemon.get("injection_why")
    if not mode:
        return Check(
            "injection",
            "warn",
            f"qgpu.yaml says {wanted}; qgpud does not say what it does",
            "see qgpud",
        )
    if mode == "mount":
        return Check("injection", "ok", "mount: the shim lies over the driver's files in each task")
    lost = "lost by programs that open the driver by its path or clear their environment"
    if wanted == "auto":
        todo = "mend that and restart qgpud, or write injection: preload in qgpu.yaml"
        return Check("injection", "warn", f"preload, {lost}. Not mount, because {why}", todo)
    return Check("injection", "ok", f"preload as qgpu.yaml says, {lost}")


def state_dir(known: Known) -> Check:
    """Whether qgpud can keep its ledger, in its own view of the file system."""
    path = known.state_dir
    try:
        found = os.statvfs(f"{_root_of_qgpud(known)}{path}")
    except OSError as error:
        return Check(
            "state_dir", "fail", f"{path}: {error.strerror}", f"mkdir -m 0755 {path}, restart qgpud"
        )
    if found.f_flag & os.ST_RDONLY:
        todo = f"mount it writable, and let the unit write there: ReadWritePaths={path}"
        return Check("state_dir", "fail", f"{path} is read-only: nothing is accounted", todo)
    free = found.f_bavail * found.f_frsize // MIB
    if free < LEAST_FREE_MIB or (found.f_files and not found.f_favail):
        text = f"{path} is full: {free} MiB and {found.f_favail} inodes are free"
        return Check(
            "state_dir", "fail", text, "make room, or set ledger.max_size and ledger.retention"
        )
    return Check("state_dir", "ok", f"{path} is writable, {free} MiB are free")


def _root_of_qgpud(known: Known) -> str:
    """Where qgpud's own mounts are to be seen, since its unit may have others than this host; "" if
    they are not.
    """
    for process in known.host.daemons():
        mine = any(word.endswith(("qgpud", "enforcer.daemon.main")) for word in process.words[:3])
        root = f"{known.host.proc}/{process.pid}/root"
        if mine and process.option("--node") in ("", known.node) and os.access(f"{root}/", os.R_OK):
            return root
    return ""


def arbiter(known: Known) -> Check:
    """Whether gates are moved, and in real time."""
    run_dir = known.run_dir
    if not known.daemon:
        return Check("arbiter", "fail", "not asked, since qgpud does not answer")
    if not known.daemon.get("arbiter"):
        text = f"qgpud does not reach it at {run_dir}/arbiter.sock"
        return Check("arbiter", "fail", text, "systemctl start qgpu-arbiter")
    policies = system.arbiter_policies(run_dir, known.host)
    if policies is None:
        return Check(
            "arbiter",
            "warn",
            "reached; its process is not to be seen",
            "run qgpu doctor in its pid space",
        )
    if "SCHED_FIFO" in policies or "SCHED_RR" in policies:
        return Check("arbiter", "ok", "reached, its card threads run with SCHED_FIFO")
    todo = (
        "LimitRTPRIO=99 and CAP_SYS_NICE for its unit; with RT_GROUP_SCHED not in a child cpu"
        " cgroup"
    )
    return Check(
        "arbiter", "warn", "reached, but without real-time scheduling: gates close late", todo
    )


def hardware(known: Known) -> Check:
    """One line for all cards; what fails for a tenant is a warning, since gating remains."""
    told = cast("dict[str, dict[str, Any]]", known.daemon.get("hardware") or {})
    if not told:
        return Check(
            "hardware",
            "ok",
            "hardware preemption is off: qgpud has told the arbiter of no card yet",
        )
    texts = list(dict.fromkeys(hardware_words(card) for card in told.values()))
    if len(texts) > 1:
        texts = [f"{uuid}: {hardware_words(card)}" for uuid, card in told.items()]
    text = "hardware preemption is " + "; ".join(texts)
    if any(row["state"] == "failed" for card in told.values() for row in card["tenants"]):
        todo = "kernels that run are not stopped; docs/specs/hardware.md explains each reason"
        return Check("hardware", "warn", text, todo)
    return Check("hardware", "ok", text)


def idle_release(known: Known) -> Check:
    """How long cards idle after online's work; a hint where auto may fill that time."""
    config = known.need
    if not {"online", "offline"} <= {*config.qos.values(), config.default_class}:
        return Check("idle_release", "ok", "jobs are of one class, so none waits for the other")
    try:
        told = ask(known.run_dir, {"op": "cards"}, timeout=5)[0]
    except AskError:
        return Check("idle_release", "ok", "not asked, since qgpud does not answer")
    cards = cast("list[dict[str, Any]]", told.get("cards") or [])
    timed = {card["index"]: card["settings"]["idle_release"] for card in cards}
    timed = {index: value for index, value in timed.items() if value != "auto"}
    if not timed:
        text = "auto: jobs that leave a card fast come at once" if cards else "qgpud names no card"
        return Check("idle_release", "ok", text)
    text = (
        f"{', '.join(sorted(set(timed.values())))} on card {', '.join(map(str, timed))}: so long a"
        " card idles after each work of online; with auto, jobs that leave it fast come at once"
    )
    todo = (
        f"where online serves requests: qgpu card set {next(iter(timed))} idle_release=auto, or"
        " enforcer: {idle_release: auto} in qgpu.yaml; qgpu report --since 1d shows what was lost"
    )
    return Check("idle_release", "ok", text, todo)


def _cooperative_jobs(known: Known) -> str:
    """Jobs of a hard node whose own cap is not: programs of qgpu run, and
    jobs that begin just now.
    """
    rows = cast("list[dict[str, Any]]", known.daemon.get("memory_jobs") or [])
    soft = sorted({row["job"] for row in rows if row["strength"] != "hard"})
    if not soft:
        return ""
    count = len(soft) + cast("int", known.daemon.get("memory_jobs_left") or 0)
    named = ", ".join(map(str, soft[:NAMED])) + (
        f" and {count - NAMED} more" if count > NAMED else ""
    )
    return f", except job {named}: {count} with the shim alone now"


def memory(known: Known) -> Check:
    """How strong memory caps are here."""
    strength: Literal["hard", "cooperative", "none"] = "none"
    if known.daemon and known.shim:
        strength = "hard" if known.daemon.get("memory") == "hard" else "cooperative"
    if strength == "hard":
        text = (
            "hard: the driver refuses what is above the cap, whatever a program does"
            + _cooperative_jobs(known)
        )
        return Check("memory caps", "ok", text)
    if strength == "cooperative":
        why = known.daemon.get("memory_why") or "the driver's own limits are not used"
        text = (
            "cooperative: the shim refuses; a program that goes around it is found by the audit"
            f" ({why})"
        )
        return Check(
            "memory caps", "warn", text, "see enforcer.audit in qgpu.yaml for what is then done"
        )
    return Check("memory caps", "fail", "none: shim and qgpud are both needed", "see above")
