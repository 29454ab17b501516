"""What the gres and Lua tests share: clusters, the table of cases, and qgpu.lua in several Lua versions."""

from __future__ import annotations

import importlib
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from gres.config import Config, parse_config
from gres.request import RequestError, Submission, decide
from gres.tables import Tables, tables_of
from slurm_plugin.render import render

ROOT = Path(__file__).resolve().parents[2]
LUA_DIR = ROOT / "slurm_plugin" / "lua"
LUA_VERSIONS = ("lua51", "lua53", "lua54")
CASES = yaml.safe_load((ROOT / "tests" / "cases" / "requests.yaml").read_text())


@lru_cache
def cluster(name: str) -> Config:
    """One of the configurations at the head of tests/cases/requests.yaml."""
    return parse_config(CASES["clusters"][name], name)


@lru_cache
def tables(name: str) -> Tables:
    """Tables of that configuration."""
    return tables_of(cluster(name))


@dataclass(frozen=True)
class Outcome:
    """What either language made of a submission; `key` and `text` for refusals, else the rest."""

    key: str | None = None
    text: str | None = None
    gres: str | None = None
    comment: str | None = None
    extra: str | None = None
    tag: str | None = None


def python_outcome(job: Submission, name: str) -> Outcome:
    """The reference's answer."""
    try:
        found = decide(job, tables(name))
    except RequestError as error:
        return Outcome(key=error.key, text=str(error))
    tag = str(found.tag) if found.tag else None
    return Outcome(gres=found.gres, comment=found.comment, extra=found.extra, tag=tag)


class LuaQgpu:
    """qgpu.lua in one Lua version, with the rendered tables of one cluster."""

    def __init__(self, version: str, name: str) -> None:
        module = importlib.import_module(f"lupa.{version}")
        # Bytes in and out, as in slurmctld: Lua knows no encodings.
        self.runtime = module.LuaRuntime(encoding=None, unpack_returned_tuples=True)
        self.q = self.runtime.eval(b"dofile")(str(LUA_DIR / "qgpu.lua").encode())
        self.tables = self.runtime.execute(render("qgpu_tables.lua", cluster(name)).encode())

    def table(self, values: dict[str, Any]) -> Any:
        """A Lua table of these values; None is nil."""
        found = self.runtime.table()
        for key, value in values.items():
            if value is not None:
                found[key.encode()] = _raw(value)
        return found

    def outcome(self, job: Submission) -> Outcome:
        """Lua's answer."""
        answer = self.q[b"decide"](self.table(asdict(job)), self.tables)
        if isinstance(answer, tuple):
            _, refusal = answer
            return Outcome(key=_text(refusal[b"key"]), text=_text(refusal[b"text"]))
        tag = answer[b"tag"]
        text = self.q[b"tag_text"](tag) if tag is not None else None
        names = (b"gres", b"comment", b"extra")
        gres, comment, extra = (_text(answer[name]) for name in names)
        return Outcome(gres=gres, comment=comment, extra=extra, tag=_text(text))


def _raw(value: Any) -> Any:
    return value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("utf-8", "surrogateescape")


@lru_cache
def lua(version: str, name: str) -> LuaQgpu:
    """A cached runtime per Lua version and cluster."""
    return LuaQgpu(version, name)
