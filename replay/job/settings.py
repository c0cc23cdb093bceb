# pyright: strict
"""All options of a job except the selection of ops."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from opreplay.replay.execute.options import RunOptions
from opreplay.replay.results.records import L2State
from opreplay.traces.errors import UsageError


class Settings(RunOptions, frozen=True, kw_only=True):
    """How ops are run, and what the job must read and plan for it."""

    cluster: str | None = None
    """Simulated cluster, e.g. "2x8x910b3"; if set, the plan includes all collectives."""
    fused: Literal["ascend", "none"] | None = "none"
    """Fused kernels that replace calls of a captured plan. None: they are chosen to fit the model."""
    order: bool = False
    """Whether the plan records the order of a step's calls even if the mode does not need it."""
    activity: bool = False
    """Whether to read all timing of a trace. The report of the trace's step needs it."""
    keep: bool = False
    """Whether to read and write the plan cache."""

    @classmethod
    def of(cls, options: RunOptions, **more: Any) -> Settings:
        """Return settings with the values of run options and further values.

        Raises UsageError for an option with a value of the wrong type.
        """
        try:
            settings = msgspec.convert(options, cls, from_attributes=True)
        except msgspec.ValidationError as error:
            raise UsageError(f"an option has a wrong value: {error}", hint="See opreplay.RunOptions.") from None
        return msgspec.structs.replace(settings, **more)

    def run_options(self) -> RunOptions:
        """Return the run options, with the cache state for predictions."""
        options = msgspec.convert(self, RunOptions, from_attributes=True)
        return msgspec.structs.replace(options, l2=self.cache_state())

    def cache_state(self) -> L2State:
        """Return the L2 state to predict with: `l2` if set, otherwise the state that matches the measurement."""
        return self.l2 or ("sequence" if self.mode == "sequence" else self.l2_state())

    @property
    def needs_order(self) -> bool:
        """Whether the plan must record the order of calls."""
        return self.order or self.mode == "sequence" or self.cache == "step"

    @property
    def with_collectives(self) -> bool:
        """Whether the plan has an op for each distinct collective."""
        return self.ranks is not None or self.cluster is not None
