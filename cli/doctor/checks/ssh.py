"""Checks of ssh into a job's node: what pam_slurm_adopt lets in needs the job's limits."""

from __future__ import annotations

import re
from pathlib import Path

from cli.doctor.known import Known
from cli.doctor.result import Check

PAM = Path("/etc/pam.d")
ADOPT, OURS = "pam_slurm_adopt.so", "pam_qgpu.so"
LINE = f"session [success=ok module_unknown=ignore ignore=ignore default=bad] {OURS}"


def ssh(known: Known) -> Check:
    """Whether sessions that pam_slurm_adopt moves into jobs get the limits of these jobs."""
    adopting = _naming(known, ADOPT)
    if not adopting:
        return Check("ssh", "ok", f"nothing in {PAM} moves sessions into jobs ({ADOPT})")
    ours = _naming(known, OURS)
    if ours:
        return Check("ssh", "ok", f"sessions in jobs get their limits ({OURS} in {ours[0]})")
    return Check(
        "ssh",
        "warn",
        f"{adopting[0]} has {ADOPT} without {OURS}: ssh sessions in a job have its card, and no"
        " limits until the audit finds them",
        f"write as the last line of /etc/pam.d/sshd: {LINE}",
    )


def _naming(known: Known, module: str) -> list[Path]:
    """The files of PAM that name a module outside of comments."""
    named = re.compile(rf"^[^#\n]*\b{re.escape(module)}\b", re.MULTILINE)
    files = sorted(PAM.iterdir()) if PAM.is_dir() else []
    return [file for file in files if named.search(known.host.read(file) or "")]
