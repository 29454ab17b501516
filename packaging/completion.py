"""Prints the completion of `qgpu` for a shell: the script that click makes.

usage: python3 -ISB completion.py SITE bash|zsh
"""

from __future__ import annotations

import sys


def main() -> None:
    """See the module."""
    site, shell = sys.argv[1:]
    sys.path.append(site)
    from click.shell_completion import BashComplete, ZshComplete

    from cli.main import main as qgpu

    source = {"bash": BashComplete, "zsh": ZshComplete}[shell]
    complete = source(qgpu, {}, "qgpu", "_QGPU_COMPLETE")
    print(source.source_template % complete.source_vars())


if __name__ == "__main__":
    main()
