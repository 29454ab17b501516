"""A healthy installation of one controller and node on files: tests break one thing of it at a
time.

Slurm's answers were captured from real daemons (tests/cases/doctor); everything else is real files
below one directory.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from cli.doctor.examine import examine
from cli.doctor.host import Host, Said
from cli.doctor.result import Check
from cli.doctor.roles import Role
from enforcer.ledger.merge import CardBuckets, put_card
from enforcer.ledger.store import Ledger
from gres.config.site import Config, digest_of, load_config
from simulator.fakes import FakeNvml
from slurm_plugin.fragments import fragments, names_for
from slurm_plugin.site.found import Places, without_fragments
from slurm_plugin.site.sources import Disk

CASES = Path(__file__).parents[1] / "cases" / "doctor"
LUA = Path(__file__).parents[2] / "slurm_plugin" / "lua"
VERSION = 24 << 16 | 11 << 8 | 5
CHARACTER_DEVICE = 0o020666
ANSWERS = {
    ("scontrol", "ping"): "ping.txt",
    ("scontrol", "show", "config"): "config.txt",
    ("scontrol", "-o", "show", "node"): "nodes.txt",
    ("scontrol", "-o", "show", "partition"): "partitions.txt",
    ("sacctmgr", "-nP", "show", "qos"): "qos.txt",
    ("sacctmgr", "-nP", "show", "tres"): "tres.txt",
    ("sacctmgr", "-nP", "show", "cluster"): "cluster.txt",
    ("slurmd", "-G"): "gres.txt",
}
YAML = """version: 1
cluster: doc
run_dir: {root}/run
state_dir: {root}/lib
slurm: {{version: "24.11", cli_filter: true}}
driver: {{libcuda: {root}/driver/libcuda.so.1, nvml: {root}/driver/libnvidia-ml.so.1}}
shim: {root}/opt/2/libcuda.so.1
spank: {root}/opt/qgpu_spank.so
hook: {{client: {root}/opt/qgpu-hook, scontrol: {root}/opt/scontrol}}
qos: {{online: online, offline: offline}}
models: {{h200: {{memory: 80GiB, reserve: 2GiB}}}}
nodes:
  - {{names: "n[1-2]", model: h200, count: 2, files: "{root}/dev/qgpusim[0-1]"}}
enforcer: {{arbiter: {root}/opt/qgpu-arbiter}}
"""
SLURM_CONF = """ClusterName=doc
SlurmctldHost=vm
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageEnforce=associations,limits,qos
PrologEpilogTimeout=60
include {root}/etc/qgpu/slurm.conf
NodeName=n[1-2] CPUs=64 \
Gres=gpu:h200:2,shard:h200:200,qgpu:online:200,qgpu:offline:800,vram:156G
PartitionName=gpu Nodes=n[1-2] Default=YES
"""
INCLUDING = ("gres.conf", "plugstack.conf", "cgroup.conf")


def compiled(directory: Path, name: str, source: str) -> Path:
    """A small library."""
    path = directory / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(_library(source))
    path.chmod(0o755)
    return path


@cache
def _library(source: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder, "made.so")
        command = ["cc", "-shared", "-fPIC", "-nostdlib", "-x", "c", "-o", str(made), "-"]
        subprocess.run(command, input=source.encode(), check=True)
        return made.read_bytes()


def plugin_source(number: int = VERSION, kind: str = "spank") -> str:
    """C text of a plugin for that Slurm."""
    return f'const unsigned plugin_version = {number}; const char plugin_type[] = "{kind}";'


@dataclass
class FakeHost(Host):
    """A host whose programs answer from files, and whose processes are below `root`/proc."""

    answers: dict[tuple[str, ...], Said] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return "n1"

    def program(self, name: str) -> str | None:
        return f"/usr/bin/{name}"

    def said(self, *command: str, timeout: float = 10.0) -> Said:
        fit = [key for key in self.answers if command[: len(key)] == key]
        return (
            self.answers[max(fit, key=len)]
            if fit
            else Said(127, err=f"{command[0]} is not installed")
        )


class Site:
    """The installation. Methods change it; `checks` is what doctor says then."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.etc = root / "etc"
        self.yaml = root / "etc/qgpu.yaml"
        self.daemon: dict[str, object] = {}
        self.statvfs: object = None  # what state_dir's file system says, where a test says it
        self.nvml = FakeNvml.with_cards(2, 80 << 30)
        self._directories()
        self.config = self._configure()
        self._programs()
        self._slurm()
        self._processes()
        answers = {key: Said(0, self.captured(name)) for key, name in ANSWERS.items()}
        answers[("slurmd", "-G")] = Said(0, "", self.captured("gres.txt"))
        answers[("slurmd", "-V")] = answers[("scontrol", "-V")] = Said(0, "slurm-wlm 24.11.5")
        answers[("munge",)] = Said(0, "MUNGE:AwQDAAD:")
        environ = {"SLURM_CONF": str(self.etc / "slurm.conf")}
        trusted = frozenset({0, os.geteuid()})
        self.host = FakeHost(environ, root / "proc", trusted, answers=answers)
        self.clock()

    # -- how it is made ------------------------------------------------------------

    def _directories(self) -> None:
        for name in ("etc/qgpu", "run/grants", "lib", "driver", "opt/2", "opt/lua", "dev", "proc"):
            (self.root / name).mkdir(parents=True, mode=0o755)

    def _configure(self) -> Config:
        self.yaml.write_text(YAML.format(root=self.root))
        for minor in range(2):
            os.mknod(self.root / f"dev/qgpusim{minor}", CHARACTER_DEVICE, os.makedev(195, minor))
        self.daemon = {
            "node": "n1",
            "grants": 0,
            "arbiter": True,
            "memory": "hard",
            "injection": "mount",
            "injection_why": "",
            "config": digest_of(self.yaml),
        }
        return load_config(self.yaml)

    def _programs(self) -> None:
        compiled(self.root, "opt/qgpu_spank.so", plugin_source())
        compiled(self.root, "opt/2/libcuda.so.1", "int cuInit(unsigned f) { return (int)f; }")
        compiled(self.root, "opt/2/libnvidia-ml.so.1", "int nvmlInit_v2(void) { return 0; }")
        for name in ("opt/qgpu-hook", "opt/qgpu-arbiter", "opt/scontrol"):
            self.write(name, "#!/bin/sh\n", 0o755)
        self.write("driver/libcuda.so.1", "")
        self.write("driver/libnvidia-ml.so.1", "")
        for module in LUA.glob("*.lua"):
            self.write(f"opt/lua/{module.name}", module.read_text())

    def _slurm(self) -> None:
        """Files as `qgpu setup` leaves them: the site's own with an include each, and our
        fragments.
        """
        self.write("etc/slurm.conf", SLURM_CONF.format(root=self.root))
        for name in INCLUDING:
            self.write(f"etc/{name}", f"include {self.etc}/qgpu/{name}\n")
        places = Places(str(self.etc / "slurm.conf"), str(self.etc / "qgpu"))
        alone = without_fragments(places, Disk(), "24.11")
        names = names_for(self.config, ("controller", "node"))
        lua, etc = str(self.root / "opt/lua"), str(self.etc / "qgpu")
        for fragment in fragments(self.config, names, alone, lua, etc):
            self.write(f"etc/qgpu/{fragment.name}", fragment.text, fragment.mode)
        for name in ("job_submit.lua", "cli_filter.lua"):
            (self.etc / name).symlink_to(f"qgpu/{name}")

    def _processes(self) -> None:
        """As in /proc; the arbiter's thread is this process, whose scheduling a test may fake."""
        self.process(10, "slurmctld", "slurmctld", "-D")
        self.process(11, "slurmd", "slurmd", "-D")
        self.process(12, "qgpud", "/usr/sbin/qgpud", "--config", str(self.yaml))
        self.process(13, "qgpu-arbiter", "/opt/qgpu-arbiter", "--run-dir", f"{self.root}/run")
        (self.root / f"proc/13/task/{os.getpid()}").mkdir(parents=True)
        (self.root / "proc/12/root").symlink_to("/")

    # -- what tests change ------------------------------------------------------------

    def process(
        self,
        pid: int,
        name: str,
        *words: str,
        parent: int = 1,
        cgroup: str = "0::/",
        uid: int | None = None,
    ) -> None:
        """A process in /proc."""
        folder = self.root / f"proc/{pid}"
        folder.mkdir(exist_ok=True)
        owner = os.geteuid() if uid is None else uid
        (folder / "status").write_text("Uid:" + f"\t{owner}" * 4 + f"\nNSpid:\t{pid}\n")
        (folder / "comm").write_text(f"{name}\n")
        (folder / "cmdline").write_bytes(b"".join(word.encode() + b"\0" for word in words))
        (folder / "stat").write_text(f"{pid} ({name}) S {parent}" + " 0" * 17 + f" {pid} 0 0\n")
        (folder / "cgroup").write_text(f"{cgroup}\n")

    def end(self, pid: int) -> None:
        """A process that is not there."""
        (self.root / f"proc/{pid}/comm").unlink()

    def captured(self, name: str) -> str:
        """What a program of a real Slurm said, about this directory."""
        return (CASES / name).read_text().replace("ROOT", str(self.root))

    def write(self, name: str, text: str, mode: int = 0o644) -> None:
        """A file of the installation."""
        path = self.root / name
        path.write_text(text)
        path.chmod(mode)

    def edit(self, name: str, old: str, new: str) -> None:
        """Change a file; `old` must be in it."""
        path = self.root / name
        text = path.read_text()
        assert old in text, f"{name} has no {old!r}"
        path.write_text(text.replace(old, new.replace("ROOT", str(self.root))))

    def answer(self, *command: str, code: int = 0, out: str = "", err: str = "") -> None:
        """What a program says from now on."""
        self.host.answers[command] = Said(code, out, err)

    def says(self, old: str, new: str, *command: str) -> None:
        """Change what a program says; `old` must be in it."""
        said = self.host.answers[command]
        assert old in said.out + said.err, f"{command} does not say {old!r}"
        self.host.answers[command] = Said(
            said.code, said.out.replace(old, new), said.err.replace(old, new)
        )

    def effective(self, key: str, value: str) -> None:
        """Another value in `scontrol show config`."""
        said = self.host.answers[("scontrol", "show", "config")]
        lines = [
            f"{key} = {value}" if line.split("=")[0].strip() == key else line
            for line in said.out.splitlines()
        ]
        assert lines != said.out.splitlines(), f"{key} is not shown, or is {value} already"
        self.answer("scontrol", "show", "config", out="\n".join(lines))

    def setting(self, key: str, value: str) -> None:
        """Another value both in slurm.conf and in effect; empty for none."""
        ours = f"\n{key}=" in (self.etc / "qgpu/slurm.conf").read_text()
        name = "etc/qgpu/slurm.conf" if ours else "etc/slurm.conf"
        lines = (self.root / name).read_text().splitlines()
        kept = [line for line in lines if line.partition("=")[0] != key]
        assert kept != lines, f"{key} is not in {name}"
        self.write(name, "\n".join([*kept, *([f"{key}={value}"] if value else [])]) + "\n")
        self.effective(key, value or "(null)")

    def enable(self, unit: str) -> None:
        """A unit that systemd starts at boot; the test points roles.WANTED here."""
        (self.root / "wanted").mkdir(exist_ok=True)
        (self.root / f"wanted/{unit}.service").symlink_to("/usr/lib/systemd/system/x")

    def reread(self) -> None:
        """qgpud has read the qgpu.yaml that is there now."""
        self.daemon["config"] = digest_of(self.yaml)

    def collects(self, **digests: str) -> None:
        """`qgpu collect` has heard of these nodes; "" stands for this qgpu.yaml."""
        path = self.root / "lib/all.sqlite"
        self.edit("etc/qgpu.yaml", "cluster: doc", f"cluster: doc\nreports: {{collected: {path}}}")
        self.reread()
        ledger = Ledger(path)
        for node, digest in digests.items():
            put_card(ledger, CardBuckets("GPU-1", node, (), digest or digest_of(self.yaml)))
        ledger.close()

    def lose_card(self) -> None:
        """NVML sees one card less."""
        self.nvml = FakeNvml.with_cards(1, 80 << 30)

    def clock(self, seconds: float = 0) -> None:
        """slurmctld's clock is so far ahead of ours."""
        text = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(time.time() + seconds))
        said = self.host.answers[("scontrol", "show", "config")].out
        rest = said.partition("\n")[2]
        boot = f"BOOT_TIME = {text}"
        rest = "\n".join(
            boot if line.startswith("BOOT_TIME") else line for line in rest.splitlines()
        )
        self.answer("scontrol", "show", "config", out=f"Configuration data as of {text}\n{rest}")

    # -- what doctor says ------------------------------------------------------------

    def checks(self, roles: Sequence[Role] = ("controller", "node")) -> list[Check]:
        """All checks of this host."""
        return examine(str(self.yaml), "n1" if "node" in roles else None, roles, self.host)
