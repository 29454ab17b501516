"""Which simulated cards a program sees, and how it sees their server end and start."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from sim_tools import run, spawn, start

from simulator.sim import SimError, Simulator

pytestmark = pytest.mark.native


OPEN = "    g = Cuda(init=False)\n"
LOOK = """
    n = c.c_int(-1); status = g.raw("cuInit", 0)
    if status == 0: g.call("cuDeviceGetCount", c.byref(n))
    buses = []
    for i in range(n.value):
        text = c.create_string_buffer(32); g.call("cuDeviceGetPCIBusId", text, 32, i)
        buses.append(text.value.decode())
    print(status, *buses)
    """
VISIBLE = OPEN + LOOK


def test_device_nodes_decide_visibility(sim: Simulator) -> None:
    assert run(sim, VISIBLE).split() == ["0", "0000:10:00.0", "0000:11:00.0"]
    (sim.config.directory / "dev/qgpusim0").unlink()
    assert run(sim, VISIBLE).split() == ["0", "0000:11:00.0"]
    node = sim.config.directory / "dev/qgpusim1"
    if os.geteuid() == 0:
        node.chmod(0)
        drop = "    os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        for path in (sim.config.directory, *sim.config.directory.parents):
            if path.stat().st_mode & 1 == 0:
                path.chmod(path.stat().st_mode | 0o11)
        assert run(sim, OPEN + drop + LOOK).split() == ["100"]
    node.unlink()
    assert run(sim, VISIBLE).split() == ["100"]


def test_cuda_visible_devices(sim: Simulator) -> None:
    names = run(
        sim,
        """
        g = Cuda(); b = c.create_string_buffer(16)
        for i in range(2):
            g.call("cuDeviceGetUuid_v2", b, i); h = b.raw.hex()
            print("GPU-" + "-".join((h[:8], h[8:12], h[12:16], h[16:20], h[20:])))
        """,
    ).split()
    first, second = ["0", "0000:10:00.0"], ["0", "0000:11:00.0"]
    assert run(sim, VISIBLE, CUDA_VISIBLE_DEVICES="1").split() == second
    assert run(sim, VISIBLE, CUDA_VISIBLE_DEVICES="1,0").split() == [*second, first[1]]
    assert run(sim, VISIBLE, CUDA_VISIBLE_DEVICES=names[1]).split() == second
    assert run(sim, VISIBLE, CUDA_VISIBLE_DEVICES="0,7,1").split() == first
    assert run(sim, VISIBLE, CUDA_VISIBLE_DEVICES="").split() == ["100"]
    assert run(sim, VISIBLE, CUDA_VISIBLE_DEVICES="NoDevFiles").split() == ["100"]


def test_without_a_server_there_is_no_device(sim: Simulator, tmp_path: Path) -> None:
    begin = time.monotonic()
    assert run(sim, VISIBLE, QGPU_SIM_DIR=str(tmp_path / "nowhere")).split() == ["100"]
    assert time.monotonic() - begin < 30


def test_a_second_server_is_refused_and_a_killed_one_is_replaced(sim: Simulator) -> None:
    with pytest.raises(SimError):
        start(sim.config.directory)
    sim.process.kill()
    sim.process.wait()
    assert (sim.config.directory / "sim.sock").exists()
    with start(sim.config.directory, minor_base=sim.config.minor_base) as second:
        assert run(second, VISIBLE).split() == ["0", "0000:10:00.0"]


def test_clients_notice_the_end_of_the_server(sim: Simulator) -> None:
    process = spawn(
        sim,
        """
        g = Cuda(); g.launch(60_000_000); print("up", flush=True)
        print(g.raw("cuCtxSynchronize"))
        """,
    )
    assert process.stdout and process.stdout.readline() == "up\n"
    sim.process.kill()
    out, err = process.communicate(timeout=60)
    assert out.strip() == "46", err


@pytest.mark.usefixtures("built")
def test_uuid_is_stable_over_restarts(tmp_path: Path) -> None:
    code = (
        'g = Cuda(); b = c.create_string_buffer(16); g.call("cuDeviceGetUuid_v2", b, 0); '
        "print(b.raw.hex())"
    )
    seen = set()
    for name in ("a", "b"):
        with start(tmp_path / name, node="same") as sim:
            seen.add(run(sim, code))
    with start(tmp_path / "c", node="other") as sim:
        assert run(sim, code) not in seen
    assert len(seen) == 1
