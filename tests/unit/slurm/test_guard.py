"""Jobs that slurmctld took without job_submit: which are found, and what is done about them."""

from __future__ import annotations

import pytest
from click.testing import CliRunner
from records_support import answer

from cli.jobs.guard import guard
from slurm_plugin import guard as guarding
from slurm_plugin.records import SlurmError

NAMES = ("JobID", "State", "Reason", "Partition", "tres-per-node", "tres-per-task")


def line(number="7", state="PENDING", reason="None", partition="gpu", node="N/A", task="N/A"):
    return dict(zip(NAMES, (number, state, reason, partition, node, task), strict=True))


def parse(*rows, partitions=()):
    return guarding.bypassed(partitions, lambda command: answer(command, rows))


@pytest.mark.parametrize(
    "request_",
    [
        "gres:qgpu:30",
        "gres/qgpu:30",
        "gres/qgpu=30",
        "qgpu:h200:30",
        "gres:qgpu",
        "gres:gpu:1,gres:qgpu:30",
        "gres/qgpu:online:30,gres/vram:4G",
    ],
)
@pytest.mark.parametrize("field", ["node", "task"])
def test_a_share_without_shards_did_not_pass_job_submit(request_, field):
    (job,) = parse(line(**{field: request_}))
    assert (job.job_id, job.running, job.held, job.request) == (7, False, False, request_)
    assert request_ in job.sentence and "JobSubmitPlugins" in job.sentence


@pytest.mark.parametrize(
    "request_",
    [
        "N/A",
        "(null)",
        "",
        "gres:gpu:1",
        "gres/shard:h200:100",
        "gres/vram:4G",
        "gres/qgpux:1",
        "gres/qgpu:online:30,gres/shard:30,gres/vram:8192M",
        "gres/shard:1,gres/qgpu:offline:1",
        "gres/qgpu:1," + "gres/x:1," * 30,
    ],
)
def test_all_else_did_or_may_have(request_):
    assert parse(line(node=request_)) == []


@pytest.mark.parametrize(
    ("state", "reason", "found"),
    [
        ("PENDING", "Resources", ["hold"]),
        ("PENDING", "ReqNodeNotAvail, UnavailableNodes:n1", ["hold"]),
        ("PENDING", "JobHeldUser", []),
        ("PENDING", "JobHeldAdmin", []),
        ("REQUEUE_HOLD", "None", []),
        ("RUNNING", "None", ["cancel"]),
        ("CONFIGURING", "None", ["cancel"]),
        ("SUSPENDED", "None", ["cancel"]),
    ],
)
def test_what_waits_is_held_and_what_runs_is_ended(state, reason, found):
    jobs = parse(line(state=state, reason=reason, node="gres:qgpu:30"))
    assert len(jobs) == 1 and [action.kind for action in guarding.actions(jobs)] == found


@pytest.mark.parametrize(
    "state", ["COMPLETING", "CANCELLED", "COMPLETED", "FAILED", "SOMETHING_NEW"]
)
def test_what_ends_is_left(state):
    assert parse(line(state=state, node="gres:qgpu:30")) == []


@pytest.mark.parametrize(
    ("partition", "found"), [("gpu", 1), ("cpu,gpu", 1), ("cpu", 0), ("gpux", 0)]
)
def test_only_managed_partitions(partition, found):
    assert (
        len(parse(line(partition=partition, node="gres:qgpu:30"), partitions=["gpu", "gpu2"]))
        == found
    )


@pytest.mark.parametrize("text", ["slurm_load_jobs error\n", "\n"])
def test_other_output_is_refused(text):
    with pytest.raises(SlurmError, match="squeue did not answer"):
        guarding.bypassed((), lambda _: text)


@pytest.mark.parametrize("row", [line(number="x7"), line(state="")])
def test_a_record_without_a_job_is_refused(row):
    with pytest.raises(SlurmError, match="where a job number should be"):
        parse(row)


def test_the_act_comes_although_the_sentence_fails():
    asked = []

    def runner(words):
        asked.append(list(words))
        if words[1] in ("update", "notify"):
            raise SlurmError("no")
        return ""

    (job,) = parse(line(state="RUNNING", node="gres:qgpu:30"))
    guarding.act(guarding.Action(job, "cancel"), runner)
    assert [words[:2] for words in asked] == [
        ["scontrol", "update"],
        ["scontrol", "notify"],
        ["scancel", "7"],
    ]


@pytest.fixture
def run(tmp_path, monkeypatch):
    config = tmp_path / "qgpu.yaml"
    config.write_text(
        "version: 1\ncluster: t\nqos: {online: online}\ndefault_class: offline\n"
        "models: {h200: {memory: 80GiB, reserve: 2GiB}}\nmanaged_partitions: [gpu]\n"
        "nodes: [{names: n1, model: h200, count: 1, files: /dev/nvidia0}]\n"
    )

    def call(rows, *words):
        asked = []

        def runner(command):
            asked.append(command[:3])
            return answer(command, rows) if command[0] == "squeue" else ""

        monkeypatch.setattr("cli.jobs.guard.run", runner)
        return CliRunner().invoke(guard, ["--config", str(config), *words]), asked

    return call


def test_nothing_found_says_nothing(run):
    result, asked = run([line(node="gres:gpu:1")])
    assert (result.exit_code, result.output, len(asked)) == (0, "", 1)


def test_found_is_said_and_fails(run):
    result, asked = run([line(node="gres:qgpu:30"), line("8", "RUNNING", node="gres:qgpu:10")])
    assert (
        result.exit_code == 1
        and "hold: qgpu: job 7" in result.output
        and "cancel: qgpu: job 8" in result.output
    )
    assert ["scontrol", "hold", "7"] in asked and ["scancel", "8"] in asked


def test_dry_run_does_nothing(run):
    result, asked = run([line(node="gres:qgpu:30")], "--dry-run")
    assert result.exit_code == 1 and "would hold" in result.output and len(asked) == 1
