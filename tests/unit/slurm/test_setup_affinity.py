"""Cores near a card: from the kernel's processors and the driver's bus addresses to Slurm's core
numbers. Cores and links in gres.conf.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.setup.affinity import core_of_processor, cores_of_cards, ranges
from gres.config.hostlist import expand
from gres.config.site import ConfigError, parse_config
from slurm_plugin.render import render

YAML = """version: 1
cluster: c
qos: {{online: online}}
models: {{h200: {{memory: 80GiB}}}}
nodes: [{{names: n1, model: h200, count: 2, files: "/dev/nvidia[0-1]"{more}}}]
"""


def machine(
    root: Path, cpus: list[tuple[int, int]], cards: dict[str, tuple[int, str]]
) -> tuple[Path, Path]:
    """`cpus`: package and core id of each processor; `cards`: bus -> minor, local_cpulist."""
    proc, sys = root / "proc", root / "sys"
    base = sys / "devices/system/cpu"
    for number, (package, core) in enumerate(cpus):
        topology = base / f"cpu{number}/topology"
        topology.mkdir(parents=True)
        (topology / "physical_package_id").write_text(f"{package}\n")
        (topology / "core_id").write_text(f"{core}\n")
    (base / "online").write_text(f"0-{len(cpus) - 1}\n")
    for bus, (minor, near) in cards.items():
        (proc / bus).mkdir(parents=True)
        (proc / bus / "information").write_text(
            f"Model: \t\t NVIDIA H200\nBus Location: \t {bus}\nDevice Minor: \t "
            f"{minor}\nBlacklisted:\t No\n"
        )
        (sys / "bus/pci/devices" / bus.lower()).mkdir(parents=True)
        (sys / "bus/pci/devices" / bus.lower() / "local_cpulist").write_text(f"{near}\n")
    return proc, sys


# Two sockets of two cores with two threads each: processors 0-3 are the first threads, 4-7 the
# second ones.
SMT = [(0, 0), (0, 1), (1, 0), (1, 1), (0, 0), (0, 1), (1, 0), (1, 1)]
# Sockets by turns, as some firmware numbers them.
TURNS = [(0, 0), (1, 0), (0, 4), (1, 4)]


def test_threads_are_one_core_and_sockets_come_one_after_the_other(tmp_path: Path) -> None:
    proc, sys = machine(
        tmp_path, SMT, {"0000:65:00.0": (1, "2-3,6-7"), "0000:0A:00.0": (0, "0-1,4-5")}
    )
    assert core_of_processor(sys) == {0: 0, 4: 0, 1: 1, 5: 1, 2: 2, 6: 2, 3: 3, 7: 3}
    assert cores_of_cards([0, 1], proc, sys) == ["0-1", "2-3"]
    assert cores_of_cards([1], proc, sys) == ["2-3"]
    turns = tmp_path / "turns"
    proc, sys = machine(turns, TURNS, {"0000:65:00.0": (0, "0,2"), "0000:66:00.0": (1, "1,3")})
    assert cores_of_cards([0, 1], proc, sys) == ["0-1", "2-3"]


def test_where_the_machine_does_not_tell_nothing_is_said(tmp_path: Path) -> None:
    proc, sys = machine(tmp_path, SMT, {"0000:65:00.0": (0, "0-7")})
    assert cores_of_cards([0], proc, sys) is None, "near all cores"
    assert cores_of_cards([1], proc, sys) is None, "no such card"
    assert cores_of_cards([0], tmp_path / "none", sys) is None
    for broken in ("", "x", "9-12", "3-1"):
        (sys / "bus/pci/devices/0000:65:00.0/local_cpulist").write_text(broken)
        assert cores_of_cards([0], proc, sys) is None


@given(st.sets(st.integers(0, 300), min_size=1))
def test_ranges_are_what_they_were_made_of(numbers: set[int]) -> None:
    assert {int(name) for name in expand(f"[{ranges(numbers)}]")} == numbers


def test_cores_come_into_gres_conf() -> None:
    config = parse_config(YAML.format(more=', cores: ["0-15,32-47", "16-31"]'))
    lines = [line for line in render("gres.conf", config).splitlines() if "Name=gpu" in line]
    assert lines == [
        "NodeName=n1 Name=gpu Type=h200 File=/dev/nvidia0 Cores=0-15,32-47",
        "NodeName=n1 Name=gpu Type=h200 File=/dev/nvidia1 Cores=16-31",
    ]


@pytest.mark.parametrize(
    ("cores", "says"),
    [
        ('["0-1"]', "cores has 1 entries, but count is 2"),
        ('["0-1", "x"]', "'x' is not a list of core numbers"),
        ('["0-1", "3-2"]', "'3-2' is not a list of core numbers"),
        ('["0-1", "1;reboot"]', "is not a list of core numbers"),
    ],
)
def test_cores_that_are_none_are_refused(cores: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says.replace("[", r"\[")):
        parse_config(YAML.format(more=f", cores: {cores}"))


def gpu_lines(more: str) -> list[str]:
    lines = render("gres.conf", parse_config(YAML.format(more=more))).splitlines()
    assert not any("Links=" in line for line in lines if "Name=gpu" not in line)
    return [line.partition(" Type=h200 ")[2] for line in lines if "Name=gpu" in line]


def test_links_come_into_gres_conf_at_the_cards_alone() -> None:
    assert gpu_lines("") == ["File=/dev/nvidia[0-1]"]
    assert gpu_lines(', links: ["-1,4", "4,-1"]') == [
        "File=/dev/nvidia0 Links=-1,4",
        "File=/dev/nvidia1 Links=4,-1",
    ]
    assert gpu_lines(', links: ["-1,4", "4,-1"], cores: ["0-1", "2-3"]') == [
        "File=/dev/nvidia0 Cores=0-1 Links=-1,4",
        "File=/dev/nvidia1 Cores=2-3 Links=4,-1",
    ]


@pytest.mark.parametrize(
    ("links", "says"),
    [
        ('["-1,4"]', "links has 1 entries, but count is 2"),
        ('["-1,4", "4"]', "links has '4', which is not one number of links to each of the 2"),
        ('["-1,4", "4,-1,0"]', "which is not one number"),
        ('["-1,4", "4,-2"]', "which is not one number"),
        ('["-1,4", "4,x"]', 'write for example "-1,4" for the first card'),
        ('["-1,4", "4,1;reboot"]', "which is not one number"),
        ('["-1,4", "-1,4"]', "links has '-1,4' for card 1: -1 stands for the card itself"),
        ('["-1,-1", "4,-1"]', "links has '-1,-1' for card 0"),
        ('["0,4", "4,-1"]', "links has '0,4' for card 0"),
    ],
)
def test_links_that_are_none_are_refused(links: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        parse_config(YAML.format(more=f", links: {links}"))


def test_instances_have_no_links() -> None:
    caps = "/dev/nvidia0,/dev/nvidia-caps/nvidia-cap"
    text = YAML.format(more=', links: ["-1,4", "4,-1"]').replace(
        'files: "/dev/nvidia[0-1]"', f'instances: ["{caps}[21-22]", "{caps}[30-31]"]'
    )
    with pytest.raises(ConfigError, match="links is given, but MIG instances have none"):
        parse_config(text.replace("cluster: c", "cluster: c\nslurm: {version: '24.11'}"))
