"""gres.paths: the directories of an installation, and that the defaults of qgpu.yaml follow
them.
"""

import json
import re
from pathlib import Path

import pytest

from gres.config.site import Config
from gres.paths import ABI_VERSION, PATHS, InstallPaths, load


def test_a_checkout_has_the_paths_of_the_packages(tmp_path: Path) -> None:
    assert load(tmp_path / "install.json") == InstallPaths() == PATHS
    assert PATHS.shim == "/usr/lib/qgpu/3/libcuda.so.1"


def test_the_shims_directory_is_named_by_the_abi() -> None:
    header = Path("enforcer/native/abi/qgpu_abi.h").read_text()
    assert re.findall(r"^#define QG_ABI_VERSION +(\d+)u", header, re.M) == [str(ABI_VERSION)]


def test_directories_of_an_installation_reach_every_path(tmp_path: Path) -> None:
    file = tmp_path / "install.json"
    file.write_text(
        json.dumps({"lib_dir": "/opt/q/lib64/qgpu", "slurm_config_dir": "/opt/slurm/etc"})
    )
    paths = load(file)
    assert paths.shim == "/opt/q/lib64/qgpu/3/libcuda.so.1"
    assert paths.fragments_dir == "/opt/slurm/etc/qgpu"
    assert paths.hook == "/usr/libexec/qgpu/qgpu-hook"


@pytest.mark.parametrize("told", [{"lib": "/usr/lib"}, {"lib_dir": "usr/lib"}, {"run_dir": 3}])
def test_a_damaged_file_is_a_sentence(tmp_path: Path, told: dict[str, object]) -> None:
    file = tmp_path / "install.json"
    file.write_text(json.dumps(told))
    with pytest.raises(ValueError, match="install the package again"):
        load(file)


def test_the_defaults_of_the_configuration_are_these() -> None:
    fields = Config.model_fields
    assert fields["shim"].default == PATHS.shim
    assert fields["spank"].default == PATHS.spank
    assert fields["run_dir"].default == PATHS.run_dir
    assert fields["state_dir"].default == PATHS.state_dir
