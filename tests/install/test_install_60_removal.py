"""Removal, by the commands of docs/install.md: a working Slurm stays, and the site's own files."""

from __future__ import annotations

import re
from collections.abc import Callable

from harness.site import Site

GONE = (
    "/usr/lib/qgpu/python",
    "/usr/libexec/qgpu/qgpu-hook",
    "/var/lib/qgpu",
    "/run/qgpu",
    "/etc/slurm/qgpu",
)


def test_removal(
    site: Site, follow: Callable[[str], None], kept: dict[tuple[str, str], str]
) -> None:
    for (host, path), text in kept.items():  # what the page asks the reader to do
        site[host].write(path, text, site[host].inside(path).stat().st_mode & 0o777)
    follow("Removal")
    site.await_idle()


def test_plain_jobs_run(site: Site) -> None:
    assert site.srun("id -un").out == "alice\n"
    assert site.srun("--gres=gpu:1 sh -c 'echo $CUDA_VISIBLE_DEVICES'").out == "0\n"


def test_admins_still_come_in_by_ssh(site: Site) -> None:
    """sshd's configuration names a module that is gone."""
    assert "pam_qgpu.so" in site["n1"].read("/etc/pam.d/sshd")
    assert site["ctl"].run("ssh n1 id -un").out == "root\n"


def test_nothing_of_qgpu_stays_but_the_sites_own(
    site: Site, kept: dict[tuple[str, str], str]
) -> None:
    for host in site.hosts.values():
        left = host.run(f"find {' '.join(GONE)}", check=False).out
        if host.name == "ctl":  # the collected ledger is the site's
            assert "/var/lib/qgpu/all.sqlite" in left
            left = re.sub(r"^/var/lib/qgpu(/\.?all\.sqlite.*)?\n", "", left, flags=re.MULTILINE)
        assert left == "", host.name
        assert host.inside("/etc/qgpu/qgpu.yaml").exists()
        assert "qgpud" not in host.run("ps -e -o comm").out
        failed = host.run("systemctl --failed --no-legend").out
        assert failed == "", host.run("journalctl -b -n 60 -u 'qgpu*'").out
        assert not host.inside("/etc/slurm/job_submit.lua").is_symlink()
    for (host_name, path), text in kept.items():
        assert site[host_name].read(path) == text
