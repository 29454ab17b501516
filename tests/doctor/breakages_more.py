"""More breakages: who may write what, and what runs."""

from __future__ import annotations

import os

from breakages import NODES, Breakages, both, fill, job_in, site_says, users_link, yaml

STOPPED = """Slurmctld(primary) at vm is DOWN
*****************************************
** RESTORE SLURMCTLD DAEMON TO SERVICE **
*****************************************
"""
TRUST: Breakages = {
    "qgpu.yaml is writable by all": (lambda s: s.yaml.chmod(0o666), "config", "has mode 0666"),
    "qgpu.yaml belongs to a user": (
        lambda s: os.chown(s.yaml, 1000, 1000),
        "config",
        "belongs to uid 1000",
    ),
    "its directory is writable by all": (lambda s: s.etc.chmod(0o777), "config", "has mode 0777"),
    "spank.so is writable by all": (
        lambda s: (s.root / "opt/qgpu_spank.so").chmod(0o777),
        "files",
        "has mode 0777",
    ),
    "spank.so is a user's link": (users_link, "files", "is a link of uid 1000"),
    "the shim is writable by its group": (
        lambda s: (s.root / "opt/2/libcuda.so.1").chmod(0o775),
        "shim",
        "has mode 0775",
    ),
    "the NVML shim belongs to a user": (
        lambda s: os.chown(s.root / "opt/2/libnvidia-ml.so.1", 1000, 0),
        "files",
        "belongs to uid 1000",
    ),
    "prolog is writable by all": (
        lambda s: (s.etc / "qgpu/prolog").chmod(0o777),
        "files",
        "prolog has mode 0777",
    ),
    "epilog belongs to a user": (
        lambda s: os.chown(s.etc / "qgpu/epilog", 1000, 1000),
        "files",
        "epilog belongs to uid 1000",
    ),
    "a Lua module is writable by all": (
        lambda s: (s.root / "opt/lua/qgpu.lua").chmod(0o666),
        "files",
        "qgpu.lua has mode 0666",
    ),
    "the tables belong to a user": (
        lambda s: os.chown(s.etc / "qgpu/qgpu_tables.lua", 1000, 1000),
        "files",
        "qgpu_tables.lua belongs to uid 1000",
    ),
    "the grants' directory is open": (
        lambda s: (s.root / "run/grants").chmod(0o777),
        "files",
        "grants has mode 0777",
    ),
    "the client is writable by all": (
        lambda s: (s.root / "opt/qgpu-hook").chmod(0o777),
        "hooks",
        "is not safe",
    ),
    "the arbiter belongs to a user": (
        lambda s: os.chown(s.root / "opt/qgpu-arbiter", 1000, 0),
        "files",
        "belongs to uid 1000",
    ),
    "slurm.conf is writable by all": (
        lambda s: (s.etc / "slurm.conf").chmod(0o666),
        "files",
        "slurm.conf has mode 0666",
    ),
    "an included file is writable by all": (
        lambda s: (s.etc / "qgpu/slurm.conf").chmod(0o666),
        "files",
        "slurm.conf has mode 0666",
    ),
    "an included file is missing": (
        lambda s: (s.etc / "qgpu/slurm.conf").unlink(),
        "slurm.conf",
        "includes",
    ),
    "slurm.conf has a line that Slurm refuses": (
        lambda s: s.edit(
            "etc/slurm.conf", "ClusterName=doc", "ClusterName=doc\nTaskPlugin task/cgroup"
        ),
        "slurm.conf",
        "is not KEY=VALUE",
    ),
    "plugstack.conf belongs to a user": (
        lambda s: os.chown(s.etc / "plugstack.conf", 1000, 0),
        "files",
        "plugstack.conf belongs to uid 1000",
    ),
    "the driver's NVML belongs to a user": (
        lambda s: os.chown(s.root / "driver/libnvidia-ml.so.1", 1000, 0),
        "nvml",
        "is not loaded, since",
    ),
}

RUNNING: Breakages = {
    "slurmctld does not answer": (
        lambda s: s.answer("scontrol", "ping", out="Slurmctld(primary) at vm is DOWN"),
        "slurmctld",
        "is DOWN",
    ),
    "slurmdbd is stopped": (
        lambda s: s.answer("sacctmgr", "-nP", "show", "cluster", code=1, err="Connection refused"),
        "slurmdbd",
        "Connection refused",
    ),
    "munge is stopped": (
        lambda s: s.answer("munge", code=1, err="munge: Error: Failed to access"),
        "munge",
        "Failed to access",
    ),
    "slurmdbd does not know a gres": (
        lambda s: s.says("gres|qgpu:online\n", "", "sacctmgr", "-nP", "show", "tres"),
        "tres",
        "does not know gres/qgpu:online",
    ),
    "clocks are apart": (lambda s: s.clock(600), "clock", "from slurmctld's"),
    "a node is unknown to Slurm": (
        lambda s: s.says("NodeName=n2 ", "NodeName=n3 ", *NODES),
        "nodes",
        "does not know n2",
    ),
    "a node is not in qgpu.yaml": (
        yaml('names: "n[1-2]"', "names: n1"),
        "nodes",
        "n2 has qgpu in Gres=, but is not under nodes",
    ),
    "a node has another Slurm": (
        lambda s: s.says("Version=24.11.5", "Version=24.05.8", *NODES),
        "nodes",
        "slurmd of n1 is Slurm 24.05.8",
    ),
    "a node is down": (lambda s: s.says("State=IDLE", "State=DOWN*", *NODES), "nodes", "DOWN*"),
    "a node has another qgpu.yaml": (
        lambda s: s.collects(n1="", n2="a" * 64),
        "same config",
        "n2 had another qgpu.yaml",
    ),
    "a partition does not exist": (
        yaml("cluster: doc", "cluster: doc\nmanaged_partitions: [cards]"),
        "partitions",
        "names cards",
    ),
    "gres.conf is missing": (
        lambda s: (s.etc / "qgpu/gres.conf").unlink(),
        "gres.conf",
        "gres.conf",
    ),
    "cards are in another order": (
        lambda s: s.edit("etc/qgpu/gres.conf", "qgpusim[0-1]", "qgpusim1,ROOT/dev/qgpusim0"),
        "gres.conf",
        "in this order",
    ),
    "a card has no Type": (
        lambda s: s.edit("etc/qgpu/gres.conf", "Name=gpu Type=h200", "Name=gpu"),
        "gres.conf",
        "no line for gpu h200",
    ),
    "a card has 50 shards": (
        lambda s: s.edit("etc/qgpu/gres.conf", "Count=100 File", "Count=50 File"),
        "gres.conf",
        "but one for shard",
    ),
    "gres.conf has a line that Slurm refuses": (
        lambda s: s.edit(
            "etc/qgpu/gres.conf", "NodeName=n[1-2] Name=gpu", "NodeName=n[1-2 Name=gpu"
        ),
        "gres.conf",
        "its gpu files are none",
    ),
    "gres.conf has cards of the site's own": (
        lambda s: s.edit(
            "etc/gres.conf", "include", "NodeName=n1 Name=gpu File=/dev/nvidia0\ninclude"
        ),
        "gres.conf",
        "count them twice",
    ),
    "slurm.conf has select/linear since": (
        site_says("SelectType=select/linear"),
        "slurm.conf",
        "has SelectType=select/linear",
    ),
    "the fragment of slurm.conf is not included": (
        lambda s: s.edit("etc/slurm.conf", "include", "# include"),
        "slurm.conf",
        "qgpu's fragment",
    ),
    "NodeName in slurm.conf without Gres": (
        lambda s: s.edit("etc/slurm.conf", " Gres=gpu:h200:2", " #"),
        "slurm.conf",
        "Gres",
    ),
    "steps may start before the prolog": (
        site_says("PrologFlags=NoHold"),
        "slurm.conf",
        "PrologFlags",
    ),
    "a partition packs exclusive jobs": (
        lambda s: s.edit("etc/slurm.conf", "Default=YES", "Default=YES OverSubscribe=FORCE"),
        "slurm.conf",
        "overrides --exclusive",
    ),
    "a partition and its DEFAULT give whole nodes away": (
        lambda s: s.edit(
            "etc/slurm.conf",
            "PartitionName=gpu",
            "PartitionName=DEFAULT Shared=EXCLUSIVE\n"
            'PartitionName=gpu ExclusiveUser=YES TRESBillingWeights="CPU=1, GRES/gpu=1"',
        ),
        "slurm.conf",
        "so shares are refused there",
    ),
    "job_submit.lua is no Lua": (
        lambda s: s.edit("etc/qgpu/job_submit.lua", "function slurm_job_modify(", "function ("),
        "job_submit",
        "lacks",
    ),
    "job_submit.lua of the site is no Lua": (
        both(
            lambda s: (s.etc / "job_submit.lua").rename(s.etc / "old"),
            lambda s: s.write("etc/job_submit.lua", (s.etc / "old").read_text() + "end end\n"),
        ),
        "job_submit",
        "Lua cannot read it",
    ),
    "cli_filter.lua lacks a function": (
        lambda s: s.edit("etc/qgpu/cli_filter.lua", "function slurm_cli_post", "function cli_post"),
        "cli_filter",
        "lacks",
    ),
    "job_submit.lua forgets changes of jobs": (
        lambda s: s.edit("etc/qgpu/job_submit.lua", "qgpu.modify", "qgpu_modify"),
        "job_submit",
        "the call .modify(",
    ),
    "slurmd refuses gres.conf": (
        lambda s: s.answer("slurmd", "-G", code=1, err="slurmd: fatal: gres.conf: bad"),
        "gres counts",
        "fatal: gres.conf",
    ),
    "job_submit.lua is missing": (
        lambda s: (s.etc / "job_submit.lua").unlink(),
        "job_submit",
        "cannot be read",
    ),
    "job_submit.lua does not call us": (
        lambda s: s.write("etc/job_submit.lua", '-- dofile("/x/qgpu_job_submit.lua")\n'),
        "job_submit",
        "does not load",
    ),
    "cli_filter.lua is missing": (
        lambda s: (s.etc / "cli_filter.lua").unlink(),
        "cli_filter",
        "sbatch and srun of everybody fail",
    ),
    "tables are missing": (
        lambda s: (s.etc / "qgpu/qgpu_tables.lua").unlink(),
        "tables",
        "cannot be read",
    ),
    "qgpud has not read qgpu.yaml": (
        lambda s: s.edit("etc/qgpu.yaml", "cluster: doc", "cluster: doc "),
        "qgpud",
        "has not read",
    ),
    "qgpud does not reach the arbiter": (
        lambda s: s.daemon.update(arbiter=False),
        "arbiter",
        "does not reach it",
    ),
    "the driver is missing": (
        lambda s: (s.root / "driver/libcuda.so.1").unlink(),
        "driver",
        "which is not there",
    ),
    "a card fell off the bus": (lambda s: s.lose_card(), "cards", "is not seen by NVML"),
    "cards are smaller than qgpu.yaml says": (
        yaml("80GiB", "96GiB"),
        "cards",
        "correct models.h200.memory",
    ),
    "the shim is missing": (
        lambda s: (s.root / "opt/2/libcuda.so.1").unlink(),
        "shim",
        "No such file",
    ),
    "the shim does not load": (
        lambda s: s.write("opt/2/libcuda.so.1", "no library"),
        "shim",
        "does not load",
    ),
    "state_dir is missing": (lambda s: (s.root / "lib").rmdir(), "state_dir", "No such file"),
    "state_dir is full": (lambda s: fill(s, f_bavail=10), "state_dir", "is full: 0 MiB"),
    "state_dir has no inodes": (lambda s: fill(s, f_favail=0), "state_dir", "0 inodes"),
    "jobs have no cgroup": (
        job_in("0::/system.slice/slurmd.service"),
        "job cgroups",
        "slurmstepd of job 7 is in no cgroup of the job",
    ),
    "slurmstepd has an older plugin": (
        job_in("0::/system.slice/slurmstepd.scope/job_7/step_0/slurm", recorded=False),
        "job cgroups",
        "no slurmstepd of job 7 is on record",
    ),
    "another record than the job's": (
        both(
            job_in("0::/system.slice/slurmstepd.scope/job_7/step_0/slurm"),
            lambda s: s.write("run/steps/70", '{"job": 7, "pid": 70, "start": 1}'),
        ),
        "job cgroups",
        "no slurmstepd of job 7 is on record",
    ),
    "a grant outlived its job": (
        both(
            lambda s: s.write("run/grants/7.json", "{}", 0o600),
            lambda s: s.answer("squeue", out="JOBID  ST  END_TIME\n8  R  N/A\n7  CD  N/A\n"),
        ),
        "grants",
        "job 7 left a grant",
    ),
    "a release that doubles gres": (
        both(yaml('"24.11"', '"25.05"'), lambda s: s.answer("slurmd", "-V", out="slurm 25.05.0")),
        "slurm",
        "the same gres to several jobs",
    ),
    "the fragment of slurm.conf is included twice": (
        lambda s: s.edit(
            "etc/slurm.conf", "NodeName", "include ROOT/etc/qgpu/slurm.conf\nNodeName"
        ),
        "slurm.conf",
        "includes it already",
    ),
    "the fragment of gres.conf is included twice": (
        lambda s: s.write("etc/gres.conf", (s.etc / "gres.conf").read_text() * 2),
        "gres.conf",
        "includes it already",
    ),
    "slurmctld is stopped": (
        both(
            lambda s: s.end(10),
            lambda s: s.answer("scontrol", "ping", code=1, out=STOPPED),
        ),
        "slurmctld",
        "does not run: Slurmctld(primary) at vm is DOWN -> systemctl",
    ),
    "slurmd knows no gres": (
        both(lambda s: s.setting("GresTypes", ""), lambda s: s.answer("slurmd", "-G")),
        "gres counts",
        "it knows of no gres",
    ),
    "a card's file is gone": (
        lambda s: (s.root / "dev/qgpusim1").unlink(),
        "cards",
        "journalctl -k -g Xid",
    ),
    "a release before 22.05": (
        lambda s: s.answer("slurmd", "-V", out="slurm 21.08.8"),
        "slurm",
        "too old",
    ),
    "multi_card without the parameter": (
        yaml("cli_filter: true", "cli_filter: true, multi_card: true"),
        "select",
        "misses MULTIPLE_SHARING_GRES_PJ",
    ),
    "the parameter without multi_card": (
        lambda s: s.effective("SelectTypeParameters", "CR_CORE_MEMORY,MULTIPLE_SHARING_GRES_PJ"),
        "select",
        "has MULTIPLE_SHARING_GRES_PJ",
    ),
    "spread without the parameter": (
        yaml("cli_filter: true", "cli_filter: true, placement: spread"),
        "select",
        "misses LL_SHARED_GRES",
    ),
    "qgpu.yaml has a tab": (
        lambda s: s.edit("etc/qgpu.yaml", "cluster: doc", "cluster: doc\n\tx: 1"),
        "config",
        "qgpu.yaml: line 3: this is not YAML: found character",
    ),
    "qgpu.yaml cannot be read": (
        lambda s: s.write("etc/qgpu.yaml", "version: 1\n"),
        "config",
        "qgpu.yaml",
    ),
}
