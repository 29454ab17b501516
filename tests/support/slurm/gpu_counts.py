"""How the tools that sites run count GPUs in Slurm's words. Their patterns stand here as facts,
with their source; none of their code does.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

INITIALIZER = Path(__file__).resolve().parents[3] / "packaging/ondemand/qgpu_cards.rb"

# OSC/ood_core, lib/ood_core/job/adapters/slurm.rb, gpus_from_gres: the sum of what it finds in
# squeue's tres-per-node, sinfo's gres and gresused, sacct's ReqTRES.
OOD_CORE = {
    "0.26": r"gpu[^(,]*[:=](\d+)",
    "0.31.1": r"gpu[s:]*[\w()-]*[=:]?(\d+)(?:[(,]|$)",
}
# What stands where Open OnDemand has ood_core.
STAND_IN = """
module OodCore
  module Job
    module Adapters
      class Slurm
        def self.gpus_from_gres(gres)
          gres.to_s.scan(Regexp.new(ENV.fetch("PATTERN"))).flatten.sum(&:to_i)
        end
      end
    end
  end
end
"""
PROGRAM = """
require "json"
load ARGV[0]
puts JSON.generate(JSON.parse(STDIN.read).map { |words|
  OodCore::Job::Adapters::Slurm.gpus_from_gres(words)
})
"""


def ood_core(words: str, release: str = "0.31.1") -> int:
    """Open OnDemand as it is."""
    return sum(map(int, re.findall(OOD_CORE[release], words)))


def ondemand(words: list[str], tmp_path: Path, release: str = "0.31.1") -> list[int]:
    """Open OnDemand with our initializer, run by ruby."""
    if shutil.which("ruby") is None:
        pytest.skip("ruby is not installed here; tools/setup.sh installs it")
    (tmp_path / "ood_core/job/adapters").mkdir(parents=True, exist_ok=True)
    (tmp_path / "ood_core.rb").write_text("")
    (tmp_path / "ood_core/job/adapters/slurm.rb").write_text(STAND_IN)
    done = subprocess.run(
        ["ruby", "-I", tmp_path, "-e", PROGRAM, INITIALIZER],
        input=json.dumps(words),
        env={"PATTERN": OOD_CORE[release], "PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    counts: list[int] = json.loads(done.stdout)
    return counts


def xdmod(words: str) -> int:
    """ubccr/xdmod, classes/Xdmod/SlurmResourceParser.php: the first gres/gpu, typed or not."""
    for name, _, count in (entry.partition("=") for entry in words.split(",")):
        if name == "gres/gpu" or name.startswith("gres/gpu:"):
            return int(count)
    return 0


def first(pattern: str) -> Callable[[str], int]:
    """A tool that takes the first match."""

    def count(words: str) -> int:
        found = re.search(pattern, words)
        return int(found[1]) if found else 0

    return count


def by_entry(words: str) -> int:
    """Entries named gpu, their last number: rackslab/Slurm-web (node_gres_extract_gpus,
    countGPUTRESRequest) and SckyzO/slurm_exporter (internal/collector/gpus.go).
    """
    entries = (re.sub(r"\(.*", "", entry) for entry in re.split(r",(?![^(]*\))", words))
    parts = [re.split("[:=]", entry.replace("gres/", "", 1)) for entry in entries]
    return sum(int(part[-1]) for part in parts if part[0] == "gpu")


BY_TRES = {
    "XDMoD": xdmod,
    # PrincetonUniversity/jobstats, and gpus_per_job of PrincetonUniversity/job_defense_shield
    "jobstats": first(r"gres/gpu=(\d+)"),
    # SckyzO/slurm_exporter, internal/collector/accounts.go, tresGPURe
    "slurm_exporter": first(r"gres[:/]gpu[^,\s]*[:/=](\d+)"),
}
