"""The one exception that sandbox code raises on purpose; its text is a sentence for a person."""

import re

_FAILURE = re.compile(
    r"^E: |\b(cannot|could ?n[o']t|unable|fail(ed|ure)|error:|fatal|refused|denied|killed|missing"
    r"|no space left|not (found|permitted)|no such file)",
    re.IGNORECASE,
)
# What apt, dpkg and debootstrap say on the way to a tree that is well.
_HARMLESS = re.compile(
    r"^[IWN]: |^(Get:|Selecting|Preparing|Unpacking|Setting up)|warning|policy-rc\.d|runlevel"
    r"|Can not write log|catalog|mounted file systems",
    re.IGNORECASE,
)


class SandboxError(Exception):
    """Something that the user can act on: what was wrong, with which value, and what would work."""


def cause(output: str) -> str:
    """Why a program failed, by its output: its first line that says so, because what follows that
    is mostly its consequence; the last line if none does.
    """
    lines = [line.strip() for line in output.split("\n") if line.strip()]
    said = (line for line in lines if _FAILURE.search(line) and not _HARMLESS.search(line))
    return next(said, lines[-1] if lines else "it said nothing")[:500]
