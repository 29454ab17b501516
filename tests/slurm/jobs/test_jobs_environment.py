"""What a program finds in a job: its card, its cap, the shim, the sealed grant; in other jobs
nothing.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from jobs_support import USABLE, Live, together

# Says as JSON what a program sees: environment, driver, and what it can do to the grant's
# descriptor.
PROBE = r"""
import ctypes, fcntl, json, mmap, os
seen = {name: os.environ.get(name) for name in ("LD_PRELOAD", "QGPU_GRANT", "QGPU_GRANT_FD")}
seen["memfds"] = [n for n in os.listdir("/proc/self/fd")
                  if "memfd:qgpu" in os.path.realpath(f"/proc/self/fd/{n}")]
cuda = ctypes.CDLL("libcuda.so.1")
count, device, total, free = ctypes.c_int(), ctypes.c_int(), ctypes.c_size_t(), ctypes.c_size_t()
context = ctypes.c_void_p()
if cuda.cuInit(0) == 0 and cuda.cuDeviceGetCount(ctypes.byref(count)) == 0 and count.value:
    cuda.cuDeviceGet(ctypes.byref(device), 0)
    cuda.cuDeviceTotalMem_v2(ctypes.byref(total), device)
    seen["device_total"] = total.value
    assert cuda.cuCtxCreate_v2(ctypes.byref(context), 0, device) == 0
    cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
    seen["free"], seen["total"] = free.value, total.value
seen["cards"] = count.value
seen["shim"] = hasattr(cuda, "qgpu_job_view")
seen["mounted"] = os.path.exists("/run/qgpu-task/grant")
def tries(fd):
    yield "write", lambda: os.pwrite(fd, b"x", 0)
    yield "map", lambda: mmap.mmap(fd, os.fstat(fd).st_size)
    yield "truncate", lambda: os.ftruncate(fd, 0)
    yield "reopen", lambda: os.open(f"/proc/self/fd/{fd}", os.O_RDWR)
    yield "chmod", lambda: os.fchmod(fd, 0o666)
seen["could"] = []
if seen["memfds"]:
    seen["owner"] = os.fstat(int(seen["memfds"][0])).st_uid
    for name, attempt in tries(int(seen["memfds"][0])):
        try:
            attempt()
            seen["could"].append(name)
        except OSError:
            pass
print(json.dumps(seen), flush=True)
"""
MIB = 1 << 20


@pytest.fixture
def probe(live: Live) -> str:
    """Path of the probe, in alice's home."""
    path = live.sandbox.layout.home("alice") / "probe.py"
    path.write_text(PROBE)
    return str(path)


def seen_by(text: str) -> list[dict[str, Any]]:
    """All that probes printed."""
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def is_governed(seen: dict[str, Any]) -> bool:
    """Whether the probe ran with the shim and the grant; all of it or nothing."""
    marks = [bool(seen[name]) for name in ("shim", "QGPU_GRANT", "QGPU_GRANT_FD", "memfds")]
    assert len(set(marks)) == 1, seen
    return marks[0]


def srun(live: Live, probe: str, *options: str) -> dict[str, Any]:
    """The probe through a stand-alone srun of alice."""
    (seen,) = seen_by(live.ask("srun", *options, "/usr/bin/python3", probe, user="alice"))
    return seen


def test_only_jobs_with_a_share_are_governed(live: Live, probe: str) -> None:
    wanted = {  # options: governed, cards
        "--gres=qgpu:30 --export=NONE": (True, 1),
        "--gres=qgpu:h200:30,vram:4G": (True, 1),
        "": (False, 0),
        "--gres=gpu:1": (False, 1),
        "--gres=gpu:h200": (False, 1),
        "--gres=qgpu:100": (False, 1),
    }
    if not live.dialect.lone_whole:
        wanted |= {
            "--gres=qgpu:200": (False, 2),
            "--gpus=1": (False, 1),
            "-n1 --gpus-per-task=1": (False, 1),
        }
    found = dict(
        zip(
            wanted,
            together(lambda words=words: srun(live, probe, *words.split()) for words in wanted),
            strict=True,
        )
    )
    assert {words: (is_governed(seen), seen["cards"]) for words, seen in found.items()} == wanted
    governed, typed, _, *whole = found.values()
    for seen in (governed, typed):
        assert seen["could"] == []
        assert seen["owner"] == 0
    cap = 23961 * MIB
    assert (governed["device_total"], governed["total"]) == (cap, cap)
    assert governed["free"] == cap - 300 * MIB, "the probe's context"
    assert typed["total"] == 4 << 30
    assert {seen["total"] for seen in whole} == {USABLE + (2 << 30)}


STEPS = """
set -e
echo batch; /usr/bin/python3 {probe}
echo plain; srun -n1 /usr/bin/python3 {probe}
echo named; srun -n1 --gres=qgpu:10 /usr/bin/python3 {probe}
echo two; srun -n2 --gres=qgpu:10 /usr/bin/python3 {probe}
echo clean
env -i LD_LIBRARY_PATH="$LD_LIBRARY_PATH" QGPU_SIM_DIR="$QGPU_SIM_DIR" /usr/bin/python3 {probe}
echo end
"""


def test_steps_inherit_and_a_clean_environment_loses_the_shim_only_without_mounts(
    live: Live, probe: str
) -> None:
    jobs = [
        live.submit(STEPS.format(probe=probe), "-n2", "--gres=qgpu:30,vram:4G", *more)
        for more in ([], ["--export=NONE"])
    ]
    for text in live.finish(*jobs):
        assert text.splitlines()[-1] == "end", text
        *steps, clean = seen_by(text)
        assert len(steps) == 5
        assert all(
            is_governed(seen) and seen["cards"] == 1 and seen["total"] == 4 << 30 for seen in steps
        )
        # With preload not to be prevented by anybody, and not more than the card: the device cgroup
        # holds.
        assert clean["shim"] == clean["mounted"] == (not steps[0]["LD_PRELOAD"])
        assert (clean["total"] == 4 << 30) == clean["mounted"]
        assert clean["cards"] == 1
        assert clean["could"] == []


def test_a_step_cannot_ask_for_more_than_its_job(live: Live) -> None:
    (text,) = live.finish(live.submit("srun --gres=qgpu:50 true", "--gres=qgpu:30"))
    assert live.dialect.over_job in text


def test_a_job_from_inside_a_job_is_not_governed_by_it(live: Live, probe: str) -> None:
    home = live.sandbox.layout.home("alice")
    inner = f"sbatch --parsable -o {home}/inner.out --wrap 'python3 {probe}' > {home}/inner.id"
    live.finish(live.submit(inner, "--gres=qgpu:30"))
    live.wait_gone(int((home / "inner.id").read_text()))
    (seen,) = seen_by((home / "inner.out").read_text())
    assert not is_governed(seen)
