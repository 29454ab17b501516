"""The promises that the demo checks: each is recorded with what was seen, none may be skipped
silently.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from rich.console import Console


@dataclass(frozen=True)
class Promise:
    """One sentence, whether it held, and the figure or text that shows it."""

    text: str
    held: bool
    seen: str


@dataclass
class Promises:
    """All promises of one run, printed as they are checked."""

    console: Console
    made: list[Promise] = field(default_factory=list)

    def check(self, text: str, held: bool, seen: str) -> bool:
        """Record and print one promise."""
        self.made.append(Promise(text, held, seen))
        mark = "[green]held  [/]" if held else "[bold red]BROKEN[/]"
        self.console.print(f"  {mark} {text}: [bold]{seen}[/]", highlight=False, soft_wrap=True)
        return held

    @property
    def broken(self) -> list[Promise]:
        """Those that did not hold."""
        return [p for p in self.made if not p.held]
