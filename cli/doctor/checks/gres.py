"""Compares what slurmd and slurmctld count on a node with qgpu.yaml."""

from __future__ import annotations

import re

from cli.doctor.checks import site
from cli.doctor.checks.daemons import UNREADABLE
from cli.doctor.known import Known
from cli.doctor.result import RESTART_ALL, Check
from gres.config.hostlist import expand
from gres.config.site import Config
from gres.units import MIB
from slurm_plugin.releases import OLDEST, shown
from slurm_plugin.render import GresGroup, gres_groups

# slurmd's last line if it cannot move itself to a cgroup; its faults of gres.conf end otherwise
NO_CGROUP = "slurmd initialization failed"
SILENT = ((24, 11, 0), (24, 11, 3))  # releases whose slurmd -G prints nothing
# what to do where the files are right, so slurmd has other ones
TAKEN = f"Slurm's files have it: {RESTART_ALL}; slurmd's log says what it does not take"
_GRES = re.compile(r"Gres Name=(\S+) Type=(\S+) Count=([0-9]+)")
_UNITS = {"K": 10, "M": 20, "G": 30, "T": 40}
Counts = dict[str, int]


def count_of(text: str) -> int:
    """A count of Slurm's, with its unit; -1 for what is none."""
    match = re.fullmatch(r"([0-9]+)([KMGT]?)", text.upper())
    return int(match[1]) << _UNITS.get(match[2], 0) if match else -1


def expected(group: GresGroup) -> Counts:
    """What Slurm should count on a node of that group."""
    counts = {f"qgpu:{name}": count for name, count in group.counts.items()}
    cards = len(group.cards)
    return {
        f"gpu:{group.model}": cards,
        "shard": 100 * cards,
        **counts,
        "vram": count_of(group.mem),
    }


def counts_fault(have: Counts, want: Counts) -> str:
    """The first count that differs; empty if none does. Other gres of the site do not matter."""
    for name, count in want.items():
        if have.get(name, 0) != count:
            told = have.get(name)
            return f"{name} is {'missing' if told is None else told}, it should be {count}"
    return ""


def group_of(config: Config, node: str) -> GresGroup:
    """The group that a node belongs to. Raises ConfigError (through `config.node`)."""
    config.node(node)
    return next(group for group in gres_groups(config) if node in expand(group.names))


def slurmd_counts(text: str) -> Counts:
    """The sums of what `slurmd -G` prints."""
    found: Counts = {}
    for name, kind, count in _GRES.findall(text):
        key = f"{name}:{kind}" if name in ("gpu", "qgpu") and kind != "(null)" else name
        found[key] = found.get(key, 0) + int(count)
    return found


def slurmd_gres(known: Known) -> Check:
    """Whether slurmd counts what it should by its files; it finds faults that their text does not
    show.
    """
    if not known.has_slurm or known.host.program("slurmd") is None:
        return Check("gres counts", "ok", "not compared, since there is no slurmd here")
    said = known.host.said("slurmd", "-G", "-N", known.node, "-f", str(known.slurm_conf))
    have = slurmd_counts(said.out + said.err)
    if not have:
        faults = [line for line in said.err.split("\n") if re.search(r"fatal|error", line)]
        if not faults and SILENT[0] <= (known.slurm_version or OLDEST) < SILENT[1]:
            todo = f"it is a fault of this Slurm, mended in {shown(SILENT[1])}: update"
            return Check("gres counts", "warn", "slurmd -G prints nothing", todo)
        if not faults:
            text = "slurmd -G prints nothing: it knows of no gres"
            return Check("gres counts", "fail", text, _mend(known) or TAKEN)
        if known.host.uid != 0 and faults[-1].endswith(NO_CGROUP):
            why = "slurmd -G needs root where cgroups are version 2"
            return Check("gres counts", "ok", f"not compared: {why}")
        if faults[-1].endswith(UNREADABLE):
            text = f"slurmd cannot read {known.slurm_conf}: {faults[0]}"
            todo = f"correct it until this says no fatal: slurmd -G -f {known.slurm_conf}"
            return Check("gres counts", "fail", text, _mend(known) or todo)
        return Check("gres counts", "fail", faults[-1], _mend(known) or TAKEN)
    fault = counts_fault(have, expected(group_of(known.need, known.node)))
    if fault:
        return Check("gres counts", "fail", f"slurmd counts: {fault}", _mend(known) or TAKEN)
    total = f"{have['shard']} shards, {have['vram'] // MIB} MiB"
    return Check("gres counts", "ok", f"slurmd counts what qgpu.yaml says: {total}")


def _mend(known: Known) -> str:
    """The first line that Slurm's files need; empty where they are right."""
    for kind in ("slurm.conf", "gres.conf"):
        for each in site.found(known, kind):
            if each.severity == "fail":
                return site.todo_of(each)
    return ""


def node_counts(text: str) -> Counts:
    """Counts of a Gres= value such as gpu:h200:2(S:0-1),shard:h200:200,vram:156G."""
    found: Counts = {}
    for item in re.sub(r"\([^)]*\)", "", text).split(","):
        parts = item.strip().split(":")
        if len(parts) < 2:
            continue
        key = (
            f"{parts[0]}:{parts[1]}"
            if len(parts) == 3 and parts[0] in ("gpu", "qgpu")
            else parts[0]
        )
        found[key] = found.get(key, 0) + count_of(parts[-1])
    return found
