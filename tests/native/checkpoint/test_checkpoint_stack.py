"""qgpu-checkpoint, arbiter, shim and simulated card together, as qgpud uses them: a job is held,
its memory leaves, another job takes the place, and the memory returns bit for bit.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from programs_support import OFFLINE, ONLINE, ended, line, python, tenant

from bench.harness.node import BUILD, MIB, Rig, wait_for
from enforcer.fdwait import readable_within
from enforcer.wire.link import MemoryAction, Want
from enforcer.wire.watch import DeathWatch

pytestmark = pytest.mark.native
MOST = 50 * 1024  # MiB of each of two jobs: the card has room for one
FINE = "- 0 CUDA_SUCCESS"
TRAINING = """
import hashlib
d = Cuda(); big = d.alloc(BIG * MIB); data = os.urandom(8 * MIB)
for at in (0, BIG // 2 * MIB, (BIG - 8) * MIB):
    d.call("cuMemcpyHtoD_v2", c.c_uint64(big.value + at), data, c.c_size_t(len(data)))
print("there", flush=True)
for word in sys.stdin:
    if word == "end\\n":
        break
    if word == "work\\n":
        d.launch(200); d.call("cuCtxSynchronize"); print("worked", flush=True)
        continue
    back, good = c.create_string_buffer(8 * MIB), True
    for at in (0, BIG // 2 * MIB, (BIG - 8) * MIB):
        d.call("cuMemcpyDtoH_v2", back, c.c_uint64(big.value + at), c.c_size_t(8 * MIB))
        good &= back.raw == data
    print(good, flush=True)
"""
SERVING = f"""
d = Cuda(); print("up", flush=True); sys.stdin.readline()
print(d.try_alloc({MOST - 1024} * MIB) != 0, flush=True); sys.stdin.readline()
"""


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with Rig(tmp_path) as one:
        one.grant(OFFLINE, "offline", 50, MOST)
        one.grant(ONLINE, "online", 50, MOST)
        yield one


def training(rig: Rig, mib: int = MOST - 2048) -> subprocess.Popen[str]:
    process = python(rig, TRAINING.replace("BIG", str(mib)), stdin=subprocess.PIPE)
    assert line(process) == "there"
    return process


def tell(process: subprocess.Popen[str], word: str) -> None:
    assert process.stdin
    process.stdin.write(word + "\n")
    process.stdin.flush()


def ask(process: subprocess.Popen[str], word: str) -> str:
    tell(process, word)
    return line(process)


def start(
    rig: Rig, action: str, *processes: subprocess.Popen[str], lock_ms: int = 60_000
) -> subprocess.Popen[str]:
    """qgpu-checkpoint."""
    words = ["--driver", rig.driver, "--lock-ms", lock_ms, action, *(p.pid for p in processes)]
    return subprocess.Popen(
        [str(word) for word in (BUILD / "bin/qgpu-checkpoint", *words)],
        env={"QGPU_SIM_DIR": str(rig.sim_dir)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def moves(
    rig: Rig,
    action: str,
    *processes: subprocess.Popen[str],
    status: int = 0,
    lock_ms: int = 60_000,
) -> list[str]:
    """What it prints, without the numbers of the processes."""
    helper = start(rig, action, *processes, lock_ms=lock_ms)
    out, err = helper.communicate(timeout=120)
    assert helper.returncode == status, (out, err)
    lines = [one.split(" ", 1) for one in out.splitlines()]
    assert [int(pid) for pid, _ in lines] == [process.pid for process in processes]
    return [rest for _, rest in lines]


def hold(rig: Rig, held: bool) -> None:
    rig.link.grant(rig.grants[OFFLINE], held=held)


def test_memory_leaves_for_an_online_job_and_returns(rig: Rig) -> None:
    """The online job's allocation waits meanwhile, and gets its memory."""
    batch = training(rig)
    server = python(rig, SERVING, job=ONLINE, stdin=subprocess.PIPE)
    assert line(server) == "up"
    with DeathWatch(rig.run_dir) as watch:
        rig.link.memory(0, rig.uuids[0], MemoryAction.WAIT)
        tell(server, "")
        wants: list[Want] = []
        wait_for("it waits for memory", lambda: bool(wants.extend(watch.wants()) or wants))
        assert wants[0].wanted == (MOST - 1024) * MIB
        hold(rig, True)
        assert moves(rig, "leave", batch) == [f"checkpointed {FINE}"]
        rig.link.memory(ONLINE, rig.uuids[0], MemoryAction.RETRY)
        assert line(server) == "True"
    tell(batch, "work")
    assert batch.stdout and not readable_within(batch.stdout.fileno(), 0.3), "it waits at its gate"
    assert moves(rig, "return", batch, status=1) == [
        "checkpointed restore 2 CUDA_ERROR_OUT_OF_MEMORY"
    ], "there is no room yet"
    tell(server, "")
    ended(server)
    assert moves(rig, "return", batch) == [f"running {FINE}"]
    hold(rig, False)
    assert line(batch) == "worked" and ask(batch, "compare") == "True"
    tell(batch, "end")
    assert ended(batch)[1] == ""


def test_ranks_of_a_job_leave_together(rig: Rig) -> None:
    ranks = [training(rig, 4096) for _ in range(3)]
    bystander = subprocess.Popen(["sleep", "600"], text=True)
    rig.adopt(bystander)
    hold(rig, True)
    assert moves(rig, "leave", *ranks, bystander) == [
        *[f"checkpointed {FINE}"] * 3,
        "none - 3 CUDA_ERROR_NOT_INITIALIZED",
    ]
    assert moves(rig, "state", *ranks) == [f"checkpointed {FINE}"] * 3
    assert moves(rig, "return", *ranks) == [f"running {FINE}"] * 3
    hold(rig, False)
    assert [ask(rank, "compare") for rank in ranks] == ["True"] * 3


def test_one_rank_with_managed_memory_keeps_the_others(rig: Rig) -> None:
    ranks = [training(rig, 4096) for _ in range(2)]
    managed = python(
        rig,
        """
        d = Cuda(); p = c.c_uint64()
        d.call("cuMemAllocManaged", c.byref(p), c.c_size_t(64 * MIB), 1)
        print("there", flush=True); sys.stdin.readline()
        """,
        stdin=subprocess.PIPE,
    )
    assert line(managed) == "there"
    hold(rig, True)
    *others, refused = moves(rig, "leave", *ranks, managed, status=1)
    assert refused.split()[0] == "running" and refused.endswith("801 CUDA_ERROR_NOT_SUPPORTED")
    assert others == [f"running {FINE}"] * 2
    hold(rig, False)
    assert [ask(rank, "compare") for rank in ranks] == ["True"] * 2


def test_a_process_that_waits_for_room_may_leave(rig: Rig) -> None:
    """A reclaimable job's own allocation waits: that keeps it from nothing."""
    batch = training(rig, 8192)
    server = python(rig, SERVING, job=ONLINE, stdin=subprocess.PIPE)
    assert line(server) == "up" and ask(server, "") == "True"
    rig.link.memory(0, rig.uuids[0], MemoryAction.WAIT)
    waiting = python(
        rig,
        f"d = Cuda(); print('up', flush=True); print(d.try_alloc({MOST - 10240} * MIB) != 0)",
    )
    assert line(waiting) == "up"
    with DeathWatch(rig.run_dir) as watch:
        wants: list[Want] = []
        wait_for("it waits for memory", lambda: bool(wants.extend(watch.wants()) or wants))
        hold(rig, True)
        assert moves(rig, "leave", batch, waiting) == [f"checkpointed {FINE}"] * 2
        tell(server, "")
        ended(server)
        rig.link.memory(OFFLINE, rig.uuids[0], MemoryAction.RETRY)
        assert waiting.stdout and not readable_within(waiting.stdout.fileno(), 0.3)
        assert tenant(rig).mem_used < 10 * 1024 * MIB, "it is held: the try waits, too"
        assert moves(rig, "return", batch, waiting) == [f"running {FINE}"] * 2
        hold(rig, False)
        assert ended(waiting)[0] == "True" and ask(batch, "compare") == "True"


def test_work_that_does_not_end_costs_the_helper_and_nothing_else(rig: Rig) -> None:
    """A checkpoint waits for it, without a limit of its own: qgpud has one."""
    batch = python(
        rig,
        """
        d = Cuda(); d.launch(600_000_000); print("there", flush=True); sys.stdin.readline()
        """,
        stdin=subprocess.PIPE,
    )
    assert line(batch) == "there"
    rank = training(rig, 4096)
    hold(rig, True)
    helper = start(rig, "leave", rank, batch)
    wait_for("the other has left", lambda: moves(rig, "state", rank)[0].startswith("checkpointed"))
    helper.kill()
    assert helper.communicate() == ("", "")
    assert moves(rig, "return", rank, batch) == [f"running {FINE}"] * 2
    hold(rig, False)
    assert ask(rank, "compare") == "True"


def test_a_helper_that_hangs_is_killed_and_undone_by_the_next(rig: Rig) -> None:
    """As qgpud does it at its deadline, or when it was itself killed."""
    ranks = [training(rig, 4096) for _ in range(2)]
    hold(rig, True)
    for call in ("Lock", "Checkpoint"):
        rig.fault(f"block call=cuCheckpointProcess{call} pid={ranks[1].pid}")
        helper = start(rig, "leave", *ranks)
        first = "locked" if call == "Lock" else "checkpointed"
        wait_for("it hangs", lambda first=first: moves(rig, "state", ranks[0])[0].startswith(first))
        helper.kill()
        assert helper.communicate() == ("", "")
        rig.fault("clear")
        assert moves(rig, "return", *ranks) == [f"running {FINE}"] * 2
    assert moves(rig, "leave", *ranks) == [f"checkpointed {FINE}"] * 2
    assert moves(rig, "return", *ranks) == [f"running {FINE}"] * 2
    hold(rig, False)
    assert [ask(rank, "compare") for rank in ranks] == ["True"] * 2
