"""Checks of nodes and partitions in slurmctld, against qgpu.yaml."""

from __future__ import annotations

import time
from pathlib import Path

from cli.doctor.checks import site
from cli.doctor.checks.daemons import other_version
from cli.doctor.checks.gres import counts_fault, expected, group_of, node_counts
from cli.doctor.known import Known
from cli.doctor.result import RESTART_ALL, Check
from enforcer.ledger.read import node_configs, reading
from enforcer.ledger.schema import LedgerError

DOWN = {"DOWN", "INVAL", "INVALID_REG", "NOT_RESPONDING", "FAIL"}
NAMED = 3  # nodes named in one sentence; more are counted
Row = dict[str, str]


def rows(text: str) -> list[Row]:
    """The records of `scontrol -o show` of nodes and partitions, one per line.

    Values with blanks keep their first word. Texts of operators (Comment, Extra, Reason) come last,
    so the first of two equal keys is Slurm's.
    """
    found = []
    for line in text.split("\n"):
        row: Row = {}
        for word in line.split(" "):
            key, sign, value = word.partition("=")
            if sign:
                row.setdefault(key, value)
        found.append(row)
    return [row for row in found if row]


def nodes(known: Known) -> Check:
    """Whether slurmctld has each node of qgpu.yaml, with its gres."""
    if not known.answers:
        return Check(
            "nodes", "fail", "not compared, since slurmctld does not answer", "see slurmctld"
        )
    said = known.host.said("scontrol", "-o", "show", "node")
    have: dict[str, Row] = {}
    for row in rows(said.out):
        have.setdefault(row.get("NodeName", ""), row)
    have.pop("", None)
    for name in known.need.node_names():
        fault = _node_fault(known, name, have.get(name))
        if fault:
            return _unfit(known, name, fault, have.get(name, {}))
    strangers = [name for name, row in have.items() if "qgpu:" in row.get("Gres", "")]
    strangers = [name for name in strangers if name not in known.need.node_names()]
    if strangers:
        text = (
            f"{', '.join(strangers[:NAMED])} has qgpu in Gres=, but is not under nodes in qgpu.yaml"
        )
        return Check(
            "nodes", "fail", text, "add it to nodes in qgpu.yaml, or take qgpu out of its Gres="
        )
    return _states(known, have)


def _unfit(known: Known, name: str, fault: str, row: Row) -> Check:
    """A node whose gres are wrong: by slurm.conf, by a slurmctld that has not read it, or only
    until the node registers with a slurmctld that was started just now.
    """
    wrong = [each for each in site.found(known, "slurm.conf") if each.key in ("Gres", "NodeName")]
    if wrong:
        return Check("nodes", "fail", fault, site.todo_of(wrong[0]))
    if row.get("SlurmdStartTime") == "None":
        text = f"{name} has not registered since slurmctld was started, so its gres are unknown"
        todo = f"ask doctor again in a minute; if it stays, systemctl restart slurmd on {name}"
        return Check("nodes", "warn", text, todo)
    return Check("nodes", "fail", fault, f"{known.slurm_conf} has it: {RESTART_ALL}")


def _node_fault(known: Known, name: str, row: Row | None) -> str:
    if row is None:
        return f"slurmctld does not know {name} of qgpu.yaml"
    gres = row.get("Gres", "(null)")
    if gres in ("(null)", ""):
        return f"{name} has no Gres="
    fault = counts_fault(node_counts(gres), expected(group_of(known.need, name)))
    return f"{name} has Gres={gres}: {fault}" if fault else ""


def _states(known: Known, have: dict[str, Row]) -> Check:
    mine = {name: have[name] for name in known.need.node_names()}
    for name, row in mine.items():
        version = row.get("Version", "")
        if other_version(version, known.need.slurm.version):
            text = f"slurmd of {name} is Slurm {version}, qgpu.yaml says {known.need.slurm.version}"
            return Check(
                "nodes", "fail", text, "install the same Slurm there, and qgpu-slurm-plugins for it"
            )
    down = [name for name, row in mine.items() if is_down(row.get("State", ""))]
    if down:
        text = f"{', '.join(down[:NAMED])}: {mine[down[0]]['State']}"
        return Check(
            "nodes", "fail", text, f"start slurmd there; qgpu doctor on {down[0]} has more"
        )
    drained = [name for name, row in mine.items() if "DRAIN" in row.get("State", "")]
    if drained:
        text = f"{', '.join(drained[:NAMED])} drained: {_reason(known, drained[0])}"
        return Check(
            "nodes", "warn", text, f"then scontrol update nodename={drained[0]} state=resume"
        )
    return Check("nodes", "ok", f"{len(mine)} node(s) with the gres of qgpu.yaml")


def is_down(state: str) -> bool:
    """Whether a State= such as IDLE+DRAIN or DOWN* is one of a node that should run; POWERED_DOWN
    is none.
    """
    if "POWER" in state:
        return False
    return "*" in state or bool(DOWN & set(state.strip("*~#!%$@^-").split("+")))


def _reason(known: Known, name: str) -> str:
    said = known.host.said("sinfo", "-h", "-N", "-n", name, "-o", "%E")
    return said.last or "no reason is told"


def same_config(known: Known) -> Check:
    """Whether the nodes have this qgpu.yaml, as far as `qgpu collect` reports."""
    path = known.need.reports.collected
    if path is None:
        text = "not compared: reports.collected is not set; qgpu doctor --probe compares one node"
        return Check("same config", "ok", text)
    if doubt := known.host.distrust(path) if known.host.uid == 0 else None:
        return Check("same config", "fail", f"{path} is not read, since {doubt}", doubt.todo)
    try:
        with reading(path) as database:
            told = node_configs(database)
    except LedgerError as error:
        return Check(
            "same config", "warn", str(error), "enable qgpu-collect.timer on the controller"
        )
    if not told:
        text = (
            "not compared: no node's records tell it (ledgers that are collected as files do not)"
        )
        return Check("same config", "ok", text)
    others = [name for name, (digest, _) in sorted(told.items()) if digest != known.digest]
    if others:
        age = (time.time() - told[others[0]][1]) / 60
        text = f"{', '.join(others[:NAMED])} had another qgpu.yaml {age:.0f} min ago"
        # Collected times are whole seconds.
        if all(told[name][1] + 1 < Path(known.path).stat().st_ctime for name in others):
            todo = "systemctl start qgpu-collect, then ask doctor again"
            return Check("same config", "warn", f"{text}, before this one was written", todo)
        todo = f"copy {known.path} there and restart qgpud, then systemctl start qgpu-collect here"
        return Check("same config", "fail", text, todo)
    silent = [name for name in known.need.node_names() if name not in told]
    if silent:
        text = f"{', '.join(silent[:NAMED])} did not tell which qgpu.yaml it has"
        return Check(
            "same config", "warn", text, "systemctl start qgpu-collect; its journal has the reason"
        )
    return Check("same config", "ok", f"{len(told)} node(s) have this qgpu.yaml")


def partitions(known: Known) -> Check:
    """Whether the partitions of qgpu.yaml exist, and whether they hold its nodes."""
    if not known.answers:
        return Check(
            "partitions", "fail", "not compared, since slurmctld does not answer", "see slurmctld"
        )
    have = {
        row["PartitionName"]
        for row in rows(known.host.said("scontrol", "-o", "show", "partition").out)
        if "PartitionName" in row
    }
    missing = [name for name in known.need.managed_partitions if name != "*" and name not in have]
    if missing:
        text = f"managed_partitions names {missing[0]}, which slurm.conf does not have"
        return Check(
            "partitions",
            "fail",
            text,
            f"correct it in qgpu.yaml; there are {', '.join(sorted(have))}",
        )
    managed = [name for name in known.need.managed_partitions if name != "*"]
    return Check(
        "partitions", "ok", f"cards are shared in {', '.join(managed) or 'all partitions'}"
    )
