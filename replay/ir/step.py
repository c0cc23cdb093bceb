# pyright: strict
"""One step as every command reports it: how long it took, what the device did, and what limited it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

from opreplay.traces.times.doubts import Doubts

if TYPE_CHECKING:
    pass  # pyright: ignore[reportMissingTypeStubs]

PYTHON = "(Python, between ops)"
"""Name for host time outside of ops."""
IDLE_CAUSES = {
    "before_first_task": "before the first task",
    "waiting_for_host": "waiting for the host",
    "launch_latency": "launch latency",
    "gaps_between_tasks": "gaps between tasks",
    "after_last_task": "after the last task",
    "unknown_cause": "unknown cause",
}
"""Causes of idle time: readable names by key in `StepReport.idle_us` (with the prefix `idle_` in `Categories`)."""
Bound = Literal["host", "communication", "device", "mixed", "host alone", "unknown"]
"""What limits the step. "unknown" if device times are impossible, or if the clocks of host and device differ."""


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """Durations of a step in µs."""

    host_us: float
    """Length of the marked range on its host thread."""
    device_us: float
    """Time from the start of the first to the end of the last device task launched in that host range; 0 without any
    task.
    """
    step_us: float
    """Time from the completion of the previous step to the completion of this one.

    If no previous step is recorded, it is the longer one of host time and device time. A trace without marked steps is
    one step from its first to its last event.
    """


class StepOnDevice(msgspec.Struct, frozen=True, kw_only=True):
    """The step on a simulated device; times in µs."""

    step_us: float
    low_us: float | None
    high_us: float | None
    """Upper end of the 80 % interval of the prediction. None if less than half of the computing time is predicted."""
    predicted_share: float
    """Share of the recorded device time that has a prediction."""
    host_bound: bool = False
    """Whether the device waits for the host. The host time is that of the recording, so it has no interval."""


class ModuleTime(msgspec.Struct, frozen=True, kw_only=True):
    """Time, in µs, of all modules of one class at one position in the module tree. It includes everything that they
    call.
    """

    name: str
    count: int
    """Number of different modules of this class at this position."""
    depth: int
    """Nesting depth; 0 for the outermost module. In a list, each module is followed by the modules that it calls, whose
    depth is greater by one.
    """
    device_us: float
    """Sum of the device task times."""
    path_us: float
    """Time on the critical path."""

    @property
    def label(self) -> str:
        """Return class and count: "Qwen2DecoderLayer ×24"."""
        return f"{self.name} ×{self.count}" if self.count > 1 else self.name


class PythonTime(msgspec.Struct, frozen=True, kw_only=True):
    """Time, in µs, on the critical path between ops that one Python function or marked range took."""

    name: str
    """Recorded name: "transformers/image_utils.py(301): resize"."""
    us: float
    data_loading: bool = False
    """Whether most of the time is spent while a DataLoader prepares the next batch."""

    @property
    def label(self) -> str:
        """Return the name without folders and line, e.g. "image_utils.resize". For data loading, "(data loading)"
        follows.
        """
        place, colon, function = self.name.partition("): ")
        module = place.rpartition("(")[0].rpartition("/")[2].removesuffix(".py")
        text = f"{module}.{function}" if colon and module else self.name.strip("<>").removeprefix("nn.Module: ")
        return f"{text} (data loading)" if self.data_loading else text


class StepReport(msgspec.Struct, frozen=True, kw_only=True):
    """Report on one step; times in µs."""

    name: str
    number: int | None
    marked: bool
    """Whether the trace marks steps; if not, the whole trace counts as one step."""
    steps: int
    """Number of marked steps in the trace."""
    steps_with_work: int = 0
    """Number of marked steps that launch device work. If the trace has no device work, the number of marked steps that
    run ops.
    """
    launches: int = 0
    """Number of calls in the marked range that launch kernels."""
    launches_without_kernel: int = 0
    """Number of launches whose kernel is not recorded. The time of these kernels is unknown and counts as idle."""
    launches_unknown: bool = False
    """Whether no launch of the step's device work is recorded. It is then unknown whether the device waited for the
    host.
    """
    doubts: Doubts = Doubts()
    """Reasons to doubt the device times."""
    host_us: float
    """Length of the marked range on its host thread."""
    asked: bool = False
    """Whether the user requested this step. If not, it is the step of median length among the steps that
    launch work.
    """
    all_host_us: tuple[float, float] | None = None
    """(shortest, longest) length of the marked range on the host, over all marked steps with work."""
    begin_us: float
    """Time from the start of the step's host range until the device had finished the work of the previous step."""
    accelerator: Literal["GPU", "NPU", "device"]
    bound: Bound
    window: Window
    device_sum_us: float
    """Sum of the times of all device tasks and of an NPU's collectives. Time in which several overlap counts several
    times.
    """
    busy_us: float
    """Time during which the device works. For a step on the host alone, time during which any thread runs an op."""
    communication_us: float
    """Time of communication that no computation overlaps."""
    idle_us: dict[str, float]
    """Idle time of the step by cause, with keys of `IDLE_CAUSES`."""
    largest: tuple[tuple[str, float], ...]
    """What the host did on the critical path: at most three names with times, longest first."""
    python: tuple[PythonTime, ...] = ()
    """At most three Python functions, with the time that they took between ops on the critical path, longest first.
    Empty if the trace names no Python functions.
    """
    copied_host_share: float
    """Fraction of the critical path that is host time. Predictions copy this time from the recording."""
    unknown_wait_us: float
    """Waiting time on the critical path that no recorded event explains."""
    blocked_us: float
    """Host time in calls that always wait for the device, if it is unknown for which device work they wait."""
    modules: tuple[ModuleTime, ...] = ()
    """The tree of modules, outer before inner; empty if the trace names none."""
    socs: dict[str, StepOnDevice] = {}
    """Simulated step by device name."""
    losses: dict[str, int] = {}
    """Reason → number of losses when the trace was read. The step contains only what was read."""
    coarse_unit_us: float | None = None
    """Unit of which all device durations are multiples, if it is too coarse for timings."""
    process: str | None = None
    """Process of this step, if the file merges the profiles of several processes."""
    processes: int = 1
    """Number of processes in the file."""

    @property
    def is_untimed(self) -> bool:
        """Check whether missing or wrong times make shares and a verdict impossible."""
        return self.doubts.untimed or (self.bound == "host alone" and self.doubts.zero_ops > 0)
