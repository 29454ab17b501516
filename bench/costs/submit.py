"""Measures qgpu's cost for slurmctld at a submission: sbatch with our job_submit.lua against an
empty one.

One private cluster, one slurmctld. Its job_submit.lua is ours for alice and empty for bob
(slurmctld gives it the uid, so the distinction costs neither). Their jobs are submitted
alternately, so the machine's other load hits both. bob asks for what alice's job is rewritten to.
The rewrite alone is measured too.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bench.harness.calibration import CALL, Sample, calibrated, in_units
from bench.harness.figures import Figure
from cli.sandbox.cluster import Sandbox
from cli.sandbox.files import ROOT
from cli.sandbox.options import SandboxOptions
from cli.sandbox.versions import native_gres
from gres.config.site import load_config
from slurm_plugin.render import render

LUA_RUNS, FEW_LUA_RUNS = 21, 5  # each of LUA_LOOP rewrites
LUA_LOOP = 2000
LUA_TARGET_NS = 50_000.0
EMPTY = """local ours = slurm_job_submit
function slurm_job_submit(job_desc, part_list, uid)
    if uid == {uid} then
        return slurm.SUCCESS
    end
    return ours(job_desc, part_list, uid)
end
return slurm.SUCCESS
"""
# Runs inside the sandbox: submit in turn, the order changing each time; times in seconds on
# standard output.
SUBMIT = """import json, subprocess, sys, time
orders = json.loads(sys.argv[1])
took = {name: [] for name in orders}
names = list(orders)
quiet = {"check": True, "stdout": subprocess.DEVNULL}
for turn in range(int(sys.argv[2])):
    for name in names if turn % 2 else names[::-1]:
        began = time.perf_counter()
        uid, words = orders[name]
        subprocess.run(words, user=uid, group=uid, extra_groups=[], cwd="/", **quiet)
        took[name].append(time.perf_counter() - began)
print(json.dumps(took))
"""
# The hook as Slurm calls it, on plain tables: one of four submissions is refused, one has a tag.
REWRITE = """
slurm = {{ SUCCESS = 0, ERROR = -1, log_user = function() end }}
local qgpu = dofile("{modules}")("{tables}")
local asked = {{
    {{ gres = "gres:qgpu:30", qos = "online" }},
    {{ gres = "gres:qgpu:30,gres:vram:8G", qos = "offline", comment = "my text" }},
    {{ gres = "gres:qgpu:60,gres:craynetwork:1", qos = "online",
        comment = "qgpu/1 whole; forged" }},
    {{ gres = "gres:qgpu:130", qos = "online" }},
}}
local began = os.clock()
for turn = 1, {loop} do
    local from = asked[turn % 4 + 1]
    local job = {{ gres = from.gres, qos = from.qos, comment = from.comment, partition = "gpu" }}
    qgpu.submit(job, {{}}, 1000)
end
local out = io.open("{out}", "a")
out:write((os.clock() - began) / {loop} * 1e6, "\\n")
out:close()
"""


def _held(*options: str) -> list[str]:
    return ["sbatch", "--parsable", "--hold", "--output=/dev/null", *options, "--wrap=true"]


def _served_us(cluster: Sandbox) -> dict[str, float]:
    """Mean time that slurmctld itself took for the requests of each user, from sdiag."""
    text = cluster.run(["sdiag"]).stdout
    rows = re.findall(
        r"^\s*(alice|bob)\s*\(\s*\d+\)\s*count:\d+\s+ave_time:(\d+)", text, re.MULTILINE
    )
    return {user: float(time) for user, time in rows}


def _rate_of(times: list[float]) -> float:
    """Jobs per second, without the slowest twentieth: those met something else that the machine
    did.
    """
    kept = sorted(times)[: len(times) - len(times) // 20]
    return len(kept) / sum(kept)


def _rate(quick: bool) -> Iterator[Figure]:
    jobs = 60 if quick else 300
    with Sandbox(SandboxOptions(f"b{os.getpid()}", nodes=1)) as cluster:
        alice = cluster.plan.first_uid
        bob = alice + 1
        script = cluster.layout.etc / "job_submit.lua"
        head, _, _ = script.read_text().rpartition("return slurm.SUCCESS")
        script.write_text(head + EMPTY.format(uid=bob))
        cluster.restart_controller()
        asked = ["--qos=online", "--gres=qgpu:30"]
        check = cluster.run(_held(*asked), user="alice").stdout.strip()
        shown = cluster.run(["scontrol", "show", "job", check]).stdout
        gres = re.search(r"TresPerNode=(\S+)", shown)
        if gres is None or "shard:30" not in gres[1]:
            raise RuntimeError(f"job_submit.lua does not rewrite: {shown}")
        given = gres[1].replace("gres:", "").replace("gres/", "")
        tag = re.search(r"(?:Comment|Extra)=(qgpu/1 .*)", shown)
        field = "extra" if tag and tag[0].startswith("Extra") else "comment"
        plain = ["--qos=online", f"--gres={given}", f"--{field}={'x' * len(tag[1]) if tag else ''}"]
        orders = {"ours": (alice, _held(*asked)), "empty": (bob, _held(*plain))}
        cluster.run(["sdiag", "--reset"])
        words = [sys.executable, "-c", SUBMIT, json.dumps(orders), str(jobs)]
        took: dict[str, list[float]] = json.loads(cluster.run(words, timeout=600).stdout)
        served = _served_us(cluster)
        count = cluster.run(["squeue", "-h", "-o", "%u"]).stdout.split()
        if (count.count("alice"), count.count("bob")) != (jobs + 1, jobs):
            raise RuntimeError(f"not every job arrived: {len(count)}")
    rates = {name: _rate_of(times) for name, times in took.items()}
    spread = (
        f"({rates['ours']:.0f} and {rates['empty']:.0f} jobs/s; slurmctld itself "
        f"{served.get('alice', 0):.0f} and {served.get('bob', 0):.0f} us per job)"
    )
    detail = {f"{name}_ms_median": 1000 * statistics.median(times) for name, times in took.items()}
    yield Figure(
        "submit_rate_ratio",
        rates["ours"] / rates["empty"],
        "",
        0.95,
        ">=",
        jobs,
        spread,
        False,
        False,
        detail,
    )


def slurms_lua() -> Path:
    """The library of the interpreter that Slurm's own job_submit plugin is linked with."""
    plugin = native_gres.own_plugin_dir() / "job_submit_lua.so"
    out = subprocess.run(["ldd", str(plugin)], capture_output=True, text=True, check=True).stdout
    found = re.search(r"liblua\S*\s+=>\s+(\S+)", out)
    if found is None:
        raise RuntimeError(f"{plugin} is not linked with Lua")
    return Path(found[1])


class Interpreter:
    """A state of that library. Chunks are compiled once and run as often as wanted."""

    def __init__(self, library: Path) -> None:
        self._lua = ctypes.CDLL(str(library))
        self._lua.luaL_newstate.restype = ctypes.c_void_p
        self._lua.lua_tolstring.restype = ctypes.c_char_p
        self._state = ctypes.c_void_p(self._lua.luaL_newstate())
        self._lua.luaL_openlibs(self._state)

    def run(self, text: str) -> None:
        """Run a chunk. Raises RuntimeError with Lua's words."""
        failed = self._lua.luaL_loadstring(self._state, text.encode()) or self._call()
        if failed:
            words = (
                self._lua.lua_tolstring(self._state, ctypes.c_int(-1), None)
                or b"an error without words"
            )
            raise RuntimeError(words.decode(errors="replace"))

    def _call(self) -> int:
        if hasattr(self._lua, "lua_pcallk"):  # Lua 5.2 and later
            return int(self._lua.lua_pcallk(self._state, 0, 0, 0, ctypes.c_ssize_t(0), None))
        return int(self._lua.lua_pcall(self._state, 0, 0, 0))


def _rewrite(quick: bool) -> Iterator[Figure]:
    """Our Lua alone. slurmctld holds its locks for that long; its C
    side is in submit_rate_ratio.
    """
    library = slurms_lua()
    runs = FEW_LUA_RUNS if quick else LUA_RUNS
    with tempfile.TemporaryDirectory(prefix="qgpu-bench-") as work:
        tables, out = Path(work) / "qgpu_tables.lua", Path(work) / "took"
        tables.write_text(
            render("qgpu_tables.lua", load_config(ROOT / "configs/examples/qgpu.yaml"))
        )
        modules = ROOT / "slurm_plugin/lua/qgpu_job_submit.lua"
        lua = Interpreter(library)
        with calibrated() as machine:
            for _ in range(runs):
                lua.run(REWRITE.format(modules=modules, tables=tables, loop=LUA_LOOP, out=out))
        took = [float(line) * 1000 for line in out.read_text().split()]
    samples = [Sample(ns, machine.ns(CALL)) for ns in took]
    note = f"{runs} times {LUA_LOOP}; {library.name}"
    yield in_units("lua_calls_per_job", samples, CALL, LUA_TARGET_NS, note)


def figures(quick: bool) -> Iterator[Figure]:
    """Both figures."""
    yield from _rewrite(quick)
    yield from _rate(quick)
