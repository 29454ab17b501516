"""Hardware preemption over arbiter.sock: values to messages and back."""

from __future__ import annotations

import pytest

from enforcer.wire import abi
from enforcer.wire import messages as arbiter_wire
from enforcer.wire.messages import HardwareSettings

SETTINGS = HardwareSettings("GPU-1", True, "disable", "shim", True, 580, 5000, 1, 2, 3)


def test_settings_to_message() -> None:
    m = arbiter_wire.hardware_message(SETTINGS)
    assert (m.head.type, m.head.size, m.uuid) == (abi.CTL_HARDWARE, 112, b"GPU-1")
    assert (m.enabled, m.method, m.actor, m.weights) == (1, abi.HW_DISABLE, abi.HW_ACTOR_SHIM, 1)
    assert (m.driver_major, m.period_us, m.ctl_dev, m.ctl_ino, m.ctl_rdev) == (580, 5000, 1, 2, 3)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"method": "magic"}, "method 'magic' is unknown"),
        ({"actor": "me"}, "actor 'me' is unknown"),
        ({"period_us": -1}, "period_us is -1"),
        ({"uuid": "G" * 48}, "card UUID"),
    ],
)
def test_what_does_not_fit_is_refused(changes: dict[str, object], why: str) -> None:
    values = {"uuid": "GPU-1", **changes}
    with pytest.raises(abi.AbiError, match=why):
        arbiter_wire.hardware_message(HardwareSettings(**values))  # type: ignore[arg-type]


def test_message_to_tenant() -> None:
    m = abi.CtlHwTenant(
        job_id=7,
        uuid=b"GPU-1",
        state=abi.HW_FAILED,
        actor=abi.HW_ACTOR_ARBITER,
        method=1,
        ngroups=3,
    )
    m.stops, m.stop_max_ns, m.last_status, m.why = 5, 400_000, 0x65, b"because"
    m.stop_hist[9] = 5
    tenant = arbiter_wire.hardware_tenant(bytes(m))
    assert (tenant.job_id, tenant.uuid, tenant.state) == (7, "GPU-1", "failed")
    assert (tenant.actor, tenant.method, tenant.ngroups) == ("arbiter", "schedule", 3)
    assert (tenant.stops, tenant.stop_hist[9], tenant.last_status, tenant.why) == (
        5,
        5,
        0x65,
        "because",
    )


def test_words_of_a_newer_arbiter_are_shown_as_numbers() -> None:
    assert arbiter_wire.hardware_tenant(bytes(abi.CtlHwTenant(state=99))).state == "99"
    with pytest.raises(abi.AbiError, match="has 3 bytes"):
        arbiter_wire.hardware_tenant(b"abc")
