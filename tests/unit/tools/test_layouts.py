"""tools/layouts.py: each generated module has what gcc makes of its header, and a stale one is
named.
"""

from __future__ import annotations

import ctypes
import dataclasses
import importlib
import re
import subprocess
from pathlib import Path
from types import ModuleType

import layouts
import pytest
from layouts import MIRRORS, ROOT, Mirror

PROBE = (
    '#include <stddef.h>\n#include <stdio.h>\n#include "{header}"\nint main(void) '
    "{{\n{lines}\nreturn 0;\n}}\n"
)
every_mirror = pytest.mark.parametrize("mirror", MIRRORS, ids=[mirror.module for mirror in MIRRORS])


def module_of(mirror: Mirror) -> ModuleType:
    return importlib.import_module(mirror.module.removesuffix(".py").replace("/", "."))


def probe(tmp_path: Path, mirror: Mirror, lines: list[str]) -> list[str]:
    """Compile a C program that runs the lines, return what it printed."""
    source, program = tmp_path / "probe.c", tmp_path / "probe"
    source.write_text(PROBE.format(header=ROOT / mirror.header, lines="\n".join(lines)))
    command = [
        "gcc",
        "-std=c11",
        "-D_GNU_SOURCE",
        f"-I{ROOT / mirror.include}",
        source,
        "-o",
        program,
    ]
    subprocess.run(command, check=True)
    return subprocess.run([program], check=True, capture_output=True, text=True).stdout.splitlines()


def c_type(name: str) -> str:
    """C's name of a structure, also of an array's entry that has none."""
    outer, _, member = name.partition(".")
    return f"__typeof__(((struct {outer} *)0)->{member}[0])" if member else f"struct {name}"


def code_of(mirror: Mirror) -> str:
    """The header without its comments."""
    return re.sub(r"/\*.*?\*/", "", (ROOT / mirror.header).read_text(), flags=re.DOTALL)


def constants(mirror: Mirror) -> dict[str, int | str]:
    """The constants of the module, by their names in C."""
    return {
        mirror.constants + name: value
        for name, value in vars(module_of(mirror)).items()
        if re.fullmatch(r"[A-Z][A-Z0-9_]*", name) and isinstance(value, (int, str))
    }


@every_mirror
def test_every_offset_and_size(mirror: Mirror, tmp_path: Path) -> None:
    lines, expected = [], []
    for name, cls in module_of(mirror).STRUCTS.items():
        lines.append(f'printf("{name} %zu\\n", sizeof({c_type(name)}));')
        expected.append(f"{name} {ctypes.sizeof(cls)}")
        for field, *_ in cls._fields_:
            sizes = f"offsetof({c_type(name)}, {field}), sizeof((({c_type(name)} *)0)->{field})"
            lines.append(f'printf("{name}.{field} %zu %zu\\n", {sizes});')
            expected.append(
                f"{name}.{field} {getattr(cls, field).offset} {getattr(cls, field).size}"
            )
    assert probe(tmp_path, mirror, lines) == expected


@every_mirror
def test_every_constant_has_its_value(mirror: Mirror, tmp_path: Path) -> None:
    lines, expected = [], []
    for name, value in constants(mirror).items():
        form, cast = ("%s", "") if isinstance(value, str) else ("%llu", "(unsigned long long)")
        lines.append(f'printf("{name} {form}\\n", {cast}{name});')
        expected.append(f"{name} {value if isinstance(value, str) else value % 2**64}")
    assert probe(tmp_path, mirror, lines) == expected


@every_mirror
def test_no_structure_is_left_out(mirror: Mirror) -> None:
    module = module_of(mirror)
    declared = set(re.findall(r"^struct (\w+) \{", code_of(mirror), re.MULTILINE))
    inner = len(re.findall(r"^\s+struct \{", code_of(mirror), re.MULTILINE))
    assert declared == {name for name in module.STRUCTS if "." not in name}
    assert inner == len(module.STRUCTS) - len(declared)
    classes = {value for value in vars(module).values() if isinstance(value, type)}
    assert {cls for cls in classes if cls.__module__ == module.__name__} == set(
        module.STRUCTS.values()
    )


@every_mirror
def test_no_field_is_left_out(mirror: Mirror) -> None:
    """gcc compares sizes, but two fields may hide behind one, or one in a hole."""
    bodies = dict(
        re.findall(r"^struct (\w+) \{(.*?)^\};", code_of(mirror), re.MULTILINE | re.DOTALL)
    )
    for name, body in bodies.items():
        flat = re.sub(r"\bstruct \{.*?\}", "entry", body, flags=re.DOTALL)
        declared = [
            re.sub(r"\[[^]]*\]", "", part).replace(",", " ").split() for part in flat.split(";")
        ]
        words = [words[2:] if words[:1] == ["struct"] else words[1:] for words in declared]
        members = [member for part in words for member in part]
        assert members == [field for field, *_ in module_of(mirror).STRUCTS[name]._fields_], name


@every_mirror
def test_no_constant_is_left_out(mirror: Mirror) -> None:
    code = code_of(mirror)
    defined = set(re.findall(r"^#define (\w+) +\S", code, re.MULTILINE))
    for body in re.findall(r"^enum \w+ \{(.*?)\};", code, re.MULTILINE | re.DOTALL):
        defined |= set(re.findall(r"^\s*(\w+)", body.replace(",", "\n"), re.MULTILINE))
    assert defined == constants(mirror).keys()


def test_the_committed_modules_are_those_of_their_headers() -> None:
    assert layouts.main(["--check"]) == 0


def test_a_stale_module_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A field is inserted into a copy of the header."""
    policy = next(mirror for mirror in MIRRORS if mirror.header.endswith("policy.h"))
    for name in (policy.header, policy.module, "pyproject.toml"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text((ROOT / name).read_text())
    monkeypatch.setattr(layouts, "ROOT", tmp_path)
    monkeypatch.setattr(layouts, "MIRRORS", [policy])
    assert layouts.main(["--check"]) == 0 and not capsys.readouterr().out
    header = tmp_path / policy.header
    header.write_text(
        header.read_text().replace("struct qp_card {", "struct qp_card {\n    double more;")
    )
    assert layouts.main(["--check"]) == 1
    said = f"{policy.module} differs from {policy.header}: run `make layouts` and commit the file\n"
    assert capsys.readouterr().out == said
    assert layouts.main([]) == 0 and '("more", c_double)' in (tmp_path / policy.module).read_text()
    assert layouts.main(["--check"]) == 0


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (
            "struct qp_odd { long double x; };",
            "qp_odd.x in .* has a type that tools/layouts.py does not know",
        ),
        ("#define QP_ODD qp_decide", "has a constant that tools/layouts.py cannot evaluate"),
        ("#error odd", "gcc cannot preprocess .*policy.h: .*odd"),
    ],
)
def test_what_it_does_not_understand_is_an_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, line: str, why: str
) -> None:
    policy = next(mirror for mirror in MIRRORS if mirror.header.endswith("policy.h"))
    header = tmp_path / policy.header
    header.parent.mkdir(parents=True)
    header.write_text(
        (ROOT / policy.header).read_text().replace("struct qp_card {", f"{line}\nstruct qp_card {{")
    )
    monkeypatch.setattr(layouts, "ROOT", tmp_path)
    with pytest.raises(layouts.LayoutError, match=why):
        layouts.module_text(dataclasses.replace(policy))
