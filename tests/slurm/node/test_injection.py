"""Both ways of injection on live nodes: what a program gets that tries to reach the driver past
the shim.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from jobs_support import Live

from cli.sandbox.files import build_dir
from enforcer.daemon.injecting.elf import exported

# Says which memory the driver that it was told to open tells: the job's cap, or the whole card.
PROBE = r"""
import ctypes, os, sys
how, name = sys.argv[1:3]
if how == "newns":
    own = ctypes.CDLL(None)
    own.dlmopen.restype = ctypes.c_void_p
    handle = own.dlmopen(ctypes.c_long(-1), name.encode(), 2)
    cuda = ctypes.CDLL(name, handle=handle)
else:
    cuda = ctypes.CDLL(name)
device, total = ctypes.c_int(), ctypes.c_size_t()
done = cuda.cuInit(0) or cuda.cuDeviceGet(ctypes.byref(device), 0)
done = done or cuda.cuDeviceTotalMem_v2(ctypes.byref(total), device)
print(sys.argv[3], "error" if done else "cap" if total.value == 4 << 30 else "card", flush=True)
"""
CLEAN = 'env -i LD_LIBRARY_PATH="$LD_LIBRARY_PATH" QGPU_SIM_DIR="$QGPU_SIM_DIR"'
# Name -> command, and what it gets under preload and under mount. D is the driver's directory, C
# has a copy of it.
TRIES = {
    "plain": ("$P open libcuda.so.1", "cap", "cap"),
    "unset": ("env -u LD_PRELOAD $P open libcuda.so.1", "card", "cap"),
    "own-preload": ("env LD_PRELOAD=libdl.so.2 $P open libcuda.so.1", "card", "cap"),
    "clean": (f"{CLEAN} $P open libcuda.so.1", "card", "cap"),
    "path": ("$P open $D/libcuda.so.1", "card", "cap"),
    "short": ("$P open libcuda.so", "card", "cap"),
    "newns": ("$P newns libcuda.so.1", "card", "cap"),
    "clean-newns": (f"{CLEAN} $P newns $D/libcuda.so.1", "card", "cap"),
    "userns": (
        "unshare -Urm sh -c 'umount -l $D/libcuda.so.1; $P open $D/libcuda.so.1 $0' 2>/dev/null",
        "card",
        "cap",
    ),
    # As in a container that binds the driver in, but not what qgpu keeps for the task: no card
    # rather than no cap.
    "hidden": (
        "unshare -Urm sh -c 'mount -t tmpfs no /run/qgpu-task; $P open libcuda.so.1 $0' "
        "2>/dev/null",
        "cap",
        "error",
    ),
    "copy": ("$P open $C/libcuda.so.1", "card", "card"),
}


@pytest.fixture
def place(live: Live) -> Iterator[Path]:
    """alice's directory with the probe and a copy of the driver; the driver gets its short name."""
    home = live.sandbox.layout.home("alice")
    (home / "probe.py").write_text(PROBE)
    shutil.copy(build_dir() / "sim/libcuda.so.1", home)
    (home / "libcuda.so.1").chmod(0o755)
    short = live.sandbox.layout.opt / "sim/libcuda.so"
    short.symlink_to("libcuda.so.1")
    yield home
    short.unlink()


def _script(live: Live, home: Path) -> str:
    lines = [
        f'export D={live.sandbox.layout.opt}/sim C={home} P="/usr/bin/python3 {home}/probe.py"',
        *(
            f"{command.replace(' $0', '')} {name}"
            if "$0" not in command
            else command.replace("$0", name)
            for name, (command, _, _) in TRIES.items()
        ),
        "echo mounts $(grep -c qgpu-task /proc/self/mountinfo)",
        "cat /proc/self/fd/$QGPU_GRANT_FD > /dev/null && echo end",
    ]
    return "\n".join(lines)


def _mounts(live: Live) -> list[str]:
    """Mounts of the place that qgpu keeps in a task's namespace, as the nodes and this machine
    see them.
    """
    inside = live.ask("cat", "/proc/self/mountinfo").splitlines()
    here = Path("/proc/self/mountinfo").read_text().splitlines()
    return [
        line for line in (*inside, *here) if re.search(r"qgpu-task|ld\.so\.preload|libcuda", line)
    ]


def test_every_way_past_the_shim(live: Live, place: Path, injection: str) -> None:
    script = _script(live, place)
    jobs = [
        live.submit(script, "--gres=qgpu:30,vram:4G"),
        live.submit(f"cat > task.sh <<'E'\n{script}\nE\nsrun sh task.sh", "--gres=qgpu:30,vram:4G"),
    ]
    for text in live.finish(*jobs):
        got = dict(line.split() for line in text.splitlines() if len(line.split()) == 2)
        wanted = {name: gets[injection == "mount"] for name, (_, *gets) in TRIES.items()}
        assert {name: got.get(name) for name in wanted} == wanted, text
        assert (got["mounts"] == "0") == (injection == "preload")
        assert text.splitlines()[-1] == "end", text
    assert _mounts(live) == []


def test_a_job_is_governed_without_any_environment(live: Live, place: Path, injection: str) -> None:
    """The clean program is known to the arbiter, by its cgroup and the grant in its namespace."""
    if injection == "preload":
        pytest.skip("there the shim is lost with the environment")
    run = "--kernel-us 500 --iters 500000 --requests 200"
    job = live.submit(
        f"{CLEAN} {live.sandbox.layout.opt}/bin/qgpu-workload {run} && echo end", "--gres=qgpu:30"
    )
    (text,) = live.finish(job)
    assert text.splitlines()[-1] == "end", text
    live.wait_sacct(job)
    (grant,) = live.report(job)[job]["grants"]
    assert grant["launches"] >= 200


STEALS = """
until [ -s other.pid ]; do sleep 0.1; done
exec 150< /proc/$(cat other.pid)/fd/100
work="timeout 8 {opt}/bin/qgpu-workload --kernel-us 500 --iters 500000 --requests 20"
QGPU_GRANT_FD=150 /usr/bin/python3 {home}/probe.py open libcuda.so.1 shown
QGPU_GRANT_FD=150 $work > /dev/null; echo worked-shown $?
export QGPU_GRANT={grants}/{whole}.grant
env -u QGPU_GRANT_FD /usr/bin/python3 {home}/probe.py open libcuda.so.1 whole
env -u QGPU_GRANT_FD $work > /dev/null; echo worked-whole $?
"""


def test_a_grant_of_another_own_job_gives_nothing(live: Live, place: Path, injection: str) -> None:
    """Its descriptor, taken from /proc, and the file of a job with whole cards: neither lifts
    the own limits.
    """
    node = live.nodes[0]
    (place / "other.pid").unlink(missing_ok=True)
    more = live.submit("echo $$ > other.pid; exec sleep 600", "--gres=qgpu:20,vram:8G", f"-w{node}")
    whole = live.submit("exec sleep 600", "--gres=gpu:1", f"-w{node}")
    assert live.grant(whole).state == "whole"
    run_dir = live.sandbox.layout.node(node).run_dir
    words = {
        "opt": live.sandbox.layout.opt,
        "home": place,
        "grants": run_dir / "grants",
        "whole": whole,
    }
    thief = live.submit(STEALS.format(**words), "--gres=qgpu:30,vram:4G", f"-w{node}")
    (text,) = live.finish(thief, seconds=60)
    live.cancel(more, whole)
    got = dict(line.split() for line in text.splitlines() if len(line.split()) == 2)
    # Mounted, the own grant counts whatever is shown. Else the shim believes a grant of its own
    # user, and the arbiter, which sees the process's job, leaves it without a page and memory.
    if injection == "mount":
        assert (got.get("shown"), got.get("worked-shown")) == ("cap", "0"), text
    else:
        assert f"belongs to job {thief}, not to job {more}" in text
        assert got.get("worked-shown") not in (None, "0"), text
    if injection == "mount":
        assert (got.get("whole"), got.get("worked-whole")) == ("cap", "0"), text
    else:
        assert got.get("whole") == "error" and got.get("worked-whole") not in (None, "0"), text
        assert "whole cards" in text


NAMES = r"""
import ctypes, sys
here = ctypes.CDLL("libcuda.so.1", mode=ctypes.RTLD_GLOBAL), ctypes.CDLL(None)
for name in open(sys.argv[1]).read().split():
    print("name", name, *(hasattr(library, name) for library in here), flush=True)
"""


def test_a_job_finds_the_names_of_the_nodes_driver(live: Live, place: Path, injection: str) -> None:
    """All that the shim knows; test_run_endtoend.py has a driver that lacks some."""
    shim, driver = (build_dir() / part / "libcuda.so.1" for part in ("shim", "sim"))
    names = {name for name in exported(shim.read_bytes()) if name.startswith("cu")}
    assert len(names) > 600 and names <= exported(driver.read_bytes())
    (place / "names").write_text("\n".join(sorted(names)))
    (place / "names.py").write_text(NAMES)
    (text,) = live.finish(
        live.submit(f"/usr/bin/python3 {place}/names.py {place}/names", "--gres=qgpu:30")
    )
    found = {
        line.split()[1]: line.split()[2:] for line in text.splitlines() if line.startswith("name ")
    }
    assert found == {name: ["True"] * 2 for name in names}


def test_other_jobs_see_the_real_driver(live: Live, place: Path, injection: str) -> None:
    probe = f"/usr/bin/python3 {place}/probe.py open libcuda.so.1 whole"
    assert live.ask("srun", "--gres=gpu:1", *probe.split(), user="alice") == "whole card"
    task = live.ask("srun", "cat", "/proc/self/mountinfo", user="alice")
    assert "qgpu-task" not in task
