"""The jobs' NVML on the driver's samples: the hooks alone, on a library controlled by the test."""

from __future__ import annotations

import ctypes
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
NATIVE = ROOT / "enforcer/native"
SECOND = 1_000_000
STUB = """
#include <string.h>
#include "nvml_shim.h"
void *qg_real[QG_NSYMBOLS];
static nvmlUtilization_t card;
static nvmlProcessUtilizationSample_t samples[64];
static unsigned int told;
bool qg_nvml_has(unsigned symbol) { return symbol < QG_NSYMBOLS; }
bool qg_nvml_view(nvmlDevice_t device, struct qgpu_view *out)
{
    (void)device;
    memset(out, 0, sizeof *out);
    return true;
}
bool qg_nvml_ours(const struct qgpu_view *view, unsigned int pid) { (void)view; return pid < 100; }
static nvmlReturn_t rates(nvmlDevice_t device, nvmlUtilization_t *out)
{
    (void)device;
    *out = card;
    return NVML_SUCCESS;
}
static nvmlReturn_t processes(nvmlDevice_t device, nvmlProcessUtilizationSample_t *out,
                              unsigned int *n, unsigned long long since)
{
    (void)device, (void)since;
    *n = told;
    memcpy(out, samples, told * sizeof *out);
    return told ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;
}
__attribute__((visibility("default"))) void say(unsigned int gpu)
{
    qg_real[QG_SYM_nvmlDeviceGetUtilizationRates] = (void *)rates;
    qg_real[QG_SYM_nvmlDeviceGetProcessUtilization] = (void *)processes;
    card.gpu = card.memory = gpu, told = 0;
}
__attribute__((visibility("default"))) void sample(unsigned int pid, unsigned long long at,
                                                   unsigned int percent)
{
    samples[told++] =
        (nvmlProcessUtilizationSample_t){.pid = pid, .timeStamp = at, .smUtil = percent};
}
"""
Sample = tuple[int, int, int]  # process, microseconds, percent


@pytest.fixture(scope="module")
def job_rate(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., int]:
    """The job's utilisation where the card has so much, and the driver these samples; processes
    below 100 are its.
    """
    where = tmp_path_factory.mktemp("rates")
    generate = [
        sys.executable,
        str(NATIVE / "shim/dispatch/generate.py"),
        str(NATIVE / "shim_nvml/symbols.tsv"),
        str(where),
    ]
    subprocess.run(generate, check=True)
    (where / "stub.c").write_text(STUB)
    packages = Path(sysconfig.get_path("purelib")) / "nvidia"
    system = [str(packages / "nvml_dev/include"), *map(str, packages.glob("cu*/include"))]
    own = [str(where), *(str(NATIVE / name) for name in ("shim_nvml", "shim", "abi", "common"))]
    flags = [
        *(f"-I{path}" for path in own),
        *(word for path in system for word in ("-isystem", path)),
    ]
    sources = [str(where / "stub.c"), str(NATIVE / "shim_nvml/nvml_hooks.c")]
    command = ["cc", "-std=gnu11", "-shared", "-fPIC", "-fvisibility=hidden", *flags, *sources]
    subprocess.run([*command, "-o", str(where / "rates.so")], check=True)
    library = ctypes.CDLL(str(where / "rates.so"))

    def rate(card: int, *samples: Sample) -> int:
        found = (ctypes.c_uint * 2)()
        library.say(card)
        for pid, at, percent in samples:
            library.sample(pid, ctypes.c_ulonglong(at), percent)
        assert library.nvmlDeviceGetUtilizationRates(None, found) == 0
        return int(found[0])

    return rate


EPOCH = 1_700_000_000 * SECOND


@pytest.mark.parametrize("start", [EPOCH, 5 * SECOND], ids=["epoch", "uptime"])
def test_newest_samples_of_the_job_are_added_up(job_rate, start):
    old, now = start, start + SECOND // 2
    assert job_rate(90, (1, old, 80), (1, now, 20), (2, now, 30), (200, now, 40)) == 50


@pytest.mark.parametrize("start", [EPOCH, 5 * SECOND], ids=["epoch", "uptime"])
def test_what_an_idle_job_did_before_is_not_shown_beside_active_ones(job_rate, start):
    assert job_rate(90, (1, start, 80), (200, start + 2 * SECOND, 90)) == 0
    assert (
        job_rate(90, (1, start, 80), (2, start + 2 * SECOND, 10), (200, start + 2 * SECOND, 80))
        == 10
    )


def test_nor_where_no_process_works_and_all_samples_are_old(job_rate):
    assert job_rate(0, (1, EPOCH, 80)) == 0
    assert job_rate(0) == 0


def test_rubbish_neither_counts_nor_makes_others_old(job_rate):
    assert job_rate(90, (1, EPOCH, 30), (1, EPOCH + 60 * SECOND, 4_000_000), (200, EPOCH, 60)) == 30


def test_job_does_not_do_more_than_its_card(job_rate):
    assert job_rate(60, (1, EPOCH, 50), (2, EPOCH, 50)) == 60
