"""MIG in the simulator (--mig): NVML's inventory, the capability files, and CUDA by the
instance's UUID.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from sim_tools import BUILD, MIB, client_env, make, nvml, run, spawn, start

from gres.config.mig import Instance, Place, files_of, parse_minors
from gres.config.site import CardSpec, Node
from gres.grant.identity import IdentityError, identify
from simulator.sim import SimConfig, Simulator

pytestmark = pytest.mark.native
ROOTED = pytest.mark.skipif(os.geteuid() != 0, reason="makes device nodes")


@pytest.fixture
def sim(tmp_path: Path) -> Iterator[Simulator]:
    """Two cards with two instances each."""
    make("build/bin/qgpu-simgpu", "build/sim/libcuda.so.1", "build/sim/libnvidia-ml.so.1")
    base = os.getpid() % 1000 * 16
    with start(tmp_path / "sim", cards=4, mig=2, memory_mib=4096, minor_base=base) as simulator:
        yield simulator


def inventory(sim: Simulator) -> list[list[object]]:
    """What our NVML adapter sees: UUID, minor, GPU instance, compute instance, memory."""
    code = """
import json
from enforcer.nvml.driver import PynvmlNvml
print(json.dumps([[c.uuid, c.minor, *(c.instance or ()), c.mem_total]
                  for c in PynvmlNvml().cards()]))
"""
    env = client_env(sim)
    env["PYTHONPATH"] += f":{Path(__file__).parents[3]}"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=env,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return list(json.loads(done.stdout))


def minor_of(sim: Simulator, card: int) -> int:
    return (1 << 19) + sim.config.minor_base + 2 * card


def entries(sim: Simulator) -> list[tuple[str, ...]]:
    """Device files of the instances, in order."""
    dev = sim.config.directory / "dev"
    return [
        (f"{dev}/qgpusim-card{i // 2}", f"{dev}/qgpusim-gi{i}", f"{dev}/qgpusim{i}")
        for i in range(4)
    ]


def test_instances_stand_in_place_of_their_cards(sim: Simulator) -> None:
    found = inventory(sim)
    assert [row[1:] for row in found] == [
        [minor_of(sim, card), gi, 0, 4096 * MIB] for card in (0, 1) for gi in (1, 2)
    ]
    uuids = [str(row[0]) for row in found]
    assert len(set(uuids)) == 4 and all(
        uuid.startswith("MIG-") and len(uuid) == 40 for uuid in uuids
    )


def test_nvml_tells_cards_and_instances_apart(sim: Simulator) -> None:
    out = nvml(
        sim,
        """
        m = n.nvmlDeviceGetMigDeviceHandleByIndex(h, 1)
        p = n.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(m)
        def refused(call, *args):
            try: call(*args)
            except n.NVMLError as error: return error.value
        print(json.dumps([
            n.nvmlDeviceGetCount(), n.nvmlDeviceGetMigMode(h), n.nvmlDeviceGetMaxMigDeviceCount(h),
            n.nvmlDeviceGetUUID(p) == n.nvmlDeviceGetUUID(h), n.nvmlDeviceGetUUID(h)[:4],
            n.nvmlDeviceIsMigDeviceHandle(m).value, n.nvmlDeviceIsMigDeviceHandle(h).value,
            refused(n.nvmlDeviceGetMigDeviceHandleByIndex, h, 2) == n.NVML_ERROR_NOT_FOUND,
            [refused(call, m) == n.NVML_ERROR_NOT_SUPPORTED for call in
                (n.nvmlDeviceGetMinorNumber, n.nvmlDeviceGetUtilizationRates,
                 n.nvmlDeviceGetMigMode)],
            refused(n.nvmlDeviceGetMemoryInfo, h) == n.NVML_ERROR_NOT_SUPPORTED,
        ]))
        """,
    )
    assert json.loads(out) == [2, [1, 1], 7, True, "GPU-", 1, 0, True, [True, True, True], True]


def test_without_mig_nothing_is_cut(tmp_path: Path) -> None:
    with start(tmp_path / "sim", cards=1, minor_base=os.getpid() % 1000 * 16) as sim:
        assert [row[1:] for row in inventory(sim)] == [[sim.config.minor_base, 81920 * MIB]]
        assert not (sim.config.directory / "mig-minors").exists()


def test_each_instance_has_its_own_memory_and_processes(sim: Simulator) -> None:
    uuids = [str(row[0]) for row in inventory(sim)]
    process = spawn(
        sim,
        'g = Cuda(); g.alloc(256 << 20); print("up", flush=True); sys.stdin.readline()',
        CUDA_VISIBLE_DEVICES=uuids[2],
    )
    assert process.stdout and process.stdout.readline() == "up\n"
    code = (
        "[[p.pid for p in "
        "n.nvmlDeviceGetComputeRunningProcesses(n.nvmlDeviceGetHandleByUUID(u))] for u in {}]"
    )
    assert json.loads(nvml(sim, f"print(json.dumps({code.format(uuids)}))")) == [
        [],
        [],
        [process.pid],
        [],
    ]
    process.communicate("\n", timeout=30)


def test_cuda_finds_an_instance_by_its_uuid(sim: Simulator) -> None:
    for uuid in (str(row[0]) for row in inventory(sim)):
        code = (
            'g = Cuda(); b = c.create_string_buffer(16); g.call("cuDeviceGetUuid_v2", b, 0); '
            "print(b.raw.hex())"
        )
        assert run(sim, code, CUDA_VISIBLE_DEVICES=uuid).strip() == uuid[4:].replace("-", "")


@ROOTED
def test_device_files_lead_to_the_instances_that_nvml_lists(sim: Simulator) -> None:
    minors = parse_minors((sim.config.directory / "mig-minors").read_text())
    specs = tuple(
        CardSpec(i, files[0], "m", 2, 1, files[1:]) for i, files in enumerate(entries(sim))
    )
    node = Node("t1", "m", specs, "/r", "/s")
    found = identify(node, [3, 0, 1, 2], lambda: minors)
    listed = [
        Place(int(str(row[1])), Instance(int(str(row[2])), int(str(row[3]))))
        for row in inventory(sim)
    ]
    assert [card.place for card in found] == [listed[i] for i in (3, 0, 1, 2)]
    assert files_of(minors, listed[1], "c", "x").startswith(f"c{listed[1].minor},x")
    crossed = Node(
        "t1",
        "m",
        (CardSpec(0, specs[0].path, "m", 2, 1, (specs[0].caps[0], specs[1].caps[1])),),
        "/r",
        "/s",
    )
    with pytest.raises(IdentityError, match="is not an instance within"):
        identify(crossed, [0], lambda: minors)


def test_an_instance_whose_file_cannot_be_opened_is_not_listed(sim: Simulator) -> None:
    """What a device cgroup does: the card itself stays."""
    (sim.config.directory / "dev/qgpusim1").unlink()
    assert [(row[1], row[2]) for row in inventory(sim)] == [
        (minor_of(sim, 0), 1),
        (minor_of(sim, 1), 1),
        (minor_of(sim, 1), 2),
    ]


def test_cards_must_be_a_multiple(tmp_path: Path) -> None:
    config = SimConfig(tmp_path / "sim", "t1", cards=3, mig=2)
    done = subprocess.run(
        config.command(BUILD / "bin/qgpu-simgpu", 1),
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert (
        done.returncode == 2 and done.stderr == "qgpu-simgpu: --cards must be a multiple of --mig\n"
    )
