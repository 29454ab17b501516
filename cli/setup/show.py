"""The output of `qgpu setup`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cli.setup.host import Here
from cli.setup.place import Done
from gres.printable import printable
from slurm_plugin.site.difference import Difference, Role
from slurm_plugin.site.found import Site
from slurm_plugin.site.settings import Restart

RESTARTS: dict[Restart, str] = {
    # A node whose slurmd still counts by the old files would be drained when the new slurmctld asks
    # it.
    "all": (
        "systemctl stop slurmd on every node, systemctl restart slurmctld on the controller, then"
        " systemctl start slurmd on every node; running jobs go on"
    ),
    "slurmctld": "systemctl restart slurmctld on the controller",
    "slurmd": "systemctl restart slurmd on every node with this change; running jobs go on",
    "reconfigure": "scontrol reconfigure",
}
# A changed fragment -> what must read it again. The others are read at each use.
READ_BY: dict[str, Restart] = {"slurm.conf": "all", "gres.conf": "all", "cgroup.conf": "slurmd"}


@dataclass(frozen=True)
class Left:
    """What is to be done by hand, and what to restart then."""

    differences: Sequence[Difference]
    restarts: Sequence[Restart]


def of_written(done: Sequence[Done], site: Site) -> set[Restart]:
    """What must read the fragments that were written, or would be."""
    names = [e.path.rpartition("/")[2] for e in done if e.what in ("wrote", "updated")]
    return {READ_BY[name] for name in names if name in READ_BY and site.includes(name)}


def restarts(found: Sequence[Difference], of_files: set[Restart]) -> list[Restart]:
    """What must be restarted, each once; a restart of all covers the others. Advice says its own,
    because who does not follow it needs none.
    """
    needed = of_files | {each.restart for each in found if each.severity == "fail"}
    needed.discard("")
    if "all" in needed or {"slurmctld", "slurmd"} <= needed:
        return ["all"]
    if needed & {"slurmctld"}:
        needed.discard("reconfigure")
    return [name for name in RESTARTS if name in needed]


def remains(done: Sequence[Done], left: Left | None) -> bool:
    """Whether something is left to do by hand; a warning alone is not."""
    refused = any(entry.what == "refused" for entry in done)
    return refused or (left is not None and any(d.severity == "fail" for d in left.differences))


def document(
    here: Here, roles: Sequence[Role], done: Sequence[Done], left: Left | None, dry: bool
) -> dict[str, object]:
    """For --json."""
    return {
        "roles": list(roles),
        "slurm_conf": here.places.slurm_conf if here.found else None,
        "fragments": here.places.fragments,
        "dry_run": dry,
        "files": [
            {"path": d.path, "what": d.what, "why": d.why or None, "kept_as": d.kept_as or None}
            for d in done
        ],
        "differences": [d.as_dict() for d in left.differences] if left else [],
        "restart": [RESTARTS[name] for name in left.restarts] if left else [],
        "in_place": not remains(done, left),
    }


def _file(entry: Done, dry: bool) -> str:
    word = {"wrote": "would write", "updated": "would update", "removed": "would remove"}.get(
        entry.what, entry.what
    )
    lines = [f"{(word if dry else entry.what):<8}  {entry.path}"]
    if entry.why:
        lines.append(f"          {entry.why}")
    if entry.kept_as:
        lines.append(f"          the edited one is {entry.kept_as}")
    return "\n".join(lines)


def _step(number: int, difference: Difference) -> list[str]:
    """One step; the line to write stands alone, for copying."""
    advice = difference.severity != "fail"
    lines = [f"{number:3}. {'(advice) ' if advice else ''}{difference.sentence}"]
    if difference.action == "remove":
        lines.append(f"     remove line {difference.line} of {difference.file}")
    elif not difference.write:
        lines.append(f"     {difference.todo}")
    elif difference.action == "run":
        lines += ["     run:", f"       {printable(difference.write)}"]
    else:
        where = "add to" if difference.action == "add" else "write instead of"
        place = difference.file if difference.action == "add" else difference.place
        write = [f"       {printable(line)}" for line in difference.write.split("\n")]
        lines += [f"     {where} {place}:", *write]
    if advice and difference.restart:
        lines += ["     then:", f"       {RESTARTS[difference.restart]}"]
    return lines


def text(here: Here, done: Sequence[Done], left: Left | None, dry: bool) -> str:
    """For people."""
    lines = [_file(entry, dry) for entry in done]
    if left is None:
        return "\n".join(lines) or "nothing of qgpu's is here"
    ranked = sorted(left.differences, key=lambda each: each.severity != "fail")
    if ranked:
        what = (
            "left to do" if ranked[0].severity == "fail" else "advice, which need not be followed,"
        )
        where = " on the controller, which hands them out" if here.configless else ""
        lines += ["", f"{what} in Slurm's files{where}:"]
        for number, difference in enumerate(ranked, 1):
            lines += _step(number, difference)
    if left.restarts:
        lines += [
            "",
            "then, so that Slurm reads it:",
            *(f"     {RESTARTS[name]}" for name in left.restarts),
        ]
    if not here.found:
        lines += [
            "",
            "this host has no slurm.conf, so it is taken for a configless one; run this again once"
            " slurmd runs",
        ]
    elif not remains(done, left) and not left.restarts:
        lines += ["", "all is in place"]
    return "\n".join(lines)
