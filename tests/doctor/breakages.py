"""Breakages of a healthy installation: a name, what is done, the check that must fail, and words
of its sentence.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from types import SimpleNamespace

from site_support import Site, compiled, plugin_source

Break = Callable[[Site], object]
NODES = ("scontrol", "-o", "show", "node")
GRES = ("slurmd", "-G")
Breakages = dict[str, tuple["Break", str, str]]
JOB = "slurmstepd: [7.batch]"


def both(*steps: Break) -> Break:
    """Several steps that make one breakage."""
    return lambda site: [step(site) for step in steps]


def fill(site: Site, **values: object) -> None:
    """What the file system of state_dir says of itself."""
    known = {"f_flag": 0, "f_bavail": 1 << 30, "f_frsize": 4096, "f_files": 9, "f_favail": 9}
    site.statvfs = SimpleNamespace(**{**known, **values})


def job_in(cgroup: str, recorded: bool = True) -> Break:
    """A job with a grant whose slurmstepd is in that cgroup."""

    def record(site: Site) -> None:
        for name in ("grants", "steps"):
            (site.root / "run" / name).mkdir(parents=True, exist_ok=True)
        site.write("run/grants/7.json", "{}", 0o600)
        if recorded:
            site.write("run/steps/70", '{"job": 7, "pid": 70, "start": 70}')

    return both(lambda s: s.process(70, "slurmstepd", JOB, cgroup=cgroup), record)


def users_link(site: Site) -> None:
    """The plugin is a link that a user made."""
    path = site.root / "opt/qgpu_spank.so"
    path.rename(site.root / "opt/real.so")
    path.symlink_to(site.root / "opt/real.so")
    os.lchown(path, 1000, 1000)


def site_says(line: str) -> Break:
    """One more line in the site's own slurm.conf."""
    return lambda site: site.edit(
        "etc/slurm.conf", "ClusterName=doc\n", f"ClusterName=doc\n{line}\n"
    )


def yaml(old: str, new: str) -> Break:
    """Another qgpu.yaml, which qgpud has read."""

    def change(site: Site) -> None:
        site.edit("etc/qgpu.yaml", old, new)
        site.reread()

    return change


# What doctor once missed on a real installation.
REPORTED: Breakages = {
    "plugstack has another run_dir": (
        lambda s: s.edit("etc/qgpu/plugstack.conf", "/run", "/elsewhere"),
        "spank",
        "has changed since",
    ),
    "NVML shim is missing": (
        lambda s: (s.root / "opt/2/libnvidia-ml.so.1").unlink(),
        "nvml shim",
        "see the whole card",
    ),
    "count of a class is off": (
        lambda s: s.edit("etc/qgpu/gres.conf", "Type=offline Count=800", "Type=offline Count=400"),
        "gres.conf",
        "no line for qgpu offline Count=800, but one for qgpu offline Count=400",
    ),
    "slurmd counts a class wrongly": (
        lambda s: s.says("Count=800", "Count=400", *GRES),
        "gres counts",
        "qgpu:offline is 400, it should be 800",
    ),
    "count of a class is off in slurm.conf": (
        lambda s: s.says("qgpu:offline:800", "qgpu:offline:8", *NODES),
        "nodes",
        "qgpu:offline is 8, it should be 800",
    ),
    "count of vram is off": (
        lambda s: s.edit("etc/qgpu/gres.conf", "Count=156G", "Count=160G"),
        "gres.conf",
        "no line for vram Count=",
    ),
    "count of vram is off in slurm.conf": (
        lambda s: s.says("vram:156G", "vram:16G", *NODES),
        "nodes",
        "vram is",
    ),
    "NodeName without Gres": (
        lambda s: s.says(
            "Gres=gpu:h200:2,shard:h200:200,qgpu:online:200,qgpu:offline:800,vram:156G",
            "Gres=(null)",
            *NODES,
        ),
        "nodes",
        "n1 has no Gres=",
    ),
    "shard:100 for two cards": (
        lambda s: s.says("shard:h200:200", "shard:h200:100", *NODES),
        "nodes",
        "shard is 100, it should be 200",
    ),
    "JobSubmitPlugins is off": (
        lambda s: s.setting("JobSubmitPlugins", ""),
        "job_submit",
        "JobSubmitPlugins is not set",
    ),
    "JobSubmitPlugins has another plugin": (
        lambda s: s.setting("JobSubmitPlugins", "throttle"),
        "job_submit",
        "JobSubmitPlugins is throttle",
    ),
    "tables are older than qgpu.yaml": (
        yaml(
            "{online: online, offline: offline}",
            "{online: online, offline: offline, normal: offline}",
        ),
        "tables",
        "is not what this qgpu.yaml renders",
    ),
    "another Slurm in qgpu.yaml": (
        yaml('version: "24.11"', 'version: "25.11"'),
        "slurm",
        "this is Slurm 24.11.5, but qgpu.yaml says 25.11",
    ),
    "a Lua module is missing": (
        lambda s: (s.root / "opt/lua/qgpu_cards.lua").unlink(),
        "job_submit",
        "qgpu_cards.lua, which",
    ),
    "prolog is not executable": (
        lambda s: (s.etc / "qgpu/prolog").chmod(0o644),
        "hooks",
        "prolog is not executable",
    ),
    "prolog has another run_dir": (
        lambda s: s.edit("etc/qgpu/prolog", "/run ", "/elsewhere "),
        "hooks",
        "asks at",
    ),
    "ConstrainDevices is off": (
        lambda s: s.edit("etc/qgpu/cgroup.conf", "ConstrainDevices=yes", "ConstrainDevices=no"),
        "devices",
        "qgpu/cgroup.conf lacks",
    ),
    "there is no cgroup.conf": (
        lambda s: (s.etc / "cgroup.conf").unlink(),
        "devices",
        "without it every job can open every card",
    ),
    "GresTypes is missing": (
        lambda s: s.setting("GresTypes", ""),
        "gres types",
        "GresTypes misses gpu, shard, qgpu, vram",
    ),
    "GresTypes misses one": (
        lambda s: s.setting("GresTypes", "gpu,shard,qgpu"),
        "gres types",
        "misses vram",
    ),
    "AccountingStorageTRES is missing": (
        lambda s: s.setting("AccountingStorageTRES", ""),
        "tres",
        "misses gres/gpu",
    ),
    "spank.so is truncated": (
        lambda s: os.truncate(s.root / "opt/qgpu_spank.so", 1000),
        "spank",
        "truncated",
    ),
    "spank.so is empty": (
        lambda s: os.truncate(s.root / "opt/qgpu_spank.so", 0),
        "spank",
        "not a 64-bit ELF file",
    ),
    "a QOS is unknown to sacctmgr": (
        lambda s: s.says("offline\n", "", "sacctmgr", "-nP", "show", "qos"),
        "qos",
        "the QOS offline of qgpu.yaml is unknown",
    ),
    "state_dir is read-only": (lambda s: fill(s, f_flag=os.ST_RDONLY), "state_dir", "is read-only"),
    "select/linear": (
        both(
            site_says("SelectType=select/linear"),
            lambda s: s.effective("SelectType", "select/linear"),
        ),
        "select",
        "select/linear, which does not know shards",
    ),
    "slurmd is stopped": (lambda s: s.end(11), "slurmd", "does not run on this node"),
}

PLUGIN: Breakages = {
    "spank.so is missing": (
        lambda s: (s.root / "opt/qgpu_spank.so").unlink(),
        "spank",
        "is not there",
    ),
    "spank.so is of another Slurm": (
        lambda s: compiled(s.root, "opt/qgpu_spank.so", plugin_source(22 << 16 | 5 << 8 | 8)),
        "spank",
        "is for Slurm 22.05.8, this is 24.11.5",
    ),
    "spank.so is another plugin": (
        lambda s: compiled(s.root, "opt/qgpu_spank.so", plugin_source(kind="gres/qgpu")),
        "spank",
        "of type 'gres/qgpu'",
    ),
    "spank.so is no plugin": (
        lambda s: compiled(s.root, "opt/qgpu_spank.so", "int x;"),
        "spank",
        "names no plugin_version",
    ),
    "plugstack is missing": (
        lambda s: (s.etc / "plugstack.conf").unlink(),
        "spank",
        "lacks the include of qgpu's fragment",
    ),
    "plugstack has it as a comment": (
        lambda s: s.edit("etc/qgpu/plugstack.conf", "optional", "# optional"),
        "spank",
        "qgpu_spank.so: without it no job of a share starts",
    ),
    "plugstack names another file": (
        lambda s: s.edit("etc/qgpu/plugstack.conf", "/opt/qgpu_spank.so", "/old/qgpu_spank.so"),
        "spank",
        "has changed since",
    ),
    "plugstack has a line that Slurm ignores": (
        lambda s: s.edit("etc/qgpu/plugstack.conf", "optional", "sometimes"),
        "spank",
        "'sometimes' is none of",
    ),
    "native plugins are missing": (
        yaml("cli_filter: true", "cli_filter: true, native_gres: true"),
        "gres plugins",
        "gres_qgpu.so is not in",
    ),
    "hook client is missing": (
        lambda s: (s.root / "opt/qgpu-hook").unlink(),
        "hooks",
        "is not there",
    ),
    "hook client is not executable": (
        lambda s: (s.root / "opt/qgpu-hook").chmod(0o644),
        "hooks",
        "is not executable",
    ),
    "no Prolog": (lambda s: s.setting("Prolog", ""), "hooks", "sets no Prolog"),
    "no Epilog": (lambda s: s.setting("Epilog", ""), "hooks", "sets no Epilog"),
    "prolog does not call the client": (
        lambda s: s.write("etc/qgpu/prolog", "exit 0\n", 0o755),
        "hooks",
        "does not call",
    ),
    "prolog calls it in a comment": (
        lambda s: s.edit("etc/qgpu/prolog", "exec ", "# exec "),
        "hooks",
        "does not call",
    ),
    "prolog has the line ends of DOS": (
        lambda s: s.edit("etc/qgpu/prolog", "\n", "\r\n"),
        "hooks",
        "has the line ends of DOS",
    ),
    "prolog's interpreter is missing": (
        lambda s: s.edit("etc/qgpu/prolog", "#!/bin/sh", "#!/bin/nosh"),
        "hooks",
        "/bin/nosh, which is not there",
    ),
    "prolog ends before the call": (
        lambda s: s.edit("etc/qgpu/prolog", "exec ", "if true; then\nexit 1\nfi\nexit 0\nexec "),
        "hooks",
        "does not call",
    ),
    "prolog is missing": (lambda s: (s.etc / "qgpu/prolog").unlink(), "hooks", "cannot be read"),
    "epilog calls for prolog": (
        lambda s: s.edit("etc/qgpu/epilog", "qgpu-hook epilog", "qgpu-hook prolog"),
        "hooks",
        "does not call the client for 'epilog'",
    ),
    "slurmd kills the prolog too soon": (
        lambda s: s.effective("PrologEpilogTimeout", "5"),
        "hooks",
        "PrologEpilogTimeout is 5 s",
    ),
    "PrologFlags misses Contain": (
        lambda s: s.setting("PrologFlags", "Alloc"),
        "prolog flags",
        "misses Contain",
    ),
    "PrologFlags is missing": (
        lambda s: s.setting("PrologFlags", ""),
        "prolog flags",
        "misses Alloc and Contain: tasks",
    ),
    "TaskPlugin is none": (
        lambda s: s.effective("TaskPlugin", "task/none"),
        "devices",
        "TaskPlugin is task/none",
    ),
    "processes are tracked without cgroups": (
        lambda s: s.effective("ProctrackType", "proctrack/linuxproc"),
        "devices",
        "ProctrackType is",
    ),
    "cgroups are disabled": (
        lambda s: s.write("etc/qgpu/cgroup.conf", "ConstrainDevices=yes\nCgroupPlugin=disabled\n"),
        "devices",
        "CgroupPlugin=disabled",
    ),
}
