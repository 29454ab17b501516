"""`qgpu lint` on a site's configuration repository: the same breakages on files alone, with file
and line.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest
from breakages import PLUGIN, REPORTED
from breakages_more import RUNNING, TRUST
from click.testing import CliRunner, Result
from site_support import Site

from cli.main import main

# Those of the breakages that files alone show, and in which file lint sees them.
IN_FILES = {
    "plugstack has another run_dir": "qgpu/plugstack.conf",
    "count of a class is off": "qgpu/gres.conf",
    "count of vram is off": "qgpu/gres.conf",
    "GresTypes is missing": "qgpu/slurm.conf",
    "AccountingStorageTRES is missing": "qgpu/slurm.conf",
    "JobSubmitPlugins is off": "qgpu/slurm.conf",
    "tables are older than qgpu.yaml": "qgpu/qgpu_tables.lua",
    "prolog has another run_dir": "qgpu/prolog",
    "ConstrainDevices is off": "qgpu/cgroup.conf",
    "there is no cgroup.conf": "cgroup.conf",
    "select/linear": "slurm.conf",
    "plugstack is missing": "plugstack.conf",
    "plugstack has it as a comment": "qgpu/plugstack.conf",
    "plugstack names another file": "qgpu/plugstack.conf",
    "plugstack has a line that Slurm ignores": "qgpu/plugstack.conf",
    "prolog does not call the client": "qgpu/prolog",
    "epilog calls for prolog": "qgpu/epilog",
    "no Prolog": "qgpu/slurm.conf",
    "cards are in another order": "qgpu/gres.conf",
    "a card has no Type": "qgpu/gres.conf",
    "a card has 50 shards": "qgpu/gres.conf",
    "gres.conf has cards of the site's own": "gres.conf",
    "the fragment of slurm.conf is not included": "slurm.conf",
    "NodeName in slurm.conf without Gres": "slurm.conf",
    "steps may start before the prolog": "slurm.conf",
    "a partition packs exclusive jobs": "slurm.conf",
    "a partition and its DEFAULT give whole nodes away": "slurm.conf",
    "job_submit.lua forgets changes of jobs": "job_submit.lua",
    "job_submit.lua does not call us": "job_submit.lua",
    "slurm.conf has a line that Slurm refuses": "slurm.conf",
    "qgpu.yaml has a tab": "qgpu.yaml",
    "qgpu.yaml cannot be read": "qgpu.yaml",
}
BREAKAGES = {**REPORTED, **PLUGIN, **TRUST, **RUNNING}
LINE = re.compile(r"(?P<file>[^:]+):(?P<line>[0-9]+): (?P<text>.+)")


def lint(*words: Path | str) -> Result:
    """The command, without a cluster to be seen."""
    return CliRunner(env={"SLURM_CONF": "/nonexistent", "PATH": "/nonexistent"}).invoke(
        main, ["lint", *map(str, words)]
    )


def test_a_good_repository_has_no_finding(site: Site) -> None:
    done = lint(site.etc)
    assert (done.exit_code, done.output) == (0, ""), done.output


@pytest.mark.parametrize("name", IN_FILES)
def test_what_files_show_is_found_with_file_and_line(site: Site, name: str) -> None:
    BREAKAGES[name][0](site)
    done = lint(site.etc)
    assert done.exit_code == 1, f"{name}: {done.output}"
    found = [match for line in done.output.splitlines() if (match := LINE.fullmatch(line))]
    assert len(found) == len(done.output.splitlines()), done.output
    mine = [match for match in found if match["file"].endswith(IN_FILES[name])]
    assert mine, done.output
    file = Path(mine[0]["file"])
    assert not file.exists() or int(mine[0]["line"]) <= max(1, len(file.read_text().splitlines()))


def test_files_come_in_any_order_and_only_those_are_judged(site: Site, tmp_path: Path) -> None:
    (site.etc / "cgroup.conf").unlink()
    site.edit("etc/qgpu/gres.conf", "Type=offline Count=800", "Type=offline Count=80")
    fragments = site.etc / "qgpu"
    assert lint(site.etc / "slurm.conf", site.yaml).exit_code == 0
    words = [fragments / "gres.conf", site.etc / "slurm.conf", site.yaml, site.etc / "gres.conf"]
    one, other = lint(*words), lint(*reversed(words))
    assert one.exit_code == 1 and one.output == other.output
    assert "Count=800" in one.output and "cgroup" not in one.output


def test_a_repository_without_fragments_is_judged_with_those_of_setup(
    site: Site, tmp_path: Path
) -> None:
    """Many sites keep only their own files, and let `qgpu setup` write the rest on each host."""
    repository = tmp_path / "repository"
    (repository / ".git").mkdir(parents=True)
    (repository / ".git/slurm.conf").write_text("ClusterName=other\n")
    for name in ("slurm.conf", "gres.conf", "cgroup.conf", "plugstack.conf", "qgpu.yaml"):
        shutil.copy(site.etc / name, repository)
    done = lint(repository)
    assert "gres.conf" not in done.output and "plugstack" not in done.output, done.output
    text = (repository / "slurm.conf").read_text()
    (repository / "slurm.conf").write_text(text.replace("shard:h200:200", "shard:h200:100"))
    done = lint(repository)
    assert done.exit_code == 1
    assert re.search(rf"^{repository}/slurm.conf:7: .*shard:h200:200", done.output, re.MULTILINE), (
        done.output
    )


@pytest.mark.parametrize(
    ("names", "says"),
    [
        (["slurm.conf"], "there is no qgpu.yaml among these files"),
        ([], "name it too: qgpu lint /etc/slurm /etc/qgpu/qgpu.yaml"),
        (["README"], "README: lint knows qgpu.yaml, slurm.conf"),
        (["a/slurm.conf", "b/slurm.conf", "qgpu.yaml"], "are both named slurm.conf"),
        (["fifo.conf", "qgpu.yaml"], "lint knows"),
        (["nowhere"], "does not exist"),
    ],
)
def test_what_cannot_be_judged_is_a_sentence(tmp_path: Path, names: list[str], says: str) -> None:
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        if name != "nowhere":
            (tmp_path / name).write_text("ClusterName=x\n")
    done = lint(*(tmp_path / name for name in names))
    assert done.exit_code == 2 and says in done.output, done.output


def test_control_characters_of_a_file_do_not_reach_the_terminal(site: Site) -> None:
    site.edit("etc/slurm.conf", "ClusterName=doc\n", "ClusterName=doc\nTaskPlugin \x1b[2J\u2028x\n")
    done = lint(site.etc)
    assert done.exit_code == 1 and "\x1b" not in done.output and "\u2028" not in done.output


def test_a_queue_and_a_huge_file_are_refused(site: Site) -> None:
    (site.etc / "slurm.conf").unlink()
    os.mkfifo(site.etc / "slurm.conf")
    done = lint(site.yaml, site.etc / "slurm.conf")
    assert done.exit_code == 2 and "it is not a regular file" in done.output


def test_a_tree_of_etc_and_a_configless_site(site: Site, tmp_path: Path) -> None:
    etc = tmp_path / "repository/etc"
    for name in ("slurm", "qgpu"):
        (etc / name).mkdir(parents=True)
    shutil.copy(site.yaml, etc / "qgpu/qgpu.yaml")
    text = (site.etc / "slurm.conf").read_text()
    (etc / "slurm/slurm.conf").write_text(text.replace(f"{site.etc}/qgpu/", "qgpu_"))
    for name in ("gres.conf", "cgroup.conf"):
        (etc / "slurm" / name).write_text(f"include qgpu_{name}\n")
    (etc / "slurm/plugstack.conf").write_text("include /etc/slurm/qgpu/plugstack.conf\n")
    done = lint(tmp_path / "repository")
    assert (done.exit_code, done.output) == (0, "")
    (etc / "slurm/gres.conf").write_text("Name=gpu File=/dev/nvidia0\n")
    done = lint(tmp_path / "repository")
    assert done.exit_code == 1 and f"{etc}/slurm/gres.conf:1: " in done.output


def test_what_is_to_be_written_names_the_hosts_paths_and_where_the_repositorys(
    site: Site, tmp_path: Path
) -> None:
    etc = tmp_path / "repository"
    (etc / "slurm").mkdir(parents=True)
    shutil.copy(site.yaml, etc / "qgpu.yaml")
    (etc / "slurm/slurm.conf").write_text("ClusterName=doc\nInclude more.conf\n")
    output = lint(etc).output
    for name in ("gres.conf", "cgroup.conf", "plugstack.conf"):
        assert f"{etc}/slurm/{name}:1: {etc}/slurm/{name} lacks" in output
        assert f"write at the end of {etc}/slurm/{name}: include /etc/slurm/qgpu/{name}" in output
    assert f"{etc}/slurm/slurm.conf:2: includes" in output and str(etc) * 2 not in output
