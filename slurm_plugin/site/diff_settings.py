"""Compares keys of slurm.conf and cgroup.conf with the table in settings.py. Pure, but for the
Source.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator

from slurm_plugin.site.conf import Conf, Value
from slurm_plugin.site.difference import Difference, removed, replaced, stale
from slurm_plugin.site.found import INCLUDED, Site
from slurm_plugin.site.settings import SEVERAL_SCRIPTS, Restart, Setting, implied_flags

_NEEDS = {
    "slurm.conf": "without it Slurm knows no shares, and qgpud nothing of jobs",
    "cgroup.conf": "without it every job can open every card, also one that asked for none",
}


def include_line(site: Site, name: str, flat: bool) -> str:
    """The line that reads our fragment. Configless Slurm ships only names without a slash."""
    if flat and name != "plugstack.conf":
        return f"include {posixpath.basename(site.places.flat(name))}"
    return f"include {site.places.fragment(name)}"


def include(site: Site, name: str, flat: bool, needed: str, why: str) -> Difference:
    """The include line that a file of the site lacks."""
    text = site.text(site.main(name)) or ""
    if text and not text.endswith("\n"):
        why += "; the file's last line has no newline at its end, so write one first"
    line = include_line(site, name, flat)
    return Difference("include", site.main(name), 0, "", needed, "add", line, why, _restart(name))


def included_twice(site: Site) -> Iterator[Difference]:
    """Include lines of our fragments after the first. Slurm reads the fragment each time."""
    for name in INCLUDED:
        conf = site.plugstack if name == "plugstack.conf" else site.conf(name)
        lines = {(i.file, i.line): i for i in conf.includes if site.places.ours(i.target)}
        for found in list(lines.values())[1:]:
            first = next(iter(lines.values()))
            yield Difference(
                "include",
                found.file,
                found.line,
                f"include {found.word}",
                f"the include of {name} once",
                "remove",
                "",
                f"{first.file}:{first.line} includes it already, so Slurm has all of it twice",
                _restart(name),
                "warn" if name in ("cgroup.conf", "plugstack.conf") else "fail",
            )


def _restart(name: str) -> Restart:
    """What must read a change of that file."""
    if name == "plugstack.conf":
        return ""
    return "slurmd" if name == "cgroup.conf" else "all"


def not_shipped(site: Site, name: str) -> Iterator[Difference]:
    """Our include lines that configless Slurm ships without their file: those with a slash."""
    for found in site.conf(name).includes:
        if not site.places.ours(found.target) or "/" not in found.word:
            continue
        line = include_line(site, name, flat=True)
        why = "configless hosts get this line without the file, and their slurmd does not start"
        yield Difference(
            "include",
            found.file,
            found.line,
            f"include {found.word}",
            line,
            "replace",
            line,
            why,
            "all",
        )


def satisfied(setting: Setting, have: list[str]) -> bool:
    """Whether a site's items suffice."""
    if setting.key == "PrologFlags":
        have = implied_flags(have)
    if setting.kind == "one":
        return len(have) == 1 and not setting.missing(have)
    return not setting.missing(have) and setting.in_order(have)


def setting_differences(
    site: Site, name: str, settings: list[Setting], flat: bool, scripts_here: bool
) -> Iterator[Difference]:
    """All differences of one file, slurm.conf or cgroup.conf; a missing include line covers its
    content.
    """
    conf = site.conf(name)
    lacking: list[Setting] = []
    for setting in settings:
        if setting.kind == "script":
            found, lacks = _script(site, setting, scripts_here)
        else:
            found, lacks = _value(site, conf, setting)
        yield from found
        lacking += [setting] if lacks else []
    if not lacking:
        return
    keys = ", ".join(setting.key for setting in lacking)
    if site.includes(name):
        why = "the fragment is older than this file or qgpu.yaml"
        yield stale(lacking[0].key, site.places.fragment(name), keys, why)
    else:
        yield include(
            site, name, flat, f"the include of qgpu's fragment, with {keys}", _NEEDS[name]
        )


def _value(site: Site, conf: Conf, setting: Setting) -> tuple[list[Difference], bool]:
    """Differences of a key that the site sets, and whether it does not set it."""
    values = conf.all(setting.key)
    if not values:
        default = [setting.default] if setting.default else []
        return [], not satisfied(setting, default)
    found = list(_doubled(site, conf, values))
    last = values[-1]
    if not satisfied(setting, last.items):
        line = f"{last.key}={setting.merged(last.items)}"
        if site.places.ours(last.file):
            found = [
                stale(
                    setting.key,
                    last.file,
                    f"{setting.key}={setting.value}",
                    "qgpu.yaml has changed since",
                )
            ]
        else:
            needed = f"{setting.key}={setting.merged(last.items)}"
            found.append(replaced(last, setting.key, line, needed, setting.why, setting.restart))
    return found, False


def _doubled(site: Site, conf: Conf, values: list[Value]) -> Iterator[Difference]:
    """A repeated key: Slurm reports it and takes the last value."""
    if values[0].name not in conf.repeated():
        return
    for value in values:
        if site.places.ours(value.file):
            why = f"the site sets {value.key} too, which Slurm complains of at each start"
            yield stale(value.key, value.file, f"a fragment without {value.key}", why)
            return
    for value in values[:-1]:
        why = f"{values[-1].place} sets it again, and Slurm takes only that one"
        yield removed(value, f"{value.key} in one line", why, "reconfigure", "warn")


def _script(site: Site, setting: Setting, here: bool) -> tuple[list[Difference], bool]:
    """Whether a script is ours or calls ours. `here`: the scripts are on this host."""
    several = site.version >= SEVERAL_SCRIPTS
    values = site.slurm.all(setting.key) if several else site.slurm.all(setting.key)[-1:]
    files = [path for value in values for path in (value.value, *site.source.glob(value.value))]
    if setting.value in files or not values:
        return [], not values
    called = posixpath.basename(setting.value)
    texts = [site.text(path) for path in files]
    if any(text is not None and f"qgpu-hook {called}" in text for text in texts):
        return [], False
    if several:
        return [], True
    if not here and all(text is None for text in texts):
        return [], False  # scripts of the nodes are not visible here
    return list(_one_line_only(site, setting, values[-1])), False


def _one_line_only(site: Site, setting: Setting, value: Value) -> Iterator[Difference]:
    """Before 24.05 one line names all scripts, by a pattern."""
    ours, name = setting.value, posixpath.basename(setting.value)
    has = f"{value.key}={value.value}"
    if "*" in value.value:
        folder, site_script = posixpath.dirname(value.value), ""
        needed = f"{ours} among them"
    else:
        folder = f"{site.places.directory}/{name}.d"
        site_script = f" && ln -sfn {value.value} {folder}/20-site"
        needed = f"both scripts by a pattern, since Slurm {site.version} takes one line"
    command = f"mkdir -p {folder}{site_script} && ln -sfn {ours} {folder}/50-qgpu"
    why = f"{setting.why}; every node needs these links"
    yield Difference(setting.key, value.file, value.line, has, needed, "run", command, why)
    if site_script:
        line = f"{value.key}={folder}/*"
        yield replaced(value, setting.key, line, needed, setting.why, "all")
