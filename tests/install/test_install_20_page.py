"""docs/install.md: its own commands, in its order, make qgpu of a stock Slurm."""

from __future__ import annotations

from collections.abc import Callable

from harness import page
from harness.site import PLACES, Site

RUN = {"Quick start", "Login hosts", "Accounting", "Metrics", "ssh into jobs", "Upgrade", "Removal"}
MOST_COMMANDS = 15
Follow = Callable[[str], None]
queued: dict[str, int] = {}


def test_every_block_of_the_page_is_run() -> None:
    blocks = page.blocks()
    assert {block.section for block in blocks if block.on != "build"} == RUN
    assert {block.on for block in blocks} <= {*PLACES, "build"}


def test_quick_start_is_short() -> None:
    commands = [
        c for block in page.blocks() if block.section == "Quick start" for c in block.commands()
    ]
    assert len(commands) <= MOST_COMMANDS


def test_jobs_run_and_wait_when_the_admin_begins(site: Site) -> None:
    queued["runs"] = site.submit(
        "--gres=gpu:2 -w n1 --wrap 'while [ ! -e go ]; do sleep 0.2; done'"
    )
    site.await_job(queued["runs"], "RUNNING")
    card = "for n in 0 1; do head -c0 /var/lib/qgpu-sim/dev/qgpusim$n && echo card; done"
    queued["waits"] = site.submit(
        f"--gres=gpu:1 -w n1 -o queued.out --wrap '{card}; env | grep QGPU'"
    )


def test_incomplete_step_says_what_it_lacks(site: Site) -> None:
    done = site["n2"].run("apt-get install -y ./qgpu-packages/qgpu-node_*.deb", check=False)
    assert done.status != 0
    assert "Depends: qgpu (" in done.text


def test_quick_start(site: Site, follow: Follow) -> None:
    follow("Quick start")
    site.await_idle()


def test_job_that_ran_goes_on(site: Site) -> None:
    assert site.job(queued["runs"])["JobState"] == "RUNNING"
    (site["ctl"].homes / "alice/go").touch()
    site.await_job(queued["runs"], "COMPLETED")


def test_job_that_waited_has_its_whole_card(site: Site) -> None:
    site.await_job(queued["waits"], "COMPLETED", "FAILED")
    out = (site["ctl"].homes / "alice/queued.out").read_text()
    # opened, as far as the major without a driver can be
    assert out.count("No such device") == 1, out
    assert out.count("Operation not permitted") == 1, out


def test_login_hosts(follow: Follow) -> None:
    follow("Login hosts")


def test_accounting(follow: Follow) -> None:
    follow("Accounting")


def test_metrics(site: Site, follow: Follow) -> None:
    follow("Metrics")
    for node in site.nodes:
        site.await_output(node, "curl -s localhost:9445/metrics", "\nqgpu_")


def test_doctor_fails_nowhere(site: Site) -> None:
    for host in site.hosts.values():
        host.run("qgpu doctor")


def test_a_step_may_be_repeated(site: Site) -> None:
    for host, role in (("ctl", "controller"), ("n1", "node"), ("login", "login")):
        assert "wrote" not in site[host].run(f"qgpu setup --role {role}").out


def test_a_step_that_failed_may_be_repeated(site: Site) -> None:
    node, yaml = site["n2"], "/etc/qgpu/qgpu.yaml"
    right = node.read(yaml)
    node.write(yaml, right.replace("default_class: offline", "default_class: ofline"))
    done = node.run("qgpu setup --role node", check=False)
    assert done.status != 0
    assert "ofline" in done.text
    node.write(yaml, right)
    assert "wrote" not in node.run("qgpu setup --role node").out
