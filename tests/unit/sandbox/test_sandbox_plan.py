"""Choosing free resources, and refusing directories that are not ours."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cli.sandbox import plan
from cli.sandbox.cluster import Sandbox
from cli.sandbox.errors import SandboxError
from cli.sandbox.layout import Layout
from cli.sandbox.options import MAX_CARDS, MAX_NODES, SandboxOptions
from cli.sandbox.plan import SLOTS, Plan


def make_plan(slot: int = 0, nodes: int = 2) -> Plan:
    names = [f"n{i + 1}" for i in range(nodes)]
    return Plan("default", names, 2, 81920, "h200", "NVIDIA H200", slot, "v1", "cgroup v1")


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    state = tmp_path / "state"
    state.mkdir(mode=0o755)
    return Layout(state)


def test_slots_share_no_port_uid_or_minor() -> None:
    ports: list[int] = []
    uids: list[int] = []
    minors: list[int] = []
    for slot in range(SLOTS):
        each = make_plan(slot, MAX_NODES)
        ports += [each.port_dbd, each.port_ctld, *(each.port_slurmd(n) for n in each.nodes)]
        uids += [each.first_uid, each.first_uid + 1]
        minors += [each.minor_base(n) + card for n in each.nodes for card in range(MAX_CARDS)]
    for numbers in (ports, uids, minors):
        assert len(numbers) == len(set(numbers))
    assert max(ports) < 32768
    assert max(uids) < 60000
    assert max(minors) < 1 << 20


TAKE = """
import sys
from cli.sandbox import plan
sys.stdin.readline()
for slot in range(plan.SLOTS):
    if (held := plan.reserve(slot)) is not None:
        print(slot, flush=True)
        sys.stdin.readline()
        break
"""


def test_sandboxes_that_start_at_once_get_slots_of_their_own() -> None:
    ups = [
        subprocess.Popen(
            [sys.executable, "-c", TAKE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(12)
    ]
    try:
        for up in ups:
            assert up.stdin
            up.stdin.write("\n")
            up.stdin.flush()
        slots = [int(up.stdout.readline()) for up in ups if up.stdout]
    finally:
        for up in ups:
            up.communicate()
    assert len(set(slots)) == len(ups)


def test_a_slot_is_taken_as_long_as_a_process_holds_it() -> None:
    slot = SLOTS + os.getpid()  # no sandbox has it
    held = plan.reserve(slot)
    assert held is not None
    with held:
        holder = subprocess.Popen(["sleep", "600"], pass_fds=[held.fileno()])
    try:
        assert plan.reserve(slot) is None
    finally:
        holder.kill()
        holder.wait()
    again = plan.reserve(slot)
    assert again is not None
    again.close()


def test_the_record_comes_back_as_it_was(layout: Layout) -> None:
    make_plan(3).with_phase("up").save(layout)
    assert plan.load(layout) == make_plan(3).with_phase("up")
    assert not layout.record_new.exists()


def test_no_directory_and_an_empty_one_are_no_sandbox(layout: Layout, tmp_path: Path) -> None:
    assert plan.load(Layout(tmp_path / "absent")) is None
    assert plan.load(layout) is None


def test_a_directory_with_other_files_is_left_alone(layout: Layout) -> None:
    precious = layout.state / "thesis.tex"
    precious.write_text("years of work")
    sandbox = Sandbox(SandboxOptions(state_dir=layout.state))
    with pytest.raises(SandboxError, match="is not a sandbox"):
        sandbox.down()
    assert precious.read_text() == "years of work"


def test_a_record_of_another_version_is_not_guessed(layout: Layout) -> None:
    make_plan().save(layout)
    raw = json.loads(layout.record.read_text())
    layout.record.write_text(json.dumps({**raw, "format": 99}))
    with pytest.raises(SandboxError, match="format 99"):
        plan.load(layout)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"format": 1}', '{"format": 1, "evil": 2}'])
def test_a_broken_record_is_refused(layout: Layout, text: str) -> None:
    layout.record.write_text(text)
    with pytest.raises(SandboxError, match="cannot be read"):
        plan.load(layout)


def test_a_directory_that_others_may_write_is_refused(layout: Layout) -> None:
    make_plan().save(layout)
    layout.state.chmod(0o777)
    with pytest.raises(SandboxError, match="mode 777"):
        plan.load(layout)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_directory_of_another_user_is_refused(layout: Layout) -> None:
    make_plan().save(layout)
    os.chown(layout.state, 12345, 12345)
    with pytest.raises(SandboxError, match="belongs to uid 12345"):
        plan.load(layout)


def test_a_symbolic_link_is_refused(layout: Layout, tmp_path: Path) -> None:
    make_plan().save(layout)
    link = tmp_path / "link"
    link.symlink_to(layout.state)
    with pytest.raises(SandboxError, match="is not a directory"):
        plan.load(Layout(link))


def test_what_a_first_step_left_is_removed(layout: Layout) -> None:
    layout.record_new.write_text("{")
    assert Sandbox(SandboxOptions(state_dir=layout.state)).down()
    assert not layout.state.exists()
