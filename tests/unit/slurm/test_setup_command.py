"""`qgpu setup` on a tree: after its steps nothing is left to do, and no foreign file is lost."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from cli.main import main
from cli.setup import place as placing
from cli.setup.host import look
from cli.setup.work import Work
from gres.config.site import parse_config
from slurm_plugin.fragments import seal_of
from slurm_plugin.site.conf import parse
from slurm_plugin.site.sources import Disk

YAML = """version: 1
cluster: c
slurm: {{version: "{version}"{more}}}
qos: {{online: online, offline: offline}}
models: {{h200: {{memory: 80GiB, reserve: 2GiB}}}}
nodes: [{{names: "n[1-2]", model: h200, count: 2, files: "/dev/nvidia[0-1]"}}]
"""
STOCK = """ClusterName=c
SlurmctldHost=head
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageEnforce=qos
NodeName=n[1-2] CPUs=8 \\
    RealMemory=1000
PartitionName=gpu Nodes=ALL
"""
OWN = (
    STOCK + "GresTypes=gpu\nPrologFlags=X11\nTaskPlugin=affinity\nJobSubmitPlugins=all_partitions\n"
)
CONF = "etc/slurm/slurm.conf"


def tree(root: Path, slurm: str = STOCK, version: str = "22.05", more: str = "") -> Path:
    (root / "etc/slurm").mkdir(parents=True)
    (root / "etc/qgpu").mkdir()
    (root / CONF).write_text(slurm)
    (root / "etc/qgpu/qgpu.yaml").write_text(YAML.format(version=version, more=more))
    return root


def setup(root: Path, *words: str) -> Result:
    node = [] if "--node" in words else ["--node", "n1"]
    return CliRunner().invoke(main, ["setup", "--root", str(root), *node, *words])


def told(root: Path, *words: str) -> dict[str, Any]:
    done = setup(root, "--json", *words)
    answer: dict[str, Any] = json.loads(done.output)
    assert done.exit_code == (0 if answer["in_place"] else 1)
    return answer


def obey(root: Path, answer: dict[str, Any], advice: bool = False) -> None:
    """Write what it says, as an admin would; lines from the last one up, so that numbers stay
    right.
    """
    rows = [row for row in answer["differences"] if advice or row["severity"] == "fail"]
    for row in sorted(rows, key=lambda row: -row["line"]):
        path = root / row["file"].lstrip("/")
        if row["action"] == "run":
            link, target = row["write"].split()[3], row["write"].split()[2]
            assert row["write"].startswith("ln -s ")
            (root / link.lstrip("/")).symlink_to(os.path.relpath(target, str(Path(link).parent)))
            continue
        text = path.read_text() if path.exists() else ""
        lines = text.split("\n")
        if row["action"] == "add":
            path.write_text(text + row["write"] + "\n")
            continue
        at = row["line"] - 1
        upto = next(n for n in range(at, len(lines)) if not lines[n].rstrip().endswith("\\")) + 1
        path.write_text(
            "\n".join([*lines[:at], *([row["write"]] if row["write"] else []), *lines[upto:]])
        )


@pytest.mark.parametrize("version", ["22.05", "24.11"])
@pytest.mark.parametrize("slurm", [STOCK, OWN, OWN + "SlurmctldParameters=enable_configless\n"])
@pytest.mark.parametrize("more", ["", ", cli_filter: true"])
@pytest.mark.parametrize("roles", [("controller",), ("controller", "node"), ("node",), ("login",)])
def test_who_does_what_it_says_is_done(
    tmp_path: Path, version: str, slurm: str, more: str, roles: tuple[str, ...]
) -> None:
    root = tree(tmp_path, slurm, version, more)
    words = [word for role in roles for word in ("--role", role)]
    first = told(root, *words)
    assert not first["in_place"] and bool(first["restart"]) == (roles != ("login",))
    obey(root, first)
    second = told(root, *words)
    assert second["in_place"], second["differences"]
    assert {row["what"] for row in second["files"]} == {"kept"} and not second["restart"]
    conf = parse("/etc/slurm/slurm.conf", Disk(str(root)), version)
    assert not conf.faults and not conf.repeated()


@pytest.mark.parametrize("version", ["22.05", "24.11"])
@pytest.mark.parametrize("role", ["controller", "node", "login"])
def test_lint_has_nothing_against_a_host_that_is_set_up(
    tmp_path: Path, version: str, role: str
) -> None:
    root = tree(tmp_path, OWN, version)
    obey(root, told(root, "--role", role))
    words = ["lint", str(root / "etc/slurm"), str(root / "etc/qgpu/qgpu.yaml")]
    done = CliRunner().invoke(main, [*words, "--role", role])
    assert done.exit_code == 0, done.output
    if role == "controller":  # people submit there as well, says install.md
        assert "warning: " in done.output and "--vram" in done.output
        obey(root, told(root, "--role", role), advice=True)
        done = CliRunner().invoke(main, words)
        assert (done.exit_code, done.output) == (0, "")


def test_advice_stands_apart_and_all_is_in_place(tmp_path: Path) -> None:
    root = tree(tmp_path, STOCK + "PreemptMode=SUSPEND,GANG\n")
    obey(root, told(root, "--role", "node"))
    done = setup(root, "--role", "node")
    assert done.exit_code == 0 and "advice, which need not be followed" in done.output
    assert done.output.endswith("all is in place\n") and "(advice)" in done.output
    assert "so that Slurm reads it" not in done.output


def test_packages_that_the_role_lacks_are_named() -> None:
    work = Work(
        look("/", None, "n1"),
        parse_config(YAML.format(version="22.05", more="")),
        ("controller",),
        None,
        "/nonexistent/lua",
        True,
        "qgpu setup",
    )
    (found,) = work._packages()
    assert found.todo == "install the package qgpu-controller"
    assert found.sentence.endswith("is missing: slurmctld does not start without it")


def test_modes_owners_and_seals(tmp_path: Path) -> None:
    root = tree(tmp_path)
    umask = os.umask(0o077)
    try:
        setup(root, "--role", "node")
    finally:
        os.umask(umask)
    ours = root / "etc/slurm/qgpu"
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in ours.iterdir()}
    assert modes == {
        "slurm.conf": 0o644,
        "gres.conf": 0o644,
        "cgroup.conf": 0o644,
        "plugstack.conf": 0o644,
        "prolog": 0o755,
        "epilog": 0o755,
    }
    assert stat.S_IMODE(ours.stat().st_mode) == 0o755
    assert all(seal_of(path.read_text()) == "ours" for path in ours.iterdir())


def test_a_dry_run_writes_nothing_and_says_the_same(tmp_path: Path) -> None:
    root = tree(tmp_path)
    before = sorted(str(path) for path in root.rglob("*"))
    dry = told(root, "--role", "controller", "--dry-run")
    assert sorted(str(path) for path in root.rglob("*")) == before
    assert {row["what"] for row in dry["files"]} == {"wrote"}
    assert told(root, "--role", "controller")["differences"] == dry["differences"]


def test_an_edited_fragment_is_kept_and_said(tmp_path: Path) -> None:
    root = tree(tmp_path)
    setup(root, "--role", "node")
    prolog = root / "etc/slurm/qgpu/prolog"
    edited = prolog.read_text().replace("exec", "logger hello\nexec")
    prolog.write_text(edited)
    answer = told(root, "--role", "node")
    refused = [row for row in answer["files"] if row["what"] == "refused"]
    assert [row["path"] for row in refused] == ["/etc/slurm/qgpu/prolog"] and "by hand" in refused[
        0
    ]["why"]
    assert prolog.read_text() == edited and not answer["in_place"]
    for number in ("", ".2"):
        prolog.write_text(edited)
        again = told(root, "--role", "node", "--replace-edited")
        kept = next(row for row in again["files"] if row["path"].endswith("/prolog"))
        assert kept["kept_as"] == f"/etc/slurm/qgpu/prolog.site-edited{number}"
        assert (root / kept["kept_as"].lstrip("/")).read_text() == edited
    assert seal_of(prolog.read_text()) == "ours"


def test_a_foreign_file_is_refused_but_what_render_printed_is_taken(tmp_path: Path) -> None:
    root = tree(tmp_path)
    ours = root / "etc/slurm/qgpu"
    ours.mkdir()
    (ours / "prolog").write_text("#!/bin/sh\n")
    (ours / "epilog").symlink_to("/bin/true")
    yaml = str(root / "etc/qgpu/qgpu.yaml")
    printed = CliRunner().invoke(main, ["render", "plugstack.conf", "--config", yaml]).output
    (ours / "plugstack.conf").write_text(printed)
    rows = {row["path"].rpartition("/")[2]: row for row in told(root, "--role", "node")["files"]}
    assert rows["prolog"]["what"] == rows["epilog"]["what"] == "refused"
    assert (ours / "prolog").read_text() == "#!/bin/sh\n" and rows["plugstack.conf"][
        "what"
    ] == "updated"


def test_a_change_of_qgpu_yaml_updates_and_says_what_to_restart(tmp_path: Path) -> None:
    root = tree(tmp_path)
    obey(root, told(root, "--role", "controller"))
    assert told(root, "--role", "controller")["in_place"]
    yaml = root / "etc/qgpu/qgpu.yaml"
    yaml.write_text(yaml.read_text() + "limits: {max_share: 50}\n")
    answer = told(root, "--role", "controller")
    assert [row["path"] for row in answer["files"] if row["what"] == "updated"] == [
        "/etc/slurm/qgpu/qgpu_tables.lua"
    ]
    assert answer["in_place"] and not answer["restart"]
    yaml.write_text(yaml.read_text().replace("reserve: 2GiB", "reserve: 4GiB"))
    answer = told(root, "--role", "controller")
    keys = [row["key"] for row in answer["differences"] if row["severity"] == "fail"]
    assert answer["restart"] and keys == ["Gres"]


def test_an_interrupted_run_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tree(tmp_path)
    setup(root, "--role", "node")
    gres = root / "etc/slurm/qgpu/gres.conf"
    old = gres.read_text()
    yaml = root / "etc/qgpu/qgpu.yaml"
    yaml.write_text(yaml.read_text().replace("reserve: 2GiB", "reserve: 4GiB"))
    with monkeypatch.context() as patch:
        patch.setattr(
            placing.os,
            "fsync",
            lambda fd: (_ for _ in ()).throw(OSError(28, "No space left on device")),
        )
        broken = setup(root, "--role", "node")
    assert broken.exit_code == 1 and "No space left on device" in broken.output
    assert gres.read_text() == old
    assert setup(root, "--role", "node").exit_code == 1
    assert gres.read_text() != old and not [
        p for p in gres.parent.iterdir() if p.name.startswith(".")
    ]


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda p: (p.mkdir(), p.chmod(0o777)), "others could change what root runs"),
        (lambda p: p.symlink_to("/tmp"), "cannot be used"),
        (lambda p: p.write_text("x"), "cannot be used"),
    ],
)
def test_a_directory_that_others_could_change_is_refused(
    tmp_path: Path, spoil: Any, says: str
) -> None:
    root = tree(tmp_path)
    spoil(root / "etc/slurm/qgpu")
    done = setup(root, "--role", "node")
    assert done.exit_code == 1 and says in done.output and done.output.count("\n") <= 2


@pytest.mark.skipif(os.geteuid() != 0, reason="changes the owner of a file")
def test_root_does_not_believe_a_qgpu_yaml_of_others(tmp_path: Path) -> None:
    root = tree(tmp_path)
    yaml = root / "etc/qgpu/qgpu.yaml"
    yaml.chmod(0o666)
    done = setup(root, "--role", "node")
    assert (
        done.exit_code == 1
        and "others could change" in done.output
        and not (root / "etc/slurm/qgpu").exists()
    )
    yaml.chmod(0o644)
    os.chown(yaml, 12345, 0)
    assert "uid 12345" in setup(root, "--role", "node").output


def test_fragments_go_only_when_slurm_does_not_read_them(tmp_path: Path) -> None:
    root = tree(tmp_path)
    obey(root, told(root, "--role", "controller", "--role", "node"))
    done = setup(root, "--remove")
    assert (
        done.exit_code == 1
        and "Slurm would not start" in done.output
        and "/etc/slurm/slurm.conf" in done.output
    )
    for path in (root / "etc/slurm").glob("*.conf"):
        path.write_text(
            "".join(
                row for row in path.read_text().splitlines(True) if not row.startswith("include")
            )
        )
    (root / "etc/slurm/qgpu/epilog").write_text("mine\n")
    done = setup(root, "--remove")
    assert done.exit_code == 1 and "removed   /etc/slurm/job_submit.lua" in done.output
    assert [path.name for path in (root / "etc/slurm/qgpu").iterdir()] == ["epilog"]
    assert (root / CONF).exists() and not (root / "etc/slurm/job_submit.lua").is_symlink()
    (root / "etc/slurm/qgpu/epilog").unlink()
    assert setup(root, "--remove").exit_code == 0
    assert not (root / "etc/slurm/qgpu").exists()


def test_wrong_words_are_usage_errors(tmp_path: Path) -> None:
    root = tree(tmp_path)
    for words in (
        [],
        ["--role", "head"],
        ["--remove", "--role", "node"],
        ["--cards", "0", "--init"],
    ):
        assert setup(root, *words).exit_code == 2, words
    (root / "etc/qgpu/qgpu.yaml").unlink()
    done = setup(root, "--role", "node")
    assert done.exit_code == 1 and "qgpu setup --init writes a first one" in done.output


def test_a_host_without_slurm_conf_of_its_own_gets_no_fragment_of_it(tmp_path: Path) -> None:
    root = tree(tmp_path, STOCK + "SlurmctldParameters=enable_configless\n")
    cached = root / "run/slurm/conf"
    cached.mkdir(parents=True)
    obey(root, told(root, "--role", "controller"))
    for path in (root / "etc/slurm").iterdir():
        if path.is_file():
            (cached / path.name).write_bytes(path.read_bytes())
    node = tree(tmp_path / "node")
    (node / CONF).unlink()
    (node / "run").mkdir()
    (root / "run/slurm").rename(node / "run/slurm")
    answer = told(node, "--role", "node")
    assert (
        answer["slurm_conf"] == "/run/slurm/conf/slurm.conf"
        and answer["fragments"] == "/etc/slurm/qgpu"
    )
    assert sorted(p.name for p in (node / "etc/slurm/qgpu").iterdir()) == [
        "epilog",
        "plugstack.conf",
        "prolog",
    ]
    assert answer["in_place"], answer["differences"]


def test_a_host_that_has_no_slurm_conf_yet(tmp_path: Path) -> None:
    root = tree(tmp_path)
    (root / CONF).unlink()
    done = setup(root, "--role", "controller")
    assert (
        done.exit_code == 1
        and "there is no /etc/slurm/slurm.conf: install Slurm first" in done.output
    )
    assert not (root / "etc/slurm/qgpu").exists()
    done = setup(root, "--role", "node")
    assert done.exit_code == 0 and "taken for a configless one" in done.output
    assert sorted(p.name for p in (root / "etc/slurm/qgpu").iterdir()) == [
        "epilog",
        "plugstack.conf",
        "prolog",
    ]
    assert told(root, "--role", "login")["slurm_conf"] is None
    done = setup(root, "--role", "login", "--slurm-conf", "/opt/slurm.conf")
    assert done.exit_code == 1 and "there is no /opt/slurm.conf" in done.output


def test_a_node_that_qgpu_yaml_does_not_name_is_said(tmp_path: Path) -> None:
    root = tree(tmp_path)
    obey(root, told(root, "--role", "node"))
    answer = told(root, "--role", "node", "--node", "gpu17")
    assert [row["key"] for row in answer["differences"]] == ["nodes"]
    assert "this host, gpu17, under nodes" in answer["differences"][0]["sentence"]
    conf = root / CONF
    conf.write_text(
        conf.read_text().replace("NodeName=n[1-2]", "NodeName=n[1-2] NodeHostname=gpu[16-17]")
    )
    assert told(root, "--role", "node", "--node", "gpu17")["in_place"]


def test_a_file_that_slurm_cannot_read_is_said(tmp_path: Path) -> None:
    root = tree(tmp_path, STOCK + "junk\x1b[31m\nGresTypes=gpu")
    done = setup(root, "--role", "login")
    assert (
        done.exit_code == 1
        and "/etc/slurm/slurm.conf:8: 'junk\\x1b[31m' is not KEY=VALUE" in done.output
    )
    assert "\x1b" not in done.output and "correct /etc/slurm/slurm.conf:8" in done.output
    assert "no newline at its end" in done.output
