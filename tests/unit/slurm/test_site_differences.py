"""What differs between a site's Slurm and qgpu.yaml: a stock site, and one that is complete."""

from __future__ import annotations

import pytest

from gres.config.site import Config, parse_config
from slurm_plugin.render import render
from slurm_plugin.site.conf import parse
from slurm_plugin.site.difference import Difference, Role
from slurm_plugin.site.differences import differences
from slurm_plugin.site.found import INCLUDED, Places, Site, read_site, without_fragments
from slurm_plugin.site.sources import Texts

YAML = """version: 1
cluster: c
slurm: {{version: "{version}"{more}}}
qos: {{online: online, offline: offline}}
models: {{h200: {{memory: 80GiB, reserve: 2GiB}}, l4: {{memory: 24GiB}}}}
nodes:
  - {{names: "n[1-2]", model: h200, count: 2, files: "/dev/nvidia[0-1]"}}
  - {{names: n3, model: l4, count: 1, files: /dev/nvidia0}}
"""
GRES = "gpu:h200:2,shard:h200:200,qgpu:online:200,qgpu:offline:800,vram:156G"
GRES3 = "gpu:l4:1,shard:l4:100,qgpu:online:100,qgpu:offline:400,vram:24G"
STOCK = f"""ClusterName=c
SlurmctldHost=head
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageEnforce=associations,limits,qos
NodeName=n[1-2] CPUs=8 Gres={GRES}
NodeName=n3 CPUs=4 Gres={GRES3}
PartitionName=gpu Nodes=ALL Default=YES
"""
E = "/etc/slurm"
PLACES = Places(f"{E}/slurm.conf", f"{E}/qgpu")
ALL: tuple[Role, ...] = ("controller", "node")
Files = dict[str, str]


def config(version: str = "22.05", more: str = "") -> Config:
    return parse_config(YAML.format(version=version, more=more))


def installed(cfg: Config, slurm: str = STOCK) -> Files:
    """The site after `qgpu setup` and its include lines."""
    files = {
        f"{E}/slurm.conf": slurm,
        f"{E}/gres.conf": "",
        f"{E}/cgroup.conf": "CgroupAutomount=yes\n",
    }
    site = without_fragments(PLACES, Texts(files), cfg.slurm.version)
    names = [
        "slurm.conf",
        "gres.conf",
        "cgroup.conf",
        "plugstack.conf",
        "prolog",
        "epilog",
        "job_submit.lua",
    ]
    if cfg.slurm.cli_filter:
        names.append("cli_filter.lua")
    for name in names:
        text = render(name, cfg, slurm_site=site.slurm, cgroup_site=site.cgroup)
        files[f"{E}/qgpu/{name}"] = text
        if name.endswith(".conf"):
            files[f"{E}/{name}"] = files.get(f"{E}/{name}", "") + f"include {E}/qgpu/{name}\n"
        if name.endswith(".lua"):
            files[f"{E}/{name}"] = text
    return files


def seen(files: Files, cfg: Config, *roles: Role, **more: object) -> list[Difference]:
    site = read_site(PLACES, Texts(files), cfg.slurm.version)
    return differences(cfg, site, roles or ALL, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("version", ["22.05", "23.11", "24.11", "26.05"])
@pytest.mark.parametrize("more", ["", ", native_gres: true", ", cli_filter: true"])
def test_an_installed_site_has_no_difference_and_no_key_twice(version: str, more: str) -> None:
    cfg = config(version, more)
    files = installed(cfg)
    for roles in (("controller",), ("node",), ("login",), ALL):
        assert seen(files, cfg, *roles) == []  # type: ignore[arg-type]
    assert parse(f"{E}/slurm.conf", Texts(files), version).repeated() == {}
    assert seen(files, cfg, "node", node="n3") == []


def test_a_stock_site_gets_the_include_lines_and_the_gres_of_its_nodes() -> None:
    bare = STOCK.replace(f" Gres={GRES}", "").replace(f" Gres={GRES3}", "")
    found = seen({f"{E}/slurm.conf": bare}, config())
    adds = [(d.file, d.write) for d in found if d.key == "include"]
    assert adds == [(f"{E}/{n}", f"include {E}/qgpu/{n}") for n in INCLUDED]
    assert [(d.place, d.write) for d in found if d.key == "Gres"] == [
        (f"{E}/slurm.conf:5", f"NodeName=n[1-2] CPUs=8 Gres={GRES}"),
        (f"{E}/slurm.conf:6", f"NodeName=n3 CPUs=4 Gres={GRES3}"),
    ]
    assert [d.write for d in found if d.key == "job_submit.lua"] == ["qgpu setup"]
    stack = seen({f"{E}/slurm.conf": bare}, config(), "login")
    assert (f"{E}/plugstack.conf", f"include {E}/qgpu/plugstack.conf") in [
        (d.file, d.write) for d in stack
    ]
    assert all(d.sentence and d.todo and "\n" not in d.sentence + d.todo for d in [*found, *stack])


def test_configless_sites_get_names_without_a_slash() -> None:
    found = seen({f"{E}/slurm.conf": STOCK}, config(), "controller", flat=True)
    assert [d.write for d in found if d.key == "include"] == [
        "include qgpu_slurm.conf",
        "include qgpu_gres.conf",
        "include qgpu_cgroup.conf",
        f"include {E}/qgpu/plugstack.conf",
    ]
    files = installed(config())
    for name in ("slurm", "gres", "cgroup"):
        files[f"{E}/qgpu_{name}.conf"] = files[f"{E}/qgpu/{name}.conf"]
        files[f"{E}/{name}.conf"] = files[f"{E}/{name}.conf"].replace(
            f"{E}/qgpu/{name}", f"qgpu_{name}"
        )
    assert seen(files, config(), flat=True) == []


@pytest.mark.parametrize(
    ("site", "write"),
    [
        ("GresTypes=gpu,nic", "GresTypes=gpu,nic,shard,qgpu,vram"),
        ("JobSubmitPlugins=require_timelimit", "JobSubmitPlugins=require_timelimit,lua"),
        ("PrologFlags=X11", ""),
        ("PrologFlags=Alloc", "PrologFlags=Alloc,Contain"),
        ("TaskPlugin=affinity", "TaskPlugin=affinity,task/cgroup"),
        ("TaskPlugin=cgroup,affinity", ""),
        ("jobsubmitplugins=job_submit/lua", ""),
        (
            "AccountingStorageTRES=gres/gpu,license/x",
            "AccountingStorageTRES=gres/gpu,license/x,gres/shard,gres/qgpu,gres/qgpu:online,"
            "gres/qgpu:offline,gres/vram",
        ),
        ("SelectType=select/linear", "SelectType=select/cons_tres"),
        ("SelectType=select/cons_tres", ""),
        ("ProctrackType=proctrack/linuxproc", "ProctrackType=proctrack/cgroup"),
        ("Prolog=/etc/slurm/qgpu/prolog", ""),
    ],
)
def test_what_the_site_sets_is_kept_and_merged(site: str, write: str) -> None:
    files = installed(config(), f"{STOCK}{site}\n")
    key = site.split("=")[0]
    assert f"\n{key.lower()}=" not in files[f"{E}/qgpu/slurm.conf"].lower()
    assert [(d.write, d.place) for d in seen(files, config())] == (
        [(write, f"{E}/slurm.conf:8")] if write else []
    )
    mended = installed(config(), f"{STOCK}{write or site}\n")
    assert seen(mended, config()) == []


def test_native_plugins_want_their_order() -> None:
    cfg = config(more=", native_gres: true")
    files = installed(cfg, f"{STOCK}GresTypes=gpu,shard,qgpu,vram,nic\n")
    assert [d.write for d in seen(files, cfg)] == ["GresTypes=nic,gpu,qgpu,vram,shard"]


def test_a_site_with_a_prolog_of_its_own() -> None:
    own = STOCK + "Prolog=/opt/prolog.sh\n"
    old = [d for d in seen(installed(config(), own), config()) if d.key == "Prolog"]
    assert "takes one line" in old[0].needed
    assert [d.write for d in old] == [
        f"mkdir -p {E}/prolog.d && ln -sfn /opt/prolog.sh {E}/prolog.d/20-site"
        f" && ln -sfn {E}/qgpu/prolog {E}/prolog.d/50-qgpu",
        f"Prolog={E}/prolog.d/*",
    ]
    new = installed(config("24.11"), own)
    assert (
        seen(new, config("24.11")) == []
        and f"Prolog={E}/qgpu/prolog" in new[f"{E}/qgpu/slurm.conf"]
    )
    pattern = installed(config(), STOCK + f"Prolog={E}/prolog.d/*\n")
    found = seen(pattern, config())
    assert [d.write for d in found] == [
        f"mkdir -p {E}/prolog.d && ln -sfn {E}/qgpu/prolog {E}/prolog.d/50-qgpu"
    ]
    pattern[f"{E}/prolog.d/50-qgpu"] = pattern[f"{E}/qgpu/prolog"]
    assert seen(pattern, config()) == []
    called = installed(config(), own)
    called["/opt/prolog.sh"] = "#!/bin/sh\n/usr/libexec/qgpu/qgpu-hook prolog --run-dir /run/qgpu\n"
    assert seen(called, config()) == []


def test_the_version_that_runs_is_compared() -> None:
    files = installed(config())
    assert seen(files, config(), slurm_version="slurm-wlm 22.05.8") == []
    found = seen(files, config(), slurm_version="slurm 24.11.5")
    assert [d.write for d in found] == ['slurm: {version: "24.11"}']


def test_nodes_of_two_kinds_in_one_line_are_distinguished() -> None:
    text = STOCK.replace(f"NodeName=n[1-2] CPUs=8 Gres={GRES}\n", "").replace(
        f"NodeName=n3 CPUs=4 Gres={GRES3}", 'NodeName=n[1-5] CPUs=8 Feature="a b" Gres=gpu:1,nic:2'
    )
    found = [d for d in seen(installed(config(), text), config()) if d.key == "Gres"]
    assert found[0].write.splitlines() == [
        f'NodeName=n[1-2] CPUs=8 Feature="a b" Gres={GRES},nic:2',
        f'NodeName=n3 CPUs=8 Feature="a b" Gres={GRES3},nic:2',
        'NodeName=n[4-5] CPUs=8 Feature="a b" Gres=gpu:1,nic:2',
    ]
    assert "write these 3 lines in place of line" in found[0].todo and "\n" not in found[0].todo


def test_a_line_that_is_split_keeps_the_address_of_each_node() -> None:
    words = "NodeAddr=10.0.0.[1-3,9] NodeHostname=h[1-3],k Port=7000"
    text = STOCK.replace(f"NodeName=n[1-2] CPUs=8 Gres={GRES}\n", "").replace(
        f"NodeName=n3 CPUs=4 Gres={GRES3}", f"NodeName=n[1-3],x {words} Gres=gpu:1"
    )
    (found,) = [d for d in seen(installed(config(), text), config()) if d.key == "Gres"]
    assert found.write.splitlines() == [
        f"NodeName=n[1-2] NodeAddr=10.0.0.[1-2] NodeHostname=h[1-2] Port=7000 Gres={GRES}",
        f"NodeName=n3 NodeAddr=10.0.0.3 NodeHostname=h3 Port=7000 Gres={GRES3}",
        "NodeName=x NodeAddr=10.0.0.9 NodeHostname=k Port=7000 Gres=gpu:1",
    ]
    files = installed(config(), text.replace("[1-3,9]", "[1-3]"))
    (found,) = [d for d in seen(files, config()) if d.key == "Gres"]
    assert (
        found.write == ""
        and "NodeAddr=10.0.0.[1-3] has not one value for each node" in found.sentence
    )
    assert found.todo.startswith("correct ")


def test_unconfigured_nodes_with_shares_keep_the_rest_of_their_line() -> None:
    text = STOCK.replace("NodeName=n3 CPUs=4", "NodeName=x3 CPUs=4 State=UNKNOWN")
    found = [d for d in seen(installed(config(), text), config()) if d.key == "Gres"]
    assert [d.write for d in found] == [
        f"NodeName=x3 CPUs=4 State=UNKNOWN Gres={GRES3.split(',')[0]}"
    ]


def test_what_the_list_says_can_be_written_without_losing_a_node() -> None:
    text = STOCK.replace(
        f"NodeName=n3 CPUs=4 Gres={GRES3}",
        f"NodeName=n3,rack[1-2]n[01-20] Gres={GRES3.split(',')[0]}",
    )
    files = installed(config(), text)
    first = seen(files, config())
    lines: list[str | None] = list(files[f"{E}/slurm.conf"].splitlines())
    for each in first:
        if each.action == "replace":
            lines[each.line - 1] = each.write
    files[f"{E}/slurm.conf"] = "".join(f"{line}\n" for line in lines)
    assert [d.key for d in seen(files, config())] == ["nodes"]
    assert "NodeName=rack1n[01-20],rack2n[01-20] Gres=gpu" in files[f"{E}/slurm.conf"]


def test_a_site_that_writes_all_of_it_itself_needs_no_fragment() -> None:
    cfg = config()
    files = installed(cfg)
    for name in ("slurm.conf", "gres.conf", "cgroup.conf", "plugstack.conf"):
        include = f"include {E}/qgpu/{name}\n"
        files[f"{E}/{name}"] = files[f"{E}/{name}"].replace(include, files.pop(f"{E}/qgpu/{name}"))
    assert seen(files, cfg) == seen(files, cfg, "login") == []


def test_a_cluster_of_thousands_of_nodes_is_compared_in_a_moment() -> None:
    text = (
        YAML.replace('"n[1-2]"', '"n[0001-4000]"')
        .replace("names: n3", "names: m3")
        .format(version="22.05", more="")
    )
    cfg = parse_config(text)
    slurm = STOCK.replace("n[1-2]", "n[0001-4000]").replace("NodeName=n3", "NodeName=m3")
    assert seen(installed(cfg, slurm), cfg) == []


def site_of(files: Files) -> Site:
    return read_site(PLACES, Texts(files), "22.05")


def test_configless_is_read_from_slurm_conf() -> None:
    assert site_of({f"{E}/slurm.conf": "SlurmctldParameters=a,Enable_Configless\n"}).configless
    assert not site_of({f"{E}/slurm.conf": "SlurmctldParameters=a\n"}).configless
