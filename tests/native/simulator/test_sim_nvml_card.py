"""What displays, PyTorch and NCCL ask NVML about a card, on the simulated one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from sim_tools import nvml, start

from simulator.sim import Simulator

pytestmark = pytest.mark.native


@pytest.fixture
def sim(built: None, tmp_path: Path) -> Iterator[Simulator]:
    with start(tmp_path / "sim", cards=2, memory_mib=4096) as running:
        yield running


def ask(sim: Simulator, code: str) -> object:
    """The value of an expression; `other` is the second card, `refused` the error of a call."""
    head = """
other = n.nvmlDeviceGetHandleByIndex(1)
def refused(call, *args):
    try:
        call(*args)
    except n.NVMLError as error:
        return error.value
"""
    return json.loads(nvml(sim, head + f"print(json.dumps([{code}]))"))


def test_clocks_power_and_heat(sim: Simulator) -> None:
    """As torch.cuda.clock_rate(), power_draw() and temperature() ask."""
    got = ask(
        sim,
        "[n.nvmlDeviceGetClockInfo(h, k) for k in (0, 1, 2, 3)],"
        "n.nvmlDeviceGetMaxClockInfo(h, 1), n.nvmlDeviceGetPowerUsage(h),"
        "n.nvmlDeviceGetPowerManagementLimit(h), n.nvmlDeviceGetPowerManagementLimitConstraints(h),"
        "n.nvmlDeviceGetTemperature(h, 0), n.nvmlDeviceGetTemperatureV(h, 0),"
        "n.nvmlDeviceGetTemperatureThreshold(h, 1), n.nvmlDeviceGetPerformanceState(h),"
        "[refused(n.nvmlDeviceGetClockInfo, h, 4), refused(n.nvmlDeviceGetTemperature, h, 9)]",
    )
    assert got == [
        [1980, 1980, 3201, 1545],
        1980,
        100000,
        700000,
        [200000, 700000],
        40,
        40,
        89,
        0,
        [2, 2],
    ]


def test_energy_grows_by_the_power(sim: Simulator) -> None:
    """100 W: 20 J in the 0.2 s between two looks, and no more than until the end."""
    code = """
import time
look, start = n.nvmlDeviceGetTotalEnergyConsumption, time.monotonic()
first = look(h); time.sleep(0.2)
print(json.dumps([look(h) - first, time.monotonic() - start]))
"""
    grown, seconds = json.loads(nvml(sim, code))
    assert 0.2 * 100_000 - 100 <= grown <= seconds * 100_000 + 100


def test_what_the_card_is(sim: Simulator) -> None:
    got = ask(
        sim,
        "n.nvmlDeviceGetNumGpuCores(h), n.nvmlDeviceGetMemoryBusWidth(h),"
        "n.nvmlDeviceGetArchitecture(h), n.nvmlDeviceGetBrand(h), n.nvmlDeviceGetEccMode(h),"
        "n.nvmlDeviceGetTotalEccErrors(h, 1, 0), n.nvmlDeviceGetCurrPcieLinkGeneration(h),"
        "n.nvmlDeviceGetMaxPcieLinkWidth(h), n.nvmlDeviceGetEncoderUtilization(h)[0],"
        "n.nvmlDeviceGetBAR1MemoryInfo(h).bar1Total >> 30,"
        "n.nvmlDeviceGetPciInfo(h).pciSubSystemId,"
        "n.nvmlDeviceGetCurrentClocksEventReasons(h), n.nvmlDeviceGetDisplayActive(h)",
    )
    assert got == [16896, 6144, 9, 14, [1, 1], 0, 5, 16, 0, 256, 0x18BE10DE, 0, 0]


def test_cards_are_connected_by_pci_alone(sim: Simulator) -> None:
    """What NCCL asks before it chooses its ways between cards."""
    got = ask(
        sim,
        "[n.nvmlDeviceGetP2PStatus(h, d, k) for d in (h, other) for k in (0, 1, 2)],"
        "[n.nvmlDeviceGetNvLinkState(h, k) for k in (0, 17)],"
        "n.nvmlDeviceGetNvLinkCapability(h, 0, 0),"
        "[refused(n.nvmlDeviceGetNvLinkState, h, 18), refused(n.nvmlDeviceGetP2PStatus, h, h, 9),"
        "refused(n.nvmlDeviceGetNvLinkRemotePciInfo, h, 0),"
        "refused(n.nvmlDeviceGetNvLinkRemotePciInfo, h, 18),"
        "refused(n.nvmlDeviceGetNvLinkRemoteDeviceType, h, 0)],"
        "[n.nvmlDeviceGetTopologyCommonAncestor(h, d) for d in (h, other)],"
        "[n.nvmlDeviceOnSameBoard(h, d) for d in (h, other)]",
    )
    assert got == [[0, 0, 0, 5, 5, 5], [0, 0], 0, [2, 2, 3, 2, 3], [0, 40], [1, 0]]


def test_no_fabric_and_no_confidential_computing(sim: Simulator) -> None:
    got = ask(
        sim,
        "*[(lambda i: [refused(n.nvmlDeviceGetGpuFabricInfoV, h, n.byref(i)), i.state])(kind())"
        "for kind in (n.c_nvmlGpuFabricInfoV_t, n.c_nvmlGpuFabricInfo_v3_t)],"
        "n.nvmlSystemGetConfComputeState().ccFeature,"
        "[v.nvmlReturn for v in n.nvmlDeviceGetFieldValues(h, [83, 186, 91])]",
    )
    assert got == [[None, 0], [None, 0], 0, [0, 0, 3]]


def test_old_forms_answer_as_the_new_ones(sim: Simulator) -> None:
    """NCCL and PyTorch take the names without a version by dlsym()."""
    code = """
call, found, pci, index = n._nvmlGetFunctionPointer, n.c_void_p(), n.nvmlPciInfo_t(), n.c_uint()
by_bus = call("nvmlDeviceGetHandleByPciBusId")
print(by_bus(b"0000:11:00.0", n.byref(found)), by_bus(b"0000:99:00.0", n.byref(n.c_void_p())))
print(call("nvmlDeviceGetIndex")(found, n.byref(index)), index.value)
for name in ("nvmlDeviceGetPciInfo", "nvmlDeviceGetPciInfo_v2"):
    pci.busId = b"untouched"
    print(call(name)(h, n.byref(pci)), pci.bus, pci.busIdLegacy, pci.busId)
"""
    old = "0 16 0000:10:00.0 untouched"
    assert nvml(sim, code).splitlines() == ["0 6", "0 1", old, old]


def test_an_instance_has_no_clocks_of_its_own(built: None, tmp_path: Path) -> None:
    """With MIG the card answers, and its instances do not."""
    code = """
part = n.nvmlDeviceGetMigDeviceHandleByIndex(h, 0)
def ask(call, *args):
    try:
        return call(*args)
    except n.NVMLError as error:
        return -error.value
for device in (h, part):
    print(ask(n.nvmlDeviceGetClockInfo, device, 1), ask(n.nvmlDeviceGetNumGpuCores, device),
          ask(n.nvmlDeviceGetP2PStatus, device, device, 0),
          ask(n.nvmlDeviceGetNvLinkState, device, 0))
"""
    with start(tmp_path / "sim", cards=2, mig=2, memory_mib=4096) as parts:
        assert nvml(parts, code).splitlines() == ["1980 16896 0 0", "-3 -3 -3 -3"]
