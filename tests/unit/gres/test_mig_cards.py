"""MIG instances as cards: qgpu.yaml, gres.conf, doctor, NVML's
inventory and the Prolog's decision.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from cli.live.card import instance_lines
from enforcer.daemon.granting.decide import Broken, Paths, decide
from enforcer.nvml.driver import mig_handles
from enforcer.nvml.port import CardInfo
from gres.config.mig import Instance, MigError, instance_of, parse_minors, read_minors
from gres.config.site import Config, ConfigError, Node, parse_config
from gres.grant.hookenv import parse_hook_env
from gres.grant.identity import DeviceCard
from gres.grant.store import Grant
from slurm_plugin.render import render
from slurm_plugin.site.conf import parse
from slurm_plugin.site.diff_gres import gres_node_fault, rendered
from slurm_plugin.site.sources import Texts

GIB = 1 << 30
YAML = """version: 1
cluster: c
slurm: {version: "24.11"}
default_class: offline
models: {a100_3g.20gb: {memory: 19GiB, reserve: 1GiB}}
nodes:
  - names: "m[1-2]"
    model: a100_3g.20gb
    count: 2
    instances:
      - /dev/nvidia0,/dev/nvidia-caps/nvidia-cap[12-13]
      - /dev/nvidia0,/dev/nvidia-caps/nvidia-cap21,/dev/nvidia-caps/nvidia-cap22
"""
FIRST = "/dev/nvidia0,/dev/nvidia-caps/nvidia-cap12,/dev/nvidia-caps/nvidia-cap13"
SECOND = "/dev/nvidia0,/dev/nvidia-caps/nvidia-cap21,/dev/nvidia-caps/nvidia-cap22"
# Lines as the driver has them, of one card.
MINORS = """config 1
monitor 2
gpu0/gi0/access 3
gpu0/gi0/ci0/access 4
gpu0/gi1/access 12
gpu0/gi1/ci0/access 13
gpu0/gi2/access 21
gpu0/gi2/ci0/access 22
"""
CARDS = tuple(
    CardInfo(
        f"MIG-{gi:08d}-0000-0000-0000-000000000000",
        0,
        "A100 MIG 3g.20gb",
        19 * GIB,
        Instance(gi, 0),
    )
    for gi in (2, 1)
)


@pytest.fixture
def config() -> Config:
    return parse_config(YAML)


def test_each_instance_is_a_card_of_its_own(config: Config) -> None:
    cards = config.node("m2").cards
    assert [",".join(card.paths) for card in cards] == [FIRST, SECOND]
    assert [(card.index, card.path, card.usable) for card in cards] == [
        (0, "/dev/nvidia0", 18 * 1024),
        (1, "/dev/nvidia0", 18 * 1024),
    ]


def test_gres_conf_has_a_line_per_instance_and_one_for_all_shards(config: Config) -> None:
    lines = [line for line in render("gres.conf", config).splitlines() if not line.startswith("#")]
    head = "NodeName=m[1-2] Name="
    assert lines == [
        "NodeName=m[1-2] AutoDetect=off",
        f"{head}gpu Type=a100_3g.20gb MultipleFiles={FIRST}",
        f"{head}gpu Type=a100_3g.20gb MultipleFiles={SECOND}",
        f"{head}shard Count=200",
        f"{head}qgpu Type=online Count=200 Flags=CountOnly,explicit",
        f"{head}qgpu Type=offline Count=800 Flags=CountOnly,explicit",
        f"{head}vram Count=36G Flags=CountOnly,explicit",
    ]
    assert (
        "# NodeName=m[1-2] "
        "Gres=gpu:a100_3g.20gb:2,shard:a100_3g.20gb:200,"
        "qgpu:online:200,qgpu:offline:800,vram:36G" in render("slurm.conf", config)
    )


def test_files_that_depend_on_the_node_give_lines_per_node() -> None:
    text = render("gres.conf", parse_config(YAML.replace("/dev/nvidia0", "/dev/%n/nvidia0")))
    assert (
        "NodeName=m2 Name=gpu Type=a100_3g.20gb MultipleFiles=/dev/m2/nvidia0," in text
        and "%n" not in text
    )


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("[12-13]", "12", "which are not three absolute paths"),
        (
            "/dev/nvidia0,/dev/nvidia-caps/nvidia-cap[12-13]",
            "/dev/nvidia0,x[12-13]",
            "not three absolute paths",
        ),
        ("[12-13]", "[21-22]", "twice"),
        ("count: 2", "count: 3", "instances has 2 entries, but count is 3"),
        ("    count: 2", "    count: 2\n    files: /dev/nvidia0", "write one of both"),
        (
            '"24.11"',
            '"22.05"',
            "MIG instances, which Slurm can share from 23.11 on, but this is 22.05",
        ),
    ],
)
def test_what_is_refused(old: str, new: str, sentence: str) -> None:
    assert old in YAML
    with pytest.raises(ConfigError, match=sentence):
        parse_config(YAML.replace(old, new, 1))


def test_a_node_without_any_files_is_refused() -> None:
    with pytest.raises(ConfigError, match="write one of both"):
        parse_config(YAML[: YAML.index("    instances:")])


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("", "", ""),
        ("nvidia-cap12", "nvidia-cap30", "in this order"),
        ("MultipleFiles", "File", "in this order"),
        ("Name=shard Count=200", "Name=shard Count=100", "no line for shard Count=200"),
        (
            "Name=shard Count=200",
            f"Name=shard Count=200 File={FIRST}",
            "no line for shard Count=200",
        ),
        ("Type=a100_3g.20gb", "Type=a100", "no line for gpu a100_3g.20gb"),
    ],
)
def test_doctor_reads_gres_conf(config: Config, old: str, new: str, says: str) -> None:
    text = render("gres.conf", config)
    assert old in text
    conf = parse("/gres.conf", Texts({"/gres.conf": text.replace(old, new, 1)}))
    fault = gres_node_fault(rendered(config), conf, "m1")
    assert says in fault and bool(fault) == bool(says)


@pytest.mark.parametrize(
    ("gpu", "gi", "ci", "sentence"),
    [
        (0, 99, 13, "nvidia-cap99 is not in the driver's mig-minors"),
        (0, 12, 99, "nvidia-cap99 is not in the driver's mig-minors"),
        (0, 13, 12, "not a GPU instance and a compute instance, in this order"),
        (0, 12, 22, "nvidia-cap22 is not an instance within nvidia-cap12"),
        (1, 12, 13, "nvidia-cap12 belongs to card 0, not to card 1"),
    ],
)
def test_files_that_are_no_instance(gpu: int, gi: int, ci: int, sentence: str) -> None:
    with pytest.raises(MigError, match=sentence):
        instance_of(parse_minors(MINORS), gpu, gi, ci)


def test_a_driver_without_mig_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QGPU_SIM_DIR", str(tmp_path))
    with pytest.raises(MigError, match="mig-minors cannot be read: No such file"):
        read_minors()
    (tmp_path / "mig-minors").write_text(MINORS)
    assert instance_of(read_minors(), 0, 12, 13) == Instance(1, 0)


def test_the_inventory_is_printed_as_the_configuration_wants_it(config: Config) -> None:
    lines = instance_lines(CARDS, parse_minors(MINORS))
    assert lines == [
        f'  - "{FIRST}"  # A100 MIG 3g.20gb, 19G, {CARDS[1].uuid}',
        f'  - "{SECOND}"  # A100 MIG 3g.20gb, 19G, {CARDS[0].uuid}',
    ]
    text = YAML[: YAML.index("      - ")] + "\n".join(f"    {line}" for line in lines)
    assert parse_config(text).node("m1") == config.node("m1")
    with pytest.raises(
        MigError, match="GPU instance 1 with compute instance 0 of card 0 is not in"
    ):
        instance_lines(CARDS, {})


# ---- the Prolog


def _identify(node: Node, indexes: Iterable[int]) -> tuple[DeviceCard, ...]:
    return tuple(DeviceCard(node.cards[i], 195, 0, Instance(i + 1, 0)) for i in indexes)


def _ask(config: Config, gpus: str, cards: tuple[CardInfo, ...]) -> object:
    env = {"SLURM_JOB_ID": "9", "SLURM_JOB_UID": "7", "SLURM_JOB_GID": "7", "SLURMD_NODENAME": "m1"}
    comment = "qgpu/1 class=offline share=30 mem=5000"
    job = parse_hook_env(env | {"SLURM_JOB_COMMENT": comment, "SLURM_JOB_GPUS": gpus}, "comment")
    paths = Paths("/run/qgpu", "/usr/lib/libcuda.so.1", "/usr/lib/qgpu/1/libcuda.so.1")
    return decide(job, config.node("m1"), config, lambda: cards, lambda: paths, _identify, 1)


@pytest.mark.parametrize(("gpus", "gi"), [("0", 1), ("1", 2)])
def test_a_grant_names_the_instance_and_its_memory(config: Config, gpus: str, gi: int) -> None:
    grant = _ask(config, gpus, CARDS)
    assert isinstance(grant, Grant) and grant.state == "active", grant
    (card,) = grant.cards
    assert card.uuid == f"MIG-{gi:08d}-0000-0000-0000-000000000000"
    assert (card.index, card.minor, card.share) == (gi - 1, 0, 30)
    assert (card.mem_cap, card.mem_total) == (5000 << 20, 19 * GIB)


def test_an_instance_that_is_gone_is_not_replaced_by_another_of_its_card(config: Config) -> None:
    whole = replace(CARDS[0], instance=None, uuid="GPU-1")
    for left in ((CARDS[0],), (CARDS[0], whole)):
        broken = _ask(config, "0", left)
        assert isinstance(broken, Broken)
        assert (
            "none with minor number 0 and GPU instance 1 with compute instance 0" in broken.reason
        )


# ---- NVML


class _Absent(Exception):
    pass


class _Unsupported(Exception):
    pass


class _Missing(Exception):
    pass


class _Nvml:
    """The calls of pynvml about MIG, for one card with holes in its numbering."""

    NVML_DEVICE_MIG_ENABLE = 1
    NVMLError_NotFound = _Absent
    NVMLError_NotSupported = _Unsupported
    NVMLError_FunctionNotFound = _Missing

    def __init__(self, mode: object) -> None:
        self.mode = mode

    def nvmlDeviceGetMigMode(self, card: object) -> list[int]:
        if isinstance(self.mode, Exception):
            raise self.mode
        return [int(str(self.mode)), 1]

    def nvmlDeviceGetMaxMigDeviceCount(self, card: object) -> int:
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, card: object, index: int) -> int:
        if index not in (0, 2):
            raise _Absent
        return 100 + index

    def nvmlDeviceGetGpuInstanceId(self, handle: int) -> int:
        return handle - 95

    def nvmlDeviceGetComputeInstanceId(self, handle: int) -> int:
        return 0


def test_only_a_card_in_mig_mode_has_instances() -> None:
    assert mig_handles(_Nvml(1), object()) == [(100, Instance(5, 0)), (102, Instance(7, 0))]
    for mode in (0, _Unsupported(), _Missing()):  # pending alone counts for nothing
        assert mig_handles(_Nvml(mode), object()) is None
