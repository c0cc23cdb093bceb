# pyright: strict
"""An opened trace: its ops as a table, and each op by name, glob, id or rank."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from opreplay.replay.execute.options import RunOptions
from opreplay.replay.ir.model import ReplayPlan
from opreplay.replay.job.job import Job
from opreplay.replay.job.settings import Settings
from opreplay.replay.plan.inputs import open_input
from opreplay.replay.plan.make import find_ops
from opreplay.replay.plan.selection import Selection
from opreplay.replay.plugins import load_plugins, plugin_files
from opreplay.replay.resolve.policy import Imports, named_modules
from opreplay.replay.session.display import Shown
from opreplay.replay.session.op import Op, alone
from opreplay.replay.session.setting import Setting
from opreplay.traces.model import Trace

if TYPE_CHECKING:
    import pandas  # pyright: ignore[reportMissingTypeStubs]

    from opreplay.replay.report.view import View
    from opreplay.traces import Limits
    from opreplay.traces.links.annotations import Phase

Source = str | os.PathLike[str] | Trace | ReplayPlan
"""A file, or what was read from one."""


class OpenTrace(Shown):
    """The ops of a trace or plan, those with most recorded time first; they are resolved on first use."""

    def __init__(self, read: Trace | ReplayPlan, selection: Selection, setting: Setting) -> None:
        self.read = read
        """What the file held: a trace, or a plan."""
        self.setting = setting
        self._selection = selection

    @cached_property
    def plan(self) -> ReplayPlan:
        """Return each unique op with its arguments, or the reason why it cannot be replayed."""
        return self.job(RunOptions(device=self.setting.device)).plan

    def job(self, options: RunOptions, soc: str | Sequence[str] = (), **more: Any) -> Job:
        """Return the job of these ops with options of a run and `more` settings, on simulated devices."""
        settings = Settings.of(options, order=True, **more)
        return Job.open(self.read, self._selection, settings, [soc] if isinstance(soc, str) else soc)

    def __len__(self) -> int:
        return len(self.plan.ops)

    def __iter__(self) -> Iterator[Op]:
        return (alone(self.plan, op, self.setting) for op in self.plan.ops)

    def __getitem__(self, wanted: str | int) -> Op:
        """Return the heaviest op with this name, glob ("aten::*mm*"), start of an id or rank ("#4" is the fourth).

        An integer is an index from 0. Raises UsageError if no op matches, IndexError for an index that is too large.
        `find` returns all matches.
        """
        op = self.plan.ops[wanted] if isinstance(wanted, int) else find_ops(self.plan, wanted)[0]
        return alone(self.plan, op, self.setting)

    def find(self, wanted: str) -> tuple[Op, ...]:
        """Return all ops that match a name, glob, start of an id or rank, heaviest first. Raises UsageError if none
        does.
        """
        return tuple(alone(self.plan, op, self.setting) for op in find_ops(self.plan, wanted))

    def frame(self) -> pandas.DataFrame:
        """Return one row per op, with the columns of `Results.frame` and the recorded microseconds per call."""
        return self._frame()

    def roofline(self, peak: str | None = None) -> pandas.DataFrame:
        """Return one row per recorded op and shape, those that lose most time below the roof of the device first.

        `peak` names the device, such as "MI300X", if the trace does not. Raises UsageError for a plan, which has no
        recorded kernels, and for an unknown device.
        """
        from opreplay.replay.ops.recorded.roofline import roofline
        from opreplay.replay.report.formats import frame
        from opreplay.replay.report.roofline import file_table
        from opreplay.traces.errors import UsageError
        from opreplay.traces.joins.launch_grids import with_launch_grids
        from opreplay.traces.limits import Limits
        from opreplay.traces.times.peaks import peak_named

        if isinstance(self.read, ReplayPlan):
            raise UsageError("a plan has no recorded kernels", hint="Open the trace that it was made from.")
        read = with_launch_grids(self.read, Limits())
        return frame(file_table(roofline(read, None if peak is None else peak_named(peak))))

    def _view(self) -> View:
        from opreplay.replay.job.planned import planned_results
        from opreplay.replay.report.views.plan import view

        return view(self.plan, planned_results(self.plan), ranked=True)


def open(
    source: Source,
    *,
    device: str = "cpu",
    select: Literal["owner", "leaf", "top", "all"] = "owner",
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    top: int | None = None,
    min_share: float | None = None,
    phase: Phase | None = None,
    allow_imports: Imports | None = None,
    plugins: Sequence[str] = (),
    custom_op_dirs: Sequence[str] = (),
    execution_trace: str | None = None,
    kernel_details: str | None = None,
    limits: Limits | None = None,
) -> OpenTrace:
    """Open a profile (.json, .json.gz), a plan, or TraceLens's IR, told by content; plugins that are installed count.

    Args:
        source: the file, a glob that matches one, "-" for stdin; or a trace or plan that was read already.
        device: of torch, that ops are resolved for and run on.
        select: ops that own device time, innermost ops, outermost ops, or all.
        include: names or globs of the ops to take; all where empty.
        exclude: names or globs of ops to leave out.
        top: the heaviest so many.
        min_share: leave out ops below this share of the recorded time, 0.001 for 0.1 %.
        phase: "prefill", "decode" or "mixed": ops of serving iterations of this kind.
        allow_imports: namespace → module that may be imported to find its ops, or a list of modules.
        plugins: files and modules to run first, here and in the workers of `run`, as `--plugin` names them.
        custom_op_dirs: folders whose .py files are run first.
        execution_trace: an ExecutionTrace of the same run, which completes arguments.
        kernel_details: an NPU's kernel table.
        limits: bounds of the reader.

    Raises TraceError for a file that cannot be read, UsageError for arguments that make no sense together.
    """
    imports = named_modules(allow_imports)
    load_plugins((*plugins, *custom_op_dirs))
    plugin_names = plugin_files((*plugins, *custom_op_dirs))
    if isinstance(source, (Trace, ReplayPlan)):
        read: Trace | ReplayPlan = source
    else:
        read = open_input(
            os.fspath(source), limits=limits, execution_trace=execution_trace, kernel_details=kernel_details
        )
    selection = Selection(
        select=select,
        include=tuple(include),
        exclude=tuple(exclude),
        top=top,
        min_share=min_share,
        allow_imports=imports,
        phase=phase,
    )
    return OpenTrace(read, selection, Setting(device=device, allow_imports=imports, plugins=plugin_names))


def opened(source: Source | OpenTrace, *, device: str = "cpu", plugins: Sequence[str] = ()) -> OpenTrace:
    """Return the trace, opening it only if it is not open already."""
    return source if isinstance(source, OpenTrace) else open(source, device=device, plugins=plugins)


def plan(source: Source | OpenTrace, *, device: str = "cpu") -> ReplayPlan:
    """Return each unique op of a trace with its arguments by name, or the reason why it cannot be replayed; runs
    nothing.

    `opreplay.open` has the selection options. Raises as it does.
    """
    return opened(source, device=device).plan
