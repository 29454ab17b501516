"""Copies of the shim that fit a driver: their place, when they are
remade, and what prevents them.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from enforcer.daemon.injecting.elf import ElfError, exported, without
from enforcer.daemon.injecting.fitted import CUDA, NVML, FitError, FittedShim, fit, prune

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a compiler")


def library(path: Path, *names: str) -> Path:
    """A shared library with these functions."""
    source = "\n".join(f"int {name}(void) {{ return 7; }}" for name in names)
    command = ["cc", "-shared", "-fPIC", "-x", "c", "-o", str(path), "-"]
    subprocess.run(command, input=source, text=True, check=True)
    return path


@pytest.fixture
def node() -> Iterator[Path]:
    """A shim of two libraries, a driver that has less, and an empty state directory."""
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="qgpu-fit-") as name:
        root = Path(name)
        root.chmod(0o755)
        for folder in ("2", "driver", "state"):
            (root / folder).mkdir(mode=0o755)
        library(root / "2" / CUDA, "cuInit", "cuNew_v2", "qgpu_job_view", "ioctl")
        library(root / "2" / NVML, "nvmlInit_v2", "nvmlNew")
        library(root / "driver" / CUDA, "cuInit", "cuOther")
        library(root / "driver" / NVML, "nvmlInit_v2")
        yield root


def names(path: Path | str) -> set[str]:
    return {name for name in exported(Path(path).read_bytes()) if not name.startswith("_")}


def fitted(node: Path) -> FittedShim:
    return FittedShim(node / "2" / CUDA, node / "state")


def test_the_copy_exports_what_both_have_and_the_shims_own(node: Path) -> None:
    path = fitted(node).path(str(node / "driver" / CUDA))
    assert path.startswith(f"{node}/state/shim/2-") and path.endswith(f"/{CUDA}")
    assert names(path) == {"cuInit", "qgpu_job_view", "ioctl"}
    assert names(Path(path).with_name(NVML)) == {"nvmlInit_v2"}
    assert Path(path).stat().st_mode & 0o777 == 0o755


def test_another_driver_gets_another_copy_and_the_old_one_stays(node: Path) -> None:
    shim, driver = fitted(node), node / "driver" / CUDA
    before = shim.path(str(driver))
    content = Path(before).read_bytes()
    assert shim.path(str(driver)) == before
    library(node / "next.so", "cuInit", "cuNew_v2").replace(driver)
    after = shim.path(str(driver))
    assert after != before and "cuNew_v2" in names(after)
    assert Path(before).read_bytes() == content, "jobs use it"
    prune(node / "state", [before])
    assert Path(before).exists() and not Path(after).exists()


def test_a_copy_that_was_removed_is_made_again(node: Path) -> None:
    shim, driver = fitted(node), node / "driver" / CUDA
    path = Path(shim.path(str(driver)))
    shutil.rmtree(path.parent)
    assert shim.path(str(driver)) == str(path) and path.exists()


def test_a_damaged_copy_is_replaced_not_changed(node: Path) -> None:
    path = Path(fitted(node).path(str(node / "driver" / CUDA)))
    good, inode = path.read_bytes(), path.stat().st_ino
    path.write_bytes(b"bad")
    assert fitted(node).path(str(node / "driver" / CUDA)) == str(path)
    assert path.read_bytes() == good and path.stat().st_ino != inode
    assert [file.name for file in sorted(path.parent.iterdir())] == [CUDA, NVML]


def test_without_an_nvml_beside_the_driver_the_jobs_own_keeps_all(node: Path) -> None:
    (node / "driver" / NVML).unlink()
    path = fitted(node).path(str(node / "driver" / CUDA))
    assert names(Path(path).with_name(NVML)) == {"nvmlInit_v2", "nvmlNew"}


def test_a_place_that_users_cannot_enter_is_not_used(
    node: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (node / "state").chmod(0o700)
    with pytest.raises(FitError, match="closed to users"):
        fit(node / "2" / CUDA, node / "driver" / CUDA, node / "state/shim")
    assert fitted(node).path(str(node / "driver" / CUDA)) == str(node / "2" / CUDA), (
        "the shim as it is"
    )


def test_a_folder_of_another_user_is_not_used(node: Path) -> None:
    path = Path(fitted(node).path(str(node / "driver" / CUDA)))
    path.parent.chmod(0o777)
    with pytest.raises(FitError, match="can be changed by others"):
        fit(node / "2" / CUDA, node / "driver" / CUDA, node / "state/shim")


def test_a_link_in_the_place_of_a_copy_is_replaced(node: Path) -> None:
    path = Path(fitted(node).path(str(node / "driver" / CUDA)))
    good = path.read_bytes()
    path.unlink()
    (node / "elsewhere").write_bytes(good)
    path.symlink_to(node / "elsewhere")
    fitted(node).path(str(node / "driver" / CUDA))
    assert not path.is_symlink() and path.read_bytes() == good


ELF = b"\x7fELF\x02\x01"


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"#!/bin/sh\n",
        ELF + bytes(10),
        ELF + bytes(200),
        ELF + b"\xff" * 300,
        b"\x7fELF\x01\x01" + bytes(99),
    ],
)
def test_what_is_no_library_is_a_sentence(node: Path, content: bytes) -> None:
    with pytest.raises(ElfError, match=r"^(it|its|.* exports) "):
        exported(content)
    (node / "driver" / CUDA).write_bytes(content or b"x")
    assert fitted(node).path(str(node / "driver" / CUDA)) == str(node / "2" / CUDA)


def test_a_library_cut_short_anywhere_never_crashes(node: Path) -> None:
    data = (node / "2" / CUDA).read_bytes()
    for length in range(0, len(data), 97):
        try:
            exported(data[:length])
        except ElfError:
            continue


def test_a_driver_with_other_names_is_not_believed(node: Path) -> None:
    library(node / "driver" / CUDA, "something")
    with pytest.raises(ElfError, match="exports nothing that begins with cu"):
        fit(node / "2" / CUDA, node / "driver" / CUDA, node / "state/shim")


def test_nothing_left_out_is_the_same_library(node: Path) -> None:
    data = (node / "2" / CUDA).read_bytes()
    assert without(data, set()) == data
    assert (node / "2" / CUDA).stat().st_size == len(without(data, {"cuInit"}))
