"""What doctor says about host memory, where GPU memory may be taken back."""

from __future__ import annotations

import pytest
from site_support import Site

RECLAIMABLE = "classes: {offline: {memory: reclaimable}}\n"


def host_memory(site: Site, yaml: str = RECLAIMABLE) -> tuple[str, str, str]:
    """The check of a site whose qgpu.yaml has these lines too."""
    if "binpack" not in yaml:
        site.edit("etc/qgpu.yaml", 'version: "24.11"', 'version: "24.11", placement: spread')
    site.yaml.write_text(site.yaml.read_text() + yaml)
    site.reread()
    (found,) = [check for check in site.checks() if check.name == "host memory"]
    return found.status, found.text, found.todo or ""


def test_it_matters_only_where_a_class_is_reclaimable(site: Site) -> None:
    site.effective("SelectTypeParameters", "CR_CORE")
    assert host_memory(site, "") == ("ok", "no class is reclaimable", "")


def test_memory_that_slurm_counts_is_right(site: Site) -> None:
    assert host_memory(site) == ("ok", "counted by Slurm; without --mem 64 MiB per CPU", "")


def test_memory_that_slurm_does_not_count_is_told(site: Site) -> None:
    site.effective("SelectTypeParameters", "CR_CORE")
    status, text, todo = host_memory(site)
    assert (status, todo) == ("warn", "write CR_Core_Memory there, and restart slurmctld")
    assert text.startswith("SelectTypeParameters is CR_CORE, so Slurm counts no host memory")


def test_a_site_without_a_default_is_told_what_that_means(site: Site) -> None:
    site.effective("DefMemPerCPU", "UNLIMITED")
    status, text, todo = host_memory(site)
    assert status == "warn" and "a job without --mem has all memory of its node" in text
    assert todo == "write for example DefMemPerCPU=2048 in slurm.conf"


def test_a_class_without_gates_is_told(site: Site) -> None:
    yaml = "classes: {offline: {memory: reclaimable, isolation: none}}\n"
    status, text, todo = host_memory(site, yaml)
    assert status == "warn" and "offline jobs book no memory and have isolation none" in text
    assert todo == "write memory: reserved for that class, or isolation: governed"


def test_host_memory_above_what_slurm_has_is_told(site: Site) -> None:
    site.edit("etc/qgpu.yaml", "count: 2,", "count: 2, host_memory: 256GiB,")
    status, text, todo = host_memory(site)
    assert (status, text) == ("warn", "n1 has RealMemory=131072, qgpu.yaml says 262144 MiB")
    assert todo == "write host_memory: 131072MiB for it"


def test_offline_jobs_on_one_card_of_several_are_told(site: Site) -> None:
    status, text, todo = host_memory(site, RECLAIMABLE + "# binpack")
    assert status == "warn" and "all reclaimable jobs on the first card" in text
    assert "under slurm in qgpu.yaml, and run: qgpu setup --role controller --role node" in todo


def test_tables_that_know_another_default_are_old(site: Site) -> None:
    """The tables were rendered when slurm.conf had another DefMemPerCPU."""
    host_memory(site)
    found = {check.name: check for check in site.checks()}["tables"]
    assert found.status == "fail"
    assert "renders beside DefMemPerNode and DefMemPerCPU" in found.text


def checkpoints(site: Site, told: dict[str, int] | None) -> tuple[str, str, str]:
    """The check of the helper, of a node whose qgpud says that."""
    helper = site.root / "qgpu-checkpoint"
    yaml = f"{RECLAIMABLE}reclaim: {{helper: {helper}}}\n"
    site.yaml.write_text(site.yaml.read_text() + yaml)
    site.reread()
    site.daemon["reclaim"] = told
    (found,) = [check for check in site.checks() if check.name == "checkpoints"]
    return found.status, found.text, found.todo or ""


TOLD = {"leaves": 3, "returns": 2, "away": 1, "away_bytes": 60 << 30, "claims": 1, "unable": 0}


def test_a_helper_that_is_missing_or_not_roots_is_told(site: Site) -> None:
    status, text, _ = checkpoints(site, TOLD)
    assert status == "fail" and "qgpu-checkpoint is missing" in text
    helper = site.root / "qgpu-checkpoint"
    helper.write_text("#!/bin/sh\n")
    helper.chmod(0o777)
    (found,) = [check for check in site.checks() if check.name == "checkpoints"]
    assert found.status == "fail" and "qgpud does not run it" in found.text


def test_what_was_moved_is_told(site: Site) -> None:
    (site.root / "qgpu-checkpoint").write_text("#!/bin/sh\n")
    (site.root / "qgpu-checkpoint").chmod(0o755)
    status, text, _ = checkpoints(site, TOLD)
    assert status == "ok"
    assert text == "3 left, 2 returned, 1 away now with 60G in host memory; 1 wait to start"
    site.daemon["reclaim"] = TOLD | {"unable": 2}
    (found,) = [check for check in site.checks() if check.name == "checkpoints"]
    assert found.status == "warn" and "2 could not be moved" in found.text


@pytest.mark.parametrize(
    ("told", "why"),
    [
        (
            {"moves": "qgpud has no CAP_SYS_ADMIN"},
            "no job can be moved: qgpud has no CAP_SYS_ADMIN",
        ),
        ({"reclaim": TOLD | {"not_moved": 2}}, "2 were not taken by another card"),
    ],
)
def test_why_jobs_do_not_move_is_told(site: Site, told: dict[str, object], why: str) -> None:
    (site.root / "qgpu-checkpoint").write_text("#!/bin/sh\n")
    (site.root / "qgpu-checkpoint").chmod(0o755)
    assert checkpoints(site, TOLD)[0] == "ok"
    site.daemon.update(told)
    (found,) = [check for check in site.checks() if check.name == "checkpoints"]
    assert found.status == "warn" and why in found.text
