"""Checks of Slurm on any host: its version, munge, clocks, the client's filter, and privacy."""

from __future__ import annotations

import re
import time

from cli.doctor.checks import site
from cli.doctor.files import conf, setting
from cli.doctor.known import NO_SLURM, Known, words
from cli.doctor.result import RESTART_ALL, Check, Status
from slurm_plugin import releases

CLOCK_FAIL_S, CLOCK_WARN_S = 240.0, 5.0  # munge refuses what is five minutes old


def slurm(known: Known) -> Check:
    """The version of Slurm here, whether qgpu.yaml has it, and faults of the release."""
    version = known.slurm_version
    if version is None or not known.has_slurm:
        return Check("slurm", "ok", f"{NO_SLURM}; qgpu run works without it")
    text = releases.shown(version)
    if version < releases.OLDEST:
        return Check("slurm", "fail", f"Slurm {text} is too old", "install Slurm 22.05 or later")
    if known.config is not None:
        told = releases.parse(known.config.slurm.version)
        if told is not None and told[:2] != version[:2]:
            todo = (
                f'write version: "{text[:5]}" under slurm in {known.path}; {site.again(known)};'
                f" systemctl restart qgpud; the same on every host; then {RESTART_ALL}"
            )
            said = known.config.slurm.version
            return Check("slurm", "fail", f"this is Slurm {text}, but qgpu.yaml says {said}", todo)
    return _release(version)


def _release(version: releases.Version) -> Check:
    faults = releases.faults_of(version)
    text = releases.shown(version)
    if not faults:
        return Check("slurm", "ok", text)
    worst = faults[0]
    more = len(faults) - 1
    rest = f"; and {more} more, which docs/specs/doctor.md lists" if more else ""
    if worst.weight == "note":
        return Check("slurm", "ok", f"{text}; known: {worst.text}{rest}")
    todo = f"update Slurm, to {releases.shown(releases.sound(version))} for example"
    return Check("slurm", worst.weight, f"{text}: {worst.text}{rest}", todo)


def munge(known: Known) -> Check:
    """Whether munge, which Slurm needs, answers, and whether it accepts its own credential."""
    auth = setting(known, "AuthType") or "auth/munge"
    if known.has_slurm and auth != "auth/munge":
        return Check("munge", "ok", f"not used: AuthType is {auth}")
    socket = re.search(r"(?:^|,)socket=([^,\s]+)", setting(known, "AuthInfo"))
    where = ("-S", socket[1]) if socket else ()
    said = known.host.said("munge", "-n", *where)
    if said.code == 127:
        return Check("munge", "ok", "not installed; only Slurm needs it")
    if said.code == 0:
        return Check("munge", "ok", "answers")
    status: Status = "fail" if known.has_slurm else "warn"
    return Check("munge", status, said.last or "does not answer", "systemctl start munge")


def clock(known: Known) -> Check:
    """How far this host's clock is from slurmctld's: munge refuses credentials that are too old or
    too young.
    """
    if not known.answers:
        return Check("clock", "ok", "not compared, since slurmctld does not answer")
    found = re.search(r"as of ([0-9T:-]+)", known.host.said("scontrol", "show", "config").out)
    try:
        told = time.mktime(time.strptime(found[1], "%Y-%m-%dT%H:%M:%S")) if found else None
    except (ValueError, OverflowError):
        told = None
    if told is None or known.asked_at is None:
        return Check("clock", "ok", "slurmctld does not tell its time")
    apart = abs(known.asked_at - told)
    if apart < CLOCK_WARN_S:
        return Check("clock", "ok", "as slurmctld's")
    todo = "synchronise the clocks of all hosts, for example with chrony"
    status: Status = "fail" if apart > CLOCK_FAIL_S else "warn"
    return Check(
        "clock", status, f"{apart:.0f} s from slurmctld's; munge refuses more than 300 s", todo
    )


def privacy(known: Known) -> Check:
    """Whether what slurm.conf hides from other users is hidden in reports as well."""
    hidden = words(conf(known).text("PrivateData")) & {"jobs", "usage"}
    missing = sorted(hidden - set(known.need.reports.private_data))
    if missing:
        todo = f"write reports: {{private_data: [{', '.join(sorted(hidden))}]}} in qgpu.yaml"
        text = f"slurm.conf hides {' and '.join(missing)} of others, qgpu shows them"
        return Check("privacy", "warn", text, todo)
    return Check("privacy", "ok", "reports hide what slurm.conf hides")
