"""qgpu.yaml: one file for a cluster, the same on each node (docs/specs/config.md).

Sizes are whole MiB once read, durations are `Duration`. Unknown and doubled keys are errors: a
misspelt limit must not become the default unnoticed. `%n` in a path stands for the node's name.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, Field, ValidationError, field_validator, model_validator

from gres.config.classes import Classes, ClassSettings, ReclaimSettings
from gres.config.enforcer import EnforcerSettings
from gres.config.hostlist import expand
from gres.config.node import CardSpec, Node, for_node
from gres.config.reports import DoctorSettings, LedgerSettings, ReportSettings
from gres.config.schema import (
    CLASSES,
    AbsPath,
    CardGroup,
    Dimension,
    DriverSettings,
    HookSettings,
    Injection,
    Isolation,
    JobClass,
    Limits,
    LoggingSettings,
    ModelSettings,
    NodeGroup,
    Policy,
    RunSettings,
    Section,
    SlurmSettings,
    SuspendedSettings,
    TagField,
    Word,
)
from gres.config.sentences import fault_sentence
from gres.config.yamltext import YamlTextError, read_mapping
from gres.paths import PATHS
from gres.trusted import UntrustedError, require
from gres.units import Duration

__all__ = [
    "CLASSES",
    "CardSpec",
    "ClassSettings",
    "Config",
    "ConfigError",
    "Dimension",
    "DriverSettings",
    "EnforcerSettings",
    "HookSettings",
    "Injection",
    "Isolation",
    "JobClass",
    "Limits",
    "ModelSettings",
    "Node",
    "NodeGroup",
    "Policy",
    "SlurmSettings",
    "SuspendedSettings",
    "TagField",
    "digest_of",
    "for_node",
    "load_config",
    "parse_config",
]

MAX_CONFIG_BYTES = 1 << 20  # bytes of qgpu.yaml: a cluster of thousands of nodes has far fewer
V = TypeVar("V")


class ConfigError(ValueError):
    """The configuration cannot be used; the text holds one sentence per
    line, each naming the key.
    """


def _lowered(value: dict[str, V]) -> dict[str, V]:
    """QOS names in lower case, as Slurm keeps them."""
    found = {name.lower(): item for name, item in value.items()}
    if len(found) < len(value):
        raise ValueError("names a QOS twice: to Slurm upper and lower case are the same")
    return found


class Config(Section):
    """The whole of qgpu.yaml."""

    version: Literal[1]
    cluster: Word
    run_dir: AbsPath = PATHS.run_dir
    state_dir: AbsPath = PATHS.state_dir
    slurm: SlurmSettings = SlurmSettings()
    driver: DriverSettings = DriverSettings()
    shim: AbsPath = PATHS.shim
    hook: HookSettings = HookSettings()
    spank: AbsPath = PATHS.spank
    injection: Injection = "auto"
    qos: dict[str, JobClass] = Field(default_factory=dict)
    default_class: JobClass | None = None
    suspended: dict[str, SuspendedSettings] = Field(default_factory=dict)
    classes: Classes = Field(default_factory=dict)
    reclaim: ReclaimSettings = ReclaimSettings()
    models: dict[Word, ModelSettings] = Field(min_length=1)
    nodes: list[NodeGroup] = Field(min_length=1)
    limits: Limits = Limits()
    cards: list[CardGroup] = Field(default_factory=list)
    managed_partitions: list[str] = Field(default=["*"], min_length=1)
    run: RunSettings = RunSettings()
    enforcer: EnforcerSettings = EnforcerSettings()
    ledger: LedgerSettings = LedgerSettings()
    reports: ReportSettings = ReportSettings()
    logging: LoggingSettings = LoggingSettings()
    doctor: DoctorSettings = DoctorSettings()

    @field_validator("models")
    @classmethod
    def _model_names(cls, value: dict[str, ModelSettings]) -> dict[str, ModelSettings]:
        for name in value:
            if name in CLASSES:
                raise ValueError(
                    f"a model must not be called '{name}', which is the name of a class"
                )
        return value

    @field_validator("qos")
    @classmethod
    def _qos_names(cls, value: dict[str, JobClass]) -> dict[str, JobClass]:
        for name in value:
            if not re.fullmatch(r"[A-Za-z0-9_.@+-]{1,64}", name):
                raise ValueError(f"'{name}' is not a QOS name")
        return _lowered(value)

    @field_validator("suspended")
    @classmethod
    def _suspended_names(cls, value: dict[str, SuspendedSettings]) -> dict[str, SuspendedSettings]:
        return _lowered(value)

    @field_validator("managed_partitions")
    @classmethod
    def _partitions(cls, value: list[str]) -> list[str]:
        for name in value:
            if name != "*" and not re.fullmatch(r"[A-Za-z0-9_.@+-]{1,64}", name):
                raise ValueError(
                    f"'{name}' is not a partition name; write a name, or \"*\" for all"
                )
        return value

    @model_validator(mode="after")
    def _some_class(self) -> Config:
        if not self.qos and self.default_class is None:
            raise ValueError(
                "qos maps no QOS to a class and default_class is null, so no job could use a share"
            )
        return self

    @model_validator(mode="after")
    def _suspended_offline(self) -> Config:
        for name in self.suspended:
            found = self.qos.get(name) or self.default_class
            if found != "offline":
                word = f"is {found}" if found else "has no class"
                raise ValueError(
                    f"suspended names the QOS '{name}', which {word}: only offline jobs are"
                    " suspended"
                )
        return self

    @model_validator(mode="after")
    def _nodes_fit(self) -> Config:
        seen: set[str] = set()
        for group in self.nodes:
            if group.model not in self.models:
                raise ValueError(
                    f"nodes '{group.names}' have the model '{group.model}', which is not under"
                    " models"
                )
            for name in expand(group.names):
                if name in seen:
                    raise ValueError(f"node '{name}' is named twice under nodes")
                seen.add(name)
        return self

    @model_validator(mode="after")
    def _cards_exist(self) -> Config:
        counts = {name: group.count for group in self.nodes for name in expand(group.names)}
        for entry in self.cards:
            for name in expand(entry.nodes) if entry.nodes is not None else ():
                if name not in counts:
                    raise ValueError(f"cards name the node '{name}', which is not under nodes")
                for index in entry.cards or ():
                    if index >= counts[name]:
                        raise ValueError(
                            f"cards name card {index} of '{name}', which has {counts[name]}"
                            f" card(s); write an index from 0 to {counts[name] - 1}"
                        )
        return self

    @model_validator(mode="after")
    def _instances_can_be_shared(self) -> Config:
        """Before 23.11 slurmd counts files of a MIG instance as separate cards once there are
        shards.
        """
        for group in self.nodes:
            if group.instances is not None and self.slurm.version < "23.11":
                raise ValueError(
                    f"nodes '{group.names}' have MIG instances, which Slurm can share from 23.11"
                    f" on, but this is {self.slurm.version}; correct slurm.version, or leave these"
                    " nodes out"
                )
        return self

    @model_validator(mode="after")
    def _mem_fits(self) -> Config:
        for model in {group.model: group for group in self.nodes}:
            least, most = self.least_mem(model), self.limits.max_share * self.models[model].usable
            if least > most // 100:
                key = "limits.min_mem" if least == self.limits.min_mem else f"{model}.context"
                raise ValueError(
                    f"{key} {least} MiB is above what {most // 100} MiB a share can have"
                )
        return self

    def least_mem(self, model: str) -> int:
        """MiB that a share of a card of this model has at least: enough for a context."""
        return max(self.limits.min_mem, self.models[model].context)

    @property
    def tag_field(self) -> TagField:
        """The job field that carries the tag to the nodes."""
        if self.slurm.tag_field != "auto":
            return self.slurm.tag_field
        return "comment" if self.slurm.version < "23.02" else "extra"

    def reclaims(self, job_class: JobClass | None) -> bool:
        """Whether memory of jobs of the class may be taken back; None (whole cards) has none."""
        return job_class is not None and self.classes[job_class].memory == "reclaimable"

    @property
    def reclaiming(self) -> bool:
        """Whether any class is reclaimable."""
        return any(map(self.reclaims, CLASSES))

    @property
    def max_reclaimable(self) -> int:
        """Percent of a card's usable memory that caps of reclaimable jobs may sum up to; 0: none
        is.
        """
        return sum(each.max_reclaimable or 0 for each in self.classes.values())

    @property
    def prolog_deadline(self) -> Duration:
        """How long a Prolog waits for qgpud's answer: jobs may have to leave first."""
        extra = self.reclaim.deadline.ns if self.reclaiming else 0
        return Duration(self.hook.deadline.ns + extra)

    def node_names(self) -> list[str]:
        """All node names, in the order of the file."""
        return [name for group in self.nodes for name in expand(group.names)]

    def node(self, name: str) -> Node:
        """The node of that name with its cards and directories. Raises ConfigError if it is
        unknown.
        """
        for group in self.nodes:
            if name in expand(group.names):
                return self._node(name, group)
        raise ConfigError(
            f"node '{name}' is not configured; qgpu.yaml names {', '.join(self.node_names()[:8])}"
        )

    def _node(self, name: str, group: NodeGroup) -> Node:
        model = self.models[group.model]
        cards = tuple(
            CardSpec(index, paths[0], group.model, model.memory, model.usable, paths[1:])
            for index, paths in enumerate(group.card_files(name))
        )
        run_dir, state_dir = for_node(self.run_dir, name), for_node(self.state_dir, name)
        injection, managed = group.injection or self.injection, self.enforcer.managed
        return Node(name, group.model, cards, run_dir, state_dir, injection, managed)

    def smallest_usable(self) -> int:
        """MiB for an untyped request: usable memory of the smallest card on any node."""
        return min(self.models[group.model].usable for group in self.nodes)


_NESTED: dict[tuple[str, str], type[BaseModel]] = {
    ("Config", "classes"): ClassSettings,
    ("Config", "models"): ModelSettings,
    ("Config", "nodes"): NodeGroup,
    ("Config", "cards"): CardGroup,
    ("Config", "suspended"): SuspendedSettings,
}


def _known_keys(location: tuple[int | str, ...]) -> list[str]:
    """Keys that exist beside the one at `location`."""
    model: type[BaseModel] = Config
    for step in location[:-1]:
        if step not in model.model_fields:
            continue  # name of a class or model, or index in a list
        inner = model.model_fields[str(step)].annotation
        if not (isinstance(inner, type) and issubclass(inner, BaseModel)):
            nested = _NESTED.get((model.__name__, str(step)))
            if nested is None:
                return []
            inner = nested
        model = inner
    return list(model.model_fields)


def _sentence(error: Any) -> str:
    location = tuple(error["loc"])
    key = ".".join(str(step) for step in location if step != "[key]") or "the file"
    return fault_sentence(error, key, _known_keys(location))


def parse_config(text: str, source: str = "qgpu.yaml") -> Config:
    """Config of a YAML text. Raises ConfigError: one sentence per line,
    each begins with `source`.
    """
    try:
        return Config.model_validate(read_mapping(text))
    except ValidationError as error:
        lines = [f"{source}: {_sentence(item)}" for item in error.errors()]
        raise ConfigError("\n".join(lines)) from None
    except YamlTextError as error:
        raise ConfigError(f"{source}: {error}") from None


def load_config(path: str | Path, node: str | None = None, trusted: bool = False) -> Config:
    """Read qgpu.yaml. Raises ConfigError with sentences, also if the file cannot be read.

    With `node`, that node must be configured, and %n is replaced in each path. `trusted`: only a
    file that none but root and the present user could replace.
    """
    try:
        if trusted:
            require(path, "the configuration")
        raw = Path(path).read_bytes()[: MAX_CONFIG_BYTES + 1]
        text = raw.decode()
    except UntrustedError as error:
        raise ConfigError(str(error)) from None
    except OSError as error:
        hint = (
            "; name another with --config or QGPU_CONFIG"
            if isinstance(error, FileNotFoundError)
            else ""
        )
        raise ConfigError(
            f"{path}: the configuration cannot be read: {error.strerror}{hint}"
        ) from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: the configuration is not UTF-8 text") from None
    if len(raw) > MAX_CONFIG_BYTES:
        raise ConfigError(f"{path}: the configuration is larger than {MAX_CONFIG_BYTES} bytes")
    config = parse_config(text, str(path))
    return config if node is None else _resolved(config, node)


def digest_of(path: str | Path) -> str:
    """SHA-256 of qgpu.yaml in hexadecimal, to compare hosts; "" if it cannot be read."""
    try:
        with Path(path).open("rb") as file:
            return hashlib.sha256(file.read(MAX_CONFIG_BYTES + 1)).hexdigest()
    except OSError:
        return ""


def _resolved(config: Config, node: str) -> Config:
    config.node(node)
    driver = {key: for_node(value, node) for key, value in config.driver.model_dump().items()}
    paths = {
        key: for_node(str(getattr(config, key)), node)
        for key in ("run_dir", "state_dir", "shim", "spank")
    }
    return config.model_copy(update={**paths, "driver": DriverSettings(**driver)})
