"""Checks of Slurm's daemons, and of what their settings must be for shares."""

from __future__ import annotations

import re

from cli.doctor.checks import site
from cli.doctor.files import conf, setting
from cli.doctor.known import Known, words
from cli.doctor.result import RESTART_ALL, Check
from slurm_plugin import releases
from slurm_plugin.site.settings import implied_flags

GRES = ("gpu", "shard", "qgpu", "vram")
TRES = (
    "gres/gpu",
    "gres/shard",
    "gres/qgpu",
    "gres/qgpu:online",
    "gres/qgpu:offline",
    "gres/vram",
)


# the last line of each program of Slurm's that cannot read slurm.conf; the one before has the fault
UNREADABLE = "Unable to process configuration file"


def slurmctld(known: Known) -> Check:
    """Whether the controller answers here."""
    if known.answers:
        return Check("slurmctld", "ok", "answers")
    runs = bool(known.slurm_processes("slurmctld"))
    said = known.host.said("scontrol", "ping")
    lines = [line for line in (said.out + said.err).split("\n") if re.search(r"[a-z]", line)]
    why = "; ".join(lines) or "it does not answer"
    if why.endswith(UNREADABLE):
        return Check("slurmctld", "fail", f"not asked: {why}", f"correct {known.slurm_conf}")
    todo = "read slurmctld's log" if runs else "systemctl start slurmctld on the controller"
    return Check("slurmctld", "fail", f"{'runs, but' if runs else 'does not run:'} {why}", todo)


def slurmd(known: Known) -> Check:
    """Whether this node's slurmd runs, and whether slurmctld sees it."""
    if not known.has_slurm:
        return Check("slurmd", "ok", "not needed: there is no slurm.conf here")
    found = [p for p in known.slurm_processes("slurmd") if p.option("-N") in ("", known.node)]
    if not found:
        return Check("slurmd", "fail", "does not run on this node", "systemctl start slurmd")
    if known.configless:
        return Check(
            "slurmd",
            "ok",
            f"runs, configless: its files are in {known.slurm_conf and known.slurm_conf.parent}",
        )
    return Check("slurmd", "ok", "runs")


def select(known: Known) -> Check:
    """Whether SelectType is select/cons_tres: no other one has shards."""
    plugin = setting(known, "SelectType")
    late = known.slurm_version is not None and known.slurm_version >= (23, 11, 0)
    if (plugin or ("select/cons_tres" if late else "select/cons_res")) != "select/cons_tres":
        text = f"SelectType is {plugin or 'not set'}, which does not know shards"
        return Check("select", "fail", text, site.settle(known, "SelectType"))
    parameters = words(setting(known, "SelectTypeParameters"))
    slurm = known.need.slurm
    for word, wanted, key in (
        ("MULTIPLE_SHARING_GRES_PJ", slurm.multi_card, "slurm.multi_card"),
        ("LL_SHARED_GRES", slurm.placement == "spread", "slurm.placement"),
    ):
        if (word.lower() in parameters) != wanted:
            text = (
                f"SelectTypeParameters {'misses' if wanted else 'has'} {word}, against {key} in"
                " qgpu.yaml"
            )
            return Check("select", "fail", text, site.settle(known, "SelectTypeParameters"))
    return Check("select", "ok", "select/cons_tres")


def gres_types(known: Known) -> Check:
    """Whether Slurm has the four kinds of gres."""
    told = setting(known, "GresTypes")
    missing = [name for name in GRES if name not in words(told)]
    if missing:
        text = f"GresTypes misses {', '.join(missing)}"
        return Check("gres types", "fail", text, site.settle(known, "GresTypes", RESTART_ALL))
    return Check("gres types", "ok", told)


def prolog_flags(known: Known) -> Check:
    """Without Alloc the Prolog runs too late, without Contain a job has
    no cgroup for ssh sessions.
    """
    told = setting(known, "PrologFlags")
    have = implied_flags(list(words(told)))
    missing = [flag for flag in ("Alloc", "Contain") if flag.lower() not in have]
    if missing:
        text = f"PrologFlags misses {' and '.join(missing)}: tasks may start before their grant"
        return Check("prolog flags", "fail", text, site.settle(known, "PrologFlags", RESTART_ALL))
    return Check("prolog flags", "ok", told)


def devices(known: Known) -> Check:
    """Whether a job without a card is kept from the cards: task/cgroup
    with ConstrainDevices=yes.
    """
    if not known.has_slurm:
        return Check("devices", "ok", "not used without Slurm")
    default = {"ProctrackType": "proctrack/cgroup"}  # Slurm's own
    for key, wanted in (("TaskPlugin", "task/cgroup"), ("ProctrackType", "proctrack/cgroup")):
        told = setting(known, key) or default.get(key, "")
        if wanted not in words(told):
            text = f"{key} is {told or 'not set'}: any job can use any card"
            restart = "restart slurmctld and slurmd"
            return Check("devices", "fail", text, site.settle(known, key, restart))
    file = conf(known, "cgroup.conf")
    if file.text("CgroupPlugin").lower() == "disabled":
        place = file.get("CgroupPlugin")
        line = f"line {place.line} of {place.file}" if place else file.path
        todo = f"write in place of {line}: CgroupPlugin=autodetect; then restart slurmd"
        text = f"{file.path} has CgroupPlugin=disabled: any job can use any card"
        return Check("devices", "fail", text, todo)
    ok = Check("devices", "ok", f"{file.path} has ConstrainDevices=yes")
    return site.fault(known, "devices", "cgroup.conf") or ok


def slurmdbd(known: Known) -> Check:
    """Whether accounting answers, where it is on."""
    kind = setting(known, "AccountingStorageType")
    if kind != "accounting_storage/slurmdbd":
        text = "off: sacct shows no shares, and QOS do not exist"
        return Check(
            "slurmdbd",
            "warn",
            text,
            "AccountingStorageType=accounting_storage/slurmdbd, if you want it",
        )
    said = known.host.said("sacctmgr", "-nP", "show", "cluster", "format=cluster")
    if said.code != 0:
        return Check("slurmdbd", "fail", said.last or "does not answer", "systemctl start slurmdbd")
    return Check("slurmdbd", "ok", "answers")


def accounted(known: Known) -> Check:
    """Whether shares are counted: AccountingStorageTRES in slurm.conf, and in the database."""
    if setting(known, "AccountingStorageType") != "accounting_storage/slurmdbd":
        return Check("tres", "ok", "not used: accounting is off")
    told = setting(known, "AccountingStorageTRES")
    missing = [name for name in TRES if name not in words(told)]
    if missing:
        text = f"AccountingStorageTRES misses {', '.join(missing)}"
        return Check("tres", "fail", text, site.settle(known, "AccountingStorageTRES"))
    said = known.host.said("sacctmgr", "-nP", "show", "tres", "format=type,name")
    if said.code != 0:
        return Check(
            "tres",
            "fail",
            "not compared, since slurmdbd does not answer",
            "systemctl start slurmdbd",
        )
    stored = {"/".join(filter(None, line.split("|"))) for line in said.out.split("\n")}
    absent = [name for name in TRES if name not in stored]
    if absent:
        text = f"slurmdbd does not know {', '.join(absent)}"
        return Check("tres", "fail", text, "restart slurmctld, which tells slurmdbd of them")
    return Check("tres", "ok", "slurm.conf and slurmdbd know every gres")


def qos(known: Known) -> Check:
    """Whether the QOS of qgpu.yaml exist: a job cannot name one that does not."""
    wanted = sorted(known.need.qos.keys() | known.need.suspended.keys())
    if not wanted:
        return Check("qos", "ok", "qgpu.yaml names none")
    if setting(known, "AccountingStorageType") != "accounting_storage/slurmdbd":
        text = (
            f"qgpu.yaml names the QOS {', '.join(wanted)}, but there is no slurmdbd that could have"
            " them"
        )
        return Check("qos", "warn", text, "use default_class in qgpu.yaml, or accounting")
    said = known.host.said("sacctmgr", "-nP", "show", "qos", "format=name")
    if said.code != 0:
        return Check(
            "qos",
            "fail",
            "not compared, since slurmdbd does not answer",
            "systemctl start slurmdbd",
        )
    have = {line.strip().lower() for line in said.out.split("\n")}
    missing = [name for name in wanted if name not in have]
    if missing:
        text = (
            f"the QOS {', '.join(missing)} of qgpu.yaml {'is' if len(missing) == 1 else 'are'}"
            " unknown to slurmdbd"
        )
        todo = (
            "; ".join(f"sacctmgr -i add qos {name}" for name in missing)
            + ", or correct qos in qgpu.yaml"
        )
        return Check("qos", "fail", text, todo)
    return Check("qos", "ok", f"{', '.join(wanted)} exist")


def other_version(text: str, config_version: str) -> bool:
    """Whether a slurmd has another major version than qgpu.yaml."""
    found, told = releases.parse(text), releases.parse(config_version)
    return found is not None and told is not None and found[:2] != told[:2]
