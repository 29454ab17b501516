"""`qgpu lint`: a site's configuration repository against its own qgpu.yaml, without a cluster and
without root.
"""

from __future__ import annotations

import os
import posixpath
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import click

from cli.doctor.checks.lua import code_of
from cli.doctor.checks.site import Kind, kind_of, todo_of
from gres.config.site import Config, ConfigError, parse_config
from gres.paths import PATHS
from gres.printable import printable
from slurm_plugin.fragments import fragments, names_for
from slurm_plugin.render import ETC_DIR
from slurm_plugin.site.difference import AGAIN, ROLES, Difference, Role, setup_command
from slurm_plugin.site.differences import differences, edited_option
from slurm_plugin.site.found import FLAT, Places, Site, read_site, without_fragments
from slurm_plugin.site.sources import Disk, Texts

KINDS: tuple[Kind, ...] = (
    "slurm.conf",
    "gres.conf",
    "cgroup.conf",
    "plugstack.conf",
    "job_submit.lua",
    "cli_filter.lua",
)
LUA = ("job_submit.lua", "cli_filter.lua")  # qgpu setup links them, so a repository may lack them
OURS = ("qgpu_tables.lua", "prolog", "epilog")
MAX_FILES = 2000  # files of one directory, so that a wrong path ends soon
INCLUDING = KINDS[:4]
_FRAGMENTS = re.compile(
    r"^include\s+(/\S+)/(?:slurm|gres|cgroup|plugstack)\.conf\s*$", re.MULTILINE | re.IGNORECASE
)


class LintError(click.ClickException):
    """The files cannot be judged; the text is a sentence."""

    exit_code = 2


@dataclass(frozen=True)
class Finding:
    """One line of the output."""

    file: str
    line: int
    text: str
    fails: bool = True

    def __str__(self) -> str:
        word = "" if self.fails else "warning: "
        return printable(f"{self.file}:{max(self.line, 1)}: {word}{self.text}")


@dataclass
class Repository:
    """The files that were named or found: `real` has the path of each by the path that Slurm would
    see. `kinds`: which of Slurm's files are judged; `roles`: of the hosts that read them; `yaml`:
    qgpu.yaml.
    """

    folder: str = PATHS.slurm_config_dir  # Slurm's own directory on the cluster
    fragments: str = PATHS.fragments_dir
    texts: dict[str, str] = field(default_factory=dict)
    real: dict[str, str] = field(default_factory=dict)
    kinds: set[str] = field(default_factory=set)
    roles: tuple[Role, ...] = ("controller", "node")
    yaml: Path | None = None

    def put(self, seen_as: str, path: Path) -> None:
        """One file; the first that has a place keeps it."""
        if seen_as not in self.texts:
            self.texts[seen_as] = read(path)
            self.real[seen_as] = str(path)

    def place(self, seen_as: str) -> str:
        """A file of the repository; one that is missing belongs beside slurm.conf."""
        main = self.real.get(f"{self.folder}/slurm.conf")
        if seen_as not in self.real and main and posixpath.dirname(seen_as) == self.folder:
            return posixpath.join(posixpath.dirname(main), posixpath.basename(seen_as))
        return self.real.get(seen_as, seen_as)

    def shown(self, text: str) -> str:
        """A sentence with the paths of the repository."""
        for seen_as in sorted(self.real, key=len, reverse=True):
            text = text.replace(seen_as, self.real[seen_as])
        return text


def read(path: Path) -> str:
    """Text of a file. Raises LintError."""
    try:
        return Disk().read(str(path))
    except OSError as error:
        raise LintError(f"{path}: it cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise LintError(f"{path}: {error}") from None


def below(folder: Path) -> Iterator[Path]:
    """The regular files of a directory, without those of version
    control; links are not followed.
    """
    found = 0
    for here, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            path = Path(here, name)
            if path.is_file():
                found += 1
                if found > MAX_FILES:
                    raise LintError(
                        f"{folder} has more than {MAX_FILES} files: name the directory of"
                        " slurm.conf"
                    )
                yield path


def only(paths: Sequence[Path], name: str) -> Path | None:
    """The one file of that name outside of a fragments' directory. Raises LintError for two."""
    found = [path for path in paths if path.name == name and path.parent.name != "qgpu"]
    found = found or ([path for path in paths if path.name == name] if name == "qgpu.yaml" else [])
    if len(found) > 1:
        raise LintError(
            f"{found[0]} and {found[1]} are both named {name}: name the files of one cluster"
        )
    return found[0] if found else None


def is_yaml(path: Path) -> bool:
    """Whether a file that was named can be a qgpu.yaml of another name."""
    return path.suffix in (".yaml", ".yml")


def collect(arguments: Sequence[Path]) -> Repository:
    """What the arguments name. In a directory all of Slurm's files are
    expected. Raises LintError.
    """
    paths: list[Path] = []
    kinds: set[str] = set()
    for argument in arguments:
        if not argument.exists():
            hint = "; qgpu setup --init writes a first one" if is_yaml(argument) else ""
            raise LintError(f"{argument} does not exist{hint}")
        if argument.is_dir():
            inside = list(below(argument))
            paths += inside
            kinds |= {"slurm.conf", "gres.conf", "cgroup.conf", "plugstack.conf"}
            kinds |= {path.name for path in inside if path.name in LUA}
        else:
            paths.append(argument)
            kinds.add(argument.name)
            if argument.name not in (*KINDS, *OURS) and not is_yaml(argument):
                names = ", ".join(("qgpu.yaml", *KINDS, *OURS))
                raise LintError(f"{argument}: lint knows {names}, and directories that have them")
    named = [path for path in arguments if path.is_file() and is_yaml(path)]
    yaml = named[0] if len(named) == 1 else only(paths, "qgpu.yaml")
    if yaml is None:
        raise LintError(
            "there is no qgpu.yaml among these files, with which the others are compared; name it"
            f" too: qgpu lint {' '.join(map(str, arguments)) or '/etc/slurm'} {PATHS.config_file}"
        )
    return _placed(paths, kinds, yaml)


def _placed(paths: list[Path], kinds: set[str], yaml: Path) -> Repository:
    """Give each file the path at which Slurm would read it."""
    found = Repository(kinds=kinds, yaml=yaml)
    main = only(paths, "slurm.conf")
    if main is not None:
        mains = [path for name in INCLUDING if (path := only(paths, name))]
        told = next(filter(None, (_FRAGMENTS.search(read(path)) for path in mains)), None)
        if told is not None:
            found.fragments = told[1]
            found.folder = posixpath.dirname(told[1])
        for path in paths:
            if path.is_relative_to(main.parent):
                found.put(f"{found.folder}/{path.relative_to(main.parent)}", path)
    for path in paths:
        if path.name in (*KINDS, *OURS):
            ours = path.parent.name == "qgpu" or path.name in OURS
            found.put(f"{found.fragments if ours else found.folder}/{path.name}", path)
    return found


def site_of(repository: Repository, config: Config) -> Site:
    """The repository as Slurm would read it. Fragments that it does not hold are those that `qgpu
    setup` writes.
    """
    places = Places(f"{repository.folder}/slurm.conf", repository.fragments)
    version = config.slurm.version[:5]
    alone = without_fragments(places, Texts(repository.texts), version)
    names = names_for(config, repository.roles)
    made = fragments(config, names, alone, etc_dir=repository.fragments)
    # Configless sites include the same by a second name.
    texts = {
        place(fragment.name): fragment.text
        for fragment in made
        for place in (places.fragment, places.flat)
    }
    return read_site(places, Texts({**texts, **repository.texts}), version)


def stale(repository: Repository, config: Config, site: Site) -> Iterator[Finding]:
    """Fragments in the repository that are not what its qgpu.yaml renders."""
    alone = without_fragments(site.places, Texts(repository.texts), site.version)
    # Those of Lua hold the installation's directory, and are judged by what they call.
    names = [name for name in names_for(config, repository.roles) if name not in LUA]
    for fragment in fragments(config, names, alone, etc_dir=repository.fragments):
        seen_as = f"{repository.fragments}/{fragment.name}"
        text = repository.texts.get(seen_as)
        if text is None or code_of(seen_as, text) == code_of(seen_as, fragment.text):
            continue
        line = first_other(seen_as, text, fragment.text)
        why = f"this is not what qgpu.yaml renders -> run: {again(repository, site, seen_as)}"
        yield Finding(repository.real[seen_as], line, why)


def again(repository: Repository, site: Site, seen_as: str) -> str:
    """The command that writes a fragment anew: on a host's own files setup, else a rendering."""
    yaml, file = str(repository.yaml), repository.place(seen_as)
    if seen_as == file:
        return setup_command(repository.roles, yaml) + edited_option(site, seen_as)
    name = posixpath.basename(seen_as).removeprefix(FLAT)
    words = ["qgpu", "render", name, "--config", yaml]
    words += ["--slurm-conf", repository.place(site.places.slurm_conf)]
    words += [] if site.places.fragments == ETC_DIR else ["--etc-dir", site.places.fragments]
    return f"{shlex.join(words)} >{shlex.quote(file)}"


def first_other(name: str, have: str, wanted: str) -> int:
    """The first line of code that differs."""
    lines = set(code_of(name, wanted).split("\n"))
    for number, line in enumerate(have.split("\n"), 1):
        code = code_of(name, line)
        if code and code not in lines:
            return number
    return 1


def findings(repository: Repository) -> list[Finding]:
    """Everything that is otherwise than it should be, by file and line."""
    assert repository.yaml is not None
    path = str(repository.yaml)
    try:
        config = parse_config(read(repository.yaml), path)
    except ConfigError as error:
        return [_yaml_finding(path, line) for line in str(error).split("\n")]
    site = site_of(repository, config)
    old = {finding.file: finding for finding in stale(repository, config, site)}
    found: list[Finding] = []
    if f"{repository.folder}/slurm.conf" in repository.texts:
        for each in differences(config, site, repository.roles, yaml=path):
            finding = _finding(repository, site, each)
            if finding is not None:
                # A fragment that is outdated as a whole: its first differing line is known.
                line = (
                    old[finding.file].line if finding.file in old and not each.line else each.line
                )
                found.append(replace(finding, line=line))
    told = {finding.file for finding in found}
    found += [finding for file, finding in old.items() if file not in told]
    return sorted(found, key=lambda finding: (finding.file, finding.line))


def _yaml_finding(path: str, text: str) -> Finding:
    """An error of qgpu.yaml, with the line if YAML reports it."""
    text = text.removeprefix(f"{path}: ")
    told = re.match(r"line ([0-9]+): ", text)
    return Finding(path, int(told[1]), text[told.end() :]) if told else Finding(path, 1, text)


def _finding(repository: Repository, site: Site, each: Difference) -> Finding | None:
    if kind_of(each, site) not in repository.kinds:
        return None
    shown = repository.shown
    if each.write.startswith(AGAIN) and "--init" not in each.write:
        each = replace(each, write=again(repository, site, each.file))
    # The line to write names what Slurm sees on the hosts, not the repository.
    here = replace(
        each,
        file=repository.place(each.file),
        has=shown(each.has),
        needed=shown(each.needed),
        why=shown(each.why),
    )
    text = f"{here.sentence} -> {todo_of(here)}"
    return Finding(here.file, each.line, text, each.severity == "fail")


@click.command()
@click.argument("files", nargs=-1, type=click.Path(path_type=Path))
@click.option(
    "--role",
    "roles",
    type=click.Choice(ROLES),
    multiple=True,
    help="What the hosts are that read the files; by default controller and node.",
)
def lint(files: tuple[Path, ...], roles: tuple[Role, ...]) -> None:
    """Check a site's configuration repository: FILES in any order, or a directory that has them.

    It knows qgpu.yaml, slurm.conf with its includes, gres.conf, cgroup.conf, plugstack.conf,
    job_submit.lua, cli_filter.lua, qgpu_tables.lua, prolog and epilog, and compares them as qgpu
    doctor does on a host. One line FILE:LINE: SENTENCE -> what to write. Exit status 1 if there is
    an error, 2 if the files cannot be judged. Neither root nor Slurm is needed.
    """
    repository = collect(files)
    repository.roles = roles or repository.roles
    found = findings(repository)
    for finding in found:
        click.echo(str(finding))
    sys.exit(1 if any(finding.fails for finding in found) else 0)
