# pyright: strict
"""One step as every command reports it: its duration, what the device did, and what bounds it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

from opreplay.traces.times.doubts import Doubts

if TYPE_CHECKING:
    pass  # pyright: ignore[reportMissingTypeStubs]

PYTHON = "(Python, between ops)"
"""Name of the host's time outside of ops."""
IDLE_CAUSES = {
    "before_first_task": "before the first task",
    "waiting_for_host": "waiting for the host",
    "launch_latency": "launch latency",
    "gaps_between_tasks": "gaps between tasks",
    "after_last_task": "after the last task",
    "unknown_cause": "unknown cause",
}
"""The causes of idle time: key in `StepReport.idle_us` (with `idle_` before it in `Categories`) → name for people."""
Bound = Literal["host", "communication", "device", "mixed", "host alone", "unknown"]
""""unknown": the device times that it would follow from are not possible, or the clocks of host and device differ."""


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """Duration of a step, µs."""

    host_us: float
    """The marked range on its host thread."""
    device_us: float
    """From the start of the first to the end of the last device task that was launched in that range; 0 without any."""
    step_us: float
    """From the completion of the step before to that of this one; of a step that follows no recorded one the longer of
    what the host needed and the device's time. A trace that marks no steps is one step from its first event to its
    last."""


class StepOnDevice(msgspec.Struct, frozen=True, kw_only=True):
    """The step on a simulated device, µs."""

    step_us: float
    low_us: float | None
    high_us: float | None
    """80 % band; None where less than half of the computing is predicted."""
    predicted_share: float
    """Of the recorded device time: what has a prediction."""
    host_bound: bool = False
    """The device idles for the host, whose time is the recorded one and has no band."""


class ModuleTime(msgspec.Struct, frozen=True, kw_only=True):
    """Modules of one class at one place of the module tree, including everything they call. Times in µs."""

    name: str
    count: int
    """Different modules of this class here."""
    depth: int
    """0 for the outermost; the modules that it calls follow, one deeper."""
    device_us: float
    """Device tasks added up."""
    path_us: float
    """Of the critical path."""

    @property
    def label(self) -> str:
        """Return class and count: "Qwen2DecoderLayer ×24"."""
        return f"{self.name} ×{self.count}" if self.count > 1 else self.name


class PythonTime(msgspec.Struct, frozen=True, kw_only=True):
    """Time of the critical path between ops in one Python function or marked range, µs."""

    name: str
    """As recorded: "transformers/image_utils.py(301): resize"."""
    us: float
    data_loading: bool = False
    """Most of it is spent while a DataLoader makes the next batch."""

    @property
    def label(self) -> str:
        """Return the name without folders and line: "image_utils.resize", with "(data loading)" if it is that."""
        place, colon, function = self.name.partition("): ")
        module = place.rpartition("(")[0].rpartition("/")[2].removesuffix(".py")
        text = f"{module}.{function}" if colon and module else self.name.strip("<>").removeprefix("nn.Module: ")
        return f"{text} (data loading)" if self.data_loading else text


class StepReport(msgspec.Struct, frozen=True, kw_only=True):
    """A step; times in µs."""

    name: str
    number: int | None
    marked: bool
    """False: the trace marks no steps, the whole of it was taken for one."""
    steps: int
    """Marked steps of the trace."""
    steps_with_work: int = 0
    """Of those: launch device work, or run ops where the trace has no device work."""
    launches: int = 0
    """Calls in the marked range that launch kernels."""
    launches_without_kernel: int = 0
    """Of those: no kernel is recorded, so that its time counts as idle."""
    launches_unknown: bool = False
    """No launch of its device work is recorded, so that nothing tells whether idle time was for the host."""
    doubts: Doubts = Doubts()
    """What speaks against the device times."""
    host_us: float
    """The marked range on its host thread."""
    asked: bool = False
    """False: it is the one of median length among those that launch work."""
    all_host_us: tuple[float, float] | None = None
    """Of all marked steps with work: the shortest and the longest range on the host."""
    begin_us: float
    """When the device was done with what it still had to do of the step before, after this range began."""
    accelerator: Literal["GPU", "NPU", "device"]
    bound: Bound
    window: Window
    device_sum_us: float
    """Of all device tasks and an NPU's whole collectives, whether beside each other or not."""
    busy_us: float
    """Of the step: with any work on the device; of a step of the host with an op on any thread."""
    communication_us: float
    """Of the step: communication beside which nothing computes."""
    idle_us: dict[str, float]
    """The rest of the step by key of `IDLE_CAUSES`."""
    largest: tuple[tuple[str, float], ...]
    """What the host did on the critical path: names and times, longest first; at most three."""
    python: tuple[PythonTime, ...] = ()
    """The same of the time between ops by Python function; empty where the trace names none."""
    copied_host_share: float
    """Of the critical path: host time, which re-timing copies from the recording."""
    unknown_wait_us: float
    """Of the critical path: waiting that nothing recorded explains."""
    blocked_us: float
    """Host time in calls that wait for the device by their nature, of which nothing says for what."""
    modules: tuple[ModuleTime, ...] = ()
    """The tree of modules, outer before inner; empty where the trace names none."""
    socs: dict[str, StepOnDevice] = {}
    """By the name of the simulated device."""
    losses: dict[str, int] = {}
    """What reading the trace lost, by reason: the step is what is left."""
    coarse_unit_us: float | None = None
    """Of which all device durations are multiples, where that is too coarse to be timings."""
    process: str | None = None
    """Whose step this is, of a file that the profiles of several processes were merged into."""
    processes: int = 1
    """In that file."""

    @property
    def is_untimed(self) -> bool:
        """Check whether missing or wrong times leave the step without shares and without a verdict."""
        return self.doubts.untimed or (self.bound == "host alone" and self.doubts.zero_ops > 0)
