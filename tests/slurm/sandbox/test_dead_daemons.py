"""A daemon that ends by itself is named with its signal, its last lines and its core: by commands
of the sandbox and in the report of a failed test.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import dead_daemons
import pytest
from click.testing import CliRunner

from cli.main import main
from cli.sandbox import ended, wait
from cli.sandbox.cluster import Sandbox
from cli.sandbox.errors import SandboxError
from cli.sandbox.options import SandboxOptions

PATTERN = Path("/proc/sys/kernel/core_pattern")


@pytest.fixture(scope="module")
def crashed() -> Iterator[Sandbox]:
    """A sandbox whose slurmctld was ended by SIGSEGV, and an arbiter by us."""
    cluster = Sandbox(SandboxOptions(f"t{os.getpid()}d", nodes=1, cards=1), progress=print)
    cluster.up()
    try:
        cluster.kill(cluster.node_names[0], "arbiter")
        assert cluster.last_words() == ""
        pid = int((cluster.layout.pids / "slurmctld").read_text().split()[0])
        os.kill(pid, signal.SIGSEGV)
        wait.until(lambda: not cluster.services()["slurmctld"], 60, "the end of slurmctld")
        yield cluster
    finally:
        cluster.down()


def test_a_command_that_fails_says_what_is_known(crashed: Sandbox) -> None:
    with pytest.raises(SandboxError, match="Unable to contact slurm controller") as error:
        crashed.run(["sinfo"])
    said = str(error.value)
    assert "slurmctld ended by itself: killed by signal 11 (SIGSEGV)" in said
    assert f"the end of {crashed.layout.log('slurmctld')}:" in said
    assert f"the end of {crashed.layout.log('slurmctld.out')}:" in said
    assert "arbiter" not in said


def test_status_says_it_in_another_process(crashed: Sandbox) -> None:
    done = CliRunner().invoke(main, ["sandbox", "status", "--name", crashed.options.name])
    assert done.exit_code == 1
    assert "slurmctld ended by itself: " in done.output
    assert f"the end of {crashed.layout.log('slurmctld')}:" in done.output


def test_the_report_of_a_failed_test_has_it(
    crashed: Sandbox, request: pytest.FixtureRequest
) -> None:
    failing = pytest.Function.from_parent(request.node.parent, name="failing", callobj=lambda: None)
    failing.funcargs = {"first": crashed, "second": crashed, "third": None}
    for work, sections in ((list, 0), (lambda: list(None), 1)):
        call = pytest.CallInfo.from_call(work, "call")
        report = failing.ihook.pytest_runtest_makereport(item=failing, call=call)
        found = [text for name, text in report.sections if name == dead_daemons.TITLE]
        assert len(found) == sections
        assert all(text.count("slurmctld ended by itself") == 1 for text in found)


@pytest.mark.skipif(
    ended.core_names(PATTERN.read_text().strip()) is None, reason="cores go elsewhere on this host"
)
def test_the_core_stays_in_the_sandbox(crashed: Sandbox) -> None:
    (core,) = crashed.cores()
    assert (core.program, core.signum) == ("slurmctld", signal.SIGSEGV)
    assert core.path.parent == crashed.layout.core_dir("slurmctld")
    assert f"its core is {core.path}" in crashed.last_words()
    trace = dead_daemons.backtrace(core)
    assert trace.startswith("#0 ") if shutil.which("gdb") else trace == ""
    # another process has no exit status, but the core
    other = Sandbox.existing(crashed.options.name)
    assert "slurmctld ended by itself: killed by signal 11 (SIGSEGV), as its core says" in (
        other.last_words()
    )
