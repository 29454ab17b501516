"""Writing a sandbox's configuration and installing the product into it."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
from pathlib import Path

import jinja2

import configs
from cli.sandbox.errors import SandboxError
from cli.sandbox.layout import Layout
from cli.sandbox.plan import DATABASE, Plan
from gres.config.links import SELF
from gres.config.site import load_config
from gres.paths import ABI_VERSION
from slurm_plugin.render import node_gres, render
from slurm_plugin.site.conf import parse
from slurm_plugin.site.found import Overlay
from slurm_plugin.site.sources import Disk

ROOT = Path(__file__).resolve().parents[2]
# What the sandbox installs from the build directory: destination below S/opt -> product.
PRODUCTS = {
    "bin/qgpu-simgpu": "bin/qgpu-simgpu",
    "bin/qgpu-arbiter": "bin/qgpu-arbiter",
    "bin/qgpu-checkpoint": "bin/qgpu-checkpoint",
    "bin/qgpu-hook": "bin/qgpu-hook",
    "bin/qgpu-mounts": "bin/qgpu-mounts",
    "bin/qgpu-workload": "bin/qgpu-workload",
    "lib/qgpu_spank.so": "lib/qgpu_spank.so",
    f"shim/{ABI_VERSION}/libcuda.so.1": "shim/libcuda.so.1",
    f"shim/{ABI_VERSION}/libnvidia-ml.so.1": "shim/libnvidia-ml.so.1",
    "sim/libcuda.so.1": "sim/libcuda.so.1",
    "sim/libnvidia-ml.so.1": "sim/libnvidia-ml.so.1",
    "sim/libunified.so": "sim/libunified.so",
}

# What the product renders -> its name and mode in S/etc.
RENDERED = {
    "slurm.conf": ("slurm-qgpu.conf", 0o644),
    "gres.conf": ("gres.conf", 0o644),
    "plugstack.conf": ("plugstack.conf", 0o644),
    "qgpu_tables.lua": ("qgpu_tables.lua", 0o644),
    "job_submit.lua": ("job_submit.lua", 0o644),
    "cli_filter.lua": ("cli_filter.lua", 0o644),
    "prolog": ("prolog", 0o755),
    "epilog": ("epilog", 0o755),
}


def build_dir() -> Path:
    """Where the native products are."""
    return Path(os.environ.get("QGPU_BUILD", ROOT / "build"))


def check_products() -> None:
    """SandboxError if a native part has not been built."""
    missing = [name for name in PRODUCTS.values() if not (build_dir() / name).is_file()]
    if missing:
        raise SandboxError(
            f"these native parts are not built in {build_dir()}: {', '.join(missing)}; run: make"
            " native"
        )


def install(layout: Layout) -> None:
    """Copy the native products below the state directory, where ordinary users can reach them.

    The checkout itself may lie below /root. A rebuild does not disturb a running sandbox either."""
    for destination, product in PRODUCTS.items():
        target = layout.opt / destination
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(build_dir() / product, target)
        target.chmod(0o755)
    (layout.opt / "lua").mkdir()
    for module in (ROOT / "slurm_plugin" / "lua").glob("*.lua"):
        shutil.copy(module, layout.opt / "lua")


def wrap_slurmd(layout: Layout, slurmd: str) -> None:
    """Have every slurmd of the sandbox read cgroups of version 2 alone, `slurmd -G` too."""
    preload = f"{layout.opt}/sim/libunified.so"
    _write(layout.slurmd, f'#!/bin/sh\nLD_PRELOAD={preload} exec {slurmd} "$@"\n', 0o755)


def make_directories(layout: Layout, plan: Plan) -> None:
    """Everything below the state directory that must exist before the first daemon."""
    layout.pids.mkdir(mode=0o700)
    for name in ("etc", "log", "run", "sim", "lib", "home", "opt"):
        (layout.state / name).mkdir(mode=0o755)
    for name in ("spool", "spool/slurmctld", *(f"spool/{n}" for n in plan.nodes)):
        (layout.state / name).mkdir(mode=0o755)
    for name in plan.nodes:
        node = layout.node(name)
        for path in (node.run_dir, node.sim_dir, node.state_dir):
            path.mkdir(mode=0o755)


def _environment() -> jinja2.Environment:
    folder = Path(next(iter(configs.__path__))) / "sandbox"
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # these are configuration files, not HTML
    )


def _card_files(layout: Layout, plan: Plan) -> str:
    """The entries of qgpu.yaml for a node's cards, or for the MIG instances in their place."""
    base = f"{layout.state}/sim/%n/dev/qgpusim"
    if plan.mig:
        entries = [f"{base}-card{i // plan.mig},{base}-gi{i},{base}{i}" for i in range(plan.cards)]
        return f"instances: {json.dumps(entries)}"
    numbers = "0" if plan.cards == 1 else f"[0-{plan.cards - 1}]"
    links = f", links: {json.dumps(_links(plan))}" if plan.nvlinks else ""
    return f'files: "{base}{numbers}"{links}'


def _links(plan: Plan) -> list[str]:
    """`links` of qgpu.yaml, as `qgpu setup --init` counts them: those to a switch count as none."""
    rows = [[0] * plan.cards for _ in range(plan.cards)]
    for link in plan.nvlinks.split(","):
        ends, _, number = link.partition(":")
        one, _, other = ends.partition("-")
        if other.isdigit():
            rows[int(one)][int(other)] = rows[int(other)][int(one)] = int(number)
    for card, row in enumerate(rows):
        row[card] = SELF
    return [",".join(map(str, row)) for row in rows]


def write_qgpu_yaml(layout: Layout, plan: Plan, slurm_version: str) -> None:
    """Write S/etc/qgpu.yaml, from which all of qgpu's own configuration follows."""
    text = (
        _environment()
        .get_template("qgpu.yaml.j2")
        .render(
            plan=plan,
            layout=layout,
            slurm_version=slurm_version,
            card_files=_card_files(layout, plan),
            abi=ABI_VERSION,
        )
    )
    _write(layout.qgpu_yaml, text)


def write_slurm(layout: Layout, plan: Plan, plugin_dir: str = "") -> None:
    """Write slurm.conf and what belongs to it; again after the plan has changed. `plugin_dir`:
    empty is Slurm's.
    """
    config = load_config(layout.qgpu_yaml)
    gres = {node: node_gres(config, node) for node in plan.nodes}
    environment = _environment()
    values = {
        "plan": plan,
        "layout": layout,
        "host": _short_host(),
        "gres": gres,
        "plugin_dir": plugin_dir,
    }
    values |= {"storage": DATABASE, "config": config}
    modes = {
        "slurm.conf": 0o644,
        "slurmdbd.conf": 0o600,
        "cgroup.conf": 0o644,
        "task_prolog": 0o755,
        "unkillable": 0o755,
    }
    for name, mode in modes.items():
        _write(layout.etc / name, environment.get_template(f"{name}.j2").render(values), mode)
    # Included in slurm.conf: the fragment leaves out what that sets itself.
    included = {str(layout.etc / RENDERED["slurm.conf"][0]): ""}
    site = parse(str(layout.slurm_conf), Overlay(Disk(), included), config.slurm.version)
    for name, (file, mode) in RENDERED.items():
        lua_dir = str(layout.opt / "lua")
        text = render(name, config, slurm_site=site, etc_dir=str(layout.etc), lua_dir=lua_dir)
        _write(layout.etc / file, text, mode)


def write_munge_key(layout: Layout) -> None:
    """A fresh key, readable by root only."""
    _write(layout.etc / "munge.key", secrets.token_bytes(1024), 0o400)


def _short_host() -> str:
    return socket.gethostname().split(".")[0]


def _write(path: Path, content: str | bytes, mode: int = 0o644) -> None:
    data = content.encode() if isinstance(content, str) else content
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(fd, "wb") as out:
        os.fchmod(out.fileno(), mode)
        out.write(data)
