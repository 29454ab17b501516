"""The Python mirror of policy.h against the header itself."""

from __future__ import annotations

import ctypes
import re
import subprocess
from pathlib import Path

from simulator import policylib

NATIVE = Path(__file__).resolve().parents[3] / "enforcer/native"
HEADER = NATIVE / "arbiter/policy/policy.h"
PROBE = '#include <stddef.h>\n#include <stdio.h>\n#include "policy.h"\nint main(void) {{\n{lines}\nreturn 0;\n}}\n'


def probe(tmp_path: Path, lines: list[str]) -> list[str]:
    source, program = tmp_path / "probe.c", tmp_path / "probe"
    source.write_text(PROBE.format(lines="\n".join(lines)))
    subprocess.run(
        ["gcc", "-std=c11", f"-I{HEADER.parent}", f"-I{NATIVE / 'abi'}", source, "-o", program], check=True
    )
    return subprocess.run([program], check=True, capture_output=True, text=True).stdout.splitlines()


def test_every_offset_and_size(tmp_path: Path) -> None:
    lines, expected = [], []
    for name, cls in policylib.STRUCTS.items():
        lines.append(f'printf("{name} %zu\\n", sizeof(struct {name}));')
        expected.append(f"{name} {ctypes.sizeof(cls)}")
        for field, *_ in cls._fields_:
            member = f"((struct {name} *)0)->{field}"
            lines.append(
                f'printf("{name}.{field} %zu %zu\\n", offsetof(struct {name}, {field}), sizeof({member}));'
            )
            expected.append(f"{name}.{field} {getattr(cls, field).offset} {getattr(cls, field).size}")
    assert probe(tmp_path, lines) == expected


def test_every_structure_of_the_header_is_mirrored_in_full() -> None:
    text = re.sub(r"/\*.*?\*/", "", HEADER.read_text(), flags=re.DOTALL)
    bodies = dict(re.findall(r"^struct (\w+) \{(.*?)^\};", text, re.MULTILINE | re.DOTALL))
    assert bodies.keys() == policylib.STRUCTS.keys()
    for name, body in bodies.items():
        declared = [re.split(r"[\s,]+", part.strip()) for part in body.split(";") if part.strip()]
        members = [re.sub(r"\[.*", "", word) for words in declared for word in words[1:]]
        members = [word for word in members if not word.startswith("qp_")]
        assert members == [field for field, *_ in policylib.STRUCTS[name]._fields_]


def test_every_constant(tmp_path: Path) -> None:
    names = re.findall(r"^#define QP_(\w+) ", HEADER.read_text(), re.MULTILINE)
    lines = [f'printf("{name} %llu\\n", (unsigned long long)QP_{name});' for name in names]
    assert probe(tmp_path, lines) == [f"{name} {getattr(policylib, name)}" for name in names]
    assert len(names) > 12
