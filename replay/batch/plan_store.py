# pyright: strict
"""Plans of a batch's files in the user's cache. With them, a resumed batch does not read unchanged files again."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from opreplay.replay.batch.merge import TracePlan
from opreplay.replay.batch.stamps import Stamp, stamps_of
from opreplay.replay.host import kept
from opreplay.replay.plan.kept import key_of
from opreplay.traces.names import printable


class PlanStore:
    """Loads and stores plans of files. A plan is found only for unchanged files and the same settings."""

    def __init__(self, settings: str) -> None:
        """`settings` is a text that differs whenever the same files would give other plans."""
        self._settings = settings
        self._added: dict[str, str] = {}
        """Key → path of each plan that this run stored."""
        self._loaded = 0

    def load(self, path: str, files: Sequence[str]) -> TracePlan | None:
        """Return the stored plan of a file if these files are unchanged since it was made; otherwise None."""
        stamps = stamps_of(files)
        body = None if stamps is None else kept.load(self._key(path, stamps))
        if body is None:
            return None
        try:
            plan = msgspec.msgpack.decode(body, type=TracePlan)
        except msgspec.MsgspecError:
            return None  # written by other hands
        self._loaded += 1
        return plan

    def add(self, plan: TracePlan) -> None:
        """Store a plan, unless its files changed while they were read."""
        if plan.sources:
            key = self._key(plan.path, plan.sources)
            kept.store(key, msgspec.msgpack.encode(plan))
            self._added[key] = plan.path

    def undo(self) -> list[str]:
        """Remove the plans that this run stored. Return their paths if this run loaded plans of an earlier run."""
        for key in self._added:
            kept.remove(key)
        return list(self._added.values()) if self._loaded else []

    def _key(self, path: str, stamps: tuple[Stamp, ...]) -> str:
        key = key_of("batch", self._settings, printable(path), *stamps)
        assert key is not None  # texts and stamps have a known form
        return key
