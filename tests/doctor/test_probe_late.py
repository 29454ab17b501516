"""`qgpu doctor --probe` where sbatch --wait does not hear of the job's end, as after a failover."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from site_support import Site

from cli.doctor import probe
from cli.doctor.host import Host, Said
from cli.doctor.probe_task import POINTS


class Deaf(Host):
    """sbatch says its job and waits for ever; squeue knows the job's state."""

    state = "COMPLETED"
    sbatch = ""

    def program(self, name: str) -> str | None:
        return self.sbatch

    def ask(self, *command: str, timeout: float = 10.0) -> Said:
        if command[0] == "squeue":
            state, reason, node = command[-1].replace("%T", self.state).split("%")
            return Said(0, f"{state}{reason[1:]}{node[1:]}\n")
        return Said(1)


@pytest.mark.parametrize(("state", "says"), [("COMPLETED", ""), ("PENDING", "job 7 is PENDING")])
def test_a_job_that_has_ended_is_judged(
    site: Site, monkeypatch: pytest.MonkeyPatch, state: str, says: str
) -> None:
    site.write("opt/sbatch", "#!/bin/sh\necho 7\nexec sleep 600\n", 0o755)
    monkeypatch.setenv("HOME", str(site.root))
    rows = [{"name": name, "ok": True, "text": "well"} for name in POINTS]
    Path(site.root, ".qgpu-doctor-7.out").write_text(json.dumps({"points": rows}))
    host = Deaf()
    host.state, host.sbatch = state, str(site.root / "opt/sbatch")
    checks = probe.probe(str(site.yaml), probe.Wanted(timeout=0.1), host)
    failed = [check.text for check in checks if check.status == "fail"]
    assert len(failed) == bool(says) and says in "".join(failed), checks
    assert says or {check.name for check in checks} >= set(POINTS)
