"""What the owner of a job reads when its memory moves."""

from __future__ import annotations

from enforcer.daemon.reclaim.away import Away
from gres.units import MIB, format_mib


def _where(away: Away) -> str:
    cards = ", ".join(str(card.index) for card in away.grant.cards)
    plural = "s" if len(away.grant.cards) > 1 else ""
    return f"card{plural} {cards} of {away.grant.node}"


def left(away: Away) -> str:
    """Its memory left."""
    why = f"job {away.other} needs the GPU memory of this job"
    return (
        f"qgpu: {why if away.other else 'this job moves to another card'}. Its"
        f" {format_mib(away.size // MIB)} of {_where(away)} were moved to its host memory. It goes"
        " on where it stopped once there is room."
    )


def returned(away: Away) -> str:
    """Its memory is back."""
    return (
        f"qgpu: the GPU memory of this job ({format_mib(away.size // MIB)}) is back on"
        f" {_where(away)}, and it goes on."
    )


def unable(away: Away, why: str, policy: str) -> str:
    """It could not be moved."""
    done = "It is put back into the queue." if policy == "requeue" else "It is stopped."
    need = f"job {away.other} needs" if away.other else "other jobs need"
    return (
        f"qgpu: {need} the GPU memory of this job, and it cannot be moved: {why}. {done} Managed"
        " memory, and memory that processes share (CUDA IPC), cannot be moved; an online QOS keeps"
        " its memory."
    )
