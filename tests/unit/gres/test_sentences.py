"""Sentences about files that pydantic read: short, whatever was found."""

from __future__ import annotations

import pytest

from simulator.whatif.simtrace import TraceError, parse_trace

USES = (
    ("tenants: *a30", "tenants.0: write its keys below it"),
    ("duration: *a30", "is not a duration"),
    ("tenants: [{name: a, class: offline, kernel: 1ms, load: *a30}]", "is not a load"),
    ("tenants: [{name: a, class: offline, kernel: *a30}]", "is not a duration"),
)


@pytest.mark.parametrize(("use", "said"), USES)
def test_an_alias_of_an_alias_is_not_written_out(use: str, said: str) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [
        f"a{i + 1}: &a{i + 1} [{', '.join([f'*a{i}'] * 9)}]" for i in range(30)
    ]  # 9^31 words if written out
    try:
        parse_trace("\n".join([*lines, use]))
    except TraceError as error:
        assert said in str(error) and len(str(error)) < 100_000
    else:
        raise AssertionError("it was taken for a trace")
