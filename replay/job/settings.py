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
    """Simulated cluster, e.g. "2x8x910b3"; the plan then has all collectives."""
    fused: Literal["ascend", "none"] | None = "none"
    """Fused kernels that replace the calls of a captured plan; None chooses by the model."""
    order: bool = False
    """Whether the plan records the order of one step's calls even if no mode needs it."""
    activity: bool = False
    """Whether to read all timing of a trace, to describe its step."""
    keep: bool = False
    """Whether to use and write the plan cache."""

    @classmethod
    def of(cls, options: RunOptions, **more: Any) -> Settings:
        """Return the settings from run options and further values."""
        return msgspec.structs.replace(msgspec.convert(options, cls, from_attributes=True), **more)

    def run_options(self) -> RunOptions:
        """Return the run options, with the cache state for predictions."""
        options = msgspec.convert(self, RunOptions, from_attributes=True)
        return msgspec.structs.replace(options, l2=self.cache_state())

    def cache_state(self) -> L2State:
        """Return the cache state of simulated devices: the requested state; if none is requested, the one used for
        measuring.
        """
        return self.l2 or ("sequence" if self.mode == "sequence" else self.l2_state())

    @property
    def needs_order(self) -> bool:
        """Whether the plan must record the order of calls."""
        return self.order or self.mode == "sequence" or self.cache == "step"

    @property
    def with_collectives(self) -> bool:
        """Whether the plan has an op for each distinct collective."""
        return self.ranks is not None or self.cluster is not None
