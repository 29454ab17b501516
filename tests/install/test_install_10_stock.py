"""Before qgpu: the site's Slurm works, and constrains cards by device cgroups."""

from __future__ import annotations

from harness.site import Site, until


def test_plain_job(site: Site) -> None:
    assert site.srun("id -un").out == "alice\n"


def test_card_is_constrained(site: Site) -> None:
    done = site.srun(
        "--gres=gpu:1 sh -c 'for n in 0 1; do head -c0 /var/lib/qgpu-sim/dev/qgpusim$n; done'",
        check=False,
    )
    assert "qgpusim0' for reading: No such device" in done.err  # allowed; the major has no driver
    assert "qgpusim1' for reading: Operation not permitted" in done.err


def test_jobs_are_accounted(site: Site) -> None:
    ask = "sacct -X -n -P -o user,alloctres,state"
    job = site.submit("--gres=gpu:2 --wrap true")
    until(lambda: "COMPLETED" in site["ctl"].run(f"{ask} -j {job}").out, f"the record of job {job}")
    assert "alice|" in site["ctl"].run(f"{ask} -j {job}").out
    assert "gres/gpu=2" in site["ctl"].run(f"{ask} -j {job}").out


def test_node_comes_back_after_a_reboot(site: Site) -> None:
    site["n1"].reboot()
    site.await_idle()
    assert site.srun("-w n1 hostname").out == "n1\n"
