"""A killed process whose memory the driver gives back late: DIED, NVML, GONE, with the real
daemons and the shim.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from node_support import BUILD, USER, chains, end, until

from enforcer.wire.link import ArbiterLink
from simulator.sim import SimConfig, Simulator

MIB, GIB = 1 << 20, 1 << 30
CAP = 4 * GIB
CONTEXT = 400 * MIB  # more than a context of the simulated driver takes
LINGER_US = 1_500_000
LONG_US = 9_000_000

# Asks for 3 GiB until it gets them; says when it was first refused and when it had them.
WAITER = """
import ctypes, json, time
cu = ctypes.CDLL("libcuda.so.1")
device, context, at = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
assert cu.cuInit(0) == 0 and cu.cuDeviceGet(ctypes.byref(device), 0) == 0
assert cu.cuCtxCreate_v2(ctypes.byref(context), 0, device) == 0
refused, codes = 0, set()
while (code := cu.cuMemAlloc_v2(ctypes.byref(at), ctypes.c_size_t(3 << 30))) != 0:
    refused, codes = refused + 1, codes | {code}
said = {"had_ns": time.monotonic_ns(), "refused": refused, "codes": sorted(codes)}
print(json.dumps(said), flush=True)
"""

pytestmark = [
    pytest.mark.native,
    pytest.mark.skipif(os.geteuid() != 0, reason="makes device nodes"),
    pytest.mark.timeout(180),
]


@pytest.fixture
def chain() -> Iterator:
    with chains() as make:
        yield make()


def waiter(chain, job: int) -> subprocess.Popen[str]:
    """The next process of the job, in a task of its own."""
    stage = [
        str(chain.opt / "test/spank_stage"),
        str(chain.opt / "lib/qgpu_spank.so"),
        "remote",
        str(job),
    ]
    env = {
        "PATH": "/usr/bin:/bin",
        "SLURMD_NODENAME": "n1",
        "QGPU_SIM_DIR": f"{chain.directory}/sim",
    }
    env |= {"LD_LIBRARY_PATH": f"{chain.opt}/sim"}
    command = [
        *stage,
        str(USER),
        f"run_dir={chain.directory}/run",
        "--",
        "/usr/bin/python3",
        "-c",
        WAITER,
    ]
    return subprocess.Popen(command, env=env, cwd="/", text=True, stdout=subprocess.PIPE)


class Watch:
    """The driver's list of card 0, by a process of its own: (time, bytes by pid) again and
    again.
    """

    SCRIPT = """
import json, sys, time
from enforcer.nvml.driver import PynvmlNvml
nvml = PynvmlNvml(sys.argv[1])
card = next(c.uuid for c in nvml.cards() if c.minor == int(sys.argv[2]))
while True:
    began = time.monotonic_ns()
    held = {p.pid: p.mem_used for p in nvml.processes(card)}
    print(json.dumps([began, time.monotonic_ns(), held]), flush=True)
    time.sleep(0.002)
"""

    def __init__(self, chain, minor: int) -> None:
        words = [
            sys.executable,
            "-c",
            self.SCRIPT,
            f"{chain.opt}/sim/libnvidia-ml.so.1",
            str(minor),
        ]
        self._path = chain.directory / "watch"
        out = self._path.open("w")
        self.process = subprocess.Popen(words, env=os.environ | chain.env(), stdout=out)
        out.close()

    def looks(self) -> list[tuple[int, int, dict[int, int]]]:
        """All looks so far."""
        lines = self._path.read_text().splitlines()[:-1]
        return [
            (b, e, {int(pid): size for pid, size in held.items()})
            for b, e, held in map(json.loads, lines)
        ]


def test_memory_of_a_killed_process_is_free_once_the_driver_does_not_list_it(chain):
    assert chain.hook("prolog", 7, "qgpu/1 class=offline share=50 mem=4096") == 0
    first = chain.task(7, "--memory", "3G", "--length", "600", "--kernel-us", "200")
    second, watch = None, None
    try:
        until(lambda: any(t.mem_used >= 3 * GIB and t.mem_extra for t in chain.tenants()))
        with ArbiterLink(f"{chain.directory}/run") as link:
            (process,) = link.processes()
        (uuid,) = {t.uuid for t in chain.tenants()}
        assert uuid == process.uuid
        watch = Watch(chain, os.minor((chain.directory / "sim/dev/qgpusim0").stat().st_rdev))
        until(lambda: any(process.pid in held for _, _, held in watch.looks()))
        sim = Simulator(SimConfig(chain.directory / "sim", "n1"), BUILD, chain.qgpud)
        assert sim.control(f"linger pid={process.pid} us={LINGER_US}") == 1
        os.kill(process.pid, signal.SIGKILL)
        killed_ns = time.monotonic_ns()
        second = waiter(chain, 7)
        charged = []
        while not any(
            process.pid not in held for begin, _, held in watch.looks() if begin > killed_ns
        ):
            (tenant,) = chain.tenants()
            charged.append(tenant.mem_used + tenant.mem_extra)
            time.sleep(0.01)
        assert second.stdout is not None
        told = json.loads(second.stdout.readline())
        looks = watch.looks()
        listed_ns = max(begin for begin, _, held in looks if process.pid in held)
        gone_ns = min(end_ns for begin, end_ns, held in looks if begin > listed_ns)
        assert told["refused"] > 0 and told["codes"] == [2], (
            "CUDA_ERROR_OUT_OF_MEMORY while the driver holds it"
        )
        assert told["had_ns"] > listed_ns, "not before the driver let go"
        assert (gone_ns - killed_ns) / 1e9 >= 0.9 * LINGER_US / 1e6, "the driver did take its time"
        waited_ms = (told["had_ns"] - gone_ns) / 1e6
        print(f"{waited_ms:.1f} ms after the driver let go, {told['refused']} refusals before")
        assert waited_ms < 40_000, "by GONE: the arbiter alone would have waited for a minute"
        # The arbiter never charged less than the dead process holds, nor more than the cap.
        assert min(charged[:-5]) >= 3 * GIB and max(charged) <= CAP
        # And the driver itself never held more than the cap and two contexts for this job.
        assert max(sum(held.values()) for _, _, held in looks) <= CAP + 2 * CONTEXT
        assert (
            max(sum(held.values()) for begin, _, held in looks if begin < listed_ns)
            < 3 * GIB + 3 * CONTEXT
        )
    finally:
        for process_ in (first, second, watch.process if watch else None):
            if process_ is not None:
                end(process_)


def upset(chain, what: str, minute: str) -> None:
    """Something happens to the daemons before the process dies ("before"), or 6 s after
    ("after").
    """
    if what == "qgpud hangs":
        chain.qgpud.send_signal(signal.SIGSTOP if minute == "before" else signal.SIGCONT)
    elif what == "qgpud is killed" and minute == "before":
        chain.qgpud.kill()
        chain.qgpud.wait()
    elif what == "qgpud is killed":
        chain.start_qgpud()


@pytest.mark.parametrize(
    "what", ["nothing", "qgpud hangs", "qgpud is killed", "the arbiter is new"]
)
def test_memory_that_the_driver_holds_for_long_is_charged_for_long(chain, what: str):
    assert chain.hook("prolog", 7, "qgpu/1 class=offline share=50 mem=4096") == 0
    first = chain.task(7, "--memory", "3G", "--length", "600", "--kernel-us", "200")
    second = None
    try:
        until(lambda: any(t.mem_used >= 3 * GIB and t.mem_extra for t in chain.tenants()))
        with ArbiterLink(f"{chain.directory}/run") as link:
            (process,) = link.processes()
        sim = Simulator(SimConfig(chain.directory / "sim", "n1"), BUILD, chain.qgpud)
        assert sim.control(f"linger pid={process.pid} us={LONG_US}") == 1
        upset(chain, what, "before")
        os.kill(process.pid, signal.SIGKILL)
        killed_ns = time.monotonic_ns()
        if what == "the arbiter is new":
            until(lambda: any(t.mem_extra >= 3 * GIB and not t.procs for t in chain.tenants()))
            chain.arbiter.kill()
            chain.arbiter.wait()
            chain.ready("bin/qgpu-arbiter", "--run-dir", f"{chain.directory}/run")
            until(lambda: any(t.mem_extra >= 3 * GIB for t in chain.tenants()))
        second = waiter(chain, 7)
        while time.monotonic_ns() < killed_ns + 6_000_000_000:
            assert second.poll() is None, "it had the memory although the driver had not let go"
            time.sleep(0.05)
        upset(chain, what, "after")
        assert second.stdout is not None
        told = json.loads(second.stdout.readline())
        assert told["refused"] > 0 and told["codes"] == [2]
        waited = (told["had_ns"] - killed_ns) / 1e9
        assert 0.95 * LONG_US / 1e6 < waited < LONG_US / 1e6 + 40, (
            "when the driver let go, not when time was up"
        )
    finally:
        upset(chain, what, "after")
        for process_ in (first, second):
            if process_ is not None:
                end(process_)
