"""What the gres and Lua tests share: clusters, the table of cases, and the Lua modules in
several Lua versions.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from gres.config.site import Config, parse_config
from gres.request.tables import Tables, tables_of
from slurm_plugin.submission import JobSubmit, RequestError, Submission

ROOT = Path(__file__).resolve().parents[2]
LUA_DIR = ROOT / "slurm_plugin" / "lua"
LUA_VERSIONS = ("lua51", "lua53", "lua54")
CASES = yaml.safe_load((ROOT / "tests" / "cases" / "requests.yaml").read_text())


@lru_cache
def cluster(name: str, **slurm: Any) -> Config:
    """One of the configurations at the head of tests/cases/requests.yaml, with other settings of
    `slurm`.
    """
    config = parse_config(CASES["clusters"][name], name)
    return config.model_copy(update={"slurm": config.slurm.model_copy(update=slurm)})


@lru_cache
def tables(name: str) -> Tables:
    """Tables of that configuration."""
    return tables_of(cluster(name))


@dataclass(frozen=True)
class Outcome:
    """The result of a submission; `key` and `text` for refusals, else the rest."""

    key: str | None = None
    text: str | None = None
    gres: str | None = None
    comment: str | None = None
    extra: str | None = None
    tag: str | None = None
    tres_per_task: str | None = None
    tasks_per_node: int = 0
    tasks: int = 0
    host: str | None = None


def runtime(version: str) -> Any:
    """LuaRuntime of that Lua version."""
    return importlib.import_module(f"lupa.{version}").LuaRuntime


@lru_cache
def job_submit(version: str, name: str, **slurm: Any) -> JobSubmit:
    """The modules in that Lua version, with that cluster's tables."""
    return JobSubmit(cluster(name, **slurm), runtime(version))


def outcome(job: Submission, name: str, version: str = "lua54", **slurm: Any) -> Outcome:
    """What a Lua version makes of a submission."""
    try:
        found = job_submit(version, name, **slurm).decide(job)
    except RequestError as error:
        return Outcome(key=error.key, text=str(error))
    return Outcome(
        gres=found.gres,
        comment=found.comment,
        extra=found.extra,
        tag=str(found.tag) if found.tag else None,
        tres_per_task=found.tres_per_task,
        tasks_per_node=found.tasks_per_node,
        tasks=found.tasks,
        host=f"{found.host.mib} per {found.host.per}" if found.host else None,
    )


@lru_cache
def module(version: str, name: str = "qgpu.lua") -> tuple[Any, Any]:
    """One Lua module by itself, behind a function that makes a Lua table of a dict; texts are
    UTF-8.
    """
    lua = runtime(version)(encoding="utf-8", unpack_returned_tuples=True)
    return lua.table_from, lua.eval("dofile")(str(LUA_DIR / name))
