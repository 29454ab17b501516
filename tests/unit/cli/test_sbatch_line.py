"""sbatch's words, scripts and variables as `qgpu plan` reads them, and the answers of Slurm."""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner

from cli.site import slurm_answer, slurm_limits
from cli.site.neighbours import memories, neighbours, shares
from cli.site.plan import plan
from cli.site.plan_slurm import _now
from cli.site.sbatch_line import LineError, asked, read_line, script_options, submission
from cli.site.slurm_answer import Answer, Queue, Start
from gres.config.site import load_config
from gres.grant.tag import Tag

EXAMPLE = str(Path(__file__).resolve().parents[3] / "configs" / "examples" / "qgpu.yaml")


@pytest.mark.parametrize(
    ("words", "script", "found"),
    [
        (["-p", "gpu", "-qonline", "-Hn2", "job.sh", "-n9"], "job.sh", {"ntasks": "2"}),
        (["sbatch", "--part", "gpu", "--gres", "qgpu:30", "a"], "a", {"partition": "gpu"}),
        (["--json", "/usr/bin/sbatch", "-n2", "a"], "a", {"ntasks": "2"}),
        (["-n2", "sbatch"], "sbatch", {"ntasks": "2"}),
        (["sbatch", "sbatch"], "sbatch", {}),
        (["--exclusive", "job.sh"], "job.sh", {"exclusive": ""}),
        (["--nice", "--wrap=sleep 1"], None, {"wrap": "sleep 1"}),
        (["-Jx", "-o", "%j", "--new-option=1", "--json", "j"], "j", {"job-name": "x"}),
        (["-n1", "--", "job.sh"], "job.sh", {"ntasks": "1"}),
        (["-c2", ":", "-c3", "job.sh"], "job.sh", {"cpus-per-task": "3", ":": ""}),
    ],
)
def test_a_line_is_split_as_sbatch_splits_it(
    words: list[str], script: str | None, found: dict[str, str]
) -> None:
    line = read_line(words)
    assert line.script == script
    assert found.items() <= dict(line.options).items()


def test_sbatch_gets_the_same_words_without_those_of_plan() -> None:
    line = read_line(["--json", "-p", "gpu", "-Q", "--config=/x", "job.sh", "--json"])
    assert line.command() == ["-p", "gpu", "job.sh", "--json"]
    assert line.command("--gres=qgpu:9") == ["-p", "gpu", "--gres=qgpu:9", "job.sh", "--json"]
    assert read_line(["-n1"]).command() == ["-n1", "--wrap=true"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        *(([word], "has no value behind it") for word in ("-p", "--gres", "--config")),
        (["--json", "srun", "-n1", "a"], "write qgpu plan sbatch"),
        (["/usr/bin/salloc"], "only sbatch's commands"),
    ],
)
def test_words_that_are_no_command_of_sbatch_are_a_sentence(words: list[str], says: str) -> None:
    with pytest.raises(LineError, match=says):
        read_line(words)


def test_the_line_counts_before_variables_and_these_before_the_script(tmp_path: Path) -> None:
    script = tmp_path / "job.sh"
    script.write_text(
        "#!/bin/sh\n\n#SBATCH --gres=qgpu:10 -N 1-2 # why\n#SBATCH -q 'a b' -t 5\n# more\n"
        "date\n#SBATCH --gres=qgpu:90\n"
    )
    assert dict(script_options(str(script)))["gres"] == "qgpu:10"
    found = asked(read_line(["-n3", str(script)]), {"SBATCH_GRES": "qgpu:20", "SBATCH_QOS": "c"})
    assert (found["gres"], found["qos"], found["time"]) == ("qgpu:20", "c", "5")
    job = submission(found)
    assert (job.nodes, job.tasks, job.gres) == (1, 3, "qgpu:20")


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"#!/bin/sh\r\n#SBATCH -n1\r\n", "DOS"),
        (b"#!/bin/sh\n\0", "NUL"),
        (b"echo\n", "does not begin with #!"),
        (b"#!/bin/sh\n#SBATCH -J 'open\n", "No closing quotation"),
        (b"#!/bin/sh\n" + b"#" * (4 << 20), "more than 4194304 bytes"),
        (None, "No such file"),
    ],
)
def test_a_script_that_sbatch_would_not_take(tmp_path: Path, body: bytes | None, says: str) -> None:
    script = tmp_path / "job.sh"
    if body is not None:
        script.write_bytes(body)
    found = CliRunner().invoke(plan, ["--config", EXAMPLE, "-n1", str(script)])
    assert (found.exit_code, says in found.output) == (2, True), found.output
    assert "is no file" in CliRunner().invoke(plan, ["--config", EXAMPLE, str(tmp_path)]).output


def test_an_sbatch_that_does_not_end_is_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sbatch").write_text("#!/bin/sh\nexec sleep 600\n")
    (tmp_path / "sbatch").chmod(0o755)
    (tmp_path / "slurm.conf").touch()
    os.mkfifo(pipe := tmp_path / "job.sh")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "slurm.conf"))
    monkeypatch.setenv("QGPU_CONFIG", EXAMPLE)
    monkeypatch.setattr(slurm_answer, "TIMEOUT_S", 0.1)
    found = CliRunner().invoke(plan, ["--gres=qgpu:30", "--wrap=true"])
    assert (found.exit_code, "did not end within 0.1 s" in found.output) == (2, True), found.output
    found = CliRunner().invoke(plan, ["--gres=qgpu:30", str(pipe)])
    assert (found.exit_code, "job.sh is no file" in found.output) == (2, True), found.output


def test_without_slurm_the_output_says_that_only_our_rules_were_asked() -> None:
    words = ["--gres=qgpu:30", "-n4", "--json", "--config", EXAMPLE]
    found = json.loads(CliRunner().invoke(plan, words).output)
    assert found["starts"] is None
    ranks, rules = found["notes"]
    assert "4 tasks of a node are on one card: NCCL refuses" in ranks
    assert rules.startswith("only qgpu's own rules were asked, because --config names")


SAID = """sbatch: qgpu: plan gres=qgpu:offline:30,shard:30,vram:23961M
sbatch: qgpu: plan tag=qgpu/1 class=offline share=30 mem=23961
sbatch: qgpu: memory of this job may be taken back
sbatch: Job 2 to start at 1795958463 a using 4 processors on nodes n[1-2],m in partition gpu
"""


def test_the_answer_of_test_only_is_read() -> None:
    found = slurm_answer.read_answer(0, SAID)
    assert found.start
    assert replace(found.start, free=None) == Start(1795958463, ("n1", "n2", "m"), 4, "gpu")
    assert found.told[0]["gres"] == "qgpu:offline:30,shard:30,vram:23961M"
    assert found.notes == ("memory of this job may be taken back",)
    parts = slurm_answer.read_answer(
        0,
        "sbatch: 0: qgpu: plan shards=3\nsbatch: 1: qgpu: plan shards=4\n"
        "sbatch: Job 7 to start at 12 using 2 processors on n1\n",
    )
    assert [told["shards"] for told in parts.told] == ["3", "4"]
    assert parts.start and parts.start.nodes == ("n1",)


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        (
            "sbatch: error: qgpu: qgpu:130 is refused: x.\nallocation failure: y",
            "qgpu:130 is refused: x.",
        ),
        ("allocation failure: Invalid qos", "Invalid qos"),
        (
            "sbatch: error: invalid partition: z\nallocation failure: Bad",
            "invalid partition: z; Bad",
        ),
        ("sbatch: error: qgpu: plan shards=0\nallocation failure: Bad", "Bad"),
        ("", "sbatch refuses it and does not say why"),
    ],
)
def test_a_refusal_is_one_sentence(said: str, sentence: str) -> None:
    assert slurm_answer.read_answer(1, said).refused == sentence


QOS = """QOS=online(2)
    GrpTRES=cpu=N(0),gres/vram=400(100)
    MaxTRESPJ=gres/qgpu=50
    MinTRESPJ=gres/qgpu=5
    User Limits
      bob(8)
        MaxJobsPU=1(1) MaxSubmitJobsPU=N(0)
      alice(7)
        MaxJobsPU=2({jobs}) MaxSubmitJobsPU=N(0)
        MaxTRESPU=cpu=N(9),gres/qgpu:online=80({used})
"""


@pytest.mark.parametrize(
    ("wants", "jobs", "used", "says", "ever"),
    [
        ({"gres/qgpu": 30, "gres/qgpu:online": 30}, 1, 50, None, False),
        ({"gres/qgpu": 60}, 0, 0, "allows gres/qgpu=50 per job, this one asks for 60", True),
        ({"gres/qgpu": 4}, 0, 0, "wants gres/qgpu=5 per job at least", True),
        ({"gres/qgpu": 40, "gres/qgpu:online": 40}, 0, 50, "gives you gres/qgpu:online=80", False),
        ({"gres/qgpu": 40, "gres/vram": 301}, 0, 0, "gives all together gres/vram=400", False),
        ({"gres/qgpu": 40, "gres/vram": 401}, 0, 0, "for ever", True),
        ({"gres/qgpu": 30}, 2, 0, "lets you run 2 job(s)", False),
    ],
)
def test_limits_of_the_qos_are_read(
    wants: dict[str, int], jobs: int, used: int, says: str | None, ever: bool
) -> None:
    found = slurm_limits.read_limit(QOS.format(jobs=jobs, used=used), wants, 7)
    assert (found is None) == (says is None)
    if found:
        assert (says or "") in found.sentence and found.ever == ever
    same = QOS.replace("alice(7)", "7").format(jobs=jobs, used=used)  # as 22.05 writes it
    assert slurm_limits.read_limit(same, wants, 7) == found


@pytest.mark.parametrize(
    ("text", "minutes"),
    [("90", 90), ("1:30", 1.5), ("2:00:00", 120), ("1-12", 2160), ("1-12:30", 2190),
     ("1-0:1:30", 1441.5), ("UNLIMITED", float("inf")), ("soon", float("inf"))],
)  # fmt: skip
def test_times_of_slurm(text: str, minutes: float) -> None:
    assert slurm_limits.minutes(text) == minutes


@pytest.mark.parametrize(
    ("used", "binpack", "spread"),
    [("shard:h200:120(30/100,90/100)", 0, 0), ("shard:h200:90(80/100,10/100)", 1, 1),
     ("shard:h200:70(60/100,10/100)", 0, 1), ("shard:h200:0(IDX:N/A)", 0, 0),
     ("shard:h200:1(IDX:0)", None, None), ("shard:a:0(0/100),shard:b:0(0/100)", None, None)],
)  # fmt: skip
def test_the_card_that_slurm_takes(used: str, binpack: int | None, spread: int | None) -> None:
    text = f"   GresUsed=gpu:h200:0(IDX:N/A),{used},qgpu:online:60,qgpu:offline:0"
    use = slurm_answer.read_use(text)
    assert use.granted == {"online": 60, "offline": 0}
    assert slurm_answer.card_of(use, 40, spread=False) == binpack
    assert slurm_answer.card_of(use, 40, spread=True) == spread


def test_neighbours_change_only_what_they_name() -> None:
    assert list(shares("vram:4G,qgpu:h200:40,x:qgpu:1", 40, 11)) == [
        "--gres=vram:4G,qgpu:h200:30,x:qgpu:1",
        "--gres=vram:4G,qgpu:h200:20,x:qgpu:1",
    ]
    assert list(memories("qgpu:40,vram:40G", 40960, 12 << 10)) == [
        "--gres=qgpu:40,vram:30G",
        "--gres=qgpu:40,vram:20G",
    ]


@pytest.mark.parametrize(
    ("moved", "ends", "free"),
    [(2, "", True), (2, "9999999999|7\n", True), (0, "", False), (-3598, "", None),
     (2, "12|7\n", None)],
)  # fmt: skip
def test_a_late_start_is_of_free_nodes_if_it_moves_with_the_clock(
    monkeypatch: pytest.MonkeyPatch, moved: int, ends: str, free: bool | None
) -> None:
    """Not if it does so because a job is past its time limit, or because the queue changed."""
    late = Start(int(time.time()) + 1800, ("n1",), 1, "gpu")
    again = Answer(start=replace(late, at=late.at + moved))
    monkeypatch.setattr(slurm_answer, "ask", lambda words: again)
    monkeypatch.setattr(slurm_answer, "program", lambda *words: ends)
    found = slurm_answer.asked_again(Answer(start=late, began=time.monotonic() - 2))
    assert found.start and found.start.free is free


@pytest.mark.parametrize(
    ("free", "late", "queue", "now"),
    [(True, 0, Queue(0, 0), True), (True, 60, Queue(1, 0), True), (True, 60, Queue(1, 1), None),
     (True, 0, Queue(2, 1), None), (True, 60, Queue(0, 0), None), (None, 60, Queue(1, 0), None),
     (False, 60, Queue(1, 1), False)],
)  # fmt: skip
def test_now_is_said_only_where_it_is_known(
    free: bool | None, late: int, queue: Queue, now: bool | None
) -> None:
    assert _now(Start(int(time.time()) + late, ("n1",), 1, "gpu", free), queue) is now


@pytest.mark.parametrize(
    ("ends", "behind"),
    [("100|7", "7"), ("100|7\n900|8", "7"), ("100|7\n40|8", ""), ("40|7", ""), ("", "")],
)
def test_only_a_job_that_is_certainly_in_the_way_is_named(
    monkeypatch: pytest.MonkeyPatch, ends: str, behind: str
) -> None:
    monkeypatch.setattr(slurm_answer, "program", lambda *words: ends)
    assert slurm_answer.behind(Start(100, ("n1", "n2"), 1, "gpu")) == behind


def test_jobs_that_could_start_are_counted_where_partitions_share_nodes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def program(name: str, *words: str) -> str:
        if name == "sinfo":
            return "gpu|n[1-2]\nall|n[2-9]\ncpu|m1\n"
        assert words[words.index("-p") + 1] == "gpu,all"
        return "BeginTime\nPriority\nNone\nJobHeldUser\n"

    monkeypatch.setattr(slurm_answer, "program", program)
    assert slurm_answer.queue("gpu") == Queue(4, 2)


def test_each_kind_of_request_has_neighbours() -> None:
    tag = Tag("offline", 60, 40 << 10, 2)
    kinds = partial(neighbours, tag=tag, config=load_config(Path(EXAMPLE)))
    found = kinds({"gres": "qgpu:60", "qgpu-cards": "2"})
    assert [kind[0] for kind in found] == [
        "--gres=qgpu:45", "--gres=qgpu:60,vram:30G", "--qos=online",
    ]  # fmt: skip
    found = kinds({"gres": "qgpu:60", "vram": "40G"})
    assert [kind[0] for kind in found] == ["--gres=qgpu:45", "--qos=online"]
