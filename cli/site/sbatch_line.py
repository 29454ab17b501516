"""The words of an sbatch command: where its script begins, and what it asks for.

sbatch itself judges them where Slurm is reachable (slurm_answer.py). The values are read here for
`qgpu plan` on a host without a Slurm, in sbatch's order: the script's #SBATCH lines, then SBATCH_*
variables, then the command line.
"""

from __future__ import annotations

import re
import shlex
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gres.config.sentences import shown
from gres.units import UnitError, parse_mib
from slurm_plugin.submission import Exclusive, Submission

MAX_SCRIPT = 4 << 20  # bytes; Slurm's own limit where slurm.conf has no max_script_size
MAX_OPTION_BYTES = 32  # of an option of the SPANK plugin; slurmctld does not read a longer one


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Names of sbatch's long options, of 22.05 to 26.05, because getopt accepts each unique beginning.
ALONE = _names(
    "contiguous external help hold ignore-pbs no-requeue overcommit oversubscribe parsable quiet"
    " reboot spread-job spread-segments stepmgr test-only usage use-min-nodes verbose version"
    " wait json"
)
MAY_HAVE_VALUE = _names(
    "exclusive get-user-env nice no-kill oom-kill-step propagate requeue resv-ports"
)
WITH_VALUE = _names(
    "account acctg-freq array autocomplete batch bb bbf begin chdir cluster cluster-constraint"
    " clusters comment config constraint container container-id context core-spec cores-per-socket"
    " cpu-freq cpus-per-gpu cpus-per-task deadline delay-boot dependency distribution error exclude"
    " export export-file extra extra-node-info gid gpu-bind gpu-freq gpus gpus-per-node"
    " gpus-per-socket gpus-per-task gres gres-flags hint input job-name kill-on-invalid-dep"
    " licenses mail-type mail-user mcs-label mem mem-bind mem-per-cpu mem-per-gpu mincpus network"
    " nodefile nodelist nodes ntasks ntasks-per-core ntasks-per-gpu ntasks-per-node"
    " ntasks-per-socket ntasks-per-tres open-mode output partition prefer priority profile"
    " qgpu-cards qos reservation segment signal sockets-per-node switches tasks-per-node"
    " thread-spec threads-per-core time time-min tmp tres-bind tres-per-task uid vram"
    " wait-all-nodes wckey wrap"
)
LETTERS = {
    **{"A": "account", "C": "constraint", "G": "gpus", "J": "job-name", "N": "nodes"},
    **{"c": "cpus-per-task", "n": "ntasks", "p": "partition", "q": "qos", "t": "time"},
    **{"h": "help", "Q": "quiet", "H": "hold", "d": "dependency", "b": "begin", "w": "nodelist"},
}
LETTERS_ALONE = "hHOsQvVW?"
VARIABLES = {
    **{"PARTITION": "partition", "QOS": "qos", "GRES": "gres", "GRES_FLAGS": "gres-flags"},
    **{"GPUS": "gpus", "GPUS_PER_NODE": "gpus-per-node", "GPUS_PER_TASK": "gpus-per-task"},
    **{"GPUS_PER_SOCKET": "gpus-per-socket", "CPUS_PER_GPU": "cpus-per-gpu"},
    **{"MEM_PER_CPU": "mem-per-cpu", "MEM_PER_GPU": "mem-per-gpu", "MEM_PER_NODE": "mem"},
    **{"EXCLUSIVE": "exclusive", "TRES_PER_TASK": "tres-per-task", "TRES_BIND": "tres-bind"},
    **{"GPU_BIND": "tres-bind", "GPU_FREQ": "gpu-freq", "TIMELIMIT": "time"},
}
OWN = frozenset({"json", "config"})  # of `qgpu plan` itself
_HETJOB = re.compile(r"\s*(hetjob|packjob)(\s|$)", re.IGNORECASE)


class LineError(ValueError):
    """The words are no sbatch command; the text is a sentence."""


@dataclass(frozen=True)
class Line:
    """`words` are for sbatch: options up to `options_end`, then the script and its arguments.

    `options` are those of the command line by long name, in their order; `own` those of plan.
    """

    words: tuple[str, ...]
    options_end: int
    script_at: int
    options: tuple[tuple[str, str], ...]
    own: dict[str, str]

    @property
    def script(self) -> str | None:
        """The batch script's name, None if there is none."""
        return self.words[self.script_at] if self.script_at < len(self.words) else None

    def command(self, *more: str) -> list[str]:
        """The words with `more` options behind the given ones, so that these count."""
        given = [*self.words[: self.options_end], *more]
        wrapped = any(name == "wrap" for name, _ in self.options)
        if self.script is None and not wrapped:
            given.append("--wrap=true")  # sbatch would read a script from its input
        return [*given, *self.words[self.options_end :]]


def _long_name(text: str) -> str:
    """The option that `text` is, or begins; itself where Slurm may know what we do not."""
    known = ALONE | MAY_HAVE_VALUE | WITH_VALUE
    found = [name for name in known - OWN if name.startswith(text)]
    return text if text in known or len(found) != 1 else found[0]


def _short(word: str, rest: Sequence[str]) -> tuple[list[tuple[str, str]], int]:
    """The options of one word such as -Hn2, and how many further words they take."""
    found: list[tuple[str, str]] = []
    for at, letter in enumerate(word[1:], 1):
        name = LETTERS.get(letter, letter)
        if letter in LETTERS_ALONE:
            found.append((name, ""))
        elif letter == "k" or word[at + 1 :]:
            return [*found, (name, word[at + 1 :])], 0
        elif not rest:
            raise LineError(f"{shown(word)} has no value behind it; write for example -{letter} 2")
        else:
            return [*found, (name, rest[0])], 1
    return found, 0


def _long(word: str, rest: Sequence[str]) -> tuple[list[tuple[str, str]], int]:
    text, equals, value = word[2:].partition("=")
    name = _long_name(text)
    if equals or name in ALONE or name in MAY_HAVE_VALUE:
        return [(name, value)], 0
    if not rest:
        raise LineError(f"{shown(word)} has no value behind it; write {shown(word)}=VALUE")
    return [(name, rest[0])], 1


def _is_sbatch(word: str) -> bool:
    """Whether the first word is sbatch itself, perhaps with its path. Raises LineError."""
    name = word.rpartition("/")[2]
    if word in ("srun", "salloc") or (word.startswith("/") and name in ("srun", "salloc")):
        raise LineError(
            f"{shown(word)}: plan knows only sbatch's commands; write qgpu plan sbatch and the same"
            " options"
        )
    return word == "sbatch" or (word.startswith("/") and name == "sbatch")


def read_line(given: Sequence[str]) -> Line:
    """Split words as sbatch's getopt does: options end at the first other word. Raises LineError.

    The word `sbatch` may be in front of its options, also behind those of plan. A `:` between the
    parts of a heterogeneous job is no script.
    """
    words = list(given)
    command = False
    kept: list[str] = []
    options: list[tuple[str, str]] = []
    own: dict[str, str] = {}
    at = 0
    while at < len(words):
        word = words[at]
        if word == ":":
            kept.append(word)
            options.append((":", ""))
            at += 1
            continue
        if not (kept or command) and _is_sbatch(word):
            command, at = True, at + 1
            continue
        if word == "--" or not word.startswith("-") or word == "-":
            break
        found, more = (_long if word.startswith("--") else _short)(word, words[at + 1 :])
        taken = words[at : at + 1 + more]
        at += len(taken)
        for name, value in found:
            if name in OWN:
                own[name] = value
            elif name != "quiet":  # sbatch would not say when the job starts
                options.append((name, value))
        if not OWN.intersection(name for name, _ in found) and ("quiet", "") not in found:
            kept += taken
    script_at = len(kept) + (words[at : at + 1] == ["--"])
    return Line((*kept, *words[at:]), len(kept), script_at, tuple(options), own)


def special(path: str) -> bool:
    """Whether it is there, and is no file: reading it may never end."""
    try:
        return not stat.S_ISREG(Path(path).stat().st_mode)
    except (OSError, ValueError):
        return False


def script_options(path: str) -> Iterator[tuple[str, str]]:
    """The options of a script's #SBATCH lines, up to its first command. Raises LineError.

    Nothing of the script is run. Lines behind `hetjob` belong to another part.
    """
    if special(path):
        raise LineError(f"{shown(path)} is no file; name the batch script")
    try:
        with Path(path).open("rb") as opened:
            body = opened.read(MAX_SCRIPT + 1)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise LineError(f"{shown(path)}: {why}; name the batch script that sbatch gets") from None
    if len(body) > MAX_SCRIPT:
        raise LineError(f"{shown(path)} has more than {MAX_SCRIPT} bytes, Slurm's limit")
    if b"\0" in body:
        raise LineError(f"{shown(path)} has a NUL byte, so sbatch takes it for no script")
    if not body.startswith(b"#!"):
        raise LineError(f"{shown(path)} does not begin with #! and a shell, which sbatch needs")
    if b"\r\n" in body:
        raise LineError(f"{shown(path)} has line ends of DOS (CRLF), which sbatch refuses")
    for line in body.decode("utf-8", "surrogateescape").split("\n"):
        if not line.startswith("#SBATCH"):
            if line.strip() and not line.lstrip().startswith("#"):
                return
            continue
        if _HETJOB.match(line[7:]):
            return
        try:
            words = shlex.split(line[7:], comments=True)
        except ValueError as error:
            raise LineError(f"{shown(line)}: {error}; close it with the same quote") from None
        yield from read_line(words).options


def _variables(environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for name, option in VARIABLES.items():
        if (value := environ.get(f"SBATCH_{name}")) is not None:
            yield option, value


def asked(line: Line, environ: Mapping[str, str]) -> dict[str, str]:
    """What counts of all three sources, by long name. Raises LineError."""
    found = dict(script_options(line.script)) if line.script is not None else {}
    found.update(_variables(environ))
    for name, value in line.options:
        if name == ":":
            break
        found[name] = value
    return found


def _count(found: Mapping[str, str], name: str) -> int | None:
    """A number, or the smallest of a range such as -N 1-2. Raises LineError."""
    text = found.get(name)
    if text is None:
        return None
    match = re.fullmatch(r"([0-9]{1,9})(?:k|K)?(?:[-:][0-9]{1,9})?(?:,[-0-9,:]*)?", text)
    if not match or int(match[1]) < 1:
        raise LineError(f"--{name}={shown(text)} is no number of at least 1; write --{name}=2")
    return int(match[1])


def _mib(found: Mapping[str, str], name: str) -> int | None:
    """MiB of an amount as sbatch takes it; a bare number counts MiB. Raises LineError."""
    try:
        return None if name not in found else parse_mib(found[name], up=True)
    except UnitError as error:
        raise LineError(f"--{name}: {error}") from None


def _joined(*parts: str | None) -> str | None:
    return ",".join(part for part in parts if part) or None


def _gpus(found: Mapping[str, str], name: str) -> str | None:
    """--gpus and the like as Slurm keeps them, in its spelling of TRES."""
    return f"gres/gpu:{found[name]}" if found.get(name) else None


def _exclusive(found: Mapping[str, str]) -> Exclusive | None:
    words: dict[str, Exclusive] = {"": "node", "user": "user", "mcs": "mcs", "topo": "topo"}
    text = found.get("exclusive")
    if text is None or text in words:
        return None if text is None else words[text]
    raise LineError(f"--exclusive={shown(text)} is not known; write --exclusive, or =user")


def submission(found: Mapping[str, str]) -> Submission:
    """The job that is asked for. Raises LineError."""
    for name, example in (("vram", "12G"), ("qgpu-cards", "2")):
        text = found.get(name, "")
        if len(text.encode("utf-8", "surrogateescape")) > MAX_OPTION_BYTES:
            raise LineError(
                f"--{name}={shown(text)} has more than {MAX_OPTION_BYTES} bytes: write for example"
                f" --{name}={example}"
            )
    return Submission(
        gres=_joined(found.get("gres"), _gpus(found, "gpus-per-node")),
        qos=found.get("qos"),
        partition=found.get("partition"),
        comment=found.get("comment"),
        extra=found.get("extra"),
        exclusive=_exclusive(found),
        gres_flags=found.get("gres-flags"),
        tres_per_job=_gpus(found, "gpus"),
        tres_per_task=_joined(found.get("tres-per-task"), _gpus(found, "gpus-per-task")),
        tres_per_socket=_gpus(found, "gpus-per-socket"),
        cpus_per_tres=_gpus(found, "cpus-per-gpu"),
        mem_per_tres=_gpus(found, "mem-per-gpu"),
        tres_freq=_gpus(found, "gpu-freq"),
        tres_bind=found.get("tres-bind") or _gpus(found, "gpu-bind"),
        vram=found.get("vram"),
        cards=found.get("qgpu-cards"),
        nodes=_count(found, "nodes"),
        tasks=_count(found, "ntasks"),
        tasks_per_node=_count(found, "ntasks-per-node") or _count(found, "tasks-per-node"),
        cpus_per_task=_count(found, "cpus-per-task"),
        mem=_mib(found, "mem"),
        mem_per_cpu=_mib(found, "mem-per-cpu"),
    )
