"""The adapter on the binding's answers: lists of processes, and reported or missing utilisation."""

from __future__ import annotations

from types import SimpleNamespace

import pynvml
import pytest

from enforcer.nvml.driver import PynvmlNvml
from enforcer.nvml.port import CardUsage, GpuProcess, NvmlError


def fail(error: type[Exception] | int):
    def call(*_: object) -> None:
        raise error() if isinstance(error, type) else pynvml.NVMLError(error)

    return call


def rows(*pairs: tuple[int, int | None]):
    return lambda *_: [SimpleNamespace(pid=pid, usedGpuMemory=mem) for pid, mem in pairs]


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch):
    """The adapter; a test says what the functions of the binding answer."""

    def made(**answers: object) -> PynvmlNvml:
        known = {
            "nvmlInit": lambda: None,
            # a driver before 510
            "_nvmlGetFunctionPointer": fail(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND),
            "nvmlDeviceGetHandleByUUID": lambda uuid: uuid,
            "nvmlDeviceGetMemoryInfo": lambda handle, version=0: SimpleNamespace(used=5),
            "nvmlDeviceGetComputeRunningProcesses": rows((50, 3)),
            "nvmlDeviceGetGraphicsRunningProcesses": rows(),
            "nvmlDeviceGetMPSComputeRunningProcesses": rows(),
        }
        for name, answer in (known | answers).items():
            monkeypatch.setattr(pynvml, name, answer)
        return PynvmlNvml()

    return made


def test_all_lists_are_read_and_a_process_in_two_of_them_counts_once(driver):
    one = driver(
        nvmlDeviceGetComputeRunningProcesses=rows((50, 3), (51, None)),
        nvmlDeviceGetGraphicsRunningProcesses=rows((50, 7), (52, 1)),
        nvmlDeviceGetMPSComputeRunningProcesses=rows((51, 2), (50, None)),
    )
    assert set(one.processes("u")) == {GpuProcess(50, 7), GpuProcess(51, 2), GpuProcess(52, 1)}


@pytest.mark.parametrize(
    "error", [pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND, AttributeError]
)
def test_lists_that_a_driver_does_not_have_are_passed_over(driver, error):
    missing = {
        f"nvmlDeviceGet{kind}RunningProcesses": fail(error) for kind in ("Graphics", "MPSCompute")
    }
    assert driver(**missing).processes("u") == (GpuProcess(50, 3),)


@pytest.mark.parametrize("kind", ["Compute", "Graphics"])
def test_a_list_that_fails_otherwise_is_no_empty_list(driver, kind):
    one = driver(
        **{f"nvmlDeviceGet{kind}RunningProcesses": fail(pynvml.NVML_ERROR_INSUFFICIENT_SIZE)}
    )
    with pytest.raises(NvmlError):
        one.processes("u")


def samples(*found: tuple[int, int, int]):
    return lambda *_: [SimpleNamespace(pid=p, timeStamp=t, smUtil=u) for p, t, u in found]


def busy(driver, answer) -> dict[int, int] | None:
    usage: CardUsage = driver(nvmlDeviceGetProcessUtilization=answer).usage("u")
    return usage.busy


def test_unreported_utilisation_differs_from_no_utilisation(driver):
    assert busy(driver, fail(pynvml.NVML_ERROR_NOT_SUPPORTED)) is None
    assert busy(driver, fail(pynvml.NVML_ERROR_NOT_FOUND)) == {}, "nobody worked"
    assert busy(driver, fail(0)) == {}, "how the binding says that there is no row"


def test_samples_of_a_process_are_averaged_and_rubbish_is_left_out(driver):
    assert busy(driver, samples((50, 1, 10), (50, 2, 40), (51, 2, 255), (52, 1, 0))) == {
        50: 25,
        52: 0,
    }


def test_old_samples_are_not_counted_again(driver):
    one = driver(nvmlDeviceGetProcessUtilization=samples((50, 7, 90)))
    assert [one.usage("u").busy, one.usage("u").busy] == [{50: 90}, {}]


def test_utilisation_of_an_empty_card_is_not_read(driver):
    one = driver(
        nvmlDeviceGetComputeRunningProcesses=rows(), nvmlDeviceGetProcessUtilization=fail(999)
    )
    assert one.usage("u").busy == {} and one.usage("u", busy=False).busy is None


def test_lists_that_are_empty_nearly_always_are_read_now_and_then(driver):
    asked: list[int] = []
    graphics: list[SimpleNamespace] = []
    computing = [SimpleNamespace(pid=50, usedGpuMemory=3)]
    one = driver(
        nvmlDeviceGetComputeRunningProcesses=lambda _: list(computing),
        nvmlDeviceGetGraphicsRunningProcesses=lambda _: (asked.append(1), list(graphics))[1],
    )
    for _ in range(20):
        one.usage("u", busy=False)
    assert len(asked) == 2
    computing.append(SimpleNamespace(pid=51, usedGpuMemory=3))
    one.usage("u", busy=False)
    assert len(asked) == 3, "who comes may be in both"
    graphics.append(SimpleNamespace(pid=60, usedGpuMemory=1))
    seen = [len(one.usage("u", busy=False).processes) for _ in range(20)]
    assert seen[9:] == [3] * 11 and len(asked) > 12, "while there is one it is looked at each time"
    assert len(one.processes("u")) == 3


def test_utilisation_of_an_idle_card_is_read_each_third_time_until_a_process_works(driver):
    asked: list[int] = []
    percent = [0]
    stamp = iter(range(1, 1000))

    def answer(*_: object) -> list[SimpleNamespace]:
        asked.append(1)
        return [SimpleNamespace(pid=50, timeStamp=next(stamp), smUtil=percent[0])]

    one = driver(nvmlDeviceGetProcessUtilization=answer)
    for _ in range(41):
        one.usage("u")
    assert len(asked) == 21
    percent[0] = 80
    assert {50: 80} in [one.usage("u").busy for _ in range(3)]
    assert [one.usage("u").busy for _ in range(5)] == [{50: 80}] * 5
