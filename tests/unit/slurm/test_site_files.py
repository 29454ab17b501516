"""Includes, DEFAULT lines and plugstack.conf of a site, one example of each rule."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_plugin.site.conf import MAX_DEPTH, MAX_FILES, Conf, parse
from slurm_plugin.site.nodes import gres_lines, node_line, node_lines, partitions
from slurm_plugin.site.plugstack import parse_plugstack
from slurm_plugin.site.sources import MAX_BYTES, Disk, Texts


def read(version: str = "24.11", **files: str) -> Conf:
    texts = {
        f"/etc/slurm/{name.replace('__', '/').replace('_', '.')}": text
        for name, text in files.items()
    }
    return parse("/etc/slurm/slurm.conf", Texts(texts), version)


def test_a_relative_include_is_beside_its_file_before_23_02_and_beside_slurm_conf_since() -> None:
    files = {
        "slurm_conf": "include d/a.conf\n",
        "d__a_conf": "include b.conf\n",
        "b_conf": "A=top\n",
        "d__b_conf": "A=d\n",
    }
    assert read("22.05", **files).text("a") == "d"
    assert read("23.02", **files).text("a") == "top"
    assert read("23.02", **files).files == (
        "/etc/slurm/slurm.conf",
        "/etc/slurm/d/a.conf",
        "/etc/slurm/b.conf",
    )


def test_the_last_value_counts_and_every_value_has_its_place() -> None:
    conf = read(
        slurm_conf="GresTypes=gpu\nInclude more.conf\nProlog=/a\nProlog=/b\n",
        more_conf="\ngrestypes=gpu,shard\n",
    )
    found = conf.get("GRESTYPES")
    assert (
        found is not None
        and found.items == ["gpu", "shard"]
        and found.place == "/etc/slurm/more.conf:2"
    )
    assert list(conf.repeated()) == ["grestypes"]
    assert list(read("23.11", slurm_conf="Prolog=/a\nProlog=/b\n").repeated()) == ["prolog"]
    assert conf.get("Epilog") is None and conf.text("Epilog", "none") == "none"


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        (
            "A=1\ninclude none.conf\n",
            2,
            "includes /etc/slurm/none.conf: there is no such file; Slurm's daemons",
        ),
        (" include more.conf\n", 1, "only at the very beginning of a line"),
        ("include *.conf\n", 1, "takes no pattern"),
        ("include %c.conf\n", 1, "needs ClusterName in a line before it"),
        ("include slurm.conf\n", 1, "/etc/slurm/slurm.conf includes itself"),
        ("include more.conf B=1\n", 1, "does not read 'B=1' behind the include"),
        ("include more.conf", 1, "a newline must end an include line"),
        ("A=1 \\\n B=2\n", 1, "does not read 'B=2' behind A=1"),
        ("A=\n", 1, "'A=' is not KEY=VALUE"),
        ("NodeName=n[1-2] Gres=gpu:1 junk\n", 1, "does not read 'junk' behind NodeName=n[1-2]"),
    ],
)
def test_what_slurm_refuses_is_a_fault_with_its_line(text: str, line: int, says: str) -> None:
    conf = read(slurm_conf=text, more_conf="C=1\n")
    assert [fault.line for fault in conf.faults] == [line]
    assert says in str(conf.faults[0]), conf.faults


def test_circles_depth_and_number_of_files_are_bounded() -> None:
    assert "includes itself" in str(
        read(slurm_conf="include a\n", a="include slurm.conf\n").faults[0]
    )
    deep = {f"n{n}": f"include n{n + 1}\nK{n}=1\n" for n in range(40)}
    conf = read(slurm_conf="include n0\n", **deep)
    assert "nested" in str(conf.faults[0]) and len(conf.files) == MAX_DEPTH
    wide = read(slurm_conf="include a\n" * 1000, a="X=1\n")
    assert len(wide.files) == MAX_FILES and "more than" in str(wide.faults[0])


def test_default_lines_hold_for_the_lines_after_them() -> None:
    conf = read(
        slurm_conf="NodeName=a Gres=gpu:1\nNodeName=DEFAULT Gres=gpu:2 CPUs=4\nNodeName=b[1-2] "
        "cpus=8\n"
        "NodeName=default Gres=gpu:3\nNodeName=c\n"
        "PartitionName=DEFAULT OverSubscribe=FORCE\nPartitionName=p Nodes=ALL\n"
    )
    lines, faults = node_lines(conf)
    assert not faults
    assert [(line.names, line.get("Gres"), line.get("CPUs")) for line in lines] == [
        (("a",), "gpu:1", ""),
        (("b1", "b2"), "gpu:2", "8"),
        (("c",), "gpu:3", "4"),
    ]
    assert (found := node_line(conf, "b2")) is not None and found.entry.head.line == 3
    assert node_line(conf, "z") is None
    assert [(p.names, p.get("oversubscribe")) for p in partitions(conf)] == [(("p",), "FORCE")]


def test_lines_of_gres_conf_for_a_node() -> None:
    text = (
        "# Name=gpu\nName=gpu File=/dev/a\nNodeName=n[2-3] Name=gpu File=/dev/b # "
        "c\nAutoDetect=off\n"
    )
    conf = parse("/g", Texts({"/g": text}))
    assert [line.get("file") for line in gres_lines(conf, "n1")[0]] == ["/dev/a"]
    assert [line.get("file") for line in gres_lines(conf, "n3")[0]] == ["/dev/a", "/dev/b"]
    broken = parse("/g", Texts({"/g": "NodeName=n[1- Name=gpu\nName=gpu NodeName=n1\n"}))
    assert [str(fault) for fault in gres_lines(broken, "n1")[1]] == [
        "/g:1: NodeName=n[1-: 'n[1-' has brackets that do not match",
        "/g:2: NodeName must be the first word of its line, or Slurm does not read it",
    ]


def test_plugstack_is_read_in_its_own_way() -> None:
    source = Texts(
        {
            "/e/plugstack.conf": "include plugstack.d/*\nInclude x\nrequired\noptional /a.so k=1 "
            "k=2 # c\n",
            "/e/plugstack.d/20": "\trequired b.so run_dir=/run/q \\\n",
            "/e/plugstack.d/10": "optional first.so\ninclude /e/plugstack.conf\n",
        }
    )
    stack = parse_plugstack("/e/plugstack.conf", source)
    assert [(line.kind, line.plugin) for line in stack.plugins] == [
        ("optional", "first.so"),
        ("required", "b.so"),
        ("optional", "/a.so"),
    ]
    assert (
        stack.plugins[1].argument("run_dir") == "/run/q" and stack.plugins[2].argument("k") == "2"
    )
    assert (
        stack.plugins[1].place == "/e/plugstack.d/20:1" and stack.plugins[0].argument("k") is None
    )
    assert [str(fault) for fault in stack.faults] == [
        "/e/plugstack.d/10:2: /e/plugstack.conf includes itself",
        "/e/plugstack.conf:2: 'Include' is none of required, optional and include, so Slurm "
        "ignores the line",
        "/e/plugstack.conf:3: 'required' names no file, so Slurm ignores the line",
    ]
    assert parse_plugstack("/none", source).faults == []


def test_files_of_another_root_are_read_there_and_only_regular_ones(tmp_path: Path) -> None:
    etc = tmp_path / "etc/slurm"
    etc.mkdir(parents=True)
    (etc / "slurm.conf").write_text("include /etc/slurm/a.conf\n")
    (etc / "a.conf").write_bytes(b"A=\xff\n")
    disk = Disk(str(tmp_path))
    assert parse("/etc/slurm/slurm.conf", disk).text("A") == "\ufffd"
    assert disk.glob("/etc/slurm/*.conf") == ["/etc/slurm/a.conf", "/etc/slurm/slurm.conf"]
    assert "regular file" in str(parse("/etc/slurm", disk).faults[0])
    assert not parse("/etc/slurm/none", disk).exists
    with (etc / "big").open("wb") as file:
        file.truncate(MAX_BYTES + 1)
    assert "more than 16 MiB" in str(parse("/etc/slurm/big", disk).faults[0])
