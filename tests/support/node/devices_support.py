"""Real cgroups that constrain devices, as Slurm makes them for a job, and who can open what there.

The devices are /dev/null, /dev/zero and /dev/full: every machine has them.
"""

from __future__ import annotations

import contextlib
import os
import struct
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pytest

from enforcer.daemon.devices import bpf
from enforcer.daemon.devices.places import Roots, roots
from enforcer.daemon.devices.port import Device

NULL, ZERO, FULL = Device(1, 3), Device(1, 5), Device(1, 7)
NAMES = {NULL: "/dev/null", ZERO: "/dev/zero", FULL: "/dev/full"}
HEAD = (
    (0x61, 0x12, 0, 0),
    (0x54, 2, 0, 0xFFFF),
    (0x61, 0x13, 0, 0),
    (0x74, 3, 0, 16),
    (0x61, 0x14, 4, 0),
    (0x61, 0x15, 8, 0),
)
# Below a job's directory: where programs are in version 2, and whether they may be overridden.
STEP, TASK, BATCH = "step_0/user", "step_0/user/task_0", "step_batch/user/task_0"
PROGRAMS = {"": bpf.OVERRIDE, STEP: bpf.OVERRIDE, TASK: 0}


def code(*instructions: tuple[int, int, int, int]) -> bytes:
    """A program of (code, registers, offset, constant)."""
    return b"".join(struct.pack("<BBhi", *one) for one in instructions)


def slurms(answers: Mapping[Device, int]) -> bytes:
    """A program as Slurm 24.11 attaches it: what it does not name is allowed."""
    text = list(HEAD)
    for device, answer in answers.items():
        text += [(0x55, 2, 4, 2), (0x55, 4, 3, device.major), (0x55, 5, 2, device.minor)]
        text += [(0xB7, 0, 0, answer), (0x95, 0, 0, 0)]
    return code(*text, (0xB7, 0, 0, 1), (0x95, 0, 0, 0))


def usable(version: int) -> Path:
    """The root of that version's hierarchy; the test is skipped where it cannot be used."""
    found = roots()
    root = found.devices if version == 1 else found.unified
    if os.geteuid() != 0:
        pytest.skip("only root makes cgroups")
    if root is None:
        pytest.skip(f"no hierarchy of cgroup version {version} for devices is mounted here")
    return root


@contextlib.contextmanager
def job(root: Path, name: str = "") -> Iterator[Path]:
    """The directory of a job, with those of a step and of the batch script below it."""
    top = root / f"qgpu_test_{os.getpid()}{name}" / "job_7"
    try:
        for path in (TASK, BATCH, "step_0/slurm"):
            (top / path).mkdir(parents=True)
    except OSError as error:
        remove(top.parent)
        pytest.skip(f"no cgroup can be made below {root}: {error.strerror}")
    try:
        yield top
    finally:
        remove(top.parent)


def remove(top: Path) -> None:
    """Remove a directory of cgroups in which no process is left."""
    for base, _, _ in os.walk(top, topdown=False):
        Path(base).rmdir()


def constrain(cgroup: Path, text: bytes, flags: int = 0) -> None:
    """Attach a device program; the test is skipped where the kernel takes none."""
    fd = os.open(cgroup, os.O_RDONLY)
    try:
        with bpf.loaded(text) as program:
            bpf.attach(fd, program, flags)
    except OSError as error:
        pytest.skip(f"a device program cannot be attached here: {error.strerror}")
    finally:
        os.close(fd)


def forbid(cgroup: Path, *devices: Device) -> None:
    """Refuse devices in a cgroup of version 1; the test is skipped where that cannot be."""
    for device in devices:
        try:
            (cgroup / "devices.deny").write_text(f"c {device.major}:{device.minor} rwm")
        except OSError as error:
            pytest.skip(f"devices cannot be refused here: {error.strerror}")


def code_of(cgroup: Path) -> list[tuple[bytes | None, int]]:
    """Code and attach flags of each program that this cgroup itself has."""
    fd = os.open(cgroup, os.O_RDONLY)
    try:
        numbers, flags = bpf.attached(fd)
        return [(bpf.program(number).code, flags) for number in numbers]
    finally:
        os.close(fd)


@contextlib.contextmanager
def process(cgroup: Path) -> Iterator[int]:
    """A process in this cgroup."""
    with subprocess.Popen(["sleep", "600"]) as one:
        try:
            (cgroup / "cgroup.procs").write_text(str(one.pid))
            yield one.pid
        finally:
            one.kill()


def opened(cgroup: Path, devices: Iterable[Device] = tuple(NAMES)) -> set[Device]:
    """Those that a process of this cgroup can open for reading and writing."""
    pid = os.fork()
    if pid == 0:
        answer = 255
        with contextlib.suppress(OSError):
            (cgroup / "cgroup.procs").write_text(str(os.getpid()))
            answer = sum(1 << at for at, device in enumerate(devices) if _opens(NAMES[device]))
        os._exit(answer)
    answer = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert answer != 255, f"no process can enter {cgroup}"
    return {device for at, device in enumerate(devices) if answer & 1 << at}


def _opens(path: str) -> bool:
    try:
        os.close(os.open(path, os.O_RDWR))
    except PermissionError:
        return False
    return True


def only(version: int) -> Roots:
    """The machine as if it had that version alone."""
    found = roots()
    return Roots(found.devices, None) if version == 1 else Roots(None, found.unified)
