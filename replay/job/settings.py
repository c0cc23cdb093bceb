# pyright: strict
"""All options of a job apart from the selection of its ops."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from opreplay.replay.execute.options import RunOptions
from opreplay.replay.results.records import L2State


class Settings(RunOptions, frozen=True, kw_only=True):
    """How ops are run, and what the job reads and plans for that."""

    cluster: str | None = None
    """Cluster that is simulated, e.g. "2x8x910b3"; then the plan holds all collectives."""
    fused: Literal["ascend", "none"] | None = "none"
    """Which kernels of servers stand for the calls of a captured plan; None for those that serve such a model."""
    order: bool = False
    """Whether the plan says in which order the calls of one step ran, also where no mode needs it."""
    activity: bool = False
    """Whether a trace is read with all its timing, to tell of its step."""
    keep: bool = False
    """Whether a plan kept from an earlier run may be used, and this one is kept."""

    @classmethod
    def of(cls, options: RunOptions, **more: Any) -> Settings:
        """Return the options of a run with further settings."""
        return msgspec.structs.replace(msgspec.convert(options, cls, from_attributes=True), **more)

    def run_options(self) -> RunOptions:
        """Return the part that a run has, with what its predictions take caches to hold."""
        options = msgspec.convert(self, RunOptions, from_attributes=True)
        return msgspec.structs.replace(options, l2=self.cache_state())

    def cache_state(self) -> L2State:
        """Return what simulated devices' caches hold when an op starts: as asked, else as it is measured here."""
        return self.l2 or ("sequence" if self.mode == "sequence" else self.l2_state())

    @property
    def needs_order(self) -> bool:
        """Whether the order of the calls is needed."""
        return self.order or self.mode == "sequence" or self.cache == "step"

    @property
    def with_collectives(self) -> bool:
        """Whether each distinct collective is an op of the plan."""
        return self.ranks is not None or self.cluster is not None
