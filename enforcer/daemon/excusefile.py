"""Who may keep what he took on a card while he had no cap: on disk, so that a restart of qgpud punishes nobody for it.

One file beside the grants, `excused.json`: `{"version": 1, "excused": {UUID: [JOBID, ...]}}`. It is there only while
somebody is excused.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Mapping

from enforcer.daemon.log import emit
from gres.grants import Grant, GrantError, GrantStore

FILE_NAME = "excused.json"
VERSION = 1
Key = tuple[int, str]


class ExcuseFile:
    """Excused tenancies (job, card) in the directory of grants, read with the same distrust."""

    def __init__(self, store: GrantStore) -> None:
        self._store = store
        self._written: frozenset[Key] | None = frozenset()  # None: nobody knows
        self._failing = False

    def read(self, grants: Mapping[int, Grant]) -> list[Key]:
        """Those whose grants stand on those cards. What cannot be believed excuses nobody, and is said."""
        try:
            data = self._store.kept(FILE_NAME)
            found = frozenset() if data is None else _parse(data)
        except (GrantError, OSError, ValueError) as error:
            emit(logging.ERROR, "excuses-damaged", file=self._store.directory / FILE_NAME, why=error)
            self._written = None
            return []
        self._written = found
        standing = {(job_id, card.uuid) for job_id, grant in grants.items() for card in grant.cards}
        return sorted(found & standing)

    def write(self, keys: Collection[Key]) -> None:
        """Have the file say just that. Where it cannot be written only a restart would notice: it is said once."""
        wanted = frozenset(keys)
        if wanted == self._written:
            return
        try:
            self._store.keep(FILE_NAME, _format(wanted) if wanted else None)
        except (GrantError, OSError) as error:
            if not self._failing:
                emit(logging.ERROR, "excuses-not-kept", file=self._store.directory / FILE_NAME, why=error)
            self._failing = True
            return
        self._written, self._failing = wanted, False


def _format(keys: frozenset[Key]) -> bytes:
    jobs: dict[str, list[int]] = {}
    for job_id, uuid in sorted(keys):
        jobs.setdefault(uuid, []).append(job_id)
    return json.dumps({"version": VERSION, "excused": jobs}, separators=(",", ":")).encode() + b"\n"


def _parse(data: bytes) -> frozenset[Key]:
    """Raises ValueError."""
    try:
        body = json.loads(data)
        if body["version"] != VERSION:
            raise ValueError(f"it has version {body['version']}, and {VERSION} is read")
        keys = {(job_id, uuid) for uuid, jobs in body["excused"].items() for job_id in jobs}
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"it is no list of excused jobs: {error!r}") from None
    if not all(type(job_id) is int for job_id, _ in keys):
        raise ValueError("a job in it is no number")
    return frozenset(keys)
