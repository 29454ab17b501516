"""`injection: auto`: mount where a trial succeeds, else preload, with
the reason in log and status.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from node_support import BUILD, Chain
from test_spank_plugin import USER

from enforcer.daemon.injecting.way import FILE, NOT_TRIED, Way, found, keep, probe, resolved
from enforcer.wire.abi import unpack_grant
from gres.config.site import load_config

pytestmark = [
    pytest.mark.native,
    pytest.mark.skipif(os.geteuid() != 0, reason="mounts are root's"),
]
TAG = "qgpu/1 class=online share=30 mem=1024"
MOUNTS = BUILD / "bin/qgpu-mounts"


@pytest.fixture
def chain(start: Callable[..., Chain]) -> Chain:
    """A node whose qgpud nobody has told anything."""
    node = start("")
    (node.opt / "bin/qgpu-mounts").write_bytes(MOUNTS.read_bytes())
    (node.opt / "bin/qgpu-mounts").chmod(0o755)
    text = node.config.read_text()
    node.config.write_text(f"{text}hook: {{client: {node.opt}/bin/qgpu-hook}}\n")
    return node


def again(chain: Chain, *within: str) -> None:
    """What the unit does: probe, then start qgpud anew."""
    command = [*within, os.sys.executable, "-m", "enforcer.daemon.main", "--node", "n1"]
    env = os.environ | {"QGPU_SIM_DIR": f"{chain.directory}/sim"}
    subprocess.run(
        [*command, "--config", str(chain.config), "--probe-injection"], env=env, check=True
    )
    chain.qgpud.terminate()
    chain.qgpud.wait(60)
    (chain.directory / "qgpud.log").unlink()
    chain.start_qgpud()
    chain.serving()


def given(chain: Chain, job: int) -> int:
    """The way in the grant of a new job."""
    assert chain.hook("prolog", job, TAG) == 0
    blob = (chain.directory / f"run/grants/{job}.grant").read_bytes()
    return int(unpack_grant(blob).injection)


def told(chain: Chain) -> dict[str, str]:
    """What `status` says to everybody."""
    from enforcer.daemon.requests.protocol import ask

    answer, _ = ask(f"{chain.directory}/run", {"op": "status"}, timeout=60)
    return {name: str(answer[name]) for name in ("injection", "injection_why")}


def test_without_a_trial_jobs_are_preloaded_and_it_is_logged(chain: Chain) -> None:
    assert "event=injection mode=preload" in chain.log() and "not tried on this node" in chain.log()
    assert told(chain) == {"injection": "preload", "injection_why": NOT_TRIED}
    assert given(chain, 7) == 0


def test_a_node_that_can_gets_mounts(chain: Chain) -> None:
    again(chain)
    assert "event=injection mode=mount" in chain.log()
    assert told(chain) == {"injection": "mount", "injection_why": ""}
    assert given(chain, 7) == 1
    task = chain.task(7, "--kernel-us", "100", "--iters", "1000", "--requests", "3")
    out, error = task.communicate(timeout=30)
    assert task.returncode == 0, error
    assert json.loads(out.splitlines()[-1]), "the program works in its namespace"


# A node that cannot -> what is said.
CANNOT = {
    "no ld.so.preload in a read-only /etc": (
        "T=$(mktemp -d); cp -a /etc/. $T 2>/dev/null; rm -f $T/ld.so.preload; mount --bind $T /etc;"
        ' mount -o remount,bind,ro /etc; "$@"; umount /etc; rm -rf $T',
        "/etc/ld.so.preload cannot be made",
    ),
    "no right to mount": (
        'setpriv --bounding-set -sys_admin "$@"',
        "no mount namespace of its own",
    ),
}


@pytest.mark.parametrize("what", CANNOT)
def test_a_node_that_cannot_is_preloaded(chain: Chain, what: str) -> None:
    script, why = CANNOT[what]
    again(chain, "unshare", "--mount", "sh", "-c", script, "sh")
    assert why in told(chain)["injection_why"]
    assert "mode=preload" in chain.log() and why in chain.log()
    assert given(chain, 7) == 0


def test_a_program_that_is_not_installed_is_a_reason(chain: Chain) -> None:
    (chain.opt / "bin/qgpu-mounts").unlink()
    config = load_config(str(chain.config))
    way = probe(config, config.node("n1"))
    assert way.mode == "preload" and "qgpu-mounts" in way.why


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b"[]",
        b'{"mode": "none", "why": ""}',
        b'{"mode": "mount", "why": 3}',
        b"\xff\xfe",
    ],
)
def test_a_file_that_qgpud_did_not_write_is_not_believed(chain: Chain, content: bytes) -> None:
    config = load_config(str(chain.config))
    node, run_dir = config.node("n1"), chain.directory / "run"
    keep(Way("mount"), run_dir)
    assert found(node) == Way("mount") and resolved(node).injection == "mount"
    (run_dir / FILE).write_bytes(content)
    assert found(node).mode == "preload" and found(node).why
    keep(Way("mount"), run_dir)
    os.chown(run_dir / FILE, USER, USER)
    assert found(node).mode == "preload", "a user's file"


def test_the_probe_leaves_no_mount(chain: Chain) -> None:
    before = Path("/proc/self/mountinfo").read_text()
    driver, shim = chain.opt / "sim/libcuda.so.1", chain.opt / "shim/libcuda.so.1"
    assert subprocess.run([MOUNTS, driver, shim], check=False).returncode == 0
    assert Path("/proc/self/mountinfo").read_text() == before


def test_the_probe_says_what_is_wrong(chain: Chain) -> None:
    driver, shim = chain.opt / "sim/libcuda.so.1", chain.directory / "libcuda.so.1"
    shim.write_text("no library\n")
    done = subprocess.run([MOUNTS, driver, shim], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "a program does not start well" in done.stdout
    done = subprocess.run([MOUNTS, "driver"], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and done.stderr.startswith("usage:")
