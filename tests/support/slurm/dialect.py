"""Visible differences between versions of Slurm: the one place for the live tests."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Dialect:
    """One version.

    field       name of the tag's field in `scontrol show job`
    option      option of sbatch that sets the same field
    prefix      before each gres in TresPerNode
    user_told   whether `scontrol update` prints the sentence of a refusal (22.05: only
                slurmctld's log has it)
    may_change  whether a waiting job may change between classes
    lone_whole  whether a job gets one whole card per node at most, as its hundred shards
    over_job    what srun says of a step that asks for more than its job has
    """

    version: str
    field: str
    option: str
    prefix: str
    user_told: bool
    may_change: bool
    lone_whole: bool
    over_job: str

    def whole(self, gres: str) -> str:
        """What a gres of whole cards becomes."""
        if not self.lone_whole:
            return gres
        return gres.replace("gpu:1", "shard:100").replace("gpu:h200:1", "shard:h200:100")

    def tres(self, gres: str | None) -> str | None:
        """TresPerNode of a job with that gres."""
        return (
            None
            if gres is None
            else ",".join(self.prefix + entry for entry in self.whole(gres).split(","))
        )

    def before(self, version: str) -> bool:
        """Whether this is an older release than `version`, as "24.11"."""
        return self.version < version


def of(version: str) -> Dialect:
    """The dialect of a version such as "22.05.8"."""
    if version < "23.02":
        return Dialect(
            version, "Comment", "--comment", "gres:", False, False, True, "more than the job's"
        )
    return Dialect(
        version,
        "Extra",
        "--extra",
        "gres/",
        True,
        True,
        False,
        "Invalid generic resource (gres) specification",
    )
