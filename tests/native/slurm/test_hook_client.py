"""qgpu-hook: every way a Prolog and an Epilog can go, against a daemon made of one thread."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.native,
    pytest.mark.skipif(
        os.geteuid() != 0, reason="the hook is root's: its socket must belong to root"
    ),
]

BUILD = Path(__file__).parents[3] / "build"
HOOK = BUILD / "bin/qgpu-hook"
CARD_JOB = {
    "SLURM_JOB_ID": "4711",
    "SLURM_JOB_UID": "1000",
    "SLURM_JOB_GPUS": "0",
    "SLURM_JOB_COMMENT": "qgpu/1 class=online share=30 mem=12288; a comment",
    "SLURMD_NODENAME": "n1",
    "SPANK_SECRET": "the user's",
    "PATH": "/nowhere",
}


class Daemon:
    """Answers each question with what `reply` returns (None: nothing, then closes)."""

    def __init__(self, path: Path, reply: Callable[[bytes], bytes | None]) -> None:
        self.questions: list[bytes] = []
        self._reply = reply
        self._server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._server.bind(str(path))
        self._server.listen(8)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._server.accept()
            except OSError:
                return
            with client:
                question = client.recv(70000)
                self.questions.append(question)
                answer = self._reply(question)
                if answer is not None:
                    client.send(answer)

    def close(self) -> None:
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self._thread.join(5)


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    path = tmp_path / "run"
    path.mkdir(mode=0o755)
    (path / "grants").mkdir(mode=0o755)
    return path


@pytest.fixture
def daemon(run_dir: Path) -> Iterator[Callable[[Callable[[bytes], bytes | None]], Daemon]]:
    started: list[Daemon] = []

    def start(reply: Callable[[bytes], bytes | None]) -> Daemon:
        started.append(Daemon(run_dir / "hook.sock", reply))
        return started[-1]

    yield start
    for item in started:
        item.close()


def hook(
    kind: str,
    run_dir: Path | str,
    env: dict[str, str],
    *more: str,
    deadline: int = 2000,
    proven: bool = True,
) -> subprocess.CompletedProcess[str]:
    """One run of the client; before a Prolog with the plugin's job prolog, as slurmd has it run."""
    command = [str(HOOK), kind, "--run-dir", str(run_dir), "--deadline-ms", str(deadline), *more]
    if kind == "prolog" and proven:
        stage = [
            str(BUILD / "test/spank_stage"),
            str(BUILD / "lib/qgpu_spank.so"),
            "prolog",
            "1",
            "0",
        ]
        command = [*stage, f"run_dir={run_dir}", "--", *command]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=30)


def fake_scontrol(tmp_path: Path, body: str = "") -> tuple[Path, Path]:
    log = tmp_path / "scontrol.log"
    script = tmp_path / "scontrol"
    script.write_text(f'#!/bin/sh\n{body}\nfor a in "$@"; do echo "$a" >> {log}; done\n')
    script.chmod(0o755)
    return script, log


def test_prolog_passes_the_whitelisted_environment_and_takes_the_answer(run_dir, daemon):
    served = daemon(lambda _: b"qgpu-hook/1 0\0")
    done = hook("prolog", run_dir, CARD_JOB)
    assert (done.returncode, done.stderr) == (0, "")
    head, *variables = served.questions[0].split(b"\0")
    assert head == b"qgpu-hook/1 prolog"
    assert b"SLURM_JOB_ID=4711" in variables and b"SLURM_JOB_GPUS=0" in variables
    assert b"SLURM_JOB_COMMENT=qgpu/1 class=online share=30 mem=12288; a comment" in variables
    assert not any(v.startswith((b"SPANK", b"PATH")) for v in variables)


# Behind its first word a comment is the user's own, whom no node must be drained for.
ORDINARY = (
    "my simulation",
    "my run about qgpu/1 whole",
    "x; qgpu/1 class=online share=30 mem=12288",
)


@pytest.mark.parametrize("comment", [*ORDINARY, "qgpu/1 node", "qgpu/1 node; mine"])
@pytest.mark.parametrize("kind", ["prolog", "epilog"])
def test_job_without_card_and_share_does_not_need_the_daemon(tmp_path, kind, comment):
    """A job with --exclusive is tagged so also where there is neither card nor daemon."""
    env = {"SLURM_JOB_ID": "1", "SLURMD_NODENAME": "n1", "SLURM_JOB_COMMENT": comment}
    done = hook(kind, tmp_path / "does-not-exist", env)
    assert (done.returncode, done.stderr) == (0, "")


def test_whole_cards_that_slurm_did_not_give_are_reported_to_the_daemon(run_dir, daemon):
    served = daemon(lambda _: b"qgpu-hook/1 0\0")
    for tag in ("qgpu/1 whole; mine", " qgpu/1 whole"):
        env = {"SLURM_JOB_ID": "1", "SLURMD_NODENAME": "n1", "SLURM_JOB_EXTRA": tag}
        assert hook("prolog", run_dir, env).returncode == 0
    assert len(served.questions) == 2


def test_epilog_asks_when_a_grant_is_left_although_the_tag_is_gone(run_dir, daemon):
    served = daemon(lambda _: b"qgpu-hook/1 0\0")
    (run_dir / "grants/5.json").write_text("{}")
    assert hook("epilog", run_dir, {"SLURM_JOB_ID": "5"}).returncode == 0
    assert served.questions[0].startswith(b"qgpu-hook/1 epilog\0")


def test_broken_node_is_drained_with_the_daemons_reason(tmp_path, run_dir, daemon):
    daemon(lambda _: b"qgpu-hook/1 1\0card 0 does not answer")
    scontrol, log = fake_scontrol(tmp_path)
    done = hook("prolog", run_dir, CARD_JOB, "--scontrol", str(scontrol))
    assert done.returncode == 1
    assert done.stderr == "qgpu: card 0 does not answer\n"
    assert log.read_text().splitlines() == [
        "update",
        "NodeName=n1",
        "State=DRAIN",
        "Reason=qgpu: card 0 does not answer",
    ]
    assert "job=4711 qgpu: card 0 does not answer" in (run_dir / "last-failure").read_text()


def test_absent_daemon_breaks_the_node_within_the_deadline(tmp_path, run_dir):
    scontrol, log = fake_scontrol(tmp_path)
    began = time.monotonic()
    done = hook("prolog", run_dir, CARD_JOB, "--scontrol", str(scontrol), deadline=300)
    assert 0.2 < time.monotonic() - began < 40
    assert done.returncode == 1
    reason = (
        f"qgpu: qgpud on this node does not answer at {run_dir}/hook.sock: start it, then "
        "scontrol update nodename=n1 state=resume"
    )
    assert done.stderr.startswith(reason)
    assert log.read_text().splitlines()[3].startswith("Reason=" + reason)
    assert reason in (run_dir / "last-failure").read_text()


def test_scontrol_that_hangs_is_stopped(tmp_path, run_dir):
    scontrol, log = fake_scontrol(tmp_path, body="exec sleep 60")
    began = time.monotonic()
    done = hook("prolog", run_dir, CARD_JOB, "--scontrol", str(scontrol), deadline=100)
    assert done.returncode == 1
    assert 4.5 < time.monotonic() - began < 30, "long before it would have ended"
    assert not log.exists()
    assert "the drain reason will be Slurm's own" in done.stderr


def test_daemon_that_says_nothing_is_not_waited_for_beyond_the_deadline(run_dir, daemon):
    release = threading.Event()

    def stall(_: bytes) -> None:
        release.wait(60)

    daemon(stall)
    began = time.monotonic()
    done = hook("prolog", run_dir, CARD_JOB, deadline=300)
    release.set()
    assert done.returncode == 1 and "no answer in time" in done.stderr
    assert time.monotonic() - began < 30, "long before it would have been answered"


def test_daemon_that_restarts_meanwhile_is_asked_again(run_dir, daemon):
    answers = iter([None, b"qgpu-hook/1 0\0"])
    served = daemon(lambda _: next(answers))
    assert hook("prolog", run_dir, CARD_JOB).returncode == 0
    assert len(served.questions) == 2


def test_missing_daemon_is_told_long_before_a_long_deadline(run_dir):
    """A Prolog may wait an hour for memory, and not for a qgpud that is not there."""
    done = hook("prolog", run_dir, CARD_JOB, "--connect-ms", "200", deadline=7_200_000)
    assert done.returncode == 1 and "qgpud on this node does not answer" in done.stderr


def test_daemon_that_restarts_after_a_long_wait_is_asked_again(run_dir, daemon):
    """It has as long to come back as it has to start, also after more than that."""
    times = iter([None, None, b"qgpu-hook/1 0\0"])

    def late(_: bytes) -> bytes | None:
        time.sleep(0.15)  # what is tried is time that passes
        return next(times)

    served = daemon(late)
    done = hook("prolog", run_dir, CARD_JOB, "--connect-ms", "100", deadline=60_000)
    assert (done.returncode, len(served.questions)) == (0, 3), done.stderr


@pytest.mark.parametrize(
    "answer",
    [b"hello", b"qgpu-hook/2 0\0", b"qgpu-hook/1 -1\0x", b"qgpu-hook/1 \0x", b"qgpu-hook/1 999\0x"],
)
def test_answer_in_another_language_is_a_broken_node(run_dir, daemon, answer):
    daemon(lambda _: answer)
    done = hook("prolog", run_dir, CARD_JOB, deadline=300)
    assert done.returncode == 1 and "is another version installed?" in done.stderr


def test_message_of_a_good_answer_is_shown(run_dir, daemon):
    daemon(lambda _: b"qgpu-hook/1 0\0mind the gap\0 and nothing behind it")
    done = hook("prolog", run_dir, CARD_JOB)
    assert (done.returncode, done.stderr) == (0, "qgpu: mind the gap\n")


def test_epilog_without_daemon_leaves_a_marker_and_succeeds(run_dir):
    done = hook("epilog", run_dir, CARD_JOB, deadline=10000)
    assert done.returncode == 0
    marker = run_dir / "grants/4711.ended"
    assert marker.stat().st_mode & 0o777 == 0o600 and marker.stat().st_uid == 0
    assert "the end of job 4711 is noted for it" in done.stderr


def test_epilog_never_drains_even_if_the_daemon_says_so(run_dir, daemon):
    daemon(lambda _: b"qgpu-hook/1 1\0broken")
    done = hook("epilog", run_dir, CARD_JOB)
    assert (done.returncode, done.stderr) == (0, "qgpu: epilog: broken\n")
    assert not (run_dir / "last-failure").exists()


def test_node_name_is_put_into_the_path(tmp_path, run_dir, daemon):
    daemon(lambda _: b"qgpu-hook/1 0\0")
    (tmp_path / "n1").mkdir()
    run_dir.rename(tmp_path / "n1" / "run")
    assert hook("prolog", f"{tmp_path}/%n/run", CARD_JOB).returncode == 0


@pytest.mark.parametrize("name", ["../n1", "", "n1 State=RESUME", ".hidden"])
def test_node_name_that_is_none_is_refused(tmp_path, name):
    done = hook("prolog", f"{tmp_path}/%n/run", CARD_JOB | {"SLURMD_NODENAME": name})
    assert done.returncode == 1 and "%n needs SLURMD_NODENAME" in done.stderr


@pytest.mark.parametrize("job", [None, "", "12; rm", "-1", "9" * 25])
def test_job_id_must_be_a_number(run_dir, job):
    env = {k: v for k, v in CARD_JOB.items() if k != "SLURM_JOB_ID"} | (
        {} if job is None else {"SLURM_JOB_ID": job}
    )
    done = hook("prolog", run_dir, env)
    assert done.returncode == 2 and "SLURM_JOB_ID" in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["start"],
        ["prolog"],
        ["prolog", "--run-dir", "relative", "--deadline-ms", "5"],
        ["prolog", "--run-dir", "/run/x", "--deadline-ms", "0"],
        ["prolog", "--run-dir", "/run/x", "--deadline-ms", "soon"],
        ["prolog", "--run-dir", "/run/x", "--deadline-ms", "7200001"],
        ["prolog", "--run-dir", "/run/x", "--deadline-ms", "5", "--connect-ms", "soon"],
        ["prolog", "--run-dir", "/run/x", "--deadline-ms", "5", "--scontrol", "scontrol"],
        ["prolog", "--run-dir"],
    ],
)
def test_wrong_usage_is_said(arguments):
    done = subprocess.run([str(HOOK), *arguments], env=CARD_JOB, capture_output=True, text=True)
    assert done.returncode == 2 and "usage:" in done.stderr


def test_long_comment_is_cut_and_the_rest_arrives(run_dir, daemon):
    served = daemon(lambda _: b"qgpu-hook/1 0\0")
    env = CARD_JOB | {"SLURM_JOB_COMMENT": "qgpu/1 whole; " + "x" * 90000}
    assert hook("prolog", run_dir, env).returncode == 0
    values = dict(v.split(b"=", 1) for v in served.questions[0].split(b"\0")[1:] if v)
    assert len(values[b"SLURM_JOB_COMMENT"]) == 4096
    assert values[b"SLURMD_NODENAME"] == b"n1"


def test_directory_that_others_can_write_is_not_believed(run_dir, daemon):
    daemon(lambda _: b"qgpu-hook/1 0\0")
    run_dir.chmod(0o777)
    done = hook("prolog", run_dir, CARD_JOB, deadline=300)
    assert done.returncode == 1 and "writable by others than root" in done.stderr


def test_socket_of_another_user_is_not_believed(run_dir, daemon):
    daemon(lambda _: b"qgpu-hook/1 0\0")
    os.chown(run_dir / "hook.sock", 65534, 65534)
    done = hook("prolog", run_dir, CARD_JOB, deadline=300)
    assert done.returncode == 1 and "not a socket that root owns" in done.stderr


def test_symbolic_link_to_run_dir_is_not_followed(tmp_path, run_dir, daemon):
    daemon(lambda _: b"qgpu-hook/1 0\0")
    (tmp_path / "link").symlink_to(run_dir)
    assert hook("prolog", tmp_path / "link", CARD_JOB, deadline=300).returncode == 1


@pytest.mark.parametrize(
    ("kind", "answer", "listens"),
    [
        ("prolog", b"qgpu-hook/1 0\0", True),
        ("epilog", b"qgpu-hook/1 0\0", True),
        ("epilog", b"qgpu-hook/1 1\0broken", True),
        ("epilog", None, True),
        ("epilog", None, False),
    ],
    ids=["prolog", "epilog", "epilog-broken", "epilog-hung", "epilog-alone"],
)
def test_no_command_of_slurm_is_called_but_on_a_broken_node(
    tmp_path, run_dir, daemon, kind, answer, listens
):
    if listens:
        daemon(lambda _: answer)
    scontrol, log = fake_scontrol(tmp_path)
    done = hook(kind, run_dir, CARD_JOB, "--scontrol", str(scontrol), deadline=700)
    assert done.returncode == 0 and not log.exists()


def test_a_daemon_whose_queue_is_full_is_not_waited_for_beyond_the_deadline(run_dir):
    """Stopped for long: its socket takes connections no more."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(run_dir / "hook.sock"))
        listener.listen(0)
        with contextlib.ExitStack() as full:
            with contextlib.suppress(BlockingIOError):
                while True:
                    client = full.enter_context(
                        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                    )
                    client.setblocking(False)
                    client.connect(str(run_dir / "hook.sock"))
            began = time.monotonic()
            assert hook("prolog", run_dir, CARD_JOB, deadline=600).returncode == 1
            assert hook("epilog", run_dir, CARD_JOB, deadline=600).returncode == 0
            assert 1.0 < time.monotonic() - began < 30
    assert (run_dir / "grants/4711.ended").exists()
