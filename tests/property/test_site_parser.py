"""The parser of Slurm's configuration: what is written comes back, nothing crashes it, and Slurm
itself agrees.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from examples_support import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gres.config.site import parse_config
from slurm_plugin.site.conf import Conf, parse
from slurm_plugin.site.differences import differences
from slurm_plugin.site.found import Places, read_site
from slurm_plugin.site.nodes import gres_lines, node_lines, partitions
from slurm_plugin.site.plugstack import parse_plugstack
from slurm_plugin.site.sources import Disk, Texts

WORD = st.text(
    st.characters(min_codepoint=33, max_codepoint=126, exclude_characters='"#\\'), min_size=1
)
QUOTED = st.text(st.characters(min_codepoint=32, max_codepoint=126, exclude_characters='"#\\'))
KEY = st.sampled_from(["GresTypes", "SelectType", "Prolog", "ClusterName", "X.y_1"])
SLURM = Path("/usr/lib/x86_64-linux-gnu/slurm-wlm/libslurmfull.so")


def plain(text: str) -> Conf:
    return parse("/etc/slurm/slurm.conf", Texts({"/etc/slurm/slurm.conf": text}))


@st.composite
def written(draw: st.DrawFn) -> tuple[str, str, str]:
    """A key, its value, and one of the ways to write them."""
    key, quoted = draw(KEY), draw(st.booleans())
    value = draw(QUOTED) if quoted else draw(WORD)
    cut = draw(st.integers(0, len(key)))
    name = draw(st.sampled_from([key, key.upper(), key.lower()]))
    name = draw(st.sampled_from([name, f"{name[:cut]}\\\n{name[cut:]}", f"{name}\\  \t\n"]))
    before, behind = (
        draw(st.sampled_from(["", " ", "\t"])),
        draw(st.sampled_from(["", " ", "  # a = b", "\r"])),
    )
    sign = draw(st.sampled_from(["=", " = ", "=\t"]))
    return (
        key,
        value,
        f'{before}{name}{sign}"{value}"{behind}\n'
        if quoted
        else f"{before}{name}{sign}{value}{behind}\n",
    )


@given(st.lists(written()))
def test_what_is_written_comes_back_with_its_line(rows: list[tuple[str, str, str]]) -> None:
    conf = plain("".join(text for _, _, text in rows))
    assert conf.faults == ()
    assert [(e.head.name, e.head.value) for e in conf.entries] == [
        (k.lower(), v) for k, v, _ in rows
    ]
    number = 1
    for entry, (_, _, text) in zip(conf.entries, rows, strict=True):
        assert entry.head.line == number
        number += text.count("\n")
    for key, value, _ in {key: (key, value, text) for key, value, text in rows}.values():
        assert conf.text(key) == value


PIECES = st.lists(
    st.sampled_from(
        [
            *'\\"# \t\n\r\0=,[]1-+a',
            "NodeName=",
            "n[1-2]",
            "Gres=",
            "DEFAULT",
            "PartitionName=p ",
            "include ",
            "/b",
            "b",
            "%c",
            "*",
            "ClusterName=c\n",
            "Name=gpu ",
            "optional ",
            "required ",
            "\\\n",
            "A=1\n",
            "é",
            "\u2028",
        ]
    )
    | st.text(max_size=4),
    max_size=30,
)


@given(PIECES, PIECES)
def test_no_text_crashes_it(first: list[str], second: list[str]) -> None:
    source = Texts({"/a": "".join(first), "/b": "".join(second)})
    for version in ("22.05", "24.11"):
        conf = parse("/a", source, version)
        node_lines(conf)
        partitions(conf)
        gres_lines(conf, "n1")
        conf.repeated()
        for fault in conf.faults:
            assert str(fault).isprintable(), fault
    assert all(str(fault).isprintable() for fault in parse_plugstack("/a", source).faults)


CONFIG = parse_config(
    "version: 1\ncluster: c\ndefault_class: offline\nmodels: {h200: {memory: 80GiB}}\n"
    'nodes: [{names: "n[1-2]", model: h200, count: 1, files: /dev/nvidia0}]\n'
)
LINES = st.lists(
    st.sampled_from(
        [
            "GresTypes=gpu",
            "grestypes=",
            'TaskPlugin="x y"',
            "NodeName=n[1-3] Gres=gpu:h200:1,shard:x:y",
            "NodeName=n2",
            "NodeName=DEFAULT Gres=gpu:99999999999999999999T",
            "PartitionName=p OverSubscribe=FORCE:x",
            "Prolog=*",
            "Prolog=/a/*",
            "PrologFlags=,,X11,\x1b",
            "SelectTypeParameters=MULTIPLE_SHARING_GRES_PJ",
            "junk",
            "include /e/qgpu/slurm.conf",
            "include qgpu_gres.conf",
            "AutoDetect=nvml",
            "NodeName=n1 AutoDetect=nvml",
            "Name=gpu File=/dev/nvidia[0-",
            "NodeName=n[1-9] Name=shard Count=x File=/dev/nvidia0",
            "Name=gpu Count=1",
            "ConstrainDevices=No",
            "optional /usr/lib/qgpu/qgpu_spank.so run_dir=",
            "PrologEpilogTimeout=1",
            "NodeName=n[1-2] NodeName=n3",
            "SlurmctldParameters=enable_configless",
            "CliFilterPlugins=lua,lua",
        ]
    )
    | st.text(max_size=20),
    max_size=12,
)


@settings(deadline=None)
@given(LINES, LINES, LINES, LINES, st.sampled_from(["22.05", "24.11"]), st.booleans())
def test_every_site_is_compared_and_every_sentence_is_printable(
    slurm_lines: list[str],
    gres: list[str],
    cgroup: list[str],
    stack: list[str],
    version: str,
    flat: bool,
) -> None:
    names = {
        "slurm.conf": slurm_lines,
        "gres.conf": gres,
        "cgroup.conf": cgroup,
        "plugstack.conf": stack,
    }
    files = {f"/e/{name}": "\n".join([*lines, ""]) for name, lines in names.items()}
    files["/e/qgpu/slurm.conf"] = files["/e/qgpu_gres.conf"] = "GresTypes=gpu\n"
    site = read_site(Places("/e/slurm.conf", "/e/qgpu"), Texts(files), version)
    for roles in (("controller",), ("node",), ("login",)):
        for found in differences(CONFIG, site, roles, node="n1", flat=flat):  # type: ignore[arg-type]
            assert found.sentence.isprintable() and found.todo.isprintable()


# ---- Slurm's own parser says the same


class Option(ctypes.Structure):
    """s_p_options_t."""

    _fields_ = (
        ("key", ctypes.c_char_p),
        ("type", ctypes.c_int),
        ("handler", ctypes.c_void_p),
        ("destroy", ctypes.c_void_p),
        ("line", ctypes.c_void_p),
    )


KEYS = ("A", "Bb", "ClusterName")


class Slurm:
    """parse_config.c of the machine's Slurm."""

    def __init__(self) -> None:
        self.lib = ctypes.CDLL(str(SLURM), mode=os.RTLD_DEEPBIND)  # its error() is not libc's
        self.lib.s_p_hashtbl_create.restype = ctypes.c_void_p
        self.lib.s_p_parse_file.argtypes = [
            ctypes.c_void_p,
            ctypes.c_void_p,
            ctypes.c_char_p,
            ctypes.c_bool,
            ctypes.c_char_p,
        ]
        self.lib.s_p_get_string.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        self.lib.s_p_hashtbl_destroy.argtypes = [ctypes.c_void_p]

    def read(self, path: Path) -> tuple[bool, dict[str, str]]:
        """Whether Slurm takes the file, and the values that it has then."""
        options = (Option * (len(KEYS) + 1))(*[Option(key.encode(), 1) for key in KEYS], Option())
        table = self.lib.s_p_hashtbl_create(options)
        taken = self.lib.s_p_parse_file(table, None, bytes(path), False, None) == 0
        found: dict[str, str] = {}
        for key in KEYS:
            text = ctypes.c_char_p()
            if self.lib.s_p_get_string(ctypes.byref(text), key.encode(), table):
                found[key] = (text.value or b"").decode()
        self.lib.s_p_hashtbl_destroy(table)
        return taken, found


@pytest.fixture(scope="module")
def slurm() -> Iterator[Slurm]:
    if not SLURM.exists():
        pytest.skip("Slurm is not installed")
    # Its parser says each fault on stderr.
    kept, null = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    yield Slurm()
    os.dup2(kept, 2)
    os.close(kept)
    os.close(null)


BITS = st.lists(
    st.sampled_from(
        [
            "A",
            "bB",
            "=",
            "=",
            "A=1",
            "Bb=",
            "a",
            "1",
            "x,y",
            '"',
            '"b c"',
            " ",
            "\t",
            "\n",
            "\n",
            "\r",
            "#",
            "\\",
            "\\\n",
            "\\ \n",
            "\\#",
            "\\\\#",
            '\nA="b c"',
            'bb="b"c',
            'A="b #" d',
            "+",
            "*",
            "\v",
            "ClusterName=XyZ\n",
            "\ninclude b.conf\n",
            "INCLUDE\t%c.conf\n",
            " include b.conf\n",
            "include b.conf x",
            "\ninclude a*.conf\n",
        ]
    ),
    min_size=1,
    max_size=14,
)


@settings(examples(400), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(BITS, st.sampled_from(["", "A=included\n", 'Bb="of b" # c\n', "A=1 x\n"]))
def test_slurms_own_parser_agrees(
    slurm: Slurm, tmp_path: Path, bits: list[str], other: str
) -> None:
    # 22.05 takes a star for a file's name and waits a minute for it
    text = "".join(bits).replace("a*", "a")
    main = tmp_path / "slurm.conf"
    main.write_text(text)
    for name in ("b.conf", "xyz.conf", "a.conf"):
        (tmp_path / name).write_text(other)
    conf = parse(str(main), Disk(), "22.05")
    # Slurm waits a minute for a file that is not there, and reads wild memory behind an include
    # without an end.
    if any(
        re.match(r"includes|a newline must|'include\s*' is not", fault.text, re.IGNORECASE)
        for fault in conf.faults
    ):
        return
    taken, values = slurm.read(main)
    unknown = [e.head for e in conf.entries if e.head.name not in {key.lower() for key in KEYS}]
    assert taken == (not conf.faults and not unknown), (text, conf.faults)
    assert values == {key: conf.text(key) for key in KEYS if conf.get(key)}, text
