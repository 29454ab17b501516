"""The native GRES plugins in a live cluster of their own: what they carry, what forging a tag
brings, what a wrong version does. Skipped, with the reason, where the exact source of this Slurm
cannot be had.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import struct
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from jobs_support import Live, alone

from cli.sandbox import bringup, services, wait
from cli.sandbox.cluster import Sandbox
from cli.sandbox.errors import SandboxError
from cli.sandbox.options import SandboxOptions
from cli.sandbox.versions import native_gres
from gres.grant.store import Grant
from gres.units import MIB

VARIABLES = "env | grep -E '^(QGPU(_VRAM)?_ON_NODE|SLURM_SHARDS_ON_NODE)=' | sort | xargs echo"


@pytest.fixture(scope="module")
def native() -> Iterator[Live]:
    """A sandbox of one node with two cards, whose Slurm loads our plugins."""
    try:
        native_gres.build()
    except SandboxError as error:
        pytest.skip(str(error))
    print(f"plugins built from: {native_gres.origin(native_gres.source())}")
    cluster = Sandbox(SandboxOptions(f"t{os.getpid()}g", nodes=1, native_gres=True), progress=print)
    cluster.up()
    yield Live(cluster)
    cluster.down()


@pytest.fixture
def live(native: Live) -> Iterator[Live]:
    """That sandbox with an empty queue."""
    yield from alone(native)


def _log(live: Live, name: str) -> str:
    return live.sandbox.layout.log(name).read_text(errors="replace")


def _running(live: Live, job: int) -> Grant:
    """The job's grant, once its Prolog has made it."""
    live.wait_state(job, "RUNNING")
    return live.grant(job)


def _promise(grant: Grant) -> tuple[str, str | None, list[tuple[int, int]]]:
    return grant.state, grant.job_class, [(card.share, card.mem_cap // MIB) for card in grant.cards]


# ---- what they carry


def test_both_plugins_are_loaded_and_the_node_is_found_valid(live: Live) -> None:
    """They export what this Slurm looks up, and slurmd found nothing to complain about."""
    plugins = native_gres.plugin_dir(live.sandbox.layout)
    for name in native_gres.PLUGINS:
        argv = ["nm", "-D", "--defined-only", str(plugins / name)]
        symbols = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
        assert len(re.findall(r" T gres_p_\w+", symbols)) == (
            13 if live.sandbox.plan.slurm < "23.02" else 11
        )
        assert not re.search(r" [TDBR] qgn_", symbols)
    log = live.paths(live.nodes[0]).log("slurmd").read_text()
    assert "Incompatible" not in log and "gres.conf: " not in log


def test_class_share_and_memory_come_out_of_slurms_own_allocation(live: Live) -> None:
    jobs = {
        "online": live.submit("sleep 600", "--qos=online", "--gres=qgpu:30,vram:20G"),
        "offline": live.submit("sleep 600", "--qos=offline", "--gres=qgpu:45"),
    }
    assert _promise(_running(live, jobs["online"])) == ("active", "online", [(30, 20 * 1024)])
    state, job_class, [(share, mem)] = _promise(_running(live, jobs["offline"]))
    assert (state, job_class, share, mem) == ("active", "offline", 45, 78 * 1024 * 45 // 100)
    live.cancel(*jobs.values())


def test_a_whole_card_stays_whole(live: Live) -> None:
    grant = _running(live, job := live.submit("sleep 600", "--gres=gpu:1"))
    assert (grant.state, grant.job_class) == ("whole", None)
    live.cancel(job)


@pytest.mark.parametrize("gres", [(), ("--gres=gpu:2",)], ids=["no gres", "gpu:2"])
def test_a_job_with_the_node_for_itself_has_its_cards(live: Live, gres: tuple[str, ...]) -> None:
    """Slurm allocates the counts of both classes to it as well, which are no share."""
    grant = _running(live, job := live.submit("sleep 600", "--exclusive", *gres))
    assert (grant.state, grant.job_class, len(grant.cards)) == ("whole", None, 2), grant
    live.cancel(job)


def test_variables_of_job_step_and_task(live: Live) -> None:
    steps = (
        VARIABLES,
        f'srun -Q bash -c "{VARIABLES}"',
        f'srun -Q --gres=qgpu:10 bash -c "{VARIABLES}"',
        f'QGPU_ON_NODE=99 SLURM_SHARDS_ON_NODE=7 srun -Q --gres=none bash -c "{VARIABLES}"',
    )
    job = live.submit("\n".join(steps), "--qos=online", "--gres=qgpu:30,vram:24G")
    [text] = live.finish(job)
    all_of_it = "QGPU_ON_NODE=30 QGPU_VRAM_ON_NODE=24576 SLURM_SHARDS_ON_NODE=31"
    assert text.splitlines() == [
        all_of_it,
        all_of_it,
        "QGPU_ON_NODE=10 QGPU_VRAM_ON_NODE=0 SLURM_SHARDS_ON_NODE=1",
        "QGPU_ON_NODE=0 QGPU_VRAM_ON_NODE=0",
    ]


def test_a_whole_card_asked_for_inside_a_share_inherits_no_shards(live: Live) -> None:
    """Nor is it refused for them: SPANK tells real parts of a card by SLURM_SHARDS_ON_NODE."""
    inner = (
        "sbatch --wait --gres=gpu:1 --output=inner.out <<'END'\n#!/bin/bash\nsrun bash -c "
        f'"{VARIABLES}"\nEND'
    )
    job = live.submit(inner, "--qos=online", "--gres=qgpu:30")
    live.finish(job, seconds=60)
    inside = (live.sandbox.layout.home("alice") / "inner.out").read_text().split()
    assert "QGPU_ON_NODE=100" in inside
    assert "SLURM_SHARDS_ON_NODE=30" not in inside


def test_reconfigure_while_a_job_runs_changes_nothing(live: Live) -> None:
    first = live.submit("sleep 600", "--qos=online", "--gres=qgpu:30,vram:8G")
    _running(live, first)
    live.ask("scontrol", "reconfigure")
    second = live.submit("sleep 600", "--qos=offline", "--gres=qgpu:20,vram:8G")
    assert _promise(_running(live, second)) == ("active", "offline", [(20, 8192)])
    assert _promise(live.grant(first)) == ("active", "online", [(30, 8192)])
    live.cancel(first, second)
    live.wait_gone(first)
    live.until(lambda: not live.grants(), 20, "the end of both grants")


# ---- forging


@dataclass(frozen=True)
class Forgery:
    """What a user writes where no job_submit stands in the way, and what becomes of it (None:
    refused).
    """

    gres: str
    note: str
    promise: tuple[str, str] | None
    says: str = ""


FORGERIES = (
    Forgery(
        "qgpu:offline:10,shard:10,vram:8G",
        "qgpu/1 class=online share=100 mem=70000",
        ("active", "offline"),
    ),
    Forgery("qgpu:offline:10,shard:10,vram:8G", "qgpu/1 whole", ("active", "offline")),
    Forgery("qgpu:offline:10,shard:10,vram:8G", "qgpu/9 nonsense", ("active", "offline")),
    Forgery("qgpu:offline:10,shard:10,vram:8G", "", ("active", "offline")),
    Forgery(
        "shard:10", "qgpu/1 class=online share=100 mem=70000", None, "only as Slurm allocated it"
    ),
    Forgery("shard:10", "qgpu/1 whole", None, "a note that says it has a whole card"),
    # what slurmctld makes of --gres=gpu:1 where it has just been restarted and knows no card of the
    # node
    Forgery("gpu:0", "qgpu/1 whole", None, "asked for whole cards, but Slurm gave it no card"),
    Forgery(
        "qgpu:offline:10,shard:10",
        "qgpu/1 class=online share=9 mem=9",
        None,
        "allocated no vram",
    ),
    Forgery(
        "vram:8G,shard:10",
        "qgpu/1 class=online share=9 mem=9",
        None,
        "class of its qgpu is 'none'",
    ),
    Forgery("qgpu:offline:9,qgpu:online:9,shard:9,vram:8G", "", None, "must be online or offline"),
)


@pytest.fixture
def without_job_submit(native: Live) -> Iterator[Callable[[str], str]]:
    """job_submit.lua is out of the way; gives the option that writes the tag's field."""
    conf = native.sandbox.layout.etc / "slurm-qgpu.conf"
    before = conf.read_text()

    def shown() -> bool:
        return (
            re.search(r"JobSubmitPlugins += lua", native.ask("scontrol", "show", "config"))
            is not None
        )

    def reload(text: str, there: bool) -> None:
        conf.write_text(text)
        native.ask("scontrol", "reconfigure")
        native.until(lambda: shown() is there, 20, "slurmctld reading its configuration")

    reload(before.replace("\nJobSubmitPlugins=", "\n#JobSubmitPlugins="), there=False)
    yield lambda note: f"--{'comment' if native.sandbox.plan.slurm < '23.02' else 'extra'}={note}"
    reload(before, there=True)


@pytest.mark.parametrize("forgery", FORGERIES, ids=lambda forgery: f"{forgery.gres} {forgery.note}")
def test_a_forged_tag_brings_nothing(
    live: Live, without_job_submit: Callable[[str], str], forgery: Forgery
) -> None:
    """Class, share and memory are those of the allocation, whatever the field says."""
    options = ["--qos=online", f"--gres={forgery.gres}"]
    job = live.submit(
        "sleep 600", *options, *([without_job_submit(forgery.note)] if forgery.note else [])
    )
    if forgery.promise is None:
        [said] = live.finish(job)
        assert forgery.says in said
        return
    assert _promise(_running(live, job)) == (*forgery.promise, [(10, 8192)])
    if forgery.note:
        log = live.paths(live.nodes[0]).log("qgpud").read_text()
        assert f"event=tag-overruled job={job} " in log
    # a slurmctld that reads its configuration while a job completes may miss that it has
    live.empty()


# ---- memory that may be taken back


def test_reclaimable_jobs_are_known_by_the_tag_beside_slurms_counts(live: Live) -> None:
    """vram counts three times the node's memory; the plugins take that, and compare no sums."""
    yaml = live.sandbox.layout.qgpu_yaml
    before, node = yaml.read_text(), live.nodes[0]

    def use(text: str) -> None:
        yaml.write_text(text)
        bringup.write_slurm(live.sandbox.layout, live.sandbox.plan)
        live.sandbox.kill(node, "qgpud")
        _restart_slurm(live)
        live.sandbox.start(node, "qgpud")

    use(before + "classes: {offline: {memory: reclaimable}}\n")
    try:
        assert "vram:468G" in live.ask("scontrol", "show", "node", node)
        jobs = [
            live.submit("sleep 600", f"--qos={qos}", "--gres=qgpu:30,vram:40G", "--mem=1G")
            for qos in ("offline", "offline", "online")
        ]
        grants = [_running(live, job) for job in jobs]
        assert [grant.reclaimable for grant in grants] == [True, True, False]
        assert {grant.state for grant in grants} == {"active"}
        assert [grant.cards[0].mem_cap // MIB for grant in grants] == [40960] * 3
        assert [grant.cards[0].index for grant in grants] == [0, 0, 0]
    finally:
        live.empty()
        use(before)


# ---- a wrong version


def _another_micro(plugin: Path) -> None:
    """Make a plugin say that it was built for the micro version before."""
    symbols = subprocess.run(
        ["nm", "-D", plugin], capture_output=True, text=True, check=True
    ).stdout
    [offset] = [
        int(line.split()[0], 16)
        for line in symbols.splitlines()
        if line.endswith(" plugin_version")
    ]
    raw = bytearray(plugin.read_bytes())
    struct.pack_into("<I", raw, offset, struct.unpack_from("<I", raw, offset)[0] - 1)
    new = plugin.with_suffix(".new")
    new.write_bytes(raw)
    new.replace(plugin)


def _restart_slurm(live: Live) -> None:
    for node in live.nodes:
        live.sandbox.kill(node, "slurmd", signal.SIGTERM)
    live.sandbox.restart_controller()
    for node in live.nodes:
        live.sandbox.start(node, "slurmd")
    services.await_registration(live.sandbox._cluster())
    wait.until(lambda: live.ask("sinfo", "-h", "-o", "%T") == "idle", 30, "an idle node")


@contextlib.contextmanager
def _mismatch(live: Live) -> Iterator[None]:
    directory = native_gres.plugin_dir(live.sandbox.layout)
    kept = {name: (directory / name).read_bytes() for name in native_gres.PLUGINS}
    for name in kept:
        _another_micro(directory / name)
    _restart_slurm(live)
    try:
        yield
    finally:
        live.empty()
        for name, raw in kept.items():
            (directory / f"{name}.old").write_bytes(raw)
            (directory / f"{name}.old").replace(directory / name)
        _restart_slurm(live)


def test_a_wrong_version_stops_no_daemon_and_one_line_gets_the_site_running(live: Live) -> None:
    """Slurm refuses the plugins and only counts; shares are refused in words until qgpu.yaml
    says they are gone.
    """
    yaml = live.sandbox.layout.qgpu_yaml
    before, node = yaml.read_text(), live.nodes[0]
    with _mismatch(live):
        assert "Incompatible Slurm plugin" in live.paths(node).log("slurmd").read_text()
        refused = live.submit("true", "--qos=online", "--gres=qgpu:30")
        [said] = live.finish(refused)
        assert "Slurm's qgpu plugin said nothing about this job" in said
        assert not live.drained()
        try:
            yaml.write_text(before.replace("native_gres: true", "native_gres: false"))
            live.sandbox.kill(node, "qgpud", signal.SIGTERM)
            live.sandbox.start(node, "qgpud")
            job = live.submit("sleep 600", "--qos=online", "--gres=qgpu:30,vram:8G")
            assert _promise(_running(live, job)) == ("active", "online", [(30, 8192)])
            live.cancel(job)
        finally:
            yaml.write_text(before)
            live.sandbox.kill(node, "qgpud", signal.SIGTERM)
            live.sandbox.start(node, "qgpud")
    job = live.submit("sleep 600", "--qos=online", "--gres=qgpu:30,vram:8G")
    assert _promise(_running(live, job)) == ("active", "online", [(30, 8192)])
    live.cancel(job)


# ---- the node's configuration

# Changes of slurm.conf's Gres= and gres.conf alike, and what slurmd's log then says.
FAULTS = {
    "a third class": (
        "qgpu:offline:800 qgpu:batch:800",
        "Type=offline Type=batch",
        "the Type is the class",
    ),
    "no multiple of the cards": (
        "qgpu:online:200 qgpu:online:201",
        "Count=200 Count=201",
        "node has 2 cards",
    ),
    "memory without a unit": (
        "vram:156G vram:156",
        "Count=156G Count=156",
        "it counts bytes",
    ),
    "no memory": ("vram:156G vram:0", "Count=156G Count=0", "but no Name=vram"),
    "a device file": ("vram:156G vram:2", "Count=156G File=FILES", "it is a count"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrongly_configured_node_is_reported(live: Live, fault: str) -> None:
    *changes, sentence = FAULTS[fault]
    etc = live.sandbox.layout.etc
    cards = live.paths(live.nodes[0]).sim_dir / "dev" / "qgpusim[0-1]"
    trial = etc / "trial"
    trial.mkdir(exist_ok=True)
    for file in etc.glob("*.conf"):
        text = file.read_text().replace(f"{etc}/", f"{trial}/")
        for old, new in (change.split(" ") for change in changes):
            text = text.replace(old, new.replace("FILES", str(cards)))
        (trial / file.name).write_text(text)
    done = live.run("slurmd", "-G", "-N", live.nodes[0], "-f", str(trial / "slurm.conf"))
    assert sentence in done.stdout + done.stderr
