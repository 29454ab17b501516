"""Where a job's device cgroups are: from its slurmstepd alone, and never outside its directory."""

from __future__ import annotations

from pathlib import Path

import pytest
from steps_support import SCOPE, V1

from enforcer.daemon.audit.steps import Step, job_dirs
from enforcer.daemon.devices import places
from enforcer.daemon.devices.places import Place, Roots, of_job, outside, roots, tree
from enforcer.daemon.devices.port import DevicesError

OURS = "/slurm_n1/uid_58008/job_7"
NEW = "/system.slice/n1_slurmstepd.scope/job_7"


def step(text: str) -> Step:
    return Step(7, 100, 1, job_dirs(text))


def both(tmp_path: Path) -> Roots:
    return Roots(tmp_path / "devices", tmp_path / "unified")


def make(tmp_path: Path, *below: str) -> None:
    for one in below:
        (tmp_path / one).mkdir(parents=True)


def test_hierarchies_are_those_mounted_from_their_root_on(tmp_path: Path) -> None:
    rows = (
        "30 1 0:25 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n"
        "31 30 0:26 /docker /srv/part rw - cgroup cgroup rw,devices\n"
        "32 30 0:27 / /sys/fs/cgroup/cpu rw shared:9 - cgroup cgroup rw,cpu\n"
        "33 30 0:28 / /sys/fs/cgroup/my\\040devices rw - cgroup cgroup rw,devices\n"
    )
    table = tmp_path / "mountinfo"
    table.write_text(rows)
    assert roots(table) == Roots(Path("/sys/fs/cgroup/my devices"), None)
    table.write_text(rows + "34 30 0:29 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n")
    assert roots(table).unified == Path("/sys/fs/cgroup/unified")


def test_a_jobs_directory_is_that_of_its_slurmstepd(tmp_path: Path) -> None:
    there = both(tmp_path)
    assert of_job([step(V1.format(job=7, step=0))], there) == (), "it is not there"
    make(tmp_path, f"devices{OURS}", f"unified{NEW}", "devices/slurm_n1/uid_58008/job_8")
    old = Place(1, tmp_path / "devices", OURS)
    new = Place(2, tmp_path / "unified", NEW)
    steps = [step(V1.format(job=7, step=one)) for one in ("0", "extern")]
    assert of_job(steps, there) == (old,)
    assert of_job([step(f"{SCOPE}/job_7/step_0/slurm\n")], there) == (new,)
    assert of_job([*steps, step(f"{SCOPE}/job_7/step_0/slurm\n")], there) == (old,)
    assert of_job(steps, Roots(None, there.unified)) == ()


def test_version_1_is_found_by_the_freezer_where_slurmstepd_is_not_in_devices(
    tmp_path: Path,
) -> None:
    make(tmp_path, f"devices{OURS}")
    found = of_job([step(f"6:freezer:{OURS}\n5:devices:/\n0::/\n")], both(tmp_path))
    assert found == (Place(1, tmp_path / "devices", OURS),)


def test_directories_of_others_do_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path, f"devices{OURS}", "elsewhere")
    (tmp_path / "unified").mkdir()
    (tmp_path / f"unified{NEW}").parent.mkdir(parents=True)
    (tmp_path / f"unified{NEW}").symlink_to(tmp_path / "elsewhere")
    there = both(tmp_path)
    assert of_job([step("5:devices:/a/../../elsewhere/step_0\n")], there) == ()
    assert of_job([step("5:devices:/step_0\n0::/step_0\n")], there) == (), "a root is no job's"
    assert of_job([step(f"{SCOPE}/job_7/step_0/slurm\n")], there) == (), "a link is no directory"
    mine = [step(V1.format(job=7, step=0))]
    assert of_job(mine, there) != ()
    monkeypatch.setattr(places.os, "geteuid", lambda: 58008)
    assert of_job(mine, there) == ()


def test_a_process_is_inside_by_the_hierarchy_that_counts(tmp_path: Path) -> None:
    old, new = Place(1, tmp_path, OURS), Place(2, tmp_path, NEW)
    texts = {
        10: f"6:freezer:{OURS}/step_0\n5:devices:{OURS}/step_0/task_0\n0::/\n",
        11: f"6:freezer:{OURS}/step_0\n5:devices:/\n0::{NEW}/step_0/user/task_0\n",
        12: f"5:devices:{OURS}1/step_0\n0::{NEW}1\n",
    }
    for pid, text in texts.items():
        make(tmp_path, str(pid))
        (tmp_path / str(pid) / "cgroup").write_text(text)
        fields = " ".join(["S", *["1"] * 30])
        (tmp_path / str(pid) / "stat").write_text(f"{pid} (a) {fields}\n")
    assert outside([old], [10], tmp_path) is None and outside([new], [11], tmp_path) is None
    assert outside([old], [10, 11], tmp_path) == 11
    assert outside([new], [11, 10], tmp_path) == 10
    assert outside([old, new], [12], tmp_path) == 12
    assert outside([old], [99], tmp_path) is None, "it ended"


def test_a_tree_is_followed_as_it_changes_parents_first(tmp_path: Path) -> None:
    make(tmp_path, "job/step_0/user/task_0", "job/step_batch")
    top = str(tmp_path / "job")

    def below(found: places.Tree) -> list[str]:
        names = list(found)
        assert all(names.index(str(Path(one).parent)) < names.index(one) for one in names[1:])
        return sorted(one[len(top) :] for one in names)

    one = tree(top, {})
    assert below(one) == [
        "",
        "/step_0",
        "/step_0/user",
        "/step_0/user/task_0",
        "/step_batch",
    ]
    (tmp_path / "job/step_0/user/task_0").rmdir()
    (tmp_path / "job/step_0/user/task_1").mkdir()  # as many as before
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "job/link").symlink_to(tmp_path / "elsewhere")
    two = tree(top, one)
    assert below(two) == ["", "/step_0", "/step_0/user", "/step_0/user/task_1", "/step_batch"]
    assert tree(top, two) == two
    assert tree(f"{top}/none", {}) == {}


def test_too_many_cgroups_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "MAX_CGROUPS", 3)
    make(tmp_path, "job/a/b")
    top = str(tmp_path / "job")
    assert len(tree(top, {})) == 3
    make(tmp_path, "job/a/b/c")
    with pytest.raises(DevicesError, match="more than 3 cgroups"):
        tree(top, {})
