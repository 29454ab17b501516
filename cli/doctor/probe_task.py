"""Runs inside the job of `qgpu doctor --probe`: whether this program is governed as granted.

It prints one JSON list of points. The bits of its exit status are the failed points, so the answer
also arrives without the job's output.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from enforcer.reporting.state import NodeState, StateError
from enforcer.reporting.viewclient import SOCK_NAME, ViewError, ask
from enforcer.wire.abi import GRANT_ACTIVE, AbiError, GrantPage, unpack_grant
from gres.config.site import Config, ConfigError, digest_of, load_config

POINTS = ("grant", "driver", "cap", "registered", "devices", "ledger", "config")
OUT_OF_MEMORY = 2  # CUDA_ERROR_OUT_OF_MEMORY
MIB = 1 << 20
DEADLINE_S = 8.0  # qgpud samples each second, and a busy node may be late
MAX_GRANT = 1 << 16  # bytes read of a grant, whose fixed size is far below


class PointError(Exception):
    """A point failed; the text is a sentence."""


class SkippedError(PointError):
    """A point was skipped, because another one failed."""


@dataclass
class Job:
    """The job's facts for the program."""

    number: int
    config_path: str
    digest: str
    grant: GrantPage | None = None
    cuda: ctypes.CDLL | None = None

    @property
    def config(self) -> Config:
        """This node's qgpu.yaml. Raises PointError."""
        try:
            return load_config(self.config_path)
        except ConfigError as error:
            raise PointError(str(error).split("\n")[0]) from None

    @property
    def granted(self) -> GrantPage:
        """The grant. Raises SkippedError where there is none."""
        if self.grant is None:
            raise SkippedError("not looked at, since there is no grant")
        return self.grant

    @property
    def node(self) -> str:
        """The node's name, as the grant has it."""
        return bytes(self.granted.node).decode()


def grant(job: Job) -> str:
    """The sealed copy that SPANK hands over."""
    number = os.environ.get("QGPU_GRANT_FD")
    if number is None or not number.isdigit():
        raise PointError(
            "the job has no grant: QGPU_GRANT_FD is not set, so SPANK did nothing here"
        )
    try:
        page = unpack_grant(os.pread(int(number), MAX_GRANT, 0))
    except (OSError, AbiError) as error:
        raise PointError(f"the grant cannot be read: {error}") from None
    if (page.job_id, page.uid) != (job.number, os.getuid()):
        raise PointError(
            f"the grant is of job {page.job_id} of uid {page.uid}, this is job {job.number}"
        )
    if page.state != GRANT_ACTIVE or not page.ncards:
        raise PointError("the grant is not active, or names no card")
    job.grant = page
    return (
        f"job {page.job_id} has {page.cards[0].share} % and {page.cards[0].mem_cap // MIB} MiB of a"
        " card"
    )


def driver(job: Job) -> str:
    """The card through CUDA."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise PointError(f"libcuda.so.1 does not load: {error}") from None
    count = ctypes.c_int()
    for call, result in (
        ("cuInit", cuda.cuInit(0)),
        ("cuDeviceGetCount", cuda.cuDeviceGetCount(ctypes.byref(count))),
    ):
        if result:
            raise PointError(f"{call} says {result}: the job has no card that works")
    if count.value != 1:
        raise PointError(f"the job sees {count.value} cards instead of one")
    device, context = ctypes.c_int(), ctypes.c_void_p()
    cuda.cuDeviceGet(ctypes.byref(device), 0)
    result = cuda.cuCtxCreate_v2(ctypes.byref(context), 0, device)
    if result:
        raise PointError(f"cuCtxCreate says {result}: no program can use this share")
    job.cuda = cuda
    return "one card, and a context on it"


def cap(job: Job) -> str:
    """What is above the grant's memory is refused, and what is below is not."""
    if job.cuda is None:
        raise SkippedError("not tried, since there is no context")
    limit, pointer = int(job.granted.cards[0].mem_cap), ctypes.c_uint64()
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    job.cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
    if total.value > limit:
        raise PointError(
            f"CUDA tells of {total.value // MIB} MiB, granted are {limit // MIB}: the shim is not"
            " there"
        )
    allocate = job.cuda.cuMemAlloc_v2
    result = allocate(ctypes.byref(pointer), ctypes.c_size_t(limit + MIB))
    if result != OUT_OF_MEMORY:
        raise PointError(
            f"an allocation above the cap of {limit // MIB} MiB said {result}, not out of memory"
        )
    result = allocate(ctypes.byref(pointer), ctypes.c_size_t(MIB))
    if result:
        raise PointError(f"an allocation of 1 MiB below the cap said {result}")
    return f"{limit // MIB} MiB, and more is refused"


def _retry(sample: Callable[[], str | None], otherwise: str) -> str:
    """Ask repeatedly until qgpud has sampled the job, which it does about once a second."""
    end = time.monotonic() + DEADLINE_S
    why = ""
    while True:
        try:
            found = sample()
        except (ViewError, StateError, OSError) as error:
            found, why = None, f" ({error})"
        if found is not None:
            return found
        if time.monotonic() > end:
            raise PointError(otherwise + why)
        time.sleep(0.25)


def _view(job: Job) -> Path:
    return Path(job.config.node(job.node).run_dir) / SOCK_NAME


def registered(job: Job) -> str:
    """Whether the arbiter has this process registered."""
    path = _view(job)

    def sample() -> str | None:
        state = NodeState.of(ask(path, {"ask": "state"}))
        mine = [t for card in state.cards for t in card.tenants if t.job_id == job.number]
        return f"{mine[0].procs} process(es) at the arbiter" if mine and mine[0].procs else None

    return _retry(sample, f"qgpud of {job.node} does not see this process: it is not governed")


def devices(job: Job) -> str:
    """Whether other cards are closed to the job."""
    own = {int(card.index) for card in job.granted.cards[: job.granted.ncards]}
    others = [card.path for card in job.config.node(job.node).cards if card.index not in own]
    for path in others:
        try:
            os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC))
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.EACCES, errno.ENOENT, errno.ENXIO):
                continue
        else:
            raise PointError(f"the job can open {path}, which it was not granted")
    return f"{len(others)} other card(s) are closed" if others else "the node has no other card"


def ledger(job: Job) -> str:
    """Whether the node accounts the job."""
    path = _view(job)

    def sample() -> str | None:
        return (
            "the job has a row"
            if ask(path, {"ask": "usage", "jobs": [job.number]}).get("usage")
            else None
        )

    return _retry(sample, f"the ledger of {job.node} has no row of this job")


def config(job: Job) -> str:
    """Whether this node has the qgpu.yaml of the host that submitted the job."""
    mine = digest_of(job.config_path)
    if job.digest and mine != job.digest:
        raise PointError(
            f"{job.config_path} on this node is not that of the host where qgpu doctor runs"
        )
    return "the same qgpu.yaml as where the job was submitted"


STEPS: tuple[Callable[[Job], str], ...] = (grant, driver, cap, registered, devices, ledger, config)


def run(config_path: str, digest: str) -> int:
    """Check each point, print them, and return the status."""
    job = Job(int(os.environ.get("SLURM_JOB_ID", "0")), config_path, digest)
    rows, status = [], 0
    for bit, (name, step) in enumerate(zip(POINTS, STEPS, strict=True)):
        try:
            ok, text = True, step(job)
        except SkippedError as error:
            ok, text = False, str(error)
        except PointError as error:
            ok, text = False, str(error)
            status |= 1 << bit
        rows.append({"name": name, "ok": ok, "text": text})
    with contextlib.suppress(OSError):
        print(
            json.dumps({"node": os.environ.get("SLURMD_NODENAME", ""), "points": rows}), flush=True
        )
    sys.stderr.flush()
    return status
