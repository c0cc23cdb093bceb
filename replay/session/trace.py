# pyright: strict
"""An opened trace: its ops as a table, and each op by name, glob, id or rank."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from operator import index
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, SupportsIndex, TypedDict

from opreplay.replay.execute.options import RunOptions
from opreplay.replay.host.needs_torch import require_torch
from opreplay.replay.ir.describe import describe_inputs
from opreplay.replay.ir.model import ReplayPlan
from opreplay.replay.job.job import Job
from opreplay.replay.job.settings import Settings
from opreplay.replay.plan.inputs import Named, names_several, open_input, open_trace, tells_step
from opreplay.replay.plan.make import find_ops
from opreplay.replay.plan.selection import Selection, by_name_and_place
from opreplay.replay.plugins import load_plugins, plugin_files
from opreplay.replay.resolve.policy import Imports, named_modules
from opreplay.replay.session.display import Tabular
from opreplay.replay.session.op import Op, single_op
from opreplay.replay.session.setting import Path, Setting, several, warn_of_damage, warn_user
from opreplay.traces import Limits
from opreplay.traces.errors import UsageError
from opreplay.traces.model import Trace
from opreplay.traces.processes.select import of_process

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from opreplay.replay.batch.job import Traces
    from opreplay.replay.report.table import AnyTable
    from opreplay.replay.report.view import View
    from opreplay.traces.links.annotations import Phase

Source = Path | Sequence[Path] | Trace | ReplayPlan
"""A file, glob or folder, or several of these; or a trace or plan that was already read."""


class Files(NamedTuple):
    """Several traces: paths, globs or folders, and ExecutionTraces of some traces. Ops that traces share are merged."""

    patterns: tuple[str, ...]
    execution_traces: tuple[str, ...]
    limits: Limits


class OpenTrace(Tabular):
    """Ops of a trace, a plan or several traces, in descending order of recorded time. Resolved on first use."""

    def __init__(self, read: Trace | ReplayPlan | Files, selection: Selection, setting: Setting) -> None:
        self.read = read
        """The trace or plan that was read. For several traces, it is `Files`, which are read when their ops
        are needed.
        """
        self.setting = setting
        self._selection = selection
        self._merged: dict[bool, Traces] = {}

    @cached_property
    def plan(self) -> ReplayPlan:
        """Return the plan: each unique op with its arguments, or the reason why it cannot be replayed."""
        return self.job(RunOptions(device=self.setting.device)).plan

    def job(self, options: RunOptions, soc: str | Sequence[str] = (), **more: Any) -> Job:
        """Return the job that replays these ops, and predicts them on the simulated devices `soc`.

        `options` are options of a run, `more` further fields of `Settings`. If this process has loaded torch, it may
        have registered ops with torch. A plan stored by an earlier process is then not used.
        """
        settings = Settings.of(options, order=True, keep="torch" not in sys.modules, **more)
        if not isinstance(self.read, Files):
            return Job.open(self.read, self._selection, settings, several(soc))
        require_torch()
        from opreplay.replay.batch.job import Traces

        known = self._merged.get(settings.check_kernels)
        source = known or Traces(tell=warn_user)
        job = Job.open(source, self._selection, settings, several(soc))
        if known is None:
            source.find(self.read.patterns, self.read.execution_traces, job, limits=self.read.limits)
            self._merged[settings.check_kernels] = source
        return job

    def __len__(self) -> int:
        return len(self.plan.ops)

    def __iter__(self) -> Iterator[Op]:
        return (single_op(self.plan, op, self.setting) for op in self.plan.ops)

    def __getitem__(self, wanted: str | SupportsIndex) -> Op:
        """Return an op by name, glob ("aten::*mm*"), start of its id, rank ("#4"), or index from 0 (an int).

        If several ops match, this is the op with the most time; `find` returns all. Raises UsageError if no op matches,
        and IndexError for an index that is too large.
        """
        op = find_ops(self.plan, wanted)[0] if isinstance(wanted, str) else self.plan.ops[index(wanted)]
        return single_op(self.plan, op, self.setting)

    def find(self, wanted: str) -> tuple[Op, ...]:
        """Return all ops that match a name, a glob, the start of an id, or a rank.

        The ops with the most time come first. Raises UsageError if no op matches.
        """
        return tuple(single_op(self.plan, op, self.setting) for op in find_ops(self.plan, wanted))

    def _tables(self) -> Mapping[str, Callable[[], AnyTable]]:
        """Return the tables: the ops as recorded, how each op is replayed, and why ops cannot be replayed."""

        def of_plan(name: str) -> AnyTable:
            return self._view().tables[name]()

        return {"ops": self._recorded, "plan": partial(of_plan, "ops"), "reasons": partial(of_plan, "reasons")}

    def _recorded(self) -> AnyTable:
        """Return the recorded ops as a table.

        Ops of one trace or plan are not resolved, because that needs torch. Ops of several traces are merged, and
        merging resolves them.
        """
        from opreplay.replay.plan.inputs import recorded_plan_of
        from opreplay.replay.report.views.recorded import table

        if not isinstance(self.read, Files):
            return table(*recorded_plan_of(self.read, self._selection))
        return table(self.plan, {op.id: describe_inputs(op) for op in self.plan.ops})

    def _view(self) -> View:
        from opreplay.replay.job.planned import planned_results
        from opreplay.replay.report.views.plan import view

        return view(self.plan, planned_results(self.plan), ranked=True)


class Selecting(TypedDict, total=False):
    """Options of `open`, also accepted by functions that take a file."""

    device: str
    select: Literal["owner", "leaf", "top", "all"]
    include: str | Sequence[str]
    exclude: str | Sequence[str]
    top: int | None
    min_share: float | None
    phase: Phase | None
    allow_imports: Imports | None
    plugins: Path | Sequence[Path]
    custom_op_dirs: Path | Sequence[Path]
    execution_trace: Path | Sequence[Path] | None
    kernel_details: str | None
    limits: Limits | None


def open(
    source: Source,
    *,
    device: str = "cpu",
    select: Literal["owner", "leaf", "top", "all"] = "owner",
    include: str | Sequence[str] = (),
    exclude: str | Sequence[str] = (),
    top: int | None = None,
    min_share: float | None = None,
    phase: Phase | None = None,
    allow_imports: Imports | None = None,
    plugins: Path | Sequence[Path] = (),
    custom_op_dirs: Path | Sequence[Path] = (),
    execution_trace: Path | Sequence[Path] | None = None,
    kernel_details: str | None = None,
    limits: Limits | None = None,
) -> OpenTrace:
    """Open a profile (.json, .json.gz), a plan, or TraceLens's IR, recognized by content, with all installed plugins.

    Several files are merged as `opreplay run` merges them: an op that they share is one op, and options select ops of
    each file separately. Options that accept several strings also accept one.

    Args:
        source: a file, a glob or a folder, a list of them, "-" for stdin; or a trace or plan that was already read.
        device: torch device for which ops are resolved and on which they run.
        select: ops that own device time, innermost ops, outermost ops, or all.
        include: names or globs of the ops to use, the id of an op, or "#4" for the fourth; all if empty.
        exclude: names or globs of ops to leave out.
        top: number of ops to use, the heaviest first.
        min_share: leave out ops below this share of the recorded time, 0.001 for 0.1 %.
        phase: "prefill", "decode" or "mixed": ops of serving iterations of this kind.
        allow_imports: namespace → module that may be imported to find its ops, or a list of modules.
        plugins: files and modules to run first, here and in the workers of `run`, as with `--plugin`.
        custom_op_dirs: folders whose .py files are run first.
        execution_trace: an ExecutionTrace of the same run, which completes arguments; for several traces, several.
        kernel_details: kernel table of an NPU, for one trace.
        limits: limits of the reader.

    Raises TraceError for a file that cannot be read, UsageError for arguments that cannot be combined.
    """
    return _open(
        source,
        device=device,
        select=select,
        include=include,
        exclude=exclude,
        top=top,
        min_share=min_share,
        phase=phase,
        allow_imports=allow_imports,
        plugins=plugins,
        custom_op_dirs=custom_op_dirs,
        execution_trace=execution_trace,
        kernel_details=kernel_details,
        limits=limits,
    )


def _open(source: Source, *, timed: bool = False, **options: Unpack[Selecting]) -> OpenTrace:
    """Check the options of `open`, load plugins, and read the source; `timed` as in `_read`."""
    if unknown := sorted(options.keys() - Selecting.__annotations__.keys()):
        raise TypeError(f"opreplay.open has no option {unknown[0]!r}; it has {', '.join(Selecting.__annotations__)}")
    top, min_share = options.get("top"), options.get("min_share")
    if top is not None and top < 1:
        raise UsageError(f"top is {top}", hint="It must be at least 1; None takes all.")
    if min_share is not None and not 0 <= min_share <= 1:
        raise UsageError(f"min_share is {min_share}", hint="It must be between 0 and 1: 0.001 for 0.1 %.")
    imports = named_modules(options.get("allow_imports"))
    named = (*several(options.get("plugins", ())), *several(options.get("custom_op_dirs", ())))
    load_plugins(named)
    plugin_names = plugin_files(named)
    execution_traces = several(options.get("execution_trace") or ())
    read = _read(source, execution_traces, options.get("kernel_details"), options.get("limits"), timed)
    by_name, by_place = by_name_and_place(several(options.get("include", ())))
    selection = Selection(
        select=options.get("select", "owner"),
        include=by_name,
        exclude=several(options.get("exclude", ())),
        top=top,
        min_share=min_share,
        allow_imports=imports,
        phase=options.get("phase"),
        ops=by_place,
    )
    setting = Setting(device=options.get("device", "cpu"), allow_imports=imports, plugins=plugin_names)
    return OpenTrace(read, selection, setting)


def _read(
    source: Source,
    execution_traces: tuple[str, ...],
    kernel_details: str | None,
    limits: Limits | None,
    timed: bool,
) -> Trace | ReplayPlan | Files:
    """Read a single file; for several files, return their paths without reading them.

    With `timed`, all event times are read, unless the file is large.
    """
    if isinstance(source, (Trace, ReplayPlan)):
        return source
    patterns = paths_of(source)
    if names_several(patterns):
        if kernel_details is not None:
            raise UsageError(
                "kernel_details is for one trace", hint="A kernel table next to each trace is found automatically."
            )
        return Files(patterns, execution_traces, limits or Limits())
    if len(execution_traces) > 1:
        raise UsageError(
            "one trace takes one ExecutionTrace", hint="Name the traces that these ExecutionTraces belong to."
        )
    return warn_of_damage(
        open_input(
            patterns[0],
            limits=limits,
            execution_trace=next(iter(execution_traces), None),
            kernel_details=kernel_details,
            activity=timed and tells_step(patterns[0]),
        )
    )


def paths_of(source: Path | Sequence[Path] | Files) -> tuple[str, ...]:
    """Return the paths and patterns of a source as strings. Raises UsageError if there are none."""
    if isinstance(source, Files):
        return source.patterns
    patterns = several(source)
    if not patterns:
        raise UsageError("no trace is named", hint="Name a file, a glob or a folder.")
    return patterns


def open_if_needed(source: Source | OpenTrace, *, timed: bool = False, **selecting: Unpack[Selecting]) -> OpenTrace:
    """Return an opened trace, opening the source with these options if it is not open yet.

    With `timed`, a single file is read with all its event times, which saves reading it again for them. Raises
    UsageError if options are given with a trace that is already open.
    """
    if not isinstance(source, OpenTrace):
        return _open(source, timed=timed, **selecting)
    if given := [name for name, value in selecting.items() if value or value == 0]:
        raise UsageError(
            f"{given[0]} only applies when opening a file, but the trace is already open",
            hint="Pass it to opreplay.open.",
        )
    return source


def plan(source: Source | OpenTrace, **selecting: Unpack[Selecting]) -> ReplayPlan:
    """Return the plan of a trace: each unique op with its arguments by name, or the reason why it cannot be replayed.

    Nothing is run. Takes the options of `opreplay.open`, and raises the same errors.
    """
    return open_if_needed(source, **selecting).plan


def recorded_trace(
    trace: Source | OpenTrace,
    *,
    process: str | None = None,
    kernel_details: str | None = None,
    capture: str | None = None,
    limits: Limits | None = None,
) -> Trace:
    """Return one trace with all its event times.

    If it was opened without them, its file is read again. Raises UsageError for a plan, and for several traces.
    """
    source = trace.read if isinstance(trace, OpenTrace) else trace
    if isinstance(source, ReplayPlan):
        raise UsageError(f"{source.source} is a plan, which has no recorded times", hint="Name the trace.")
    if isinstance(source, Trace):
        if source.activity is not None:
            return source if process is None else of_process(source, process)
        source = source.info.path
    paths = paths_of(source)
    if names_several(paths):
        raise UsageError("inspect takes one trace", hint="Name one file; `run` and `timeline` accept several.")
    named = Named(kernel_details=kernel_details, capture=capture)
    return warn_of_damage(open_trace(paths[0], limits=limits, named=named, process=process, activity=True))
