"""Random sbatch commands, and a program that gives each to `qgpu plan` and to sbatch itself."""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass, field

GOOD = ("qgpu:{n}", "qgpu:{n}", "qgpu:{n},vram:{g}G", "vram:{g}G,qgpu:{n}", "qgpu:h200:{n}")
ODD = (
    *("qgpus:{n}", "qgpu={n}", "gres/qgpu:{n}", "gres:qgpu:{n}", "qgpu:{n},mem:4G", "QGPU:{n}"),
    *("qgpu:{n},vram={g}G", "qgpu:{n},license:1", "gpus:1", "craynetwork", "qgpu:nosuch:{n}"),
    *("qgpu:{n}%", "qgpu", "qgpu:0", "qgpu:130", "qgpu:200", "qgpu:300", "qgpu:100", "gpu:1"),
    *("gpu:2", "gpu:3", "gpu:h200:1", "shard:{n}", "vram:{g}G", "qgpu:{n},qgpu:5", "none", "gpu:0"),
    *("qgpu:{n},vram:900G", "qgpu:{n},vram:1K", "qgpu:{n},vram:4X", "qgpu:online:{n}", "gpu"),
)
# What fits a cluster of two nodes with 64 CPUs and 128 GiB, and what does not. Without --begin and
# --hold: sbatch looks at the nodes of such a job only later, where plan already says that none fit.
OPTIONS = (
    *("-c1", "-c 4", "--cpus-per-task=64", "-c65", "-n1", "-n2", "-n 4", "--ntasks=129", "-N1"),
    *("-N 2", "-N1-2", "--nodes=2-5", "-N3", "-N 2-1", "--mem=1G", "--mem=0", "--mem=128G"),
    *("--mem=129G", "--mem=500G", "--mem=xx", "--mem-per-cpu=100", "--mem-per-cpu=200G", "-p gpu"),
    *(
        "--partition=nosuch",
        "--part=gpu",
        "-C nosuch",
        "-w {node}",
        "--nodelist=nosuch",
        "-x {node}",
    ),
    *("--exclusive", "--exclusive=user", "--gres-flags=enforce-binding", "--ntasks-per-node=1"),
    *("--ntasks-per-node=2", "--qgpu-cards=1", "--qgpu-cards=2", "--qgpu-cards=3", "--vram=8G"),
    *("--vram=8", "-A nosuch", "-A research", "-J name", "-o out", "-t 10", "-a 1-3", "-G1"),
    *("--gpus-per-node=1", "--gpus=2", "--cpus-per-gpu=2", "-d singleton"),
    *("--export=NONE", "--comment=mine", "--no-requeue", "-k", "-L nosuch", "-Q", "--nosuch=1"),
    *("--tres-per-task=gres/qgpu:20", "-D /tmp", "--exclude=nosuch", "-q nosuch", "-B 1", "-c 0"),
)
SAME = frozenset({"gres", "qos"})  # of these the last counts, wherever it stands


@dataclass
class Request:
    """`words` of the command line, #SBATCH lines of the script, and variables."""

    words: list[str]
    lines: list[str] = field(default_factory=list)
    variables: dict[str, str] = field(default_factory=dict)


def _one(rng: random.Random, node: str) -> Request:
    valid = rng.random() < 0.7
    gres = rng.choice(GOOD if valid else ODD).format(
        n=rng.randint(1, 100), g=rng.choice([1, 4, 12, 40, 78])
    )
    made = Request([])
    for option, value, variable in (
        ("--gres", gres, "SBATCH_GRES"),
        ("--qos", rng.choice(["online", "offline", "Online", ""]), "SBATCH_QOS"),
    ):
        place = rng.choice(["word", "word", "line", "variable"])
        if value and place == "word":
            made.words.append(f"{option}={value}")
        elif value and place == "line":
            made.lines.append(f"{option}={value}")
        elif value:
            made.variables[variable] = value
    for text in rng.sample(OPTIONS, rng.choice([0, 1, 1, 2, 3])):
        words = text.format(node=node)
        if rng.random() < 0.7:
            made.words += words.split(" ", 1)
        else:
            made.lines.append(words)
    return made


def requests(seed: int, count: int, node: str) -> list[dict[str, object]]:
    """So many requests of that seed, as JSON has them."""
    rng = random.Random(seed)
    return [asdict(_one(rng, node)) for _ in range(count)]


# Runs as the user, inside the sandbox, with a file of requests. Nothing starts, because the cluster
# is full; the reason of a job that can never start is there when sbatch returns.
DRIVER = r"""
import json, os, subprocess, sys
from click.testing import CliRunner
import cli.site.plan as module, cli.site.plan_slurm as slurm

slurm.neighbours = lambda *_: ()  # tried in a test of their own
slurm.slurm_answer.AGAIN_S = 0  # so is the time
rows = []
for request in json.load(open("requests.json")):
    with open("request.sh", "w") as script:
        print("#!/bin/sh", *("#SBATCH " + line for line in request["lines"]), "true", sep="\n",
              file=script)
    os.environ.update(request["variables"])
    command = [*request["words"], "request.sh", "--json"]
    found = CliRunner().invoke(module.plan, ["--json", *command])
    aloud = [word for word in command if word != "-Q"]  # sbatch would not say the job's number
    done = subprocess.run(["sbatch", "--parsable", *aloud], capture_output=True, text=True)
    job = ""
    if done.returncode == 0 and done.stdout.strip():
        number = done.stdout.strip().splitlines()[-1]
        job = subprocess.run(["scontrol", "-o", "-a", "show", "job", number],
                             capture_output=True, text=True).stdout.splitlines()[0]
        subprocess.run(["scancel", number])
    for name in request["variables"]:
        del os.environ[name]
    rows.append({"request": request, "status": found.exit_code, "plan": found.output,
                 "sbatch": done.returncode, "said": done.stderr, "job": job,
                 "crash": repr(found.exception)})
json.dump(rows, sys.stdout)
"""
