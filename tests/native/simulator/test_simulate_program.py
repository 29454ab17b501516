"""qgpu-simulate under ASan and UBSan: traces at random, and input that is no trace."""

from __future__ import annotations

import json
import random
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.native
BUILD = Path(__file__).resolve().parents[3] / "build"
MS, US = 10**6, 10**3
PROGRAMS = 2


def run(text: str) -> subprocess.CompletedProcess[str]:
    program = BUILD / "test/qgpu-simulate-asan"
    return subprocess.run([program], input=text, capture_output=True, text=True, timeout=120)


def random_program(rng: random.Random) -> str:
    stretches = [
        (rng.choice([1, 1, 3, 200]), rng.choice([2 * US, 90 * US, 7 * MS]), copy, gap)
        for copy, gap in rng.choices([(0, 0), (0, 20 * US), (300 * US, 0), (MS, 5 * MS)], k=5)
    ]
    return "program 5 " + " ".join(str(n) for stretch in stretches for n in stretch)


def random_tenant(rng: random.Random) -> str:
    load = rng.randint(0, 2)
    kernels = [
        rng.choice([1 * US, 100 * US, MS, 10 * MS, 500 * MS]) for _ in range(rng.randint(1, 3))
    ]
    stops = [300 * MS, 700 * MS, 900 * MS, 1400 * MS] if rng.random() < 0.3 else []
    numbers = [0, rng.randint(1, 2), rng.randint(1, 100)]
    numbers += [rng.choice([0, 200 * MS]), rng.choice([10**15, 900 * MS])]
    numbers += [load, rng.choice([MS, 50 * MS, 400 * MS]) if load else 0, rng.randint(1, 300)]
    numbers += [
        rng.choice([0, 0, 50 * US, 3 * MS]),
        int(rng.random() < 0.1),
        rng.choice([0, 0, 0, 1, 2]),
    ]
    numbers += rng.choice([[len(kernels), *kernels], [0, rng.randrange(PROGRAMS)]])
    numbers += [len(stops) // 2, *stops]
    return "tenant " + " ".join(map(str, numbers))


@pytest.mark.parametrize("seed", range(25))
def test_any_trace_ends_and_adds_up(seed: int) -> None:
    rng = random.Random(seed)
    tenants = [random_tenant(rng) for _ in range(rng.randint(1, 12))]
    policies = [rng.randint(1, 3), rng.randint(1, 3)]
    card = [*policies, rng.choice([0, 100 * MS]), 2 * MS, 500 * US, rng.choice([0, 500 * US]), MS]
    card += [rng.choice([0, 30 * US]), rng.choice([0, 40 * US]), 1024, rng.choice([0, MS])]
    card += [rng.choice([0, 5])]
    programs = [random_program(rng) for _ in range(PROGRAMS)]
    head = f"world {seed} {1200 * MS} 60 1 {len(tenants)} {PROGRAMS}\ncard "
    done = run("\n".join([head + " ".join(map(str, card)), *programs, *tenants]))
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    (one,) = result["cards"]
    assert sum(t["busy_ns"] for t in result["tenants"]) == one["busy_ns"] <= 1200 * MS
    # the shortest kernel lasts 1 us, so there are no more than 1.2 million
    assert one["events"] < 1_300_000, "it turned on the spot"
    for t in result["tenants"]:
        waited = t["waited_share_ns"] + t["waited_preempted_ns"] + t["idle_ns"]
        assert t["busy_ns"] + waited <= t["present_ns"] + 1


GOOD = (
    "world 1 1000000 60 1 1 1\ncard 3 3 0 2000000 500000 0 1000000 0 0 1024 0 0\n"
    "program 1 3 1000 0 500\ntenant 0 2 50 0 9 0 0 1 0 0 0 1 1000 0"
)


def test_the_smallest_trace() -> None:
    assert run(GOOD).returncode == 0


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("world", "word"),
        ("world 1", "world x"),
        (" 60 1 1", " 0 1 1"),
        (" 60 1 1", " 60 99999 1"),
        (" 60 1 1", " 60 1 99999999"),
        (" 60 1 1", " 60 1 2"),
        (" 60 1 1 1", " 60 1 1 0"),
        (" 60 1 1 1", " 60 1 1 257"),
        ("program 1 3", "program 1 0"),
        ("program 1 3", "program 0 3"),
        ("program 1", "program 4097"),
        ("3 1000 0 500", "3 99 0 500"),
        ("3 1000 0 500", "3 1000 0 9999999999999"),
        ("1 1000 0", "0 1 0"),
        ("card 3", "card 4"),
        ("tenant 0 2", "tenant 1 2"),
        ("tenant 0 2 50", "tenant 0 2 101"),
        ("0 0 0 1 1000 0", "0 0 0 17 1000 0"),
        ("0 0 0 1 1000 0", "0 0 0 1 1 0"),
        ("1 1000 0", "1 1000 1 5 4"),
        ("1 1000 0", "1 1000"),
        (GOOD, ""),
    ],
)
def test_what_is_no_trace_is_refused(old: str, new: str) -> None:
    assert old in GOOD
    done = run(GOOD.replace(old, new))
    assert done.returncode == 1 and done.stderr.startswith("qgpu-simulate: ") and done.stdout == ""


def test_bad_options_are_refused() -> None:
    for options in (["--jobs", "0"], ["--jobs", "x"], ["--what"], ["file"]):
        done = subprocess.run(
            [BUILD / "bin/qgpu-simulate", *options], input=GOOD, capture_output=True, text=True
        )
        assert done.returncode == 2
