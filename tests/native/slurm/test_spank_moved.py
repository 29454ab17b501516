"""A task of a job that was moved to another card waits until its device cgroup allows that card."""

from __future__ import annotations

import os
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from devices_support import TASK, ZERO, constrain, forbid, job, opened, slurms, usable

from enforcer.daemon.devices.places import Tree, tree
from enforcer.daemon.devices.port import Rules
from enforcer.daemon.devices.single import Single
from enforcer.daemon.devices.unified import Unified
from enforcer.wire.abi import pack_grant
from enforcer.wire.layout import GRANT_CARD_MOVED, GrantPage
from gres.grant.store import Grant, GrantCard

ROOT = Path(__file__).parents[3]
PLUGIN, STAGE = ROOT / "build/lib/qgpu_spank.so", ROOT / "build/test/spank_stage"
USER = 65534
UUID = "GPU-00000000-0000-0000-0000-00000000000{}"
WAITS = "slurmstepd: qgpu: spank: job 7 was moved to another card: its task waits for {}\n"
ALLOWED = Rules.of([ZERO], [])

pytestmark = [
    pytest.mark.native,
    pytest.mark.skipif(os.geteuid() != 0, reason="slurmstepd is root"),
]


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that users can reach, with two cards' files. Both are the device of /dev/zero."""
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="qgpu-moved-") as name:
        top = Path(name)
        top.chmod(0o755)
        for below in ("dev", "run/n1/grants"):
            (top / below).mkdir(parents=True)
        (top / "libcuda.so.1").touch(0o644)
        for index in (0, 1):
            path = top / f"dev/qgpusim{index}"
            os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(*ZERO))
            path.chmod(0o666)
        yield top


def write_grant(place: Path, *moved: int) -> None:
    """The grant of job 7: two cards, these of them moved to."""
    card = GrantCard(UUID.format(0), 0, 0, 30, 1 << 30, 80 << 30)
    other = GrantCard(UUID.format(1), 1, 1, 30, 1 << 30, 80 << 30)
    shim = str(place / "libcuda.so.1")
    grant = Grant(
        *(7, USER, USER, "n1", "active", "offline", 1),
        cards=(card, other),
        run_dir="/run/qgpu",
        driver_path=shim,
        shim_path=shim,
    )
    page = GrantPage.from_buffer_copy(pack_grant(grant))
    for at in moved:
        page.cards[at].flags |= GRANT_CARD_MOVED
    path = place / "run/n1/grants/7.grant"
    path.write_bytes(bytes(page))
    path.chmod(0o644)


def start(place: Path, cgroup: Path, *command: str) -> subprocess.Popen[str]:
    """A task of job 7 in this cgroup; slurmstepd's environment says where the cards are."""
    stage = [str(STAGE), str(PLUGIN), "remote", "7", str(USER), f"run_dir={place}/run/%n", "--"]
    words = ["/bin/sh", "-c", 'echo $$ > "$0"; exec "$@"', f"{cgroup}/cgroup.procs"]
    env = {"PATH": "/usr/bin:/bin", "SLURMD_NODENAME": "n1", "QGPU_SIM_DIR": str(place)}
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [*words, *stage, *command], env=env, text=True, cwd="/", stdout=pipe, stderr=pipe
    )


def said(task: subprocess.Popen[str]) -> str:
    """The next line that the plugin wrote; empty at the end."""
    assert task.stderr is not None
    for line in task.stderr:
        if not line.startswith("ERROR: ld.so"):  # the shim of this test is none
            return line
    return ""


class Cgroup:
    """The cgroup of the task, in which Slurm refuses /dev/zero."""

    def __init__(self, version: int, top: Path) -> None:
        self.path = top / TASK
        self.tree: Tree = tree(str(top), {})
        self.keeper: Single | Unified = Single() if version == 1 else Unified()
        if version == 1:
            forbid(top, ZERO)
        else:
            constrain(self.path, slurms({ZERO: 0}))
        assert opened(self.path, [ZERO]) == set()


@pytest.fixture(params=[1, 2])
def cgroup(request: pytest.FixtureRequest) -> Iterator[Cgroup]:
    with job(usable(request.param), "spank") as top:
        yield Cgroup(request.param, top)


def test_the_program_starts_once_the_card_is_allowed(place: Path, cgroup: Cgroup) -> None:
    write_grant(place, 1)
    with start(place, cgroup.path, "/bin/sh", "-c", f": <> {place}/dev/qgpusim1; echo $?") as task:
        assert said(task) == WAITS.format(f"{place}/dev/qgpusim1")
        cgroup.keeper.apply(cgroup.tree, ALLOWED)
        out, err = task.communicate(timeout=60)
    assert (out, task.returncode) == ("0\n", 0), err
    assert "does not allow" not in err


def test_the_program_starts_without_the_card_after_a_while(place: Path, cgroup: Cgroup) -> None:
    """Two cards wait no longer than one."""
    write_grant(place, 0, 1)
    with start(place, cgroup.path, "/bin/echo", "began") as task:
        lines = [said(task) for _ in range(4)]
        out, _ = task.communicate(timeout=60)
    sentence = (
        "slurmstepd: error: qgpu: job 7 was moved to the card of {0}, and its device cgroup does"
        " not allow that after 5 s; the program starts without it\n"
    )
    paths = [f"{place}/dev/qgpusim{index}" for index in (0, 1)]
    assert lines == [text.format(path) for path in paths for text in (WAITS, sentence)]
    assert (out, task.returncode) == ("began\n", 0)


@pytest.mark.parametrize("moved", [(), (0,)])
def test_others_do_not_wait(place: Path, cgroup: Cgroup, moved: tuple[int, ...]) -> None:
    """A card of a job that was not moved, and one whose file is not there."""
    write_grant(place, *moved)
    (place / "dev/qgpusim0").unlink()
    with start(place, cgroup.path, "/bin/echo", "began") as task:
        out, err = task.communicate(timeout=60)
    assert (out, task.returncode) == ("began\n", 0)
    assert "qgpu" not in err.replace(str(place), ""), err


def test_a_card_that_is_allowed_already_is_not_waited_for(place: Path, cgroup: Cgroup) -> None:
    write_grant(place, 0, 1)
    cgroup.keeper.apply(cgroup.tree, ALLOWED)
    with start(place, cgroup.path, "/bin/echo", "began") as task:
        out, err = task.communicate(timeout=60)
    assert out == "began\n" and "waits for" not in err
