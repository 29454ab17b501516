"""Checks of what Slurm counts on a node: gres.conf, and what slurmd makes of it, against qgpu.yaml and the cards."""

from __future__ import annotations

import re
from collections.abc import Iterable

from cli.doctor.files import conf
from cli.doctor.known import NO_SLURM, Known
from cli.doctor.result import Check
from enforcer.nvml import CardInfo
from gres.config import Config
from gres.hostlist import HostlistError, expand
from gres.identity import IdentityError, identify
from gres.units import MIB
from slurm_plugin.render import GresGroup, gres_groups
from slurm_plugin.site.conf import Conf, Entry
from slurm_plugin.site.nodes import gres_lines

SHARDS = 100
AGAIN = "write there what 'qgpu render gres.conf' prints, and restart slurmctld and slurmd"
_GRES = re.compile(r"Gres Name=(\S+) Type=(\S+) Count=([0-9]+)")
_UNITS = {"K": 10, "M": 20, "G": 30, "T": 40}
Counts = dict[str, int]


def _files(lines: Iterable[Entry], name: str) -> list[tuple[str, Entry]]:
    """Each card of a gres with its line: one per file, one per line where several files are a MIG instance."""
    found: list[tuple[str, Entry]] = []
    for line in lines:
        if line.get("Name") == name and line.get("MultipleFiles"):
            found.append((",".join(expand(line.get("MultipleFiles"))), line))
        elif line.get("Name") == name and line.get("File"):
            found += [(path, line) for path in expand(line.get("File"))]
    return found


def _shards_fault(lines: list[Entry], paths: list[str]) -> str:
    """MIG instances have their shards in one line without files, which Slurm divides evenly; see gres.conf.j2."""
    if any("," in path for path in paths):
        total = [
            line.get("Count", "0") for line in lines if line.get("Name") == "shard" and not line.get("File")
        ]
        if total != [str(SHARDS * len(paths))] or _files(lines, "shard"):
            return f"MIG instances want one shard line, without File and with Count={SHARDS * len(paths)}"
        return ""
    shards = {path: line.get("Count", "0") for path, line in _files(lines, "shard")}
    for path in paths:
        if shards.get(path) != str(SHARDS):
            return f"card {path} has {shards.get(path, 'no')} shards, not {SHARDS}"
    return ""


def count_of(text: str) -> int:
    """A count of Slurm's, with its unit; -1 for what is none."""
    match = re.fullmatch(r"([0-9]+)([KMGT]?)", text.upper())
    return int(match[1]) << _UNITS.get(match[2], 0) if match else -1


def expected(group: GresGroup) -> Counts:
    """What Slurm should count on a node of that group."""
    counts = {f"qgpu:{name}": count for name, count in group.counts.items()}
    cards = len(group.cards)
    return {f"gpu:{group.model}": cards, "shard": SHARDS * cards, **counts, "qgpu_mem": count_of(group.mem)}


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


def gres_fault(lines: list[Entry], paths: list[str], group: GresGroup) -> str:
    """What in a node's lines differs from qgpu.yaml; empty if nothing does. `paths` has the files of each card."""
    gpus = _files(lines, "gpu")
    if [path for path, _ in gpus] != paths:
        return f"its gpu files are {[path for path, _ in gpus] or 'none'}, those of qgpu.yaml {paths}, in this order"
    untyped = [path for path, line in gpus if line.get("Type") != group.model]
    if untyped:
        return f"gpu {untyped[0]} has not Type={group.model}"
    return _shards_fault(lines, paths) or _counted_fault(lines, group)


def _counted_fault(lines: list[Entry], group: GresGroup) -> str:
    """What in the lines of qgpu and qgpu_mem differs."""
    have: Counts = {}
    for line in lines:
        name = line.get("Name")
        if name in ("qgpu", "qgpu_mem"):
            key = f"{name}:{line.get('Type')}" if name == "qgpu" and line.get("Type") else name
            have[key] = have.get(key, 0) + count_of(line.get("Count", "1"))
    for name, count in expected(group).items():
        shown = name.replace(":", " Type=")
        if name.startswith("qgpu") and name not in have:
            return f"there is no line for {shown}"
        if name.startswith("qgpu") and have[name] != count:
            return f"{shown} has Count={have[name]}, not {count}"
    return ""


def _conf_fault(known: Known, file: Conf) -> str:
    """The first thing that is wrong for this node; empty if nothing is."""
    lines, faults = gres_lines(file, known.node)
    for fault in (*file.faults, *faults):
        return fault.text if fault.file == file.path else str(fault)
    paths = [",".join(card.paths) for card in known.need.node(known.node).cards]
    try:
        return gres_fault(lines, paths, group_of(known.need, known.node))
    except HostlistError as error:
        return str(error)


def gres_conf(known: Known) -> Check:
    """Whether Slurm hands out the cards that the driver has, in the order in which qgpu counts them."""
    if not known.has_slurm:
        return Check("gres.conf", "ok", NO_SLURM)
    file = conf(known, "gres.conf")
    fault = _conf_fault(known, file) if file.entries or file.faults else "it is empty"
    if fault:
        return Check("gres.conf", "fail", f"{file.path}: {fault}", AGAIN)
    if file.text("AutoDetect", "off").lower() != "off":
        text = f"{file.path} has AutoDetect, which may order the cards anew"
        return Check("gres.conf", "warn", text, "AutoDetect=off")
    return _against_nvml(known, file.path, known.cards)


def _against_nvml(known: Known, path: str, cards: tuple[CardInfo, ...] | None) -> Check:
    node = known.need.node(known.node)
    if cards is None:
        text = f"{path} fits qgpu.yaml; not compared with NVML, which does not answer"
        return Check("gres.conf", "warn", text)
    try:
        named = identify(node, range(len(node.cards)))
    except IdentityError as error:
        return Check("gres.conf", "fail", str(error), "correct files under nodes in qgpu.yaml")
    places = {card.place for card in cards}
    absent = [",".join(card.spec.paths) for card in named if card.place not in places]
    if absent:
        return Check("gres.conf", "fail", f"{path}: NVML sees no card at {absent[0]}", "look for Xid errors")
    return Check("gres.conf", "ok", f"{path}: {len(node.cards)} card(s), as NVML and qgpu.yaml have them")


def slurmd_counts(text: str) -> Counts:
    """The sums of what `slurmd -G` prints."""
    found: Counts = {}
    for name, kind, count in _GRES.findall(text):
        key = f"{name}:{kind}" if name in ("gpu", "qgpu") and kind != "(null)" else name
        found[key] = found.get(key, 0) + int(count)
    return found


def slurmd_gres(known: Known) -> Check:
    """Whether slurmd makes of its files what it should; it knows more faults than their text shows."""
    if not known.has_slurm or known.host.program("slurmd") is None:
        return Check("gres counts", "ok", "not compared, since there is no slurmd here")
    said = known.host.said("slurmd", "-G", "-N", known.node, "-f", str(known.slurm_conf))
    have = slurmd_counts(said.out + said.err)
    if not have:
        faults = [line for line in said.err.splitlines() if re.search(r"fatal|error", line)]
        if not faults:
            return Check(
                "gres counts", "warn", "slurmd -G prints nothing", "24.11.0 to 24.11.2 cannot: update Slurm"
            )
        return Check("gres counts", "fail", faults[-1], AGAIN)
    fault = counts_fault(have, expected(group_of(known.need, known.node)))
    if fault:
        return Check("gres counts", "fail", f"slurmd counts: {fault}", AGAIN)
    total = f"{have['shard']} shards, {have['qgpu_mem'] // MIB} MiB"
    return Check("gres counts", "ok", f"slurmd counts what qgpu.yaml says: {total}")


def node_counts(text: str) -> Counts:
    """Counts of a Gres= value such as gpu:h200:2(S:0-1),shard:h200:200,qgpu_mem:156G."""
    found: Counts = {}
    for item in re.sub(r"\([^)]*\)", "", text).split(","):
        parts = item.strip().split(":")
        if len(parts) < 2:
            continue
        key = f"{parts[0]}:{parts[1]}" if len(parts) == 3 and parts[0] in ("gpu", "qgpu") else parts[0]
        found[key] = found.get(key, 0) + count_of(parts[-1])
    return found
