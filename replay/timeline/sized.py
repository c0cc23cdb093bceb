# pyright: strict
"""Time and memory of a captured step on devices for given sizes, if the step's number of tokens is unknown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from opreplay.replay.ascend.simulate.step import Step
from opreplay.replay.ir.model import ReplayPlan
from opreplay.replay.timeline.captured import captured_timeline, limit_of


class SizedStep(msgspec.Struct, frozen=True, kw_only=True):
    """A step of one size on one device; times in µs."""

    sizes: dict[str, int]
    """Arguments of the function that made the step."""
    soc: str
    step_us: float
    low_us: float
    high_us: float
    """Upper end of the 80 % band of `step_us`."""
    graph_us: float
    """Step time if the step is launched as one graph."""
    bound: str
    """What bounds the step: "host", "device" or "both"."""
    memory_bytes: int
    """Bytes of tensors, without workspaces."""
    fits: bool | None
    """Whether the tensors fit the device's memory; None if the memory size is unknown."""
    unpredicted_calls: int
    limit: str = ""
    """What limits the step, e.g. "memory", "host" or "host and compute"."""
    hbm_bytes: float | None = None
    """Memory size of the device."""


class SizedSteps(msgspec.Struct, frozen=True, kw_only=True):
    """A step whose number of tokens is unknown, in several sizes on one or more devices."""

    source: str
    rows: tuple[SizedStep, ...]
    notes: tuple[str, ...]
    """Assumptions that hold for all rows."""


def sized(plan: ReplayPlan, steps: Sequence[Step], sizes: Mapping[str, int]) -> list[SizedStep]:
    """Return time and memory of a captured step. `steps` has its predictions, one per device.

    Raises UsageError for a plan that was not captured.
    """
    called, graph = (captured_timeline(plan, steps, host_scale=scale) for scale in (1.0, 0.0))
    memory = 0 if plan.capture is None else plan.capture.peak_bytes
    return [
        SizedStep(
            sizes=dict(sizes),
            soc=step.device,
            step_us=called.socs[step.device].step_us,
            low_us=called.socs[step.device].low_us,
            high_us=called.socs[step.device].high_us,
            graph_us=graph.socs[step.device].step_us,
            bound=called.socs[step.device].bound,
            memory_bytes=memory,
            fits=None if step.hbm_bytes is None else memory <= step.hbm_bytes,
            unpredicted_calls=called.unpredicted_calls,
            limit=limit_of(called.socs[step.device], step),
            hbm_bytes=step.hbm_bytes,
        )
        for step in steps
    ]
