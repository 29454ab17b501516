"""The SPANK plugin in a stage that plays slurmstepd: real hooks, a real change of user, a real
exec.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from steps_support import start_of, step_record

from enforcer.wire.abi import pack_grant, unpack_grant
from gres.grant.store import Grant, GrantCard

ROOT = Path(__file__).parents[3]
PLUGIN = ROOT / "build/lib/qgpu_spank.so"
STAGE = ROOT / "build/test/spank_stage"
USER = 65534
# Every user can read it, or the plugin would refuse; ld.so cannot load it, and says so.
LIBRARIES = tempfile.TemporaryDirectory(dir="/var/tmp", prefix="qgpu-library-")
Path(LIBRARIES.name).chmod(0o755)
SHIM = f"{LIBRARIES.name}/libcuda.so.1"
Path(SHIM).touch(0o644)

pytestmark = [
    pytest.mark.native,
    pytest.mark.skipif(os.geteuid() != 0, reason="slurmstepd is root"),
]

# What a task sees: its environment, and the facts of the descriptor that it was given.
PROBE = """
import fcntl, json, os
names = ("LD_PRELOAD_SEEN", "QGPU_GRANT_FD", "QGPU_GRANT", "CUDA_VISIBLE_DEVICES")
out = {n: os.environ.get(n) for n in names}
fd = os.environ.get("QGPU_GRANT_FD")
if fd is not None:
    info = os.fstat(int(fd))
    out.update(owner=info.st_uid, size=info.st_size, mode=info.st_mode & 0o777)
    out["seals"] = fcntl.fcntl(int(fd), 1034)
    out["data"] = os.pread(int(fd), info.st_size, 0).hex()
    for how, name in ((os.O_RDWR, "writable"), (os.O_RDONLY, "readable")):
        try:
            os.close(os.open(f"/proc/self/fd/{fd}", how)); out[name] = True
        except OSError:
            out[name] = False
out["uid"] = os.geteuid()
print(json.dumps(out))
"""


def active(**changes: object) -> Grant:
    card = GrantCard("GPU-00000000-0000-0000-0000-000000000001", 0, 0, 30, 12 << 30, 80 << 30)
    values: dict[str, object] = {
        "job_id": 7,
        "uid": USER,
        "gid": USER,
        "node": "n1",
        "state": "active",
        "job_class": "online",
        "created_ns": 1,
        "cards": (card,),
        "run_dir": "/run/qgpu",
        "driver_path": "/usr/lib/libcuda.so.1",
        "shim_path": SHIM,
    }
    return Grant(**(values | changes))  # type: ignore[arg-type]


def refused() -> Grant:
    return Grant(
        7,
        USER,
        USER,
        "n1",
        "refused",
        created_ns=1,
        message="job 7 asked for too much: use qgpu:30.",
    )


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    tmp_path.chmod(0o755)
    path = tmp_path / "run/n1"
    (path / "grants").mkdir(parents=True, mode=0o755)
    return path


def put(run_dir: Path, data: bytes, job: int = 7) -> Path:
    path = run_dir / f"grants/{job}.grant"
    path.write_bytes(data)
    path.chmod(0o644)
    return path


def stage(
    run_dir: Path,
    *command: str,
    env: dict[str, str] | None = None,
    context: str = "remote",
    job: int = 7,
):
    # The shim is not loaded into the probe: the shell moves LD_PRELOAD out of the way and passes
    # what it saw.
    probe = [
        "/bin/sh",
        "-c",
        'L=$LD_PRELOAD; unset LD_PRELOAD; LD_PRELOAD_SEEN=$L exec /usr/bin/python3 -c "$P"',
    ]
    full = {"PATH": "/usr/bin:/bin", "SLURMD_NODENAME": "n1", "P": PROBE} | (env or {})
    arguments = [
        str(STAGE),
        str(PLUGIN),
        context,
        str(job),
        str(USER),
        f"run_dir={run_dir.parent}/%n",
        "--",
    ]
    done = subprocess.run(
        [*arguments, *(command or probe)],
        env=full,
        capture_output=True,
        text=True,
        timeout=30,
        cwd="/",
    )
    done.seen = json.loads(done.stdout) if done.stdout.startswith("{") else None  # type: ignore[attr-defined]
    # ld.so says that the shim of this test does not exist; that is not the plugin's word.
    done.stderr = "".join(
        line for line in done.stderr.splitlines(True) if not line.startswith("ERROR: ld.so")
    )
    return done


def test_active_grant_reaches_the_task_sealed_and_owned_by_root(run_dir):
    blob = pack_grant(active())
    path = put(run_dir, blob)
    done = stage(run_dir)
    seen = done.seen
    assert done.returncode == 0 and done.stderr == ""
    assert int(seen["QGPU_GRANT_FD"]) >= 100
    assert seen["QGPU_GRANT"] == str(path)
    assert seen["LD_PRELOAD_SEEN"] == SHIM
    assert (seen["uid"], seen["owner"], seen["mode"]) == (USER, 0, 0o444)
    assert seen["seals"] == 0xF  # seal, shrink, grow, write
    assert seen["readable"] and not seen["writable"]
    assert bytes.fromhex(seen["data"]) == blob
    assert unpack_grant(bytes.fromhex(seen["data"])).job_id == 7


@contextlib.contextmanager
def step(run_dir: Path, job: int) -> Iterator[subprocess.Popen[str]]:
    """A slurmstepd of that job whose task runs meanwhile."""
    stepd = [str(STAGE), str(PLUGIN), "remote", str(job), str(USER), f"run_dir={run_dir.parent}/%n"]
    words = [*stepd, "--", "/bin/sh", "-c", "echo began; read end"]
    env = {"PATH": "/usr/bin:/bin", "SLURMD_NODENAME": "n1"}
    pipe = subprocess.PIPE
    with subprocess.Popen(
        words, env=env, cwd="/", text=True, stdin=pipe, stdout=pipe, stderr=pipe
    ) as one:
        assert one.stdout is not None and one.stdout.readline() == "began\n"
        yield one
        _, one.said = one.communicate("\n", timeout=30)  # type: ignore[attr-defined]


def test_slurmstepd_is_on_record_while_its_step_lives(run_dir):
    """Of any job: also of one without a grant."""
    with step(run_dir, 8) as one:
        record = json.loads((run_dir / f"steps/{one.pid}").read_text())
        assert record == {"job": 8, "pid": one.pid, "start": start_of(one.pid)}
        assert (run_dir / f"steps/{one.pid}").stat().st_mode & 0o7777 == 0o644
    assert list((run_dir / "steps").iterdir()) == []
    assert (run_dir / "steps").stat().st_mode & 0o7777 == 0o755


def test_a_job_has_no_more_records_than_its_bound_and_dead_ones_go(run_dir):
    """With 32 on record the next step leaves none, and another job's does."""
    living = [subprocess.Popen(["sleep", "600"]) for _ in range(32)]
    try:
        for one in living[1:]:
            step_record(run_dir, 8, one.pid, start_of(one.pid))
        dead = step_record(run_dir, 9, living[0].pid, 1)
        with step(run_dir, 8) as last:
            assert (run_dir / f"steps/{last.pid}").exists() and not dead.exists()
        assert last.said == (
            "slurmstepd: qgpu: spank: 32 steps of job 8 are on record, which is the limit;"
            " processes of further steps are found by the job's cgroup alone\n"
        )
        step_record(run_dir, 8, living[0].pid, start_of(living[0].pid))
        for job, recorded in ((8, False), (7, True)):
            with step(run_dir, job) as one:
                assert (run_dir / f"steps/{one.pid}").exists() == recorded
            assert one.said == ""
    finally:
        for one in living:
            one.kill()
            one.wait()
    with step(run_dir, 8) as one:
        assert [path.name for path in (run_dir / "steps").iterdir()] == [str(one.pid)]


def test_node_without_qgpud_keeps_no_record(run_dir):
    shutil.rmtree(run_dir)
    done = stage(run_dir, "/bin/true", job=8)
    assert (done.returncode, done.stderr) == (0, "") and not run_dir.exists()


def test_directory_of_records_that_others_can_write_is_not_used(run_dir):
    (run_dir / "steps").mkdir()
    (run_dir / "steps").chmod(0o777)
    done = stage(run_dir, "/bin/true", job=8)
    assert done.returncode == 0 and list((run_dir / "steps").iterdir()) == []
    assert "steps is writable by others than root (owner 0, mode 0777)" in done.stderr


MIG = tuple(
    GrantCard(f"MIG-00000000-0000-0000-0000-00000000000{n}", 0, n, 30, 4 << 30, 20 << 30)
    for n in (1, 2)
)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, "0"),
        ({"cards": MIG[1:]}, MIG[1].uuid),
        ({"cards": MIG[1:], "state": "whole", "job_class": None}, MIG[1].uuid),
        ({"cards": MIG}, "0"),
    ],
)
def test_a_mig_instance_is_named_by_its_uuid(run_dir, changes, told):
    """Slurm's index would mean a card to CUDA; one card, or several instances, stay as Slurm
    said.
    """
    put(run_dir, pack_grant(active(**changes)))
    done = stage(run_dir, env={"CUDA_VISIBLE_DEVICES": "0"})
    assert done.seen["CUDA_VISIBLE_DEVICES"] == told


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("/opt/a.so", "{shim}:/opt/a.so"),
        ("/opt/a.so /opt/b.so", "{shim}:/opt/a.so:/opt/b.so"),
        ("{shim}:/opt/a.so", "{shim}:/opt/a.so"),
        ("/opt/a.so:{shim}", "{shim}:/opt/a.so"),
        ("", "{shim}"),
    ],
)
def test_users_preloads_are_kept_behind_the_shim(run_dir, before, after):
    put(run_dir, pack_grant(active()))
    # The stage itself must not load them: it gets the variable through env(1) only in the job's
    # environment.
    done = stage(run_dir, env={"LD_PRELOAD": before.format(shim=SHIM)})
    assert done.seen["LD_PRELOAD_SEEN"] == after.format(shim=SHIM)


def test_a_shim_that_the_user_cannot_read_starts_no_task(run_dir, lib):
    """ld.so would only complain, and start the program without limits."""
    shim = lib / "libcuda.so.1"
    for mode in (0o600, None):
        shim.unlink() if mode is None else shim.touch(mode)
        put(run_dir, pack_grant(active(shim_path=str(shim))))
        done = stage(run_dir, "/bin/echo", "started")
        assert (done.returncode, done.stdout) == (1, "")
        assert f"cannot be read: {shim}: " in done.stderr


@pytest.fixture
def lib():
    """A directory that the job's user can read; tmp_path is not one."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        Path(name).chmod(0o755)
        yield Path(name)


def test_nvml_of_the_job_comes_with_the_shim_where_it_is_installed(run_dir, lib):
    shim, nvml = lib / "libcuda.so.1", lib / "libnvidia-ml.so.1"
    shim.touch(mode=0o644)
    nvml.touch(mode=0o644)
    put(run_dir, pack_grant(active(shim_path=str(shim))))
    for before, after in (
        ("", f"{shim}:{nvml}"),
        (f"/opt/a.so:{nvml}:{shim}", f"{shim}:{nvml}:/opt/a.so"),
        ("/opt/libnvidia-ml.so.1", f"{shim}:{nvml}:/opt/libnvidia-ml.so.1"),
    ):
        assert stage(run_dir, env={"LD_PRELOAD": before}).seen["LD_PRELOAD_SEEN"] == after
    nvml.unlink()
    assert (
        stage(run_dir, env={"LD_PRELOAD": f"{nvml}:/opt/a.so"}).seen["LD_PRELOAD_SEEN"]
        == f"{shim}:/opt/a.so"
    )
    (run_dir / "grants/7.grant").unlink()
    inherited = {"QGPU_GRANT_FD": "100", "LD_PRELOAD": f"{shim}:{nvml}:/opt/a.so"}
    assert stage(run_dir, env=inherited).seen["LD_PRELOAD_SEEN"] == "/opt/a.so"


def test_refused_job_prints_its_sentence_and_does_not_start(run_dir, tmp_path):
    put(run_dir, pack_grant(refused()))
    done = stage(run_dir, "/bin/sh", "-c", "echo started")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "qgpu: job 7 asked for too much: use qgpu:30.\n"


def test_whole_card_job_is_left_alone(run_dir):
    put(run_dir, pack_grant(active(state="whole", job_class=None)))
    seen = stage(run_dir).seen
    assert seen["QGPU_GRANT_FD"] is None and not seen["LD_PRELOAD_SEEN"]


def test_job_without_grant_is_left_alone(run_dir):
    done = stage(run_dir, env={"LD_PRELOAD": "/opt/a.so"})
    assert done.seen["QGPU_GRANT_FD"] is None and done.seen["LD_PRELOAD_SEEN"] == "/opt/a.so"
    assert done.stderr == ""


def test_a_job_that_comes_again_without_a_prolog_does_not_start(run_dir):
    """Its owner requeued it and took the delay away: slurmd skips the Prolog, so there is no new
    grant.
    """
    (run_dir / "grants/7.over").touch()
    done = stage(run_dir, "/bin/sh", "-c", "echo started")
    assert (done.returncode, done.stdout) == (1, "")
    assert (
        "qgpu: job 7 does not run without its limits: its grant on this node has ended"
        in done.stderr
    )


def test_job_submitted_from_inside_a_governed_one_does_not_inherit_its_grant(run_dir):
    env = {
        "QGPU_GRANT_FD": "100",
        "QGPU_GRANT": "/run/qgpu/grants/3.grant",
        "LD_PRELOAD": f"{SHIM}:/opt/a.so",
    }
    seen = stage(run_dir, env=env).seen
    assert (seen["QGPU_GRANT_FD"], seen["QGPU_GRANT"]) == (None, None)
    assert seen["LD_PRELOAD_SEEN"] == "/opt/a.so"


@pytest.mark.parametrize("context", ["local", "allocator", "slurmd"])
def test_other_contexts_do_nothing(run_dir, context):
    put(run_dir, pack_grant(refused()))
    done = stage(run_dir, context=context)
    assert done.returncode == 0 and done.seen["QGPU_GRANT_FD"] is None


def test_node_name_comes_from_slurmstepd_and_not_from_the_job(run_dir):
    put(run_dir, pack_grant(active()))
    (run_dir.parent / "n2/grants").mkdir(parents=True)
    done = stage(run_dir, env={"SLURMD_NODENAME": "n2"})
    assert done.seen["QGPU_GRANT_FD"] is None, "grants of n1 do not count on n2"


def test_unknown_plugstack_word_is_logged_and_the_rest_works(run_dir):
    put(run_dir, pack_grant(active()))
    arguments = [
        str(STAGE),
        str(PLUGIN),
        "remote",
        "7",
        str(USER),
        f"run_dir={run_dir}",
        "rundir=/x",
        "--",
    ]
    done = subprocess.run([*arguments, "/usr/bin/env"], capture_output=True, text=True, env={})
    assert "'rundir=/x' is not known" in done.stderr
    assert "QGPU_GRANT_FD=" in done.stdout


def test_only_slurms_symbols_are_exported():
    listing = subprocess.run(
        ["nm", "-D", "--defined-only", str(PLUGIN)], capture_output=True, text=True, check=True
    )
    names = {line.split()[-1] for line in listing.stdout.splitlines()}
    assert {"plugin_name", "plugin_type", "plugin_version", "spank_plugin_version"} <= names
    assert all(
        name.startswith(("plugin_", "slurm_spank_", "spank_plugin_version")) for name in names
    )
