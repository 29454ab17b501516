"""Grants: what one job may do on the cards of one node, and the directory that keeps them.

`JOBID.json` is the truth: root-owned, mode 0600, written atomically, and checked when read.
`JOBID.grant` beside it is the same in the binary layout of qgpu_abi.h, for SPANK and the shim. It
is packed by enforcer/wire/abi.py, and written here by the same rules. docs/specs/grant.md describes
both.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_args

from gres.config.site import JobClass
from gres.grant.card import HERE, check_cards, check_integer, check_text
from gres.grant.card import GrantCard as GrantCard
from gres.grant.card import GrantError as GrantError
from gres.printable import printable

GrantState = Literal["active", "refused", "whole"]

VERSION = 1
MAX_CARDS = 16  # QG_MAX_CARDS of qgpu_abi.h
RUN_BASE = 1 << 40  # job numbers of `qgpu run` begin here, above Slurm's 32 bits
MAX_JOB = 2**53 - 1  # largest integer that each JSON reader keeps exactly
MAX_FILE_BYTES = 64 * 1024  # a grant with MAX_CARDS cards has a tenth of it
MAX_MESSAGE_BYTES = 511  # field `message` of qg_grant, less its NUL
_NAME = re.compile(r"([1-9][0-9]{0,15})\.json")
_OVER = re.compile(r"[1-9][0-9]{0,15}\.over")


class GrantMissing(GrantError):
    """There is no grant of that job."""


@dataclass(frozen=True)
class Grant:
    """What one job may do on one node. `created_ns` is CLOCK_REALTIME in nanoseconds.

    `reclaimable`: memory of the job may be taken back, and its caps are not booked.
    The paths are for SPANK and the shim: the sockets' directory, the real libcuda.so.1, the shim.
    Raises GrantError with a sentence if values contradict each other.
    """

    job_id: int
    uid: int
    gid: int
    node: str
    state: GrantState
    job_class: JobClass | None = None
    created_ns: int = 0
    message: str = ""
    cards: tuple[GrantCard, ...] = ()
    run_dir: str = ""
    driver_path: str = ""
    shim_path: str = ""
    reclaimable: bool = False

    def __post_init__(self) -> None:
        check_integer("job_id", self.job_id, 1, MAX_JOB)
        check_integer("uid", self.uid, 0, 2**32 - 2)
        check_integer("gid", self.gid, 0, 2**32 - 2)
        check_integer("created_ns", self.created_ns, 0, 2**63 - 1)
        check_text("node", self.node, 63)
        check_text("message", self.message, MAX_MESSAGE_BYTES)
        check_text("run_dir", self.run_dir, 159)
        check_text("driver_path", self.driver_path, 255)
        check_text("shim_path", self.shim_path, 255)
        self._check_state()
        check_cards(self.job_id, self.cards, MAX_CARDS)

    def _check_state(self) -> None:
        if self.state not in get_args(GrantState):
            raise GrantError(
                f"state is {self.state!r}, but must be one of {', '.join(get_args(GrantState))}"
            )
        if self.job_class not in ((*get_args(JobClass),) if self.state == "active" else (None,)):
            raise GrantError(f"job_class {self.job_class!r} does not fit the state {self.state}")
        if self.reclaimable is not False and not (
            self.reclaimable is True and self.state == "active"
        ):
            raise GrantError(f"reclaimable {self.reclaimable!r} does not fit state {self.state}")
        if self.state == "refused" and not self.message:
            raise GrantError(
                f"job {self.job_id} is refused without a message; the user must be told why"
            )
        if self.state != "refused" and not self.cards:
            raise GrantError(f"the grant of job {self.job_id} is {self.state} but names no card")

    def to_json(self) -> str:
        """One JSON object with the format's version; the inverse of `from_json`.

        `reclaimable` is there only where it is true: other grants stay what older versions read.
        """
        body = asdict(self) | {"cards": [card.to_dict() for card in self.cards]}
        if not self.reclaimable:
            del body["reclaimable"]
        return json.dumps({"version": VERSION, **body}, indent=1, ensure_ascii=True) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes) -> Grant:
        """Grant of a JSON text. Unknown versions, keys and values out of range raise GrantError."""
        try:
            data = json.loads(text)
        except (ValueError, RecursionError):
            raise GrantError("the grant is not JSON") from None
        if not isinstance(data, dict) or data.get("version") != VERSION:
            raise GrantError(f"the grant has not the version {VERSION} that this qgpu reads")
        data = {"reclaimable": False, **data}
        body = _only(data, {field.name for field in fields(cls)} | {"version"}, "grant")
        del body["version"]
        cards = body.pop("cards")
        if not isinstance(cards, list):
            raise GrantError("cards must be a list")
        names = {field.name for field in fields(GrantCard)}
        return cls(**body, cards=tuple(GrantCard(**_card(card, names)) for card in cards))


def _card(data: object, names: set[str]) -> dict[str, Any]:
    """The keys of one card; `home` and `home_minor` may be missing, but only together."""
    here = HERE if isinstance(data, dict) and not set(HERE) & set(data) else {}
    return _only({**here, **data} if isinstance(data, dict) else data, names, "card")


def _only(data: object, names: set[str], what: str) -> dict[str, Any]:
    """The object, if it has exactly these keys."""
    if not isinstance(data, dict) or set(data) != names:
        found = sorted(set(data) ^ names) if isinstance(data, dict) else type(data).__name__
        raise GrantError(
            f"the {what} must have exactly the keys {sorted(names)}; these differ: {found}"
        )
    return dict(data)


def clip_message(text: str) -> str:
    """`text` cut to what a grant can hold, at a character, and printable."""
    return printable(text).encode(errors="replace")[:MAX_MESSAGE_BYTES].decode(errors="ignore")


def _exists(name: str, directory: int) -> bool:
    try:
        os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


class GrantStore:
    """The directory of grants. Only its owner (root; `owner` is for tests) may write there.

    The directory is made if missing. Each method raises GrantError with a sentence for untrusted
    content, and OSError if the file system fails.
    """

    def __init__(self, directory: str | Path, owner: int | None = None) -> None:
        self.directory = Path(directory)
        self.owner = os.geteuid() if owner is None else owner
        with contextlib.suppress(FileExistsError):
            self.directory.mkdir(mode=0o755, parents=True)
        with self._open():
            pass

    @contextlib.contextmanager
    def _open(self) -> Iterator[int]:
        """A descriptor of the directory, after its owner and mode were checked."""
        try:
            fd = os.open(
                self.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            )
        except OSError as error:
            raise GrantError(
                f"{self.directory} is not a directory of grants: {error.strerror}"
            ) from None
        try:
            info = os.fstat(fd)
            if info.st_uid != self.owner or info.st_mode & 0o022:
                raise GrantError(
                    f"{self.directory} must belong to uid {self.owner} and be writable by it alone;"
                    f" it belongs to uid {info.st_uid} with mode {stat.S_IMODE(info.st_mode):04o}"
                )
            yield fd
        finally:
            os.close(fd)

    def write(self, grant: Grant) -> None:
        """Write the truth (JOBID.json, mode 0600), durable when this returns."""
        with self._open() as directory:
            self._put(directory, f"{grant.job_id}.json", grant.to_json().encode(), 0o600)
            os.fsync(directory)

    def write_both(self, grant: Grant, blob: bytes) -> None:
        """Write both forms, JSON first, durable on return; one sync, since a Prolog waits."""
        with self._open() as directory:
            self._put(directory, f"{grant.job_id}.json", grant.to_json().encode(), 0o600)
            self._put_blob(directory, grant.job_id, blob)

    def rewrite(self, grant: Grant, blob: bytes) -> None:
        """Write both forms of a grant that stands already, JSON first, durable on return. The marks
        of its tasks stay. Where there is no space for both, both stay as they are.
        """
        job = grant.job_id
        texts = {f"{job}.json": (grant.to_json().encode(), 0o600), f"{job}.grant": (blob, 0o644)}
        staged: list[str] = []
        with self._open() as directory:
            try:
                for name, (data, mode) in texts.items():
                    staged.append(self._stage(directory, name, data, mode))
                for name, temporary in zip(texts, staged, strict=True):
                    os.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
                    os.fsync(directory)
            finally:
                for temporary in staged:  # those that were renamed are gone
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(temporary, dir_fd=directory)

    def write_blob(self, job_id: int, blob: bytes) -> None:
        """Write the binary form (JOBID.grant, mode 0644), durable on return. Write it after the
        JSON.
        """
        with self._open() as directory:
            self._put_blob(directory, job_id, blob)

    def _put_blob(self, directory: int, job_id: int, blob: bytes) -> None:
        self._put(directory, f"{job_id}.grant", blob, 0o644)
        for mark in ("over", "fetched"):  # from an earlier run
            with contextlib.suppress(FileNotFoundError):
                os.unlink(f"{job_id}.{mark}", dir_fd=directory)
        os.fsync(directory)

    def _put(self, directory: int, name: str, data: bytes, mode: int) -> None:
        """Replace a file in one step; its content is durable, its name once the directory is
        synced.
        """
        temporary = self._stage(directory, name, data, mode)
        try:
            os.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=directory)
            raise

    def _stage(self, directory: int, name: str, data: bytes, mode: int) -> str:
        """A temporary file with the content of a file, durable; its name."""
        if len(data) > MAX_FILE_BYTES:
            raise GrantError(f"{name} would have {len(data)} bytes; the limit is {MAX_FILE_BYTES}")
        temporary = f".{name}.{os.getpid()}.tmp"
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=directory)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(temporary, flags, 0o600, dir_fd=directory)
        try:
            with os.fdopen(fd, "wb") as file:
                file.write(data)
                file.flush()
                os.fchmod(file.fileno(), mode)  # despite the umask
                if data:
                    os.fsync(file.fileno())
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=directory)
            raise
        return temporary

    def keep(self, name: str, data: bytes | None) -> None:
        """Write a file of the daemon (mode 0600) into the directory, durable on return; None
        removes it.
        """
        with self._open() as directory:
            if data is not None:
                self._put(directory, name, data, 0o600)
            else:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=directory)
            os.fsync(directory)

    def kept(self, name: str) -> bytes | None:
        """The content by `keep`; None if absent. Raises GrantError if it is not trusted."""
        with self._open() as directory:
            try:
                return self._get(directory, name)
            except GrantMissing:
                return None

    def holds(self, grant: Grant, blob: bytes) -> bool:
        """Whether both files contain exactly this grant, and no mark ends the job."""
        path = self.directory / f"{grant.job_id}.grant"
        try:
            same = self.read(grant.job_id) == grant and path.read_bytes() == blob
        except (GrantError, OSError):
            return False
        return same and not path.with_suffix(".over").exists()

    def read(self, job_id: int) -> Grant:
        """The grant of a job. Raises GrantMissing if there is none, GrantError if it is not
        trusted.
        """
        name = f"{job_id}.json"
        with self._open() as directory:
            data = self._get(directory, name)
        try:
            grant = Grant.from_json(data)
        except GrantError as error:
            raise GrantError(f"{self.directory / name}: {error}") from None
        if grant.job_id != job_id:
            raise GrantError(f"{self.directory / name}: it is the grant of job {grant.job_id}")
        return grant

    def _get(self, directory: int, name: str) -> bytes:
        path = self.directory / name
        # O_NONBLOCK: a FIFO in its place must not stop the daemon.
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            fd = os.open(name, flags, dir_fd=directory)
        except FileNotFoundError:
            raise GrantMissing(f"{path} does not exist") from None
        except OSError as error:
            raise GrantError(f"{path} cannot be opened: {error.strerror}") from None
        with os.fdopen(fd, "rb") as file:
            info = os.fstat(fd)
            if not stat.S_ISREG(info.st_mode) or info.st_nlink != 1:
                raise GrantError(f"{path} is not an ordinary file with one name")
            if info.st_uid != self.owner or info.st_mode & 0o077:
                raise GrantError(f"{path} must belong to uid {self.owner} with mode 0600")
            data = file.read(MAX_FILE_BYTES + 1)
        if len(data) > MAX_FILE_BYTES:
            raise GrantError(f"{path} is larger than {MAX_FILE_BYTES} bytes")
        return data

    def job_ids(self) -> list[int]:
        """Jobs that have a JSON file, in ascending order; the files are not read."""
        with self._open() as directory:
            names = os.listdir(directory)  # noqa: PTH208 - a descriptor, not a path
        return sorted(int(match[1]) for name in names if (match := _NAME.fullmatch(name)))

    def remove(self, job_id: int, mark: bool = False) -> bool:
        """Remove the files of a job, JSON last; whether there were any.

        With `mark`, JOBID.over stays. A job that its owner requeues at once runs again without a
        Prolog, since slurmd believes that one ran already. By this mark SPANK refuses its tasks,
        instead of starting them ungoverned.
        """
        names = [f"{job_id}.grant", f"{job_id}.fetched", f"{job_id}.json"]
        with self._open() as directory:
            found = [name for name in names if _exists(name, directory)]
            if mark:
                # first: no task may start between mark and removal
                self._put(directory, f"{job_id}.over", b"", 0o644)
            for name in found:
                os.unlink(name, dir_fd=directory)
            if found or mark:
                os.fsync(directory)
        return bool(found)

    def was_fetched(self, job_id: int) -> bool:
        """Whether a task took the grant: SPANK leaves JOBID.fetched when it sealed the copy."""
        with self._open() as directory:
            return _exists(f"{job_id}.fetched", directory)

    def forget_over(self, before: float) -> None:
        """Drop the marks of jobs that ended before that time (seconds of CLOCK_REALTIME)."""
        with self._open() as directory, os.scandir(directory) as entries:
            old = [
                e.name for e in entries if _OVER.fullmatch(e.name) and e.stat().st_mtime < before
            ]
            for name in old:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=directory)
