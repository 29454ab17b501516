"""NVML in a job: memory, processes and utilisation are the job's, everything else is the card's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import shim_support as s
from shim_memory_support import (
    CAP,
    CONTEXT,
    MIB,
    NVML,
    NVML_SHIM,
    Node,
    node,
    sanitizer_and_twin,
)

pytestmark = pytest.mark.native

ASK = """
import json, sys, pynvml as n
def tell():
    card = n.nvmlDeviceGetHandleByIndex(0)
    one = n.nvmlDeviceGetMemoryInfo(card)
    two = n.nvmlDeviceGetMemoryInfo(card, version=n.nvmlMemory_v2)
    try:
        util = {x.pid: x.smUtil for x in n.nvmlDeviceGetProcessUtilization(card, 0)}
    except n.NVMLError_NotFound:
        util = {}
    try:
        info = {x.pid: x.smUtil for x in n.nvmlDeviceGetProcessesUtilizationInfo(card, 0)}
    except n.NVMLError_NotFound:
        info = {}
    try:
        samples = n.nvmlDeviceGetSamples(card, n.NVML_GPU_UTILIZATION_SAMPLES, 0)[1]
        past = [x.sampleValue.uiVal for x in samples]
    except n.NVMLError_NotFound:
        past = []
    try:
        stranger = None
        if sys.argv[1:]:
            stranger = n.nvmlDeviceGetAccountingStats(card, int(sys.argv[1])).isRunning
    except n.NVMLError_NotFound:
        stranger = "hidden"
    states = n.c_nvmlGpuDynamicPstatesInfo_t()
    dynamic = n._nvmlGetFunctionPointer("nvmlDeviceGetDynamicPstatesInfo")(card, n.byref(states))
    print(json.dumps({
        "past": past, "dynamic": [dynamic, states.utilization[0].percentage],
        "accounted": n.nvmlDeviceGetAccountingPids(card), "stranger": stranger,
        "memory": [one.total, one.used, one.free], "v2": [two.total, two.used, two.free],
        "procs": {p.pid: p.usedGpuMemory for p in n.nvmlDeviceGetComputeRunningProcesses(card)},
        "graphics": len(n.nvmlDeviceGetGraphicsRunningProcesses(card)),
        "mps": len(n.nvmlDeviceGetMPSComputeRunningProcesses(card)),
        "rate": n.nvmlDeviceGetUtilizationRates(card).gpu, "util": util, "info": info,
        "name": n.nvmlDeviceGetName(card), "count": n.nvmlDeviceGetCount(),
    }), flush=True)
n.nvmlInit()
"""
MONITOR = ASK + "tell()\nfor line in sys.stdin:\n    tell()\n"
CUDA = (
    ASK
    + """
import ctypes as c
cuda = c.CDLL("libcuda.so.1")
context, memory, left, total = c.c_void_p(), c.c_uint64(), c.c_size_t(), c.c_size_t()
assert cuda.cuInit(0) == cuda.cuDevicePrimaryCtxRetain(c.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0
assert cuda.cuMemAlloc_v2(c.byref(memory), c.c_size_t(64 << 20)) == 0
assert cuda.cuMemGetInfo_v2(c.byref(left), c.byref(total)) == 0
print(json.dumps([total.value, left.value]), flush=True)
for line in sys.stdin:
    tell()
"""
)


class Python:
    """A Python program in the job."""

    def __init__(
        self,
        where: Node,
        code: str,
        governed: bool = True,
        sanitized: bool = False,
        stranger: int = 0,
    ) -> None:
        self.fd = s.sealed("grant", where.grant())
        preload = (
            {"LD_PRELOAD": f"{NVML_SHIM}:{s.SHIM}", "QGPU_GRANT_FD": str(self.fd)}
            if governed
            else {}
        )
        if sanitized:
            preload["LD_PRELOAD"] = sanitizer_and_twin("libnvidia-ml.so.1", "libcuda.so.1")
            preload |= {"ASAN_OPTIONS": "detect_leaks=0", "PYTHONMALLOC": "malloc"}
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, *([str(stranger)] if stranger else [])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE if sanitized else None,
            text=True,
            bufsize=1,
            env=os.environ | where.sim.env() | preload,
            pass_fds=(self.fd,),
        )
        os.close(self.fd)

    def told(self) -> dict[str, object]:
        assert self.process.stdout
        return dict(json.loads(self.process.stdout.readline()))

    def again(self) -> dict[str, object]:
        assert self.process.stdin
        self.process.stdin.write("\n")
        return self.told()

    def end(self) -> str:
        error = self.process.communicate(timeout=60)[1]
        assert self.process.returncode == 0, error
        return error or ""


def test_monitor_in_a_job_sees_the_job(tmp_path: Path) -> None:
    with node(tmp_path) as where:
        outsider = where.run("mem_share", "make", "ipc", governed=False)
        outsider.at("begin")
        outsider.on()
        outsider.line()
        outsider.at("made")
        worker = where.run("mem_plain")
        worker.at("begin")
        worker.on()
        assert worker.at("alloc") == 64 * MIB
        monitor = Python(where, MONITOR)
        told = monitor.told()
        assert told["memory"] == told["v2"] == [CAP, 64 * MIB, CAP - 64 * MIB]
        assert told["procs"] == {str(worker.process.pid): 64 * MIB + CONTEXT}
        assert (told["graphics"], told["count"], told["name"]) == (0, 1, "NVIDIA H200")
        assert set(told["util"]) <= {str(worker.process.pid)}  # type: ignore[call-overload]
        worker.on()
        worker.at("managed")
        told = monitor.again()
        assert told["memory"] == told["v2"] == [CAP, 96 * MIB, CAP - 96 * MIB]
        where.arbiter.card.gate_page.mem_extra = 10 * MIB
        told = monitor.again()
        assert told["memory"] == told["v2"] == [CAP, 106 * MIB, CAP - 106 * MIB]
        assert monitor.again()["memory"] == [CAP, 106 * MIB, CAP - 106 * MIB]
        monitor.end()
        bystander = Python(where, MONITOR, governed=False)
        told = bystander.told()
        total, used, _ = told["memory"]  # type: ignore[misc]
        assert (total, used) == (81920 * MIB, 2 * CONTEXT + 160 * MIB)
        assert set(told["procs"]) == {str(p.process.pid) for p in (worker, outsider)}  # type: ignore[call-overload]
        bystander.end()


def test_program_with_cuda_gets_the_same_from_both(tmp_path: Path) -> None:
    with node(tmp_path) as where:
        program = Python(where, CUDA)
        assert program.process.stdout
        total, left = json.loads(program.process.stdout.readline())
        where.arbiter.name_slot(program.process.pid)
        told = program.again()
        assert (
            [total, total - left, left]
            == told["memory"]
            == told["v2"]
            == [CAP, 64 * MIB, CAP - 64 * MIB]
        )
        assert told["procs"] == {str(program.process.pid): 64 * MIB + CONTEXT}
        assert where.arbiter.card.asked == [0], "registered a second time"
        program.end()


EVERY_LIST = MONITOR.replace("tell()\nfor", "every()\ntell()\nfor").replace(
    "def tell():",
    """
def every():
    card, said = n.nvmlDeviceGetHandleByIndex(0), set()
    for kind in ("Compute", "Graphics", "MPSCompute"):
        for version in ("", "_v2", "_v3"):
            for room in (0, 1, 64):  # too small a list is told so, and nothing is written behind it
                count, list_ = n.c_uint(room), (n.c_nvmlProcessInfo_v2_t * max(room, 1))()
                ask = n._nvmlGetFunctionPointer(f"nvmlDeviceGet{kind}RunningProcesses{version}")
                said.add(ask(card, n.byref(count), list_ if room else None))
    assert said == {0, n.NVML_ERROR_INSUFFICIENT_SIZE}, said
    for ask in (n.nvmlDeviceGetProcessesUtilizationInfo, n.nvmlDeviceGetProcessUtilization):
        try:
            ask(card, 0)
        except n.NVMLError:
            pass

def tell():""",
)


@pytest.mark.parametrize("code", [EVERY_LIST, CUDA], ids=["monitor", "cuda"])
def test_sanitizers_find_nothing(tmp_path: Path, code: str) -> None:
    """A monitor that registers by itself, and a program whose shim is asked; lists of every
    version and size.
    """
    with node(tmp_path) as where:
        worker = where.run("mem_plain")
        worker.at("begin")
        worker.on()
        worker.at("alloc")
        program = Python(where, code, sanitized=True)
        assert program.process.stdout
        assert program.process.stdout.readline(), program.process.communicate()
        where.arbiter.stop()  # pages of an arbiter that is gone
        where.arbiter.start()
        assert program.again()["count"] == 1
        error = program.end()
    assert "anitizer" not in error and "runtime error" not in error, error


def test_the_sanitized_twin_is_instrumented() -> None:
    """The control of the test above: a plain library would find nothing either."""
    twin = s.BUILD / "test/shim-asan/libnvidia-ml.so.1"
    out = subprocess.run(["nm", "-D", str(twin)], capture_output=True, text=True, check=True).stdout
    assert "__asan_report_load8" in out and "__ubsan_handle_type_mismatch" in out


def test_utilisation_is_the_jobs_own(tmp_path: Path) -> None:
    work = (
        "from sim_client import Cuda\nimport time\ncuda = Cuda()\nprint(1, flush=True)\n"
        "while True:\n    cuda.launch(20000)\n    cuda.call('cuCtxSynchronize')\n"
    )
    with node(tmp_path) as where:
        environment = (
            os.environ
            | where.sim.env()
            | {"PYTHONPATH": str(Path(__file__).parents[2] / "support/simulator")}
        )
        busy = subprocess.Popen(
            [sys.executable, "-c", work], env=environment, stdout=subprocess.PIPE
        )
        try:
            assert busy.stdout and busy.stdout.readline()
            bystander = Python(where, MONITOR, governed=False, stranger=busy.pid)
            monitor = Python(where, MONITOR, stranger=busy.pid)
            assert (bystander.told()["accounted"], bystander.again()["stranger"]) == ([busy.pid], 1)
            assert monitor.told()["rate"] == 0
            s.until(lambda: int(str(bystander.again()["rate"])) > 50)
            assert bystander.again()["past"] > [50]  # type: ignore[operator]
            told = monitor.again()
            assert (told["rate"], told["util"], told["info"], told["procs"]) == (0, {}, {}, {})
            assert (told["past"], told["dynamic"], told["accounted"]) == ([], [0, 0], [])
            assert told["stranger"] == "hidden"
            for kind in ("graphics", "mps", "compute"):  # the driver lists it so from now on
                assert where.sim.control(f"list pid={busy.pid} as={kind}") == 1
                there, here = bystander.again(), monitor.again()
                for lists in ("graphics", "mps"):
                    assert (there[lists], here[lists]) == (int(kind == lists), 0), (kind, lists)
            # from now on the worker is one of the job's
            where.arbiter.card.job_page.procs[8].pid = busy.pid
            told = monitor.again()
            assert int(str(told["rate"])) > 30 and told["past"] > [30]  # type: ignore[operator]
            assert told["dynamic"] > [0, 30]  # type: ignore[operator]
            assert (told["accounted"], told["stranger"]) == ([busy.pid], 1)
            for kind in ("util", "info", "procs"):
                assert set(told[kind]) == {str(busy.pid)}, kind  # type: ignore[call-overload]
            for program in (bystander, monitor):
                program.end()
        finally:
            busy.kill()
            busy.communicate()


def test_every_function_of_nvml_is_there() -> None:
    """The shim offers what the newest binding asks for."""
    table = (
        (s.ROOT / "enforcer/native/shim_nvml/symbols.tsv").read_text(encoding="utf-8").splitlines()
    )
    names = [line.split("\t")[0] for line in table if not line.startswith("#")]
    assert len(names) > 400
    # In a process of its own: loaded here, it would be the NVML of all tests that follow.
    code = (
        "import ctypes, sys; d = ctypes.CDLL(sys.argv[1]); print([n for n in sys.argv[2:] if "
        "not hasattr(d, n)])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(NVML_SHIM), *names], capture_output=True, text=True
    )
    assert done.stdout == "[]\n", done.stderr


def test_without_a_grant_nothing_changes(tmp_path: Path) -> None:
    with node(tmp_path) as where:
        code = "import pynvml as n; n.nvmlInit(); print(n.nvmlDeviceGetCount())"
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | where.sim.env() | {"LD_PRELOAD": str(NVML_SHIM)},
            capture_output=True,
            text=True,
            check=False,
        )
        # No grant, so no path of the driver, and no driver in the usual places of this machine.
        if not any(
            Path(p, NVML.name).exists()
            for p in ("/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib")
        ):
            assert "NVML Shared Library Not Found" in done.stderr
        else:
            assert done.returncode == 0 or "NVML" in done.stderr
