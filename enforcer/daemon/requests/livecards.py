"""Settings of cards that an administrator changed live (`qgpu card set`), and the resulting plan.

A change counts until qgpud restarts; the arbiter may restart. With `save` it is written to
state_dir/cards.json and counts until it is reset.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path

from enforcer.daemon.log import emit
from gres.config.levels import CardPlan, CardPlanError, check_change, plan_card
from gres.config.site import Config, Node

FILE_NAME = "cards.json"
VERSION = 1
Snapshot = tuple[dict[str, str], dict[str, str]]  # a card's saved and live changes


class LiveCards:
    """Overrides per UUID. A damaged file is set aside and logged: qgpu.yaml then holds again."""

    def __init__(self, config: Config, node: Node) -> None:
        self._config, self._node = config, node
        self.path = Path(node.state_dir) / FILE_NAME
        self.saved: dict[str, dict[str, str]] = self._load()
        self.live: dict[str, dict[str, str]] = {}
        self._plans: dict[
            tuple[str, int], CardPlan
        ] = {}  # kept until a change, since each audit asks for them

    def overrides(self, uuid: str) -> dict[str, str]:
        """Changes of one card, saved and live."""
        return {**self.saved.get(uuid, {}), **self.live.get(uuid, {})}

    def plan(self, uuid: str, index: int) -> CardPlan:
        """The settings of one card at present."""
        key = (uuid, index)
        if key not in self._plans:
            self._plans[key] = plan_card(
                self._config, self._node, index, uuid, self.overrides(uuid)
            )
        return self._plans[key]

    def set(self, uuid: str, changes: Mapping[str, str], save: bool) -> None:
        """Change settings of one card. Raises CardPlanError, and OSError
        when they cannot be saved.
        """
        full = check_change(changes)
        if save:
            saved = self.saved | {uuid: {**self.saved.get(uuid, {}), **full}}
            self._store(saved)
            self.saved = saved
            self.live[uuid] = {k: v for k, v in self.live.get(uuid, {}).items() if k not in full}
        else:
            self.live[uuid] = {**self.live.get(uuid, {}), **full}
        self._plans.clear()

    def reset(self, uuid: str) -> None:
        """Forget all changes of one card. Raises OSError."""
        if uuid in self.saved:
            saved = {key: value for key, value in self.saved.items() if key != uuid}
            self._store(saved)
            self.saved = saved
        self.live.pop(uuid, None)
        self._plans.clear()

    def restore(self, uuid: str, before: Snapshot) -> None:
        """Restore a `snapshot`, because the arbiter refused the change.

        Raises OSError if it cannot be saved; until a restart the old settings hold all the same.
        """
        saved, live = before
        changed = self.saved.get(uuid, {}) != saved
        self.saved, self.live[uuid] = self.saved | {uuid: saved}, live
        self._plans.clear()
        if changed:
            self._store(self.saved)

    def snapshot(self, uuid: str) -> Snapshot:
        """A copy of one card's changes for `restore`."""
        return dict(self.saved.get(uuid, {})), dict(self.live.get(uuid, {}))

    def _load(self) -> dict[str, dict[str, str]]:
        try:
            data = json.loads(self.path.read_text())
            if data["version"] != VERSION:
                raise ValueError(f"version {data['version']}")
            return {
                str(uuid): check_change(values) for uuid, values in data["cards"].items() if values
            }
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, KeyError, TypeError, AttributeError, CardPlanError) as error:
            emit(
                logging.ERROR,
                "cards-damaged",
                file=self.path,
                why=error,
                set_aside=f"{FILE_NAME}.bad",
            )
            with contextlib.suppress(OSError):
                self.path.rename(self.path.with_name(f"{FILE_NAME}.bad"))
            return {}

    def _store(self, cards: Mapping[str, Mapping[str, str]]) -> None:
        kept = {uuid: dict(values) for uuid, values in sorted(cards.items()) if values}
        temporary = self.path.with_name(f".{FILE_NAME}.{os.getpid()}.tmp")
        with temporary.open("w") as file:
            file.write(json.dumps({"version": VERSION, "cards": kept}, indent=1) + "\n")
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(self.path)
