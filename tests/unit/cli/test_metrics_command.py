"""`qgpu metrics`: rules and dashboard are well formed and name only metrics that exist, with
labels that they have.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner
from prometheus_client.parser import text_string_to_metric_families

from cli.metrics import metrics
from enforcer.clock import SystemClock
from enforcer.daemon.arbiter.hardware import ControlDevice, HardwareUse
from enforcer.nvml.port import CardLoad
from enforcer.reporting.attach import NodeObserver
from enforcer.reporting.metrics import COUNTERS, HARDWARE
from enforcer.reporting.state import STATES
from gres.config.site import parse_config

CONFIG = """version: 1
cluster: c
run_dir: {directory}/run
state_dir: {directory}/state
default_class: offline
models: {{h200: {{memory: 80GiB}}}}
nodes: [{{names: n1, model: h200, count: 2, files: "/dev/qgpufake[0-1]"}}]
"""
CARD_LABELS = {"node", "uuid", "card"}
KNOWN = {
    "up": {"job", "instance"},
    "qgpu_arbiter_up": {"node"},
    "qgpu_state_age_seconds": {"node"},
    **dict.fromkeys(
        [
            "qgpu_card_utilization_ratio",
            "qgpu_card_memory_used_bytes",
            "qgpu_card_use_ratio",
            "qgpu_card_whole",
            "qgpu_card_tenants",
            "qgpu_card_memory_total_bytes",
        ],
        CARD_LABELS,
    ),
    **dict.fromkeys(
        [
            "qgpu_granted_ratio",
            "qgpu_used_ratio",
            "qgpu_memory_cap_bytes",
            "qgpu_memory_used_bytes",
            *(f"{metric}_total" for metric, _, _ in (COUNTERS | HARDWARE).values()),
        ],
        CARD_LABELS | {"class"},
    ),
    "qgpu_tenants": CARD_LABELS | {"class", "state"},
    "qgpu_hardware_stop_seconds_bucket": CARD_LABELS | {"class", "le"},
}


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "qgpu.yaml"
    path.write_text(CONFIG.format(directory=tmp_path))
    return path


def out(config: Path, *words: str) -> str:
    done = CliRunner().invoke(metrics, [*words, "--config", str(config)])
    assert done.exit_code == 0, done.output
    return done.stdout


def check_expression(expression: str) -> None:
    """Every metric exists, every label in braces, `by` or a legend belongs to it; brackets
    close.
    """
    for opening, closing in ("()", "{}", "[]"):
        assert expression.count(opening) == expression.count(closing), expression
    names = re.findall(r"\b(?:qgpu_[a-z_]+|up)\b", expression)
    assert names and set(names) <= set(KNOWN), expression
    labels = {
        m for part in re.findall(r"\{([^}]*)\}", expression) for m in re.findall(r"(\w+)\s*=", part)
    }
    labels |= {
        m for part in re.findall(r"by \(([^)]*)\)", expression) for m in re.findall(r"\w+", part)
    }
    for name in names:
        assert labels <= KNOWN[name], (expression, labels - KNOWN[name])
    for text in re.findall(r"(?:rate|increase)\((\w+)", expression):
        assert text.endswith("_total"), expression


def test_alert_rules_are_rules(config):
    found = yaml.safe_load(out(config, "alerts"))
    rules = [rule for group in found["groups"] for rule in group["rules"]]
    assert len({rule["alert"] for rule in rules}) == len(rules) >= 5
    for rule in rules:
        check_expression(rule["expr"])
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
        assert {"summary", "description"} == set(rule["annotations"])
        for name in re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]):
            assert name in rule["expr"] or all(
                name in KNOWN[m] for m in re.findall(r"qgpu_\w+|\bup\b", rule["expr"])
            )
    assert "10s" in rules[0]["annotations"]["description"], "the configured lease"


def test_dashboard_is_a_dashboard(config):
    board = json.loads(out(config, "dashboard"))
    assert board["uid"] == "qgpu-c" and board["schemaVersion"] >= 30
    panels = board["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels) >= 8
    cells = set()
    for panel in panels:
        box = panel["gridPos"]
        area = {
            (x, y)
            for x in range(box["x"], box["x"] + box["w"])
            for y in range(box["y"], box["y"] + box["h"])
        }
        assert not cells & area and box["x"] + box["w"] <= 24
        cells |= area
        for target in panel["targets"]:
            check_expression(target["expr"].replace("$node", "n").replace("$__rate_interval", "5m"))
            legend = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            grouped = re.findall(r"by \(([^)]*)\)", target["expr"])
            names = re.findall(r"qgpu_\w+", target["expr"])
            assert legend <= (set(re.findall(r"\w+", grouped[0])) if grouped else KNOWN[names[0]])


def test_every_metric_in_the_table_is_really_exported(tmp_path, config, nodes):
    node = nodes(tmp_path, clock=SystemClock())
    node.config = parse_config(
        config.read_text() + "driver: {libcuda: " + str(tmp_path / "libcuda.so.1") + "}\n"
    )
    node.nvml.version = "580.1"
    service = node.service()
    service.hardware.control = lambda: ControlDevice(1, 2)
    service.start()
    service.prolog(
        {
            "SLURM_JOB_ID": "9",
            "SLURM_JOB_UID": "0",
            "SLURM_JOB_GID": "0",
            "SLURMD_NODENAME": "n1",
            "SLURM_JOB_COMMENT": "qgpu/1 class=offline share=30 mem=12288",
            "SLURM_JOB_GPUS": "0",
        }
    )
    uuid = node.nvml.cards()[0].uuid
    node.nvml.loads[uuid] = CardLoad(42, 5)
    node.arbiter.count(9, uuid, mem_used=7)
    node.arbiter.uses = [HardwareUse(9, uuid, "ready", stop_hist=(1,) * 16)]
    observer = NodeObserver.of(service, node.clock)
    observer.tick(force=True)
    observer.tick(force=True)
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(out(config, "show", "--node", "n1")):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    assert set(found) == set(KNOWN) - {"up"}
    for name, labels in found.items():
        assert labels - {"job", "user"} == KNOWN[name]
    assert len(STATES) == len(set(STATES))


def test_without_a_live_state_it_is_a_sentence(config):
    done = CliRunner().invoke(metrics, ["show", "--node", "n1", "--config", str(config)])
    assert done.exit_code == 2 and "is qgpud running on this node?" in done.stderr


PROMTOOL = shutil.which("promtool")


@pytest.mark.skipif(PROMTOOL is None, reason="promtool (Debian's prometheus) is not installed here")
def test_promtool_accepts_rules_and_metrics(config, tmp_path):
    (tmp_path / "alerts.yml").write_text(out(config, "alerts"))
    subprocess.run([PROMTOOL or "", "check", "rules", tmp_path / "alerts.yml"], check=True)
