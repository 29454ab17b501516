"""Finds settings of slurm.conf that break qgpu or make it weaker. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator

from gres.config.site import Config
from gres.request.tables import tables_of
from slurm_plugin.site.conf import Value, quoted
from slurm_plugin.site.difference import Difference, Severity, removed, replaced
from slurm_plugin.site.found import Site
from slurm_plugin.site.nodes import NodeLine, partitions


def _without(value: Value, *words: str) -> str:
    left = [item for item in value.items if item.lower() not in {word.lower() for word in words}]
    return f"{value.key}={','.join(left)}" if left else ""


def _drop(
    value: Value, words: tuple[str, ...], needed: str, why: str, restart: str, severity: str
) -> Difference:
    """The line without some items; removed if none is left."""
    line = _without(value, *words)
    if line:
        return replaced(value, value.key, line, needed, why, restart, severity)  # type: ignore[arg-type]
    return removed(value, needed, why, restart, severity)  # type: ignore[arg-type]


def _items(site: Site, key: str) -> tuple[Value | None, set[str]]:
    value = site.slurm.get(key)
    return value, {item.lower() for item in value.items} if value else set()


def _select(config: Config, site: Site) -> Iterator[Difference]:
    value, words = _items(site, "SelectTypeParameters")
    if value and "enforce_binding_gres" in words and tables_of(config).books_cores:
        why = "shares without --ntasks-per-node would book all cores near a card, and are refused"
        needed = "the key without ENFORCE_BINDING_GRES"
        yield _drop(value, ("ENFORCE_BINDING_GRES",), needed, why, "all", "fail")
    if value and "multiple_sharing_gres_pj" in words and not config.slurm.multi_card:
        why = "slurmctld would split a share over two cards, which the node refuses"
        needed = (
            "the key without MULTIPLE_SHARING_GRES_PJ, or slurm: {multi_card: true} in qgpu.yaml"
        )
        yield _drop(value, ("MULTIPLE_SHARING_GRES_PJ",), needed, why, "slurmctld", "fail")
    if value and "ll_shared_gres" in words and config.slurm.placement != "spread":
        why = "qgpu.yaml says placement: binpack"
        needed = "the key without LL_SHARED_GRES, or slurm: {placement: spread} in qgpu.yaml"
        yield _drop(value, ("LL_SHARED_GRES",), needed, why, "slurmctld", "warn")


def _prolog(config: Config, site: Site) -> Iterator[Difference]:
    flags, words = _items(site, "PrologFlags")
    if flags and "nohold" in words:
        why = "a step could start before its grant is made"
        yield _drop(flags, ("NoHold",), "the key without NoHold", why, "all", "fail")
    timeout = site.slurm.get("PrologEpilogTimeout")
    seconds = config.prolog_deadline.seconds
    if timeout and timeout.value.isdigit() and 0 < int(timeout.value) <= seconds:
        line = f"{timeout.key}={int(seconds) * 3}"
        why = (
            f"Slurm would end the prolog, which waits up to {config.prolog_deadline} for qgpud, and"
            " drain the node"
        )
        needed = f"more than {config.prolog_deadline}"
        yield replaced(timeout, timeout.key, line, needed, why, "reconfigure")


def _preemption(site: Site) -> Iterator[Difference]:
    value, words = _items(site, "PreemptMode")
    if value and words & {"suspend", "gang"}:
        why = (
            "Slurm frees no card of a suspended job, so the online job stays pending; qgpu lets it"
            " run beside"
        )
        yield replaced(
            value, value.key, f"{value.key}=OFF", "OFF, REQUEUE or CANCEL", why, "all", "warn"
        )


def _accounting(site: Site) -> Iterator[Difference]:
    kind = site.slurm.get("AccountingStorageType")
    if kind is None or kind.value.lower().endswith("/none"):
        file, line = (kind.file, kind.line) if kind else (site.slurm.path, 0)
        yield Difference(
            "AccountingStorageType",
            file,
            line,
            f"{kind.key}={kind.value}" if kind else "",
            "AccountingStorageType=accounting_storage/slurmdbd",
            "replace" if kind else "add",
            "AccountingStorageType=accounting_storage/slurmdbd",
            "without it there is no QOS, so every job has the class of default_class",
            "all",
            "warn",
        )
        return
    enforce, words = _items(site, "AccountingStorageEnforce")
    if words & {"qos", "all", "safe"}:
        return
    have = enforce.items if enforce else []
    more = [word for word in ("associations", "limits", "qos") if word not in words]
    line_text = f"AccountingStorageEnforce={','.join([*have, *more])}"
    why = "every user may name every QOS, and so take the online class"
    if enforce:
        yield replaced(enforce, enforce.key, line_text, "qos among them", why, "slurmctld", "warn")
    else:
        yield Difference(
            "AccountingStorageEnforce",
            site.slurm.path,
            0,
            "",
            "AccountingStorageEnforce with qos",
            "add",
            line_text,
            why,
            "slurmctld",
            "warn",
        )


def _slurmd(site: Site) -> Iterator[Difference]:
    value, words = _items(site, "SlurmdParameters")
    if value and "config_overrides" in words:
        why = "a node that lost a card is not set down by slurmctld"
        yield _drop(
            value, ("config_overrides",), "the key without config_overrides", why, "all", "warn"
        )


def _managed(config: Config, site: Site) -> Iterator[NodeLine]:
    managed = set(config.managed_partitions)
    for part in partitions(site.slurm):
        if "*" in managed or managed & set(part.names):
            yield part


def _billing(part: NodeLine) -> tuple[str, str] | None:
    """Weights that are one currency for shares and whole cards, since both count as gres/qgpu, and
    why the present ones are not; None if they are.
    """
    value = part.words.get("tresbillingweights")
    items = {item.partition("=")[0].lower(): item for item in value.items} if value else {}
    ours = [item for name, item in items.items() if name.startswith("gres/qgpu")]
    theirs = [
        item
        for name, item in items.items()
        if name.startswith(("gres/gpu", "gres/shard")) and item.rpartition("=")[2] != "0"
    ]
    if not theirs:
        return None
    left = [item for item in items.values() if item not in theirs]
    why = (
        f"a whole card counts as gres/qgpu=100, so {theirs[0]} bills it twice"
        if ours
        else f"a share of a card costs nothing by {theirs[0]}; a whole card is gres/qgpu=100"
    )
    return ",".join(left if ours else [*left, "GRES/qgpu=1"]), why


def _unfit(part: NodeLine) -> Iterator[tuple[Value, str, str, Severity]]:
    """Words by which Slurm gives away whole nodes, shares nodes of --exclusive jobs, or bills
    twice: each with the text that fits, and why.
    """
    value = part.words.get("oversubscribe") or part.words.get("shared")
    word = value.value.upper().partition(":")[0] if value else ""
    if value and word in ("FORCE", "EXCLUSIVE"):
        why = (
            "it overrides --exclusive of a job"
            if word == "FORCE"
            else "every job gets all cards of a node, so shares are refused there"
        )
        yield value, "NO", why, "fail"
    for key, whom in (("exclusiveuser", "users"), ("exclusivetopo", "jobs")):
        only = part.words.get(key)
        if only and only.value.upper() == "YES":
            yield only, "NO", f"a share keeps the whole node from all other {whom}", "warn"
    if weights := _billing(part):
        yield part.words["tresbillingweights"], *weights, "warn"


def _partitions(config: Config, site: Site) -> Iterator[Difference]:
    """Each fault of a managed partition's line, with the whole line as it is without any of them:
    Slurm reads no word of it in a line of its own.
    """
    for part in _managed(config, site):
        unfit = list(_unfit(part))
        line = part.entry.written({value.name: (value.key, text) for value, text, *_ in unfit})
        for value, text, why, severity in unfit:
            # The value may stand in a DEFAULT line, which is of other partitions too.
            own = Value(value.key, value.value, part.entry.head.file, part.entry.head.line)
            needed = f"{value.key}={quoted(text)}"
            yield replaced(own, value.key, line, needed, why, "reconfigure", severity)


def _specialized(site: Site) -> Iterator[Difference]:
    """Whether --core-spec and --thread-spec count. They mean the whole node, which Slurm tells Lua
    from 26.05 on only.
    """
    value = site.slurm.get("AllowSpecResourcesUsage")
    if value is None or value.value.lower() not in ("1", "yes", "true", "up"):
        return
    why = (
        "with --core-spec a share waits forever, and a job without --gres gets all cards, holds"
        " the node and ends with qgpu's sentence"
    )
    line = f"{value.key}=no"
    yield replaced(value, value.key, line, line, why, "reconfigure", "warn")


def _version(config: Config, told: str | None, yaml: str) -> Iterator[Difference]:
    found = re.search(r"\b([0-9]{2}\.[0-9]{2})(?:\.([0-9]+))?", told or "")
    if found is None or config.slurm.version[:5] == found[1]:
        return
    why = "fragments, tag and whole cards differ from version to version"
    has = f'slurm: {{version: "{config.slurm.version}"}}'
    write = f'slurm: {{version: "{found[1]}"}}'
    yield Difference(
        "slurm.version",
        yaml,
        0,
        has,
        f"the version that runs, {found[0]}",
        "replace",
        write,
        why,
        "all",
    )


def slurm_differences(
    config: Config, site: Site, slurm_version: str | None, yaml: str
) -> Iterator[Difference]:
    """Settings of slurm.conf that conflict with qgpu."""
    yield from _version(config, slurm_version, yaml)
    yield from _select(config, site)
    yield from _prolog(config, site)
    yield from _preemption(site)
    yield from _accounting(site)
    yield from _slurmd(site)
    yield from _partitions(config, site)
    yield from _specialized(site)
