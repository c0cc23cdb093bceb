# pyright: strict
"""Opens the inputs of `run`, `plan`, `simulate` and `batch`: a trace, a plan, or an IR file of TraceLens.

The kind is recognized by content. This module selects the reader, joins other files of the same run, and makes the
plan.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from opreplay.replay.plan.make import make_plan
from opreplay.replay.plan.selection import Selection
from opreplay.traces import Limits, expand_paths, the_one_path
from opreplay.traces.dialects.dialect import Dialect, Want
from opreplay.traces.errors import Malformed, UsageError
from opreplay.traces.losses import loss_text
from opreplay.traces.names import file_name
from opreplay.traces.reading.opening import OPENING_BYTES, Opening
from opreplay.traces.reading.source import Source

if TYPE_CHECKING:
    from opreplay.replay.ir.model import ReplayPlan
    from opreplay.replay.plan.recorded.ops import RecordedPlan
    from opreplay.traces import Trace


Progress = Callable[[], "AbstractContextManager[Callable[[int, int | None], None] | None]"]
"""Function that returns a context manager in which a file is read. The context manager yields a callback that is called
with (bytes read, total bytes). It yields None if progress is not wanted.
"""


def _plan(source: Source, want: Want) -> ReplayPlan:
    from opreplay.replay.ir.plan_file import load_plan

    return load_plan(source.path)


def _comms(source: Source, want: Want) -> ReplayPlan:
    from opreplay.replay.plan.collectives.in_plan import plan_of_comms
    from opreplay.traces.dialects.param_comms import read_comms_trace

    return plan_of_comms(read_comms_trace(source.path, source.limits))


def _tracelens(source: Source, want: Want) -> ReplayPlan:
    from opreplay.replay.plan.tracelens import read_tracelens_ir

    return read_tracelens_ir(source.path)


def _backendbench(source: Source, want: Want) -> ReplayPlan:
    from opreplay.replay.resolve.written.backendbench import read_backendbench

    return read_backendbench(source.path)


def _results(source: Source, want: Want) -> ReplayPlan:
    raise UsageError(
        f"{source.path} contains the results of a run, not a trace",
        hint="`opreplay show` and `opreplay compare` show them.",
    )


def _flashinfer_trace(path: str) -> ReplayPlan:
    from opreplay.replay.resolve.written.flashinfer_trace import read_flashinfer_trace

    return read_flashinfer_trace(path)


RESULTS = Dialect("results", sniff=lambda o: o.layout == "object" and "record" in o.keys, read=_results)
PLAN = Dialect("plan", sniff=lambda o: o.layout == "object" and "schema_version" in o.keys, read=_plan)
TRACELENS = Dialect(
    "tracelens", sniff=lambda o: o.layout == "list" and {"op_name", "replay_ir"} <= o.keys.keys(), read=_tracelens
)
COMMS = Dialect("comms", sniff=lambda o: o.layout == "list" and "comms" in o.keys, read=_comms)
BACKENDBENCH = Dialect("backendbench", sniff=lambda o: o.data.lstrip().startswith(b"Operator:"), read=_backendbench)
FLASHINFER_TRACE = Dialect(
    "flashinfer-trace", sniff=lambda o: False, read=lambda source, want: _flashinfer_trace(source.path)
)
"""The format FlashInfer-Trace. A trace in this format is a folder, see `is_plan_folder`."""
PLANS = (RESULTS, PLAN, TRACELENS, COMMS, BACKENDBENCH)
"""Kinds of plan files, in the order in which they are tried."""


def is_plan_folder(path: str) -> bool:
    """Check whether this is a folder of FlashInfer-Trace definitions and workloads, which form one plan."""
    return all(os.path.isdir(os.path.join(path, part)) for part in ("definitions", "workloads"))


def names_several(patterns: Sequence[str]) -> bool:
    """Check whether the paths name several traces.

    This holds for several paths, a folder of traces, and a glob that matches several files. Raises TraceError for a
    glob that matches no file.
    """
    if len(patterns) == 1 and os.path.isdir(patterns[0]):
        return not is_plan_folder(patterns[0])
    return len(patterns) > 1 or len(expand_paths(patterns)) > 1


def plan_dialect(path: str) -> Dialect[ReplayPlan] | None:
    """Return the kind of a plan file, one of `PLANS`. For a folder of FlashInfer-Trace files, return FlashInfer-Trace.
    None for anything else.

    Never raises because of a file's contents; the reader of that kind reports errors.
    """
    if is_plan_folder(path):
        return FLASHINFER_TRACE
    if not os.path.isfile(path):
        return None
    try:
        with open(path, "rb") as file:
            opening = Opening(file.read(OPENING_BYTES))
    except OSError:
        return None
    return next((dialect for dialect in PLANS if dialect.sniff(opening)), None)


def refuse_program(path: str) -> None:
    """Raise Malformed for a program of torch.export.save, from which `capture` can make a plan."""
    if not path.endswith(".pt2"):
        return
    from zipfile import is_zipfile

    if not is_zipfile(path):
        return
    name = file_name(path)
    raise Malformed(
        f"{path} is a torch.export program, not a trace",
        hint=f"To write its calls as a plan: opreplay capture {path} --trust --output {name}.plan.json",
    )


def open_input(
    text: str,
    *,
    limits: Limits | None = None,
    execution_trace: str | None = None,
    kernel_details: str | None = None,
    capture: str | None = None,
    process: str | None = None,
    progress: Progress = nullcontext,
    activity: bool = False,
) -> Trace | ReplayPlan:
    """Open a path, a glob that matches one file, or "-": a trace, a plan or TraceLens's IR, recognized by content.

    Args:
        text: the file.
        limits: limits of the reader; by default those of `Limits()`.
        execution_trace: an ExecutionTrace of the same run, which completes the arguments of a trace.
        kernel_details: an NPU's kernel table; a table next to the trace is used by default.
        capture: the recording made while the CUDA graphs of a trace were captured, or a folder of recordings; by
            default, files next to the trace with `capture` in their name are used.
        process: the process to read from a file that merges the profiles of several processes.
        progress: creates a context manager that yields a progress callback for each file that is read.
        activity: also read collectives, and the times of events other than ops and kernels.

    Raises UsageError for a glob that matches several files, and for a plan together with a file that completes a trace;
    TraceError for unreadable input.
    """
    path = the_one_path(text)
    refuse_program(path)
    dialect = plan_dialect(path)
    if dialect is not None:
        for option, value, has in (
            ("--set kernel_details", kernel_details, "kernels"),
            ("--set capture", capture, "ops"),
            ("--execution-trace", execution_trace, "arguments"),
            ("--process", process, "ops"),
        ):
            if value is not None:
                raise UsageError(f"{option} is for traces; a plan already contains its {has}", hint="Leave it out.")
        if dialect is FLASHINFER_TRACE:
            return _flashinfer_trace(path)
        with Source(path, limits or Limits()) as source:
            return dialect.read(source, Want())
    named = Named(execution_trace, kernel_details, capture)
    return open_trace(path, limits=limits, named=named, process=process, progress=progress, activity=activity)


class Named(NamedTuple):
    """Files named by the user that complete a trace, see `open_input`."""

    execution_trace: str | None = None
    kernel_details: str | None = None
    capture: str | None = None


NONE_NAMED = Named()


def open_trace(
    text: str,
    *,
    limits: Limits | None = None,
    named: Named = NONE_NAMED,
    process: str | None = None,
    progress: Progress = nullcontext,
    activity: bool = False,
    gradients: bool = True,
) -> Trace:
    """Open the profile given as a path, a glob or "-", and complete it from other files as described in `open_input`.

    `activity` means to read all timing. `gradients` means to read the autograd data that a plan needs; it takes a fifth
    of the memory of a long trace. Raises the same errors as `open_input`; for a kernel table in `named`, also those of
    `join_kernel_details`. A kernel table that was found next to the trace is ignored if it does not match;
    `info.kernel_details` then says why.
    """
    from opreplay.traces.joins.graph_capture import capture_files, with_captures, with_captures_in_folder
    from opreplay.traces.joins.kernel_details import join_kernel_details, with_table_in_folder
    from opreplay.traces.joins.launch_grids import SMALL, with_launch_grids

    execution_trace, kernel_details, capture = named
    path = the_one_path(text)
    refuse_program(path)
    refuse_plan(path)
    trace = _read(path, limits, progress, ids=execution_trace is not None, activity=activity, gradients=gradients)
    if process is not None:
        from opreplay.traces.processes.select import of_process

        trace = of_process(trace, process)
    if execution_trace is not None:
        from opreplay.traces.joins.execution_trace import join_shapes

        trace = join_shapes(trace, _read(the_one_path(execution_trace), limits, progress, ids=True))
    trace = with_table_in_folder(trace) if kernel_details is None else join_kernel_details(trace, kernel_details)
    if capture is None:
        trace = with_captures_in_folder(trace, limits or Limits())
    else:
        trace = with_captures(trace, capture_files(capture), limits or Limits())
    return with_launch_grids(trace, limits or Limits(), most_bytes=SMALL) if gradients else trace


STEP_BYTES = 256 << 20
"""Maximum uncompressed size, in bytes, of a trace whose step timing every command reads. If a trace is larger, only
`timeline` reads its step timing. Without step timing, reading takes a third of the time.
"""
PACKED = 12
"""Rough compression ratio of a .gz trace."""


def tells_step(text: str) -> bool:
    """Check whether a trace is so small that all commands read its step timing, even those that do not analyze the
    step.
    """
    if not os.path.isfile(text):
        return True
    unpacked = os.path.getsize(text) * (PACKED if text.lower().endswith(".gz") else 1)
    return unpacked <= STEP_BYTES


def refuse_plan(path: str) -> None:
    """Raise UsageError for a captured or written plan where a trace is needed. Only a trace has event times."""
    if plan_dialect(path) is PLAN:
        raise UsageError(
            f"{path} is a plan, which has no recorded times",
            hint=(
                f"To predict its ops and, for a captured step, its memory: opreplay simulate {path} --soc 910b3. To "
                f"measure them: opreplay run {path}"
            ),
        )


def _read(
    path: str,
    limits: Limits | None,
    progress: Progress,
    *,
    ids: bool,
    activity: bool = False,
    gradients: bool = True,
) -> Trace:
    from opreplay.traces import read_trace

    with progress() as report_progress:
        return read_trace(
            path,
            limits=limits or Limits(),
            processes=1 if activity else reading_processes(path),
            progress=report_progress,
            record_function_ids=ids,
            gradients=gradients,
            activity=activity,
        )


MOST_READERS = 4
"""Maximum number of processes that read one file. Each may use some hundred megabytes, and a single process then
collects the tables of all.
"""


def reading_processes(path: str) -> int:
    """Return how many processes read a file. There is at most one per idle CPU, and only one for a compressed or small
    file.
    """
    from opreplay.traces.reading.parallel import most_parts

    parts = min(most_parts(path), MOST_READERS)
    if parts < 2:
        return 1
    from opreplay.replay.host.idle import idle_cpus

    idle = idle_cpus()
    return 1 if idle is None else max(1, min(parts, round(idle)))


def join_notes(joined: Trace) -> list[str]:
    """Return notes on how reading and joining went.

    They are about data lost when reading a trace, about data that other files added, and about files that seem to be
    from another run.
    """
    from opreplay.traces.joins.graph_capture import join_text as graphs_text
    from opreplay.traces.joins.kernel_details import join_text

    table = joined.info.kernel_details
    of_table = warnings_of(joined)
    if table is not None:
        of_table.append(f"opreplay: {join_text(table)}")
    if joined.info.graphs is not None:
        of_table.append(f"opreplay: {graphs_text(joined.info.graphs)}")
    shapes = joined.info.joined
    if shapes is None:
        return of_table
    matched = shapes.by_record_function_id + shapes.by_sequence + shapes.by_context
    notes = [
        f"--execution-trace provided the arguments of {matched} of {len(joined.ops)} calls: "
        f"{shapes.by_record_function_id} by id, {shapes.by_sequence} by sequence, {shapes.by_context} by context; "
        f"{shapes.already_recorded} already had arguments ({shapes.disagreeing} differ; the trace's are kept), "
        f"{shapes.no_arguments} have none, {shapes.unmatched} not found"
    ]
    if not shapes.same_process:
        notes.append(
            "opreplay: warning: trace and ExecutionTrace have different process ids: if they are from different runs, "
            "the arguments may be from another model"
        )
    return [*notes, *of_table]


def warnings_of(read: Trace | ReplayPlan) -> list[str]:
    """Return warnings about data lost when reading, about wrong or unknown times, and about device work with unknown
    owners.
    """
    from opreplay.traces.model import Trace

    if not isinstance(read, Trace):
        return loss_notes(read.losses, read.source)
    name = file_name(read.info.path)
    return [*loss_notes(read.info.report.losses, name), *impossible_notes(read, name), *collision_notes(read, name)]


WARNING = "opreplay: warning: "
"""Prefix of a line about wrong or missing data."""
MOST_NAMED = 8
"""Maximum number of processes or threads that a warning lists."""


def impossible_notes(trace: Trace, name: str) -> list[str]:
    """Return warnings about impossible device times; empty if there are none."""
    from opreplay.traces.times.doubts import doubts_of
    from opreplay.traces.times.impossible import impossible_kernels, outlying_kernel

    faults, doubts, outlier = impossible_kernels(trace), doubts_of(trace), outlying_kernel(trace)
    zero = doubts.zero_durations
    shown = ", ".join(
        f"{fault.kind} ({fault.kernels:,} = {100 * fault.share:.1f} % of device time)" for fault in faults
    )
    notes = [f"impossible kernel times, included in all totals: {shown}"] if faults else []
    if zero:
        notes.append(f"{zero:,} of {len(trace.kernels):,} kernels have duration 0: device time is unknown")
    if doubts.in_another_unit:
        notes.append("impossible durations of kernels or ops: times are probably not in microseconds")
    if doubts.shared_ids:
        notes.append(
            f"{doubts.shared_ids:,} of {len(trace.kernels):,} kernels have a correlation id shared by many launches: "
            "those without an External id belong to no op"
        )
    if outlier is not None:
        notes.append(
            f"one kernel of {outlier.us:,.0f} µs takes {100 * outlier.share:.0f} % of the device time, but the "
            f"{outlier.others:,} other kernels of this name in {outlier.op} with the same shapes take "
            f"{outlier.usual_us:,.3g} µs: this kernel dominates totals and shares"
        )
    return [f"{WARNING}{name}: {note}" for note in notes]


def collision_notes(trace: Trace, name: str) -> list[str]:
    """Return warnings about device work without an owner. It has none if its ids collide, or if kernels start before
    their launch.
    """
    from opreplay.traces.times.doubts import collided_share

    collided, links = trace.info.collided, trace.info.links
    notes: list[str] = []
    if collided.device_us:
        which = "ids" if not collided.ids else f"ids like {', '.join(map(str, collided.ids))}"
        why = (
            "are reused there before earlier work with the same id ends, as in merged profiles with one process id"
            if collided.same_thread
            else "are used by each of them, and no label, flow event, time or file order shows whose work it is"
        )
        of = "" if collided.same_thread else "processes "
        of += f"{', '.join(collided.of[:MOST_NAMED])}{', ...' if len(collided.of) > MOST_NAMED else ''}"
        notes.append(
            f"{WARNING}{name}: ids collide: {100 * collided_share(trace):.0f} % of the device time cannot be assigned "
            f"to an op: {which} of {of} {why}; read the processes' own files instead"
        )
    if links.displaced:
        some = "1 kernel starts" if links.displaced == 1 else f"{links.displaced:,} kernels start up to"
        early_ms = links.displaced_by_ns / 1e6
        notes.append(
            f"{WARNING}{name}: {some} {early_ms:,.2f} ms before the launch of the same id: the time is wrong, or "
            "another process launched it; this device time belongs to no op"
        )
    return notes


def loss_notes(losses: Mapping[str, int], name: str) -> list[str]:
    """Return a warning about data lost when reading the trace or plan `name`; empty if nothing was lost."""
    text = loss_text(losses, "the results are")
    return [f"{WARNING}{name}: {text}"] if text else []


def trace_facts(trace: Trace | ReplayPlan) -> dict[str, object]:
    """Return facts about the trace for the header of the results, without its path.

    For a plan, the only fact is what was lost when its trace was read.
    """
    from opreplay.replay.plan.recorded.where import where_facts
    from opreplay.traces.model import Trace
    from opreplay.traces.times.doubts import Doubts, doubts_of

    if not isinstance(trace, Trace):
        return {"losses": trace.losses} if trace.losses else {}
    info = trace.info
    joined = info.kernel_details
    return {
        "dialect": info.dialect,
        "events": info.events,
        "metadata_level": info.metadata_level,
        "torch_version": info.torch_version,
        "vendor": info.vendor,
        "world_size": info.world_size,
        "rank": info.rank,
        "losses": info.report.losses,
        "repairs": info.report.repairs,
        **({} if (doubts := doubts_of(trace)) == Doubts() else {"doubts": msgspec.to_builtins(doubts)}),
        **where_facts(trace),
        **({} if joined is None else {"kernel_details": msgspec.to_builtins(joined)}),
        **({} if info.graphs is None else {"graphs": msgspec.to_builtins(info.graphs)}),
    }


def plan_of(
    read: Trace | ReplayPlan, selection: Selection, *, device: str, in_order: bool = False, collectives: bool = False
) -> ReplayPlan:
    """Return the plan of a trace. For a given plan, return the part that the filters keep.

    With `in_order`, the plan of a trace also contains the order of one step's calls. With `collectives`, it contains
    each distinct collective as an op; the trace must then have been read with `activity`. Raises UsageError in the same
    cases as `complete_and_filter`. If the filters keep no op of a file, the error names the nearest ops.
    """
    from opreplay.replay.ir.model import ReplayPlan
    from opreplay.replay.plan.collectives.in_plan import mark_missing_sizes
    from opreplay.replay.plan.select import refuse_lists, unmatched

    if isinstance(read, ReplayPlan):
        plan = complete_and_filter(read, selection, device=device)
        plan = mark_missing_sizes(plan) if collectives else plan
    else:
        make = _with_collectives if collectives else make_plan
        refuse_lists(selection.exclude, [signature.name for signature in read.signatures])
        plan = make(read, selection, device=device, in_order=in_order)
    _refuse_none(plan, read, selection)
    if selection.include or selection.exclude:
        missed = unmatched(selection, _names_to_filter(read, selection, collectives=collectives))
        return msgspec.structs.replace(plan, unmatched=missed)
    return plan


def _names_to_filter(read: Trace | ReplayPlan, selection: Selection, *, collectives: bool) -> Iterator[str]:
    """Yield the names to which include and exclude patterns apply."""
    from opreplay.replay.ir.model import ReplayPlan

    if isinstance(read, ReplayPlan):
        yield from (op.name for op in read.ops)
        return
    yield from _selected_names(read, selection.select)
    if collectives:
        from opreplay.replay.plan.collectives.in_plan import chosen_calls

        for call in chosen_calls(read, msgspec.structs.replace(selection, include=(), exclude=())):
            yield from call.names


def recorded_plan_of(read: Trace | ReplayPlan, selection: Selection) -> RecordedPlan:
    """Return the ops of a plan as they were recorded, without torch. Raises the same errors as `plan_of`."""
    from opreplay.replay.ir.describe import describe_inputs
    from opreplay.replay.ir.model import ReplayPlan
    from opreplay.replay.plan.recorded.ops import RecordedPlan, recorded_plan
    from opreplay.replay.plan.select import refuse_lists

    if isinstance(read, ReplayPlan):
        plan = _part_of(read, selection)
        recorded = RecordedPlan(plan, {op.id: describe_inputs(op) for op in plan.ops})
    else:
        refuse_lists(selection.exclude, [signature.name for signature in read.signatures])
        recorded = recorded_plan(read, selection)
    _refuse_none(recorded.plan, read, selection)
    return recorded


def _refuse_none(plan: ReplayPlan, read: Trace | ReplayPlan, selection: Selection) -> None:
    """Raise UsageError with the nearest names if the filters keep no op of a file."""
    from opreplay.replay.ir.model import ReplayPlan
    from opreplay.replay.plan.select import nothing_left

    if plan.ops or not selection.narrows:
        return
    recorded: list[str] = []
    if isinstance(read, ReplayPlan):
        names = [op.name for op in read.ops]
    else:
        recorded = names_by_time(read)
        chosen = _selected_names(read, selection.select) if recorded else set[str]()
        names = [name for name in recorded if name in chosen]
    if names or recorded:
        raise nothing_left(
            names, recorded=recorded, include=selection.include, select=selection.select, narrows=selection.narrows
        )


def _with_collectives(trace: Trace, selection: Selection, *, device: str, in_order: bool) -> ReplayPlan:
    from opreplay.replay.plan.collectives.in_plan import chosen_calls, requested_collectives, with_collectives

    all_of_it = msgspec.structs.replace(selection, top=None, min_share=None, ops=())
    calls = chosen_calls(trace, selection)
    asked = requested_collectives(trace, calls) if in_order else ()
    plan = make_plan(trace, all_of_it, device=device, in_order=in_order, collectives=asked)
    return with_collectives(plan, calls, selection)


def _selected_names(trace: Trace, select: str) -> set[str]:
    """Return the names of the ops that `select` selects, before any filter is applied."""
    from opreplay.replay.plan.select import selected_rows

    signatures: list[int] = trace.ops.signature[selected_rows(trace, select)].tolist()
    return {trace.signatures[signature].name for signature in signatures}


def names_by_time(trace: Trace) -> list[str]:
    """Return the names of recorded ops. Ops with device time come first, sorted by device time. The others follow,
    sorted by host time.
    """
    import numpy as np

    count, owner = len(trace.signatures), trace.kernels.owner
    host = np.bincount(trace.ops.signature, weights=trace.ops.dur_ns, minlength=count)
    owned = owner >= 0
    of_device = trace.ops.signature[owner[owned].astype(np.int64)]
    device = np.bincount(of_device, weights=trace.kernels.dur_ns[owned], minlength=count)
    order: list[int] = np.lexsort((-host, -device)).tolist()
    return list(dict.fromkeys(trace.signatures[i].name for i in order))


def complete_and_filter(plan: ReplayPlan, selection: Selection, *, device: str) -> ReplayPlan:
    """Complete and filter a plan read from a file: missing overloads and outputs are added, and the filters are
    applied.

    The order of ops stays the same. Raises UsageError in the same cases as `_part_of`.
    """
    from opreplay.replay.resolve.by_argument_name import resolve_named
    from opreplay.replay.resolve.meta.outputs import with_outputs
    from opreplay.replay.resolve.policy import Policy

    policy = Policy(allow_imports=selection.allow_imports)
    return with_outputs(resolve_named(_part_of(plan, selection), policy, device=device), policy=policy)


def _part_of(plan: ReplayPlan, selection: Selection) -> ReplayPlan:
    """Return the plan with only the ops that the filters keep.

    Raises UsageError if --select differs from the selection with which the plan was made, because the plan lacks the
    other ops. Also raises UsageError for a phase that has no ops in the plan.
    """
    from opreplay.replay.plan.passes import total_of, weight_of
    from opreplay.replay.plan.select import keep_heaviest, keeps_name, no_such_phase, refuse_lists

    refuse_lists(selection.exclude, [op.name for op in plan.ops])
    if selection.select not in ("owner", plan.selection):
        raise UsageError(
            f"the plan of {plan.source} contains the ops selected by {plan.selection}, not those by {selection.select}",
            hint=(f"Remove --select, or make the plan with `opreplay plan TRACE --select {selection.select}`."),
        )
    ops = [op for op in plan.ops if keeps_name(selection, op.name)]
    if selection.phase is not None:
        # A plan holds one batch an op, that of most of its time; calls of other phases were counted with it.
        batches = [op.batch for op in ops if op.batch is not None]
        ops = [op for op in ops if op.batch is not None and op.batch.phase == selection.phase]
        if not ops:
            raise no_such_phase(batches, selection.phase)
    heaviest = keep_heaviest(ops, selection, total_of(plan), weight_of(plan))
    return msgspec.structs.replace(plan, ops=tuple(heaviest))


def with_recorded_children(plan: ReplayPlan, read: Trace | ReplayPlan) -> ReplayPlan:
    """Return the plan with the child ops that the trace records for each op. If the plan was read from a file, it is
    returned unchanged, with the child ops in the file.
    """
    from opreplay.replay.ir.model import ReplayPlan
    from opreplay.replay.plan.recorded_children import with_child_ops

    return plan if isinstance(read, ReplayPlan) else with_child_ops(plan, read)
