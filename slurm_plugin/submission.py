"""Runs the Lua modules of job_submit.lua in Python: what slurmctld would make of a submission.

slurm_plugin/lua is the only implementation of a request (docs/specs/request.md). `qgpu plan` and
the tests run it here by lupa, with tables rendered from qgpu.yaml.

Slurm links Lua 5.4 on EL 9 and 5.1 on Debian. The modules use what 5.1 to 5.4 share, and the tests
run all cases in 5.1, 5.3 and 5.4. Here it is 5.4, the newest, which has integers beside doubles.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from lupa.lua54 import LuaError, LuaRuntime

from gres.config.schema import JobClass
from gres.config.site import Config
from gres.grant.tag import Tag, parse_tag
from gres.printable import printable
from gres.request.tables import HostDefault
from slurm_plugin.render import render

# The modules beside this file: each host has them, of this release, even without qgpu-controller.
LUA_DIR = Path(__file__).with_name("lua")
_BIND = 1 << 4  # Slurm's GRES_ENFORCE_BIND, the same in all versions
_SLURM = b"slurm = { GRES_ONE_TASK_PER_SHARING = 2 ^ 38, GRES_ENFORCE_BIND = %d }" % _BIND
# --exclusive, --exclusive=user ... in a submission
Exclusive = Literal["node", "user", "mcs", "topo"]
_SHARED: dict[Exclusive, int] = {"node": 0, "user": 2, "mcs": 3, "topo": 4}
_TEXTS = (
    "gres",
    "qos",
    "comment",
    "extra",
    "partition",
    "tres_per_job",
    "tres_per_task",
    "tres_per_socket",
    "cpus_per_tres",
    "mem_per_tres",
    "tres_bind",
    "tres_freq",
)


def syntax_error(text: str) -> tuple[int, str]:
    """The line in which Lua does not compile a script, and why; 0 if it does."""
    try:
        LuaRuntime(register_eval=False).compile(text)
    except LuaError as error:
        line, _, why = str(error).rpartition("]:")[2].partition(": ")
        return int(line), why
    return 0, ""


class RequestError(ValueError):
    """A refusal: `key` names the rule, the text is the sentence for the user."""

    def __init__(self, key: str, text: str) -> None:
        super().__init__(text)
        self.key = key


class LuaMissingError(RuntimeError):
    """The Lua modules of this installation are unusable; the text is a sentence."""


@dataclass(frozen=True)
class Submission:
    """Fields of a job submission under Slurm's names; None if not given.

    `vram` and `cards` are options of the SPANK plugin as written; `nodes` and the two numbers
    of tasks are the job's shape, with `cpus_per_task`; `mem` (0: all of the node) and `mem_per_cpu`
    are MiB of host memory. `extra` counts only if this Slurm has it (23.02), of `gres_flags`
    only enforce-binding.
    """

    gres: str | None = None
    qos: str | None = None
    comment: str | None = None
    extra: str | None = None
    partition: str | None = None
    tres_per_job: str | None = None
    tres_per_task: str | None = None
    tres_per_socket: str | None = None
    cpus_per_tres: str | None = None
    mem_per_tres: str | None = None
    tres_bind: str | None = None
    tres_freq: str | None = None
    exclusive: Exclusive | None = None
    gres_flags: str | None = None
    vram: str | None = None
    cards: str | None = None
    nodes: int | None = None
    tasks: int | None = None
    tasks_per_node: int | None = None
    cpus_per_task: int | None = None
    mem: int | None = None
    mem_per_cpu: int | None = None


@dataclass(frozen=True)
class Host:
    """Host memory of a job whose GPU memory may be taken back: MiB per node or CPU, before and
    after.
    """

    per: Literal["node", "cpu"]
    own: int
    mib: int


@dataclass(frozen=True)
class Decision:
    """The result of an accepted submission; unchanged fields are None.

    `shards` is what Slurm books on the card, `cards` the whole cards per node (0 for a share).
    `host`: the memory request that grows. The last three are set if shares are requested per task
    (slurm.multi_card).
    """

    gres: str | None = None
    comment: str | None = None
    extra: str | None = None
    tag: Tag | None = None
    model: str | None = None
    shards: int = 0
    cards: int = 0
    host: Host | None = None
    tres_per_task: str | None = None
    tasks_per_node: int = 0
    tasks: int = 0


class JobSubmit:
    """The modules in one Lua state, with the tables of one cluster. Raises LuaMissingError.

    `runtime` is a LuaRuntime of another version, `directory` the modules' directory. `memory`: the
    host memory of a job that asks for none.
    """

    def __init__(
        self,
        config: Config,
        runtime: type[LuaRuntime] = LuaRuntime,
        directory: Path = LUA_DIR,
        memory: HostDefault | None = None,
    ) -> None:
        # Bytes in and out, as in slurmctld: Lua has no encodings. Lua gets no access to Python.
        self.lua = runtime(
            encoding=None, unpack_returned_tuples=True, register_eval=False, register_builtins=False
        )
        self.lua.execute(_SLURM)
        self.tables = self.lua.execute(render("qgpu_tables.lua", config, memory=memory).encode())
        try:
            hooks = self.lua.eval(b"dofile")(str(directory / "qgpu_job_submit.lua").encode())(
                self.tables, True
            )
        except LuaError as error:
            first = str(error).partition("\n")[0]  # the rest is Lua's stack
            raise LuaMissingError(f"{printable(first)}: install the package again") from None
        self._judge = hooks[b"judge"]

    def decide(self, job: Submission) -> Decision:
        """Decide a submission. Raises RequestError with the sentence for the user."""
        record = self._record(job)
        answer = self._judge(record, self.lua.table())
        if isinstance(answer, tuple):
            _, refusal = answer
            raise RequestError(str(_text(refusal[b"key"])), str(_text(refusal[b"text"])))
        return Decision(
            gres=_text(answer[b"gres"]),
            comment=_text(answer[b"comment"]),
            extra=_text(answer[b"extra"]),
            tag=_tag(answer[b"tag"]),
            model=_text(answer[b"model"]),
            shards=int(answer[b"shards"] or 0),
            cards=int(answer[b"cards"] or 0),
            host=_host(answer[b"host"]),
            **(_shape(record) if answer[b"per_task"] else {}),
        )

    def _record(self, job: Submission) -> Any:
        """Slurm's job_desc of it, with the fields that the modules read."""
        record = self.lua.table()
        numbers = {
            "min_nodes": job.nodes,
            "num_tasks": job.tasks,
            "ntasks_per_node": job.tasks_per_node,
            "max_nodes": job.nodes,
            "cpus_per_task": job.cpus_per_task,
            "min_mem_per_node": job.mem,
            "min_mem_per_cpu": job.mem_per_cpu,
        }
        values = {
            **{name: getattr(job, name) for name in _TEXTS},
            **numbers,
            "bitflags": _BIND if "enforce-binding" in (job.gres_flags or "").split(",") else 0,
            "shared": None if job.exclusive is None else _SHARED[job.exclusive],
        }
        for name, value in values.items():
            record[name.encode()] = _raw(value)
        options = {"QGPU_VRAM": job.vram, "QGPU_CARDS": job.cards}
        lines = [f"{name}={value}" for name, value in options.items() if value]
        record[b"spank_job_env"] = self.lua.table(*(_raw(line) for line in lines))
        return record


def read_decision(told: Mapping[str, str]) -> Decision:
    """What slurmctld said to `qgpu plan` (lua/qgpu_plan.lua). Raises ValueError."""
    per, shaped = told.get("host_per"), "tres_per_task" in told
    return Decision(
        gres=told.get("gres"),
        tag=parse_tag(told.get("tag", "")),
        model=told.get("model"),
        shards=int(told.get("shards", 0)),
        cards=int(told.get("cards", 0)),
        host=Host("cpu" if per == "cpu" else "node", int(told["host_own"]), int(told["host_mib"]))
        if per
        else None,
        tres_per_task=told.get("tres_per_task"),
        tasks_per_node=int(told.get("tasks_per_node", 0)) if shaped else 0,
        tasks=int(told.get("tasks", 0)) if shaped else 0,
    )


def _shape(record: Any) -> dict[str, Any]:
    """The fields set in job_desc for a share per task."""
    return {
        "tres_per_task": _text(record[b"tres_per_task"]),
        "tasks_per_node": int(record[b"ntasks_per_node"]),
        "tasks": int(record[b"num_tasks"]),
    }


def _tag(tag: Any) -> Tag | None:
    if tag is None:
        return None
    job_class = _text(tag[b"class"])
    if job_class is None:
        return Tag(node=bool(tag[b"node"]))
    return Tag(
        cast(JobClass, job_class),
        int(tag[b"share"]),
        int(tag[b"mem"]),
        int(tag[b"cards"] or 1),
        host=_integer(tag[b"host"]),
        cpus=_integer(tag[b"host_cpus"]),
    )


def _host(host: Any) -> Host | None:
    if host is None:
        return None
    per: Literal["node", "cpu"] = "cpu" if host[b"per"] == b"cpu" else "node"
    return Host(per, int(host[b"own"]), int(host[b"mib"]))


def _integer(value: float | None) -> int | None:
    return None if value is None else int(value)


def _raw(value: str | int | None) -> bytes | int | None:
    return value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("utf-8", "surrogateescape")
