"""What qgpud tells allocations that the driver refused, through the gate page of a fake arbiter."""

from __future__ import annotations

import ctypes

from shim_support import FUTEX_WAKE, SYS_FUTEX, Tenant

from enforcer.wire import abi


def tell(card: Tenant, *counted: str, wait: int | None = None) -> None:
    """Counts these words, sets whether refused allocations wait, and wakes them."""
    page = card.gate_page
    for word in counted:
        setattr(page, word, getattr(page, word) + 1)
    if wait is not None:
        page.mem_wait = wait
    page.mem_changes += 1
    at = ctypes.c_void_p(ctypes.addressof(page) + abi.GatePage.mem_changes.offset)
    ctypes.CDLL(None).syscall(SYS_FUTEX, at, FUTEX_WAKE, 1000)
