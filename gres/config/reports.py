"""The sections of qgpu.yaml about accounting (retention, privacy, publication) and doctor."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, field_validator, model_validator

from gres.config.schema import AbsPath, MibUp, Section, Time
from gres.units import Duration

DAY = 86400 * 10**9
PrivateData = Literal["jobs", "usage"]
# The checks of `qgpu doctor` that may warn of what a site cannot or does not want to change.
CheckName = Literal[
    "arbiter",
    "cards",
    "cgroups",
    "checkpoints",
    "cli_filter",
    "clock",
    "devices",
    "gres.conf",
    "hardware",
    "host memory",
    "injection",
    "membarrier",
    "memory caps",
    "munge",
    "privacy",
    "qos",
    "same config",
    "slurm",
    "slurm.conf",
    "slurmdbd",
    "spank",
    "ssh",
    "tables",
]
SummaryField = Literal["none", "admin_comment", "extra"]


def _retention(value: Duration) -> Duration:
    if value.ns < DAY:
        raise ValueError(f"{value} is less than a day, which reports need; write for example 90d")
    return value


class LedgerSettings(Section):
    """Retention of a node's ledger, and the bound of its file in MiB."""

    retention: Annotated[Time, AfterValidator(_retention)] = Duration(90 * DAY)
    max_size: Annotated[MibUp, Field(ge=16)] = 1024


class MetricsSettings(Section):
    """Prometheus: a port on the loopback address, or a file for
    node_exporter; 0 and null are off.
    """

    port: int = Field(default=0, ge=0, le=65535)
    textfile: AbsPath | None = None
    job_labels: bool = False
    hpc_mapping: AbsPath | None = None


class DoctorSettings(Section):
    """Warnings of `qgpu doctor` that this site has accepted, by the name of the check."""

    accept: list[CheckName] = Field(default_factory=list)


class ReportSettings(Section):
    """Privacy of use (the words of slurm.conf's PrivateData), and the place of the collected
    ledger.
    """

    private_data: list[PrivateData] = Field(default_factory=list)
    admins: list[str] = Field(default_factory=list)
    collected: AbsPath | None = None
    summary: SummaryField = "none"
    metrics: MetricsSettings = MetricsSettings()

    @model_validator(mode="after")
    def _labels(self) -> ReportSettings:
        if self.private_data and self.metrics.job_labels:
            raise ValueError(
                "metrics.job_labels shows every job to all who can reach the metrics, but"
                " private_data hides them; leave one out"
            )
        return self

    @field_validator("admins")
    @classmethod
    def _names(cls, value: list[str]) -> list[str]:
        for name in value:
            if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.@+-]{0,63}\$?", name):
                raise ValueError(f"'{name}' is not the name of a user; write for example [slurm]")
        return value
