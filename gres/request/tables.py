"""The tables that Lua needs of qgpu.yaml to decide a request; qgpu_tables.lua.j2 renders them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from gres.config.schema import JobClass, TagField
from gres.config.site import Config
from gres.request.reservation import mem_shards

SCHEMA = 1  # format of the rendered qgpu_tables.lua; qgpu.lua refuses another


@dataclass(frozen=True)
class ModelTable:
    """One model of card on some node: MiB that jobs can share and that a share must have at least,
    most cards per node, and most MiB of host memory; None: qgpu.yaml does not say.
    """

    usable: int
    cards: int
    least: int
    host: int | None = None


class NodeTable(NamedTuple):
    """A group of nodes: their host list, cards of each, and the model."""

    names: str
    cards: int
    model: str


@dataclass(frozen=True)
class HostDefault:
    """Host memory of a job without --mem by slurm.conf: MiB per node or CPU; 0: all of the node."""

    per: Literal["node", "cpu"] = "node"
    mib: int = 0


@dataclass(frozen=True)
class Tables:
    """Limits and maps of one cluster. `partitions` is empty where all partitions are managed."""

    tag_field: TagField
    has_extra: bool
    qos: dict[str, JobClass]
    default_class: JobClass | None
    compute: dict[JobClass, bool]
    models: dict[str, ModelTable]
    min_share: int
    max_share: int
    partitions: tuple[str, ...] = field(default=())
    # Before 23.11.5 slurmctld no longer counts a card as shared when the first of several shares
    # ends, and may give it away whole. There a whole card is booked as its hundred shards.
    whole_by_shard: bool = False
    # slurmctld tells Lua the QOS of an association. From 24.11 to 25.05.2 it crashes where there is
    # no such association (`sbatch -A nosuch`), so there Lua does not ask.
    assoc_qos: bool = False
    # enforce-binding alone books all cores near a card (seen on 24.11 and 26.05, not on 22.05);
    # with multi_card each share has its number of tasks per node
    books_cores: bool = False
    # gres.conf says `explicit`: a job with --exclusive is not given all counts of the node
    explicit: bool = True
    # node groups by host list: their cards and model, for jobs with --exclusive
    nodes: tuple[NodeTable, ...] = ()
    multi_card: bool = False  # shares are requested per task, one task per card (qgpu_cards.lua)
    reclaimable: dict[JobClass, bool] = field(default_factory=dict)
    host_default: HostDefault = HostDefault()

    @property
    def smallest(self) -> int:
        """MiB for an untyped request."""
        return min(model.usable for model in self.models.values())

    @property
    def min_mem(self) -> int:
        """MiB that an untyped request must have: enough for a context on any card."""
        return max(model.least for model in self.models.values())

    @property
    def example(self) -> int:
        """A valid share, for examples in sentences."""
        return min(max(30, self.min_share, mem_shards(self.min_mem, self.smallest)), self.max_share)

    @property
    def qos_names(self) -> list[str]:
        """QOS with a class, sorted."""
        return sorted(self.qos)


def _model_table(config: Config, model: str) -> ModelTable:
    groups = [group for group in config.nodes if group.model == model]
    sizes = [group.host_memory for group in groups]
    known = [size for size in sizes if size is not None]
    return ModelTable(
        config.models[model].usable,
        max(group.count for group in groups),
        config.least_mem(model),
        max(known) if len(known) == len(sizes) else None,
    )


def tables_of(config: Config, host_default: HostDefault | None = None) -> Tables:
    """Tables of a configuration, without models that no node has. `host_default` matters only where
    memory may be taken back.
    """
    models = {group.model: _model_table(config, group.model) for group in config.nodes}
    managed = config.managed_partitions
    return Tables(
        tag_field=config.tag_field,
        has_extra=config.slurm.version >= "23.02",
        qos=dict(config.qos),
        default_class=config.default_class,
        compute={name: "compute" in settings.reserves for name, settings in config.classes.items()},
        models=dict(sorted(models.items())),
        min_share=config.limits.min_share,
        max_share=config.limits.max_share,
        partitions=() if "*" in managed else tuple(sorted(set(managed))),
        whole_by_shard=config.slurm.version < "23.11.5",
        assoc_qos=config.slurm.version >= "25.05.3",
        books_cores=config.slurm.version >= "24.11" and not config.slurm.multi_card,
        explicit=config.slurm.version >= "23.02",
        nodes=tuple(NodeTable(group.names, group.count, group.model) for group in config.nodes),
        multi_card=config.slurm.multi_card,
        reclaimable={name: config.reclaims(name) for name in config.classes},
        host_default=(host_default if config.reclaiming else None) or HostDefault(),
    )
