"""What was done for suspended jobs, in a file beside the collected ledger: `qgpu extend` writes,
reports read.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path

from gres.config.site import Config
from gres.grant.extension import Given

VERSION = 1


def place(config: Config) -> Path:
    """Beside the collected ledger; else in the state directory of the machine where `qgpu extend`
    runs.
    """
    if config.reports.collected is not None:
        return Path(config.reports.collected).with_suffix(".extensions.json")
    return Path(config.state_dir.partition("%n")[0]) / "extensions.json"


def load(path: Path) -> dict[int, Given]:
    """Jobs by number; empty where there is no file. Raises ValueError
    for a file of another form.
    """
    try:
        raw = json.loads(path.read_text())
        if raw["version"] != VERSION:
            raise ValueError(f"version {raw['version']}")
        return {int(job): Given.of(values) for job, values in raw["jobs"].items()}
    except FileNotFoundError:
        return {}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} cannot be used ({error}); move it away") from None


def save(path: Path, jobs: Mapping[int, Given], keep_s: float, mode: int) -> None:
    """Replace the file in one step; runs that began longer ago than `keep_s` are left out. Raises
    OSError.
    """
    oldest = time.time() - keep_s
    kept = {
        str(job): given.as_dict() for job, given in sorted(jobs.items()) if given.start >= oldest
    }
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    fd = os.open(
        temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
    )
    with os.fdopen(fd, "w") as file:
        os.fchmod(file.fileno(), mode)
        file.write(json.dumps({"version": VERSION, "jobs": kept}, indent=1) + "\n")
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def known(path: Path | None) -> tuple[dict[int, Given], list[str]]:
    """The same for a report, which goes on without: jobs, and a sentence where the file cannot be
    read.
    """
    try:
        return ({}, []) if path is None else (load(path), [])
    except (OSError, ValueError) as error:
        return {}, [f"what was extended is not known: {error}"]
