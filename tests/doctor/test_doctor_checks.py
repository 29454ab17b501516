"""Checks of qgpu doctor on the machine, and the environment by qgpu run; no daemon, no driver."""

from __future__ import annotations

import os

import pytest
from click.testing import CliRunner

from cli.doctor.checks import ssh, system
from cli.doctor.command import doctor, table
from cli.doctor.host import Host
from cli.doctor.known import Known
from cli.doctor.result import Check
from cli.main import main
from cli.run.command import environment, preload
from cli.run.private import config_text, device_files, find_part
from gres.config.site import parse_config
from simulator.fakes import FakeNvml

HOST = Host(trusted=frozenset({0, os.geteuid()}))


def test_shim_that_others_could_change_or_that_is_no_library_is_a_fault(tmp_path):
    shim = tmp_path / "libcuda.so.1"
    assert "No such file" in system.shim_fault(shim, HOST)
    shim.write_bytes(b"no library")
    shim.chmod(0o666)
    assert "writable by it alone" in system.shim_fault(shim, HOST)
    shim.chmod(0o600)
    if os.geteuid() == 0:
        assert system.shim_fault(shim, HOST) == "users cannot read it"
        shim.chmod(0o644)
        assert "it does not load: " in system.shim_fault(shim, HOST)


def test_policies_of_the_arbiters_threads_are_read_from_proc(tmp_path):
    process = tmp_path / str(os.getpid())
    (process / "task" / str(os.getpid())).mkdir(parents=True)
    (process / "comm").write_text("qgpu-arbiter\n")
    (process / "status").write_text("Uid:" + f"\t{os.geteuid()}" * 4 + "\n")
    (process / "cmdline").write_bytes(b"/x/qgpu-arbiter\0--run-dir\0/run/a\0")
    mine, others = (
        Host(proc=tmp_path, trusted=frozenset(uids)) for uids in ({os.geteuid()}, {4711})
    )
    assert system.arbiter_policies("/run/a", mine) == {"SCHED_OTHER"}
    assert system.arbiter_policies("/run/b", mine) is None
    assert system.arbiter_policies("/run/a", others) is None, "a user's program of that name"


def test_table_has_one_line_per_check_and_the_way_out():
    text = table([Check("a", "ok", "fine"), Check("longer", "fail", "broken", "mend it")])
    assert text.splitlines() == ["ok    a       fine", "FAIL  longer  broken -> mend it"]


@pytest.mark.parametrize(
    ("lines", "status", "word"),
    [
        ("", "ok", "nothing in"),
        ("# account required pam_slurm_adopt.so\n", "ok", "nothing in"),
        ("account required pam_slurm_adopt.so\n", "warn", "without pam_qgpu.so"),
        ("-account required pam_slurm_adopt.so\n#session pam_qgpu.so\n", "warn", "no limits"),
        (
            "account required pam_slurm_adopt.so\nsession [default=bad] pam_qgpu.so\n",
            "ok",
            "limits",
        ),
    ],
)
def test_ssh_sessions_in_jobs_without_their_limits_are_told(
    tmp_path, monkeypatch, lines, status, word
):
    (tmp_path / "sshd").write_text(f"@include common-auth\n{lines}")
    monkeypatch.setattr(ssh, "PAM", tmp_path)
    check = ssh.ssh(Known(HOST, "none"))
    assert (check.status, word in check.text) == (status, True), check


def test_roles_have_a_line_of_their_own_and_nothing_steers_the_terminal() -> None:
    checks = [Check("a", "ok", "fine"), Check("b", "fail", "x\x1b[2J\ny\u2028z", group="node")]
    assert table(checks).splitlines() == [
        "ok    a  fine",
        "node:",
        "FAIL  b  x\\x1b[2J\\x0ay\\u2028z",
    ]


def test_exit_status_is_one_when_something_fails(tmp_path):
    done = CliRunner().invoke(doctor, ["--config", str(tmp_path / "none.yaml")])
    assert done.exit_code == 1 and done.output.startswith("FAIL  config")


# ---- qgpu run ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new"),
    [("", "/s"), ("/a.so", "/s:/a.so"), ("/a.so /b.so:/s", "/s:/a.so:/b.so"), ("::", "/s")],
)
def test_shim_stands_in_front_of_ld_preload_once(old, new):
    assert preload("/s", old) == new


def test_environment_keeps_what_is_not_ours():
    answer = {"path": "/r/grants/1.grant", "shim": "/s", "uuid": "GPU-1"}
    old = {"PATH": "/bin", "CUDA_VISIBLE_DEVICES": "3"}
    assert environment(answer, 100, old) == {
        "PATH": "/bin",
        "QGPU_GRANT_FD": "100",
        "QGPU_GRANT": "/r/grants/1.grant",
        "LD_PRELOAD": "/s",
        "CUDA_VISIBLE_DEVICES": "GPU-1",
    }


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (["--mem", "8X", "--", "true"], 125, "--mem: '8X' is not a size"),
        (
            ["--mem", "8", "--", "true"],
            125,
            "--mem 8 is less than 1M; a number without a unit counts bytes",
        ),
        (["--share", "x", "--", "true"], 125, "'x' is not a valid integer"),
        (["--class", "batch", "--", "true"], 125, "'batch' is not one of 'online', 'offline'"),
        ([], 125, "Missing argument"),
        (
            ["--config", "/nonexistent/q.yaml", "--", "true"],
            125,
            "the configuration cannot be read",
        ),
    ],
)
def test_bad_words_of_qgpu_run_start_nothing(words, code, sentence):
    done = CliRunner().invoke(main, ["run", *words])
    assert done.exit_code == code and sentence in done.output


def test_options_behind_the_command_are_the_commands():
    done = CliRunner().invoke(
        main, ["run", "--config", "/nonexistent/q.yaml", "prog", "--mem", "x", "--help"]
    )
    assert done.exit_code == 125 and "q.yaml" in done.output


def test_private_configuration_names_the_cards_that_nvml_sees(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "cli.run.private.PynvmlNvml", lambda: FakeNvml.with_cards(2, 80 << 30, first_minor=3)
    )
    monkeypatch.setattr("cli.run.private.find_part", lambda name: f"/x/{name}")
    monkeypatch.delenv("QGPU_SIM_DIR", raising=False)
    node = parse_config(config_text(tmp_path)).node("local")
    assert [card.path for card in node.cards] == ["/dev/nvidia3", "/dev/nvidia4"]
    assert node.cards[0].usable == 80 * 1024 - 512
    monkeypatch.setenv("QGPU_SIM_DIR", "/tmp/sim")
    assert device_files([0, 2]) == "/tmp/sim/dev/qgpusim[0,2]"


@pytest.mark.native
def test_parts_are_found_in_the_checkout():
    assert find_part("arbiter").endswith("qgpu-arbiter") and find_part("shim").endswith(
        "libcuda.so.1"
    )
