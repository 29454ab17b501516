"""Checks of what Slurm counts: gres.conf against the cards, and our GRES plugins against Slurm's own version."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable
from pathlib import Path

from cli import doctor_slurm
from cli.doctor_result import Check
from enforcer.nvml import CardInfo
from gres.config import Config, Node
from gres.hostlist import HostlistError, expand
from gres.identity import IdentityError, identify
from slurm_plugin.site.conf import Conf, Entry, parse
from slurm_plugin.site.nodes import gres_lines
from slurm_plugin.site.sources import Disk

PLUGINS = ("gres_qgpu.so", "gres_qgpu_mem.so")
SHARDS = 100


def _files(lines: Iterable[Entry], name: str) -> list[tuple[str, Entry]]:
    """Each card of a gres with its line: one per file, one per line where several files are a MIG instance."""
    found = []
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


def gres_fault(lines: list[Entry], paths: list[str], model: str) -> str:
    """What in a node's lines differs from qgpu.yaml; empty if nothing does. `paths` has the files of each card."""
    gpus = _files(lines, "gpu")
    if [path for path, _ in gpus] != paths:
        return f"its gpu files are {[path for path, _ in gpus] or 'none'}, those of qgpu.yaml {paths}, in this order"
    untyped = [path for path, line in gpus if line.get("Type") != model]
    if untyped:
        return f"gpu {untyped[0]} has not Type={model}"
    fault = _shards_fault(lines, paths)
    if fault:
        return fault
    kinds = {line.get("Type") for line in lines if line.get("Name") == "qgpu"}
    missing = {"online", "offline"} - kinds
    if missing or not any(line.get("Name") == "qgpu_mem" for line in lines):
        return f"there is no line for {f'qgpu Type={min(missing)}' if missing else 'qgpu_mem'}"
    return ""


def _conf_fault(conf: Conf, name: str, node: Node) -> str:
    """The first thing that is wrong for a node; empty if nothing is."""
    lines, faults = gres_lines(conf, name)
    for fault in (*conf.faults, *faults):
        return fault.text if fault.file == conf.path else str(fault)
    try:
        return gres_fault(lines, [",".join(card.paths) for card in node.cards], node.model)
    except HostlistError as error:
        return str(error)


def gres_conf(config: Config, name: str, cards: tuple[CardInfo, ...] | None) -> Check:
    """Whether Slurm hands out the cards that the driver has, in the order in which qgpu counts them."""
    slurm_conf = doctor_slurm.slurm_conf()
    if slurm_conf is None:
        return Check("gres.conf", "ok", doctor_slurm.NONE)
    path, node = slurm_conf.with_name("gres.conf"), config.node(name)
    todo = "write there what 'qgpu render gres.conf' prints, and restart slurmctld and slurmd"
    conf = parse(str(path), Disk(), config.slurm.version)
    if not conf.entries and not conf.faults:
        return Check("gres.conf", "fail", f"{path} is not there, or empty", todo)
    fault = _conf_fault(conf, name, node)
    if fault:
        return Check("gres.conf", "fail", f"{path}: {fault}", todo)
    if conf.text("AutoDetect", "off").lower() != "off":
        return Check(
            "gres.conf", "warn", f"{path} has AutoDetect, which may order the cards anew", "AutoDetect=off"
        )
    if cards is None:
        return Check(
            "gres.conf", "warn", f"{path} fits qgpu.yaml; not compared with NVML, which does not answer"
        )
    try:
        absent = [
            ",".join(card.spec.paths)
            for card in identify(node, range(len(node.cards)))
            if card.place not in {c.place for c in cards}
        ]
    except IdentityError as error:
        return Check("gres.conf", "fail", str(error), "correct files under nodes in qgpu.yaml")
    if absent:
        return Check("gres.conf", "fail", f"{path}: NVML sees no card at {absent[0]}", "look for Xid errors")
    return Check("gres.conf", "ok", f"{path}: {len(node.cards)} card(s), as NVML and qgpu.yaml have them")


def _table(data: bytes) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
    """Program and section headers of a 64-bit little-endian ELF file. Raises ValueError, struct.error."""
    if data[:6] != b"\x7fELF\x02\x01":
        raise ValueError("not a 64-bit ELF file")
    phoff, shoff = struct.unpack_from("<QQ", data, 32)
    psize, pnum, ssize, snum = struct.unpack_from("<HHHH", data, 54)
    programs = [struct.unpack_from("<IIQQQQQQ", data, phoff + n * psize) for n in range(pnum)]
    return programs, [struct.unpack_from("<IIQQQQIIQQ", data, shoff + n * ssize) for n in range(snum)]


def plugin_version(data: bytes) -> int:
    """The number `plugin_version` in a plugin's file, without loading it. Raises ValueError."""
    try:
        programs, sections = _table(data)
        symbols = next(section for section in sections if section[1] == 11)  # SHT_DYNSYM
        names = sections[symbols[6]][4]
        for offset in range(symbols[4], symbols[4] + symbols[5], 24):
            name, _, _, _, value, _ = struct.unpack_from("<IBBHQQ", data, offset)
            if data[names + name : names + name + 15] == b"plugin_version\0":
                load = next(p for p in programs if p[0] == 1 and p[3] <= value < p[3] + p[5])
                return int(struct.unpack_from("<I", data, load[2] + value - load[3])[0])
    except (struct.error, IndexError, StopIteration):
        raise ValueError("it is damaged") from None
    raise ValueError("it names no plugin_version")


def number_of(version: str) -> int | None:
    """Slurm's number of "22.05.8"; None if the text has no such version."""
    match = re.search(r"\b([0-9]{2})\.([0-9]{1,2})\.([0-9]{1,3})\b", version)
    return int(match[1]) << 16 | int(match[2]) << 8 | int(match[3]) if match else None


def text_of(number: int) -> str:
    """ "22.05.8" of Slurm's number."""
    return f"{number >> 16 & 255}.{number >> 8 & 255:02d}.{number & 255}"


def native_plugins(config: Config) -> Check:
    """Whether slurmctld's own word about shares can reach the nodes."""
    conf = doctor_slurm.slurm_conf()
    if conf is None:
        return Check("gres plugins", "ok", doctor_slurm.NONE)
    if not config.slurm.native_gres:
        return Check(
            "gres plugins", "ok", "not used: the tag of job_submit.lua carries class, share and memory"
        )
    asked = doctor_slurm.said_all("scontrol", "show", "config")
    dirs = doctor_slurm.read(config, conf).text("PluginDir") or doctor_slurm.shown(asked, "PluginDir")
    wanted = number_of(doctor_slurm.shown(asked, "SLURM_VERSION") or doctor_slurm.said("slurmd", "-V")[1])
    off = "make -C gres/native SLURM_SRC=... install, or native_gres: false in qgpu.yaml until then"
    for name in PLUGINS:
        found = next(
            (path for each in dirs.split(":") if each and (path := Path(each) / name).is_file()), None
        )
        if found is None:
            return Check("gres plugins", "fail", f"{name} is not in {dirs or 'PluginDir'}", off)
        try:
            have = plugin_version(found.read_bytes())
        except (OSError, ValueError) as error:
            return Check("gres plugins", "fail", f"{found}: {error}", off)
        if wanted is None:
            return Check(
                "gres plugins",
                "warn",
                f"{found} is for Slurm {text_of(have)}; this Slurm does not say its own",
            )
        if have & 0xFFFFFF != wanted:
            text = f"{found} is for Slurm {text_of(have)}, this is {text_of(wanted)}: new shares do not start"
            return Check("gres plugins", "fail", text, off)
    return Check("gres plugins", "ok", f"both are there, for Slurm {text_of(wanted or 0)}")
