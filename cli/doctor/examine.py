"""Which checks a host gets, by its roles, in the order in which things depend on each other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from cli.daemon import node_name
from cli.doctor.checks import (
    controller,
    daemons,
    gres,
    hooks,
    jobs,
    lua,
    node,
    plugins,
    reclaim,
    site,
    slurm,
    ssh,
    system,
    trust,
)
from cli.doctor.host import Host
from cli.doctor.known import Known
from cli.doctor.result import Check, Group
from cli.doctor.roles import ROLES, Role, guess
from gres.config.site import Config, ConfigError, digest_of, load_config

Step = Callable[[Known], Check]
HOST: tuple[Step, ...] = (slurm.slurm, slurm.munge, slurm.clock)
# These work without qgpu.yaml.
BARE: tuple[Step, ...] = (system.sealing, system.membarrier, system.cgroups)
NODE: tuple[Step, ...] = (
    node.driver,
    node.nvml,
    node.cards,
    node.shim,
    node.nvml_shim,
    node.qgpud,
    node.injection,
    node.arbiter,
    node.memory,
    node.hardware,
    node.idle_release,
    reclaim.checkpoints,
    node.state_dir,
    *BARE,
    daemons.slurmd,
    gres.slurmd_gres,
    plugins.native_plugins,
    plugins.spank,
    hooks.hooks,
    daemons.devices,
    jobs.job_cgroups,
    ssh.ssh,
    jobs.grants,
    slurm.privacy,
)
CONTROLLER: tuple[Step, ...] = (
    daemons.slurmctld,
    lua.job_submit,
    lua.tables,
    daemons.select,
    reclaim.host_memory,
    daemons.gres_types,
    daemons.prolog_flags,
    controller.nodes,
    controller.same_config,
    controller.partitions,
    daemons.slurmdbd,
    daemons.accounted,
    daemons.qos,
    slurm.privacy,
)
LOGIN: tuple[Step, ...] = (daemons.slurmctld, plugins.spank_option)
BY_ROLE: dict[Role, tuple[Step, ...]] = {"controller": CONTROLLER, "node": NODE, "login": LOGIN}


def examine(
    config_path: str, node: str | None, roles: Sequence[Role] = (), host: Host | None = None
) -> list[Check]:
    """All checks of this host. Raises nothing: a check that cannot be made has failed."""
    known = Known(host or Host(), config_path)
    first = read_config(known, node)
    known.trust_program_directories()
    chosen = tuple(role for role in ROLES if role in roles) or guess(known)
    first = replace(first, text=f"{first.text}; this host is {_named(known, chosen)}")
    if known.config is None:
        return [first, *_run(known, "host", (*HOST, *(BARE if "node" in chosen else ())))]
    if "node" in chosen and not known.node:
        todo = "add it to nodes in qgpu.yaml, or say --role controller, or --node NAME"
        first = Check("config", "fail", f"{config_path} has no node {known.host.name}", todo)
        chosen = tuple(role for role in chosen if role != "node")
    known.roles = chosen
    found = [first, *_run(known, "host", HOST), trust.files(known, chosen)]
    if known.has_slurm:
        both = () if chosen == ("login",) else (site.gres_conf,)
        found += _run(known, "host", (site.slurm_conf, *both, lua.cli_filter))
    for role in chosen:
        found += _run(known, role, BY_ROLE[role])
    return [_accepted(check, known.config) for check in found]


def _accepted(check: Check, config: Config) -> Check:
    """A warning that the site has accepted is shown as such; a failure is never accepted."""
    if check.status != "warn" or check.name not in config.doctor.accept:
        return check
    return replace(check, status="ok", text=f"accepted in qgpu.yaml: {check.text}", todo="")


def _named(known: Known, roles: Sequence[Role]) -> str:
    words = [f"node {known.node}" if role == "node" else f"a {role}" for role in roles]
    return " and ".join(words)


def _run(known: Known, group: Group, steps: Iterable[Step]) -> list[Check]:
    return [replace(_safely(step, known), group=group) for step in steps]


def _safely(step: Step, known: Known) -> Check:
    """One check; an exception makes it fail, and the others go on."""
    try:
        return step(known)
    except Exception as error:
        name = step.__name__.replace("_", " ")
        text = f"doctor could not look at it: {type(error).__name__}: {error}"
        return Check(name, "fail", text, "this is a fault of doctor: please report this line")


def read_config(known: Known, node: str | None) -> Check:
    """Read qgpu.yaml into `known`. Root trusts only a file that no other user can replace."""
    doubt = known.host.distrust(known.path) if known.host.uid == 0 else None
    if doubt:
        text = f"{known.path} is not read, since {doubt}: others decide what root does"
        return Check("config", "fail", text, doubt.todo)
    try:
        config = load_config(known.path)
        name = node_name(node, config)
        known.given = bool(node or known.host.environ.get("SLURMD_NODENAME"))
        known.node = name if name in config.node_names() else ""
        known.raw, known.digest = config, digest_of(known.path)
        known.config = load_config(known.path, known.node or None)
    except ConfigError as error:
        text = str(error).split("\n")[0]
        return Check(
            "config", "fail", text, "docs/specs/config.md has every key; --node names another node"
        )
    if node is not None and not known.node:
        text = (
            f"node '{node}' is not configured; qgpu.yaml names {', '.join(config.node_names()[:8])}"
        )
        return Check("config", "fail", text, "--node names another node")
    return Check("config", "ok", known.path)
