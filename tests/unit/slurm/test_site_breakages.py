"""Breakages of a site that is set up: each is found, with what to do."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from test_site_differences import (
    GRES,
    GRES3,
    PLACES,
    STOCK,
    YAML,
    E,
    Files,
    config,
    installed,
    seen,
)

from gres.config.site import Config, parse_config
from slurm_plugin.render import render
from slurm_plugin.site.difference import Difference
from slurm_plugin.site.found import without_fragments
from slurm_plugin.site.sources import Texts


def swap(name: str, old: str, new: str) -> Callable[[Files], None]:
    def change(files: Files) -> None:
        path = name if name.startswith("/") else f"{E}/{name}"
        assert old in files[path], files[path]
        files[path] = files[path].replace(old, new)

    return change


def put(name: str, text: str) -> Callable[[Files], None]:
    return lambda files: files.update({f"{E}/{name}": files.get(f"{E}/{name}", "") + text})


def drop(name: str) -> Callable[[Files], None]:
    return lambda files: files.__delitem__(f"{E}/{name}")


def of_the_site(word: str) -> Callable[[Files], None]:
    """gres.conf without our fragment, with the same lines, and with that word for a node."""

    def change(files: Files) -> None:
        text = files[f"{E}/qgpu/gres.conf"].replace("NodeName=n3 AutoDetect=off", "")
        files[f"{E}/gres.conf"] = f"{text}\nNodeName=n3 {word}\n"

    return change


BROKEN: list[tuple[Callable[[Files], None], str, str, str]] = [
    (swap("slurm.conf", f"include {E}/qgpu/slurm.conf\n", ""), "include", "add", "GresTypes"),
    (
        swap("gres.conf", f"include {E}/qgpu/gres.conf\n", ""),
        "include",
        "add",
        "gpu files are none",
    ),
    (
        swap("cgroup.conf", f"include {E}/qgpu/cgroup.conf\n", ""),
        "include",
        "add",
        "ConstrainDevices",
    ),
    (
        swap("cgroup.conf", "include", "ConstrainDevices=no\ninclude"),
        "ConstrainDevices",
        "run",
        "the site sets",
    ),
    (drop("cgroup.conf"), "include", "add", "ConstrainDevices"),
    (drop("gres.conf"), "include", "add", "fragment"),
    (drop("plugstack.conf"), "include", "add", "no job of a share starts"),
    (swap("plugstack.conf", "include", "#include"), "include", "add", "no job of a share starts"),
    (
        swap("qgpu/plugstack.conf", "run_dir=/run/qgpu", "run_dir=/run/other"),
        "spank",
        "run",
        "has changed",
    ),
    (swap("qgpu/plugstack.conf", "optional", "# optional"), "spank", "run", "qgpu_spank.so"),
    (
        put("plugstack.conf", "optional /usr/lib/qgpu/qgpu_spank.so run_dir=/run/qgpu\n"),
        "optional",
        "remove",
        "second",
    ),
    (drop("qgpu/slurm.conf"), "include", "run", "Slurm's daemons do not start"),
    (
        swap("slurm.conf", "shard:h200:200", "shard:h200:100"),
        "Gres",
        "replace",
        "counts a node's cards",
    ),
    (swap("slurm.conf", "qgpu:offline:800", "qgpu:offline:80"), "Gres", "replace", GRES),
    (swap("slurm.conf", "vram:156G", "vram:150G"), "Gres", "replace", GRES),
    (swap("slurm.conf", f" Gres={GRES3}", ""), "Gres", "replace", GRES3),
    (
        swap("slurm.conf", f"CPUs=8 Gres={GRES}", f"CPUs=8 Gres={GRES},mps:100"),
        "Gres",
        "replace",
        GRES,
    ),
    (swap("slurm.conf", "NodeName=n3", "NodeName=x3"), "NodeName", "add", GRES3),
    (
        swap("slurm.conf", "NodeName=n3", "NodeName=x3"),
        "Gres",
        "replace",
        "qgpu.yaml does not name",
    ),
    (
        swap("slurm.conf", "NodeName=n3 CPUs=4", "NodeName=n4 CPUs=4 Gres=gpu:1"),
        "nodes",
        "run",
        "cannot give",
    ),
    (
        swap("qgpu/gres.conf", "Count=100 File=/dev/nvidia1", "Count=50 File=/dev/nvidia1"),
        "gres",
        "run",
        "shard",
    ),
    (swap("qgpu/gres.conf", "offline Count=800", "offline Count=80"), "gres", "run", "Count"),
    (
        swap("qgpu/gres.conf", "Name=vram Count=156G", "Name=vram Count=1G"),
        "gres",
        "run",
        "vram",
    ),
    (
        swap("qgpu/gres.conf", "File=/dev/nvidia[0-1]", "File=/dev/nvidia[1-2]"),
        "gres",
        "run",
        "in this order",
    ),
    (
        put("gres.conf", "NodeName=n1 Name=gpu Type=h200 File=/dev/nvidia0\n"),
        "NodeName",
        "remove",
        "twice",
    ),
    (put("gres.conf", "NodeName=n[1-4] Name=gpu File=/dev/nvidia0\n"), "Name", "replace", "twice"),
    (put("gres.conf", "NodeName=n1 AutoDetect=nvml\n"), "NodeName", "remove", "twice"),
    (put("gres.conf", "AutoDetect=nvml\n"), "cores", "run", "links:, where"),
    (
        swap("qgpu/gres.conf", "NodeName=n3 AutoDetect=off", "NodeName=n3 AutoDetect=nvml"),
        "AutoDetect",
        "run",
        "clocks",
    ),
    (of_the_site("AutoDetect=full"), "AutoDetect", "replace", "NodeName=n3 AutoDetect=off"),
    (of_the_site("AutoDetect=off"), "", "", ""),
    (of_the_site("Cores=0"), "", "", ""),  # no line about it: Slurm's default is off
    (drop("job_submit.lua"), "job_submit.lua", "run", "a link to"),
    (put("slurm.conf", f"include {E}/qgpu/slurm.conf\n"), "include", "remove", "twice"),
    (put("gres.conf", f"include {E}/qgpu/gres.conf\n"), "include", "remove", "twice"),
    (put("plugstack.conf", f"include {E}/qgpu/plugstack.conf\n"), "include", "remove", "twice"),
    (put("cgroup.conf", f"include {E}/qgpu/cgroup.conf\n"), "include", "remove", "twice"),
    (
        put("qgpu/plugstack.conf", "optional /usr/lib/qgpu/qgpu_spank.so run_dir=/run/qgpu\n"),
        "spank",
        "run",
        "second time",
    ),
    (
        swap("slurm.conf", "Enforce=associations,limits,qos", "Enforce=Associations"),
        "AccountingStorageEnforce",
        "replace",
        "AccountingStorageEnforce=Associations,limits,qos",
    ),
    (swap("job_submit.lua", "qgpu.submit(", "slurm.x("), "job_submit.lua", "add", "qgpu.submit"),
    (
        put("slurm.conf", "CliFilterPlugins=lua\n"),
        "CliFilterPlugins",
        "remove",
        "no sbatch and no srun",
    ),
    (
        put("slurm.conf", "SelectTypeParameters=CR_Core,MULTIPLE_SHARING_GRES_PJ\n"),
        "SelectTypeParameters",
        "replace",
        "split a share",
    ),
    (
        put("slurm.conf", "SelectTypeParameters=LL_SHARED_GRES\n"),
        "SelectTypeParameters",
        "remove",
        "binpack",
    ),
    (
        put("slurm.conf", "PrologEpilogTimeout=5\n"),
        "PrologEpilogTimeout",
        "replace",
        "drain the node",
    ),
    (put("slurm.conf", "PreemptMode=SUSPEND,GANG\n"), "PreemptMode", "replace", "suspended"),
    (
        put("slurm.conf", "SlurmdParameters=config_overrides\n"),
        "SlurmdParameters",
        "remove",
        "lost a card",
    ),
    (
        swap("slurm.conf", "Nodes=ALL", "Nodes=ALL OverSubscribe=FORCE:4"),
        "OverSubscribe",
        "replace",
        "--exclusive",
    ),
    (swap("slurm.conf", "Nodes=ALL", "Nodes=ALL Shared=EXCLUSIVE"), "Shared", "replace", "refused"),
    (
        swap("slurm.conf", "Nodes=ALL", 'Nodes=ALL TRESBillingWeights="GRES/qgpu=1,GRES/gpu=100"'),
        "TRESBillingWeights",
        "replace",
        "GRES/gpu=100 bills it twice",
    ),
    (
        swap("slurm.conf", "Nodes=ALL", 'Nodes=ALL TRESBillingWeights="CPU=1,GRES/gpu=100"'),
        "TRESBillingWeights",
        "replace",
        "costs nothing",
    ),
    (
        swap("slurm.conf", "Nodes=ALL", "Nodes=ALL ExclusiveUser=YES"),
        "ExclusiveUser",
        "replace",
        "all other users",
    ),
    (
        swap("slurm.conf", "Nodes=ALL", "Nodes=ALL ExclusiveTopo=YES"),
        "ExclusiveTopo",
        "replace",
        "all other jobs",
    ),
    (
        put("slurm.conf", "AllowSpecResourcesUsage=yes\n"),
        "AllowSpecResourcesUsage",
        "replace",
        "--core-spec",
    ),
    (swap("slurm.conf", "slurmdbd", "none"), "AccountingStorageType", "replace", "no QOS"),
    (
        swap("slurm.conf", "AccountingStorageEnforce=associations,limits,qos\n", ""),
        "AccountingStorageEnforce",
        "add",
        "every user may name",
    ),
    (put("slurm.conf", "MinJobAge=1\nMinJobAge=2\n"), "", "", ""),
    (put("slurm.conf", "GresTypes=gpu\n"), "GresTypes", "run", "complains"),
    (put("slurm.conf", "junk\n"), "syntax", "replace", "not KEY=VALUE"),
    (swap("qgpu/slurm.conf", "PrologFlags=Alloc,Contain\n", ""), "PrologFlags", "run", "older"),
    (swap("qgpu/slurm.conf", "JobSubmitPlugins=lua\n", ""), "JobSubmitPlugins", "run", "older"),
    (put("slurm.conf", "PrologFlags=NoHold,Alloc\n"), "PrologFlags", "run", "complains"),
]


# What only the admin can write: a line that Slurm refuses, a script of the site's own, qgpu.yaml.
UNTYPED = {"syntax", "nodes", "cores", "NodeName"}


def typed(files: Files, each: Difference, cfg: Config) -> None:
    """Do what the difference says, as an admin without knowledge of qgpu would."""
    if each.action == "run":
        assert each.write.startswith("qgpu setup --role controller --role node"), each.write
        fresh = installed(cfg, STOCK)
        keep = {f"{E}/{name}" for name in ("slurm.conf", "gres.conf", "cgroup.conf")}
        alone = without_fragments(PLACES, Texts(files), cfg.slurm.version)
        for path in fresh.keys() - keep - {f"{E}/plugstack.conf"}:
            name = path.rpartition("/")[2]
            text = render(name, cfg, slurm_site=alone.slurm, cgroup_site=alone.cgroup)
            if path not in files or "--replace-edited" in each.write:
                files[path] = text
        return
    lines: list[str | None] = list(files.get(each.file, "").splitlines())
    if each.action == "add":
        lines.append(each.write)
    else:
        lines[each.line - 1] = each.write or None
    files[each.file] = "".join(f"{line}\n" for line in lines if line is not None)


@pytest.mark.parametrize(("change", "key", "action", "says"), BROKEN)
def test_what_it_says_cures_it_when_typed(
    change: Callable[[Files], None], key: str, action: str, says: str
) -> None:
    cfg, again = config(), "qgpu setup --role controller --role node"
    files = installed(cfg)
    change(files)
    for _ in range(4):  # one line after the other, since numbers of lines change
        found = [
            d
            for d in seen(files, cfg, "controller", "node", again=again)
            if d.key not in UNTYPED and not (d.key == "job_submit.lua" and d.action == "add")
        ]
        if not found:
            return
        typed(files, found[0], cfg)
    raise AssertionError([f"{d.sentence} {d.todo}" for d in found])


@pytest.mark.parametrize(("change", "key", "action", "says"), BROKEN)
def test_each_breakage_is_found_with_what_to_do(
    change: Callable[[Files], None], key: str, action: str, says: str
) -> None:
    files = installed(config())
    change(files)
    found = seen(files, config())
    stack = [d for d in seen(files, config(), "login") if d not in found]
    texts = [f"{d.sentence} {d.todo}" for d in [*found, *stack]]
    if not key:
        assert texts == []
        return
    assert any(
        d.key == key and d.action == action and says in f"{d.sentence} {d.todo}"
        for d in [*found, *stack]
    ), texts
    assert len(found) <= 3, texts


@pytest.mark.parametrize("version", ["22.05", "24.11"])
def test_binding_for_all_is_found_where_it_has_shares_refused(version: str) -> None:
    cfg = config(version)
    files = installed(cfg)
    put("slurm.conf", "SelectTypeParameters=CR_Core,ENFORCE_BINDING_GRES\n")(files)
    found = [d for d in seen(files, cfg) if d.key == "SelectTypeParameters"]
    assert [(d.write, d.severity, "--ntasks-per-node" in d.why) for d in found] == (
        [] if version == "22.05" else [("SelectTypeParameters=CR_Core", "fail", True)]
    )


def test_cores_or_links_in_qgpu_yaml_answer_the_word_about_them() -> None:
    for more in ("", ', cores: ["0-1", "2-3"]', ', links: ["-1,4", "4,-1"]'):
        text = YAML.format(version="24.11", more="")
        assert 'files: "/dev/nvidia[0-1]"' in text
        cfg = parse_config(text.replace('/dev/nvidia[0-1]"', f'/dev/nvidia[0-1]"{more}'))
        files = installed(cfg)
        put("gres.conf", "AutoDetect=nvml\n")(files)
        (asked,) = [d.needed for d in seen(files, cfg) if d.key == "cores"]
        assert asked.startswith(f"cores of {'n3' if more else 'n[1-2]'} in qgpu.yaml")
