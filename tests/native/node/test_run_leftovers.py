"""What the command of a `qgpu run` leaves behind: real qgpud, arbiter, shim and simulated card."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
from collections.abc import Iterator

import pytest
from node_support import Chain, end, grants, until, work

from enforcer.wire import abi
from enforcer.wire.link import ArbiterLink

MIB, GIB = 1 << 20, 1 << 30
pytestmark = [
    pytest.mark.native,
    pytest.mark.skipif(os.geteuid() != 0, reason="makes device nodes"),
    pytest.mark.timeout(120),
]


def processes(chain: Chain) -> list[int]:
    """Registered with the arbiter."""
    with ArbiterLink(f"{chain.directory}/run") as link:
        return [process.pid for process in link.processes()]


@contextlib.contextmanager
def left(chain: Chain, script: str, *options: str) -> Iterator[subprocess.Popen[str]]:
    """A command that says its child's pid, waits for a line, and ends; the child is ended with
    the block.
    """
    words = ["run", "--card", "0", *options, "--", "sh", "-c", f"{script} & echo $!; read line"]
    command = chain.qgpu(*words, stdin=subprocess.PIPE)
    child = int(command.stdout.readline())
    try:
        yield command
    finally:
        end(command)
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)


def shut(chain: Chain, job_id: int) -> bool:
    return any(t.job_id == job_id and t.gate & abi.GATE_CLOSED for t in chain.tenants())


def over(command: subprocess.Popen[str]) -> None:
    """Lets the command end; its child keeps its descriptors."""
    assert command.stdin
    command.stdin.write("\n")
    command.stdin.flush()
    assert command.wait(30) == 0


def test_what_a_command_leaves_on_the_card_stays_booked_and_governed(start, tmp_path):
    """The grant ends with the last process that uses it: its memory cannot be given out a second
    time before.
    """
    chain = start()
    load = shlex.join(
        map(str, work(chain, "--length", "600", "--kernel-us", "200", "--memory", "30GiB"))
    )
    with left(chain, f"exec {load} > {tmp_path}/out 2>&1", "--mem", "40G") as command:
        until(lambda: any(tenant.launches > 100 for tenant in chain.tenants()))
        over(command)
        code, _, err = chain.said("run", "--card", "0", "--mem", "41G", "--", "true")
        assert code == 125 and "beside 1 grant(s)" in err
        chain.qgpud.kill()
        chain.qgpud.wait()
        chain.start_qgpud()
        until(lambda: chain.log().count("event=serving") == 2)
        (before,) = chain.tenants()
        until(lambda: chain.tenants()[0].launches > before.launches + 100)
        assert (before.procs, before.mem_used) == (1, 30 * GIB + 300 * MIB), "and its context"
        online = chain.qgpu(
            "run",
            "--card",
            "0",
            "--class",
            "online",
            "--share",
            "30",
            "--mem",
            "1G",
            "--",
            *work(chain, "--length", "600", "--kernel-us", "200"),
        )
        try:
            until(lambda: online.poll() is not None or shut(chain, before.job_id))
            assert online.poll() is None, online.communicate()[1]
        finally:
            end(online)
        until(lambda: not chain.tenants()[0].gate & abi.GATE_CLOSED)
        os.kill(processes(chain)[0], signal.SIGKILL)
        until(lambda: grants(chain) == set() and chain.tenants() == [])
        ended = f"event=end job={before.job_id} reason=exit"
        until(lambda: ended in chain.log())
    assert chain.log().count(ended) == 1


def test_what_comes_to_the_card_after_its_command_gets_none_and_says_why(start, tmp_path):
    """It has no grant, so it has no turn: else it would run beside online jobs without a gate."""
    chain = start()
    load = shlex.join(map(str, work(chain, "--iters", "5", "--kernel-us", "200")))
    os.mkfifo(tmp_path / "go")
    script = f"{{ read go < {tmp_path}/go; exec {load}; }} > {tmp_path}/out 2> {tmp_path}/err"
    with left(chain, script, "--mem", "1G") as command:
        over(command)
        until(lambda: grants(chain) == set())
        (tmp_path / "go").write_text("go\n")
        until(lambda: "no device memory" in (tmp_path / "err").read_text(), 60)
        assert "has no grant on card" in (tmp_path / "err").read_text()
        assert '"kernels"' not in (tmp_path / "out").read_text()


# ---- what the command finds ----------------------------------------------------------------------


def test_command_starts_as_from_a_shell(start, tmp_path):
    """Python ignores two signals, and runs no script without a first line; neither is the
    command's business.
    """
    chain = start()
    code, out, _ = chain.said(
        "run", "--", "sh", "-c", "grep SigIgn /proc/self/status; yes | head -1"
    )
    _, ignored, said = out.split()
    assert (code, said) == (0, "y")
    # others may be ignored by who called, as nohup does
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        assert not int(ignored, 16) >> (number - 1) & 1
    script = tmp_path / "script"
    script.write_text('echo "$0" "$1" "$QGPU_GRANT"\n')
    script.chmod(0o755)
    code, out, err = chain.said("run", "--", script, "one")
    assert (code, out.split()[:2], err) == (0, [str(script), "one"], "")
    assert out.split()[2].endswith(".grant")
