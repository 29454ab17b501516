"""tools/floors.py: a symbol or a header of a later folder is a fault, one of an earlier folder
is none.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

TOOL = Path(__file__).parents[3] / "tools" / "floors.py"


@pytest.fixture(scope="module")
def floors() -> ModuleType:
    spec = importlib.util.spec_from_file_location("floors", TOOL)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["floors"] = module  # its dataclass looks there
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def house(floors: ModuleType, tmp_path: Path) -> object:
    """Two floors; the upper one uses the lower one's function and header."""
    files = {
        "low/low.h": "int low(void);\n",
        "low/low.c": '#include "low.h"\nint low(void) { return 1; }\n',
        "high/high.h": "int high(void);\n",
        "high/high.c": '#include "low.h"\nint high(void) { return low(); }\n',
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return floors.House(tmp_path, tmp_path, ("low", "high"))


def compiled(house: object, *flags: str) -> None:
    place = house.source  # type: ignore[attr-defined]
    for name in ("low/low", "high/high"):
        command = ["gcc", *flags, "-I.", "-Ilow", "-Ihigh", "-c", f"{name}.c", "-o", f"{name}.o"]
        subprocess.run(command, cwd=place, check=True)


def test_a_tree_without_objects_is_a_fault(floors: ModuleType, house: object) -> None:
    assert "make native" in " ".join(floors.object_faults(house))


def test_downwards_is_allowed(floors: ModuleType, house: object) -> None:
    compiled(house)
    assert list(floors.object_faults(house)) == [] and list(floors.header_faults(house)) == []


@pytest.mark.parametrize("flags", [(), ("-flto",)])
@pytest.mark.parametrize("header", ["high.h", "high/high.h"])
def test_upwards_is_a_fault(
    floors: ModuleType, house: object, header: str, flags: tuple[str, ...]
) -> None:
    low = house.source / "low/low.c"  # type: ignore[attr-defined]
    low.write_text(f'#include "{header}"\nint low(void) {{ return high(); }}\n')
    compiled(house, *flags)
    assert list(floors.object_faults(house)) == [
        "low/low.o needs high of high/high.o, a later floor"
    ]
    assert list(floors.header_faults(house)) == ["low/low.c includes high/high.h, a later floor"]


def test_loose_sources_are_above_all_folders(floors: ModuleType, house: object) -> None:
    top = house.source  # type: ignore[attr-defined]
    (top / "main.c").write_text("int low(void); int top(void) { return low(); }\n")
    (top / "low/low.c").write_text("int top(void); int low(void) { return top(); }\n")
    compiled(house)
    subprocess.run(["gcc", "-c", "main.c"], cwd=top, check=True)
    assert list(floors.object_faults(house)) == ["low/low.o needs top of main.o, a later floor"]


@pytest.mark.native
def test_the_tree_keeps_the_order() -> None:
    build = TOOL.parents[1] / "build"
    told = subprocess.run([sys.executable, TOOL, build], capture_output=True, text=True)
    assert (told.returncode, told.stdout) == (0, ""), told.stdout
