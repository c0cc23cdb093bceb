"""What the TRACE argument of `run`, `plan` and `simulate` may be, told by content: a trace, a plan, TraceLens's IR.

Owns the choice of the reader and the join with an ExecutionTrace; the readers and the join itself are the library's.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from json import JSONDecodeError, JSONDecoder
from typing import TYPE_CHECKING, Literal

import msgspec

from opreplay.cli import planning
from opreplay.cli.captures import with_captures_of
from opreplay.cli.kernel_tables import with_kernel_table
from opreplay.cli.planning import Selection, open_trace, parse_limits, the_one_path
from opreplay.cli.progress import ReadProgress
from opreplay.traces.errors import UsageError

if TYPE_CHECKING:
    from opreplay.replay.ir import ReplayPlan
    from opreplay.traces import Limits, Trace

Kind = Literal["trace", "plan", "tracelens"]
_PEEK_BYTES = 1 << 20
_SPACE = " \t\r\n"


def kind_of_file(path: str) -> Kind:
    """What the first MiB of a plain file looks like; "trace" for all that is no plan and no list of TraceLens's ops.

    Never raises for what a file holds or lacks: the reader of the kind says what is wrong with it.
    """
    if not os.path.isfile(path):
        return "trace"
    try:
        with open(path, "rb") as file:
            text = file.read(_PEEK_BYTES).decode("utf-8", "replace").lstrip("\ufeff" + _SPACE)
    except OSError:
        return "trace"
    if text.startswith("{"):
        return "plan" if "schema_version" in _first_keys(text) else "trace"
    if text.startswith("["):
        inner = text[1:].lstrip(_SPACE)
        return "tracelens" if {"op_name", "replay_ir"} <= _first_keys(inner) else "trace"
    return "trace"


def _first_keys(text: str) -> set[str]:
    """Keys of the object that `text` starts with, as far as it is there and sound."""
    decoder = JSONDecoder()
    keys: set[str] = set()
    at = 1 if text.startswith("{") else len(text)
    try:
        while at < len(text):
            at = _skip(text, at)
            if not text.startswith('"', at):
                break
            key, at = decoder.raw_decode(text, at)
            at = _skip(text, at)
            if not text.startswith(":", at):
                break
            keys.add(key)
            _, at = decoder.raw_decode(text, _skip(text, at + 1))
            at = _skip(text, at)
            if not text.startswith(",", at):
                break
            at += 1
    except (JSONDecodeError, RecursionError, ValueError):
        return keys
    return keys


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at] in _SPACE:
        at += 1
    return at


def open_input(
    text: str, limits: Sequence[tuple[str, str]], *, execution_trace: str | None = None,
    kernel_details: str | None = None, capture: str | None = None,
) -> Trace | ReplayPlan:  # fmt: skip
    """The trace, plan or TraceLens file that the TRACE argument means; narrates what other files gave it.

    Raises UsageError for a glob that matches several and for --execution-trace, --kernel-details or --capture with a
    plan, TraceError for what cannot be read.
    """
    path = the_one_path(text)
    kind = kind_of_file(path)
    if kind != "trace" and kernel_details is not None:
        raise UsageError("--kernel-details completes a trace; a plan has its kernels", hint="Leave it out.")
    if kind != "trace" and capture is not None:
        raise UsageError("--capture completes a trace; a plan has its ops", hint="Leave it out.")
    if kind != "trace" and execution_trace is not None:
        raise UsageError("--execution-trace completes a trace; a plan has its arguments", hint="Leave it out.")
    if kind == "plan":
        from opreplay.replay.plan_file import load_plan

        return load_plan(path)
    if kind == "tracelens":
        from opreplay.replay.tracelens_ir import read_tracelens_ir

        return read_tracelens_ir(path)
    if execution_trace is None:
        return open_trace(text, limits, kernel_details=kernel_details, capture=capture)
    bounds = parse_limits(limits)
    completed = with_kernel_table(_completed(path, execution_trace, bounds), kernel_details)
    return with_captures_of(completed, capture, bounds)


def _completed(path: str, execution_trace: str, limits: Limits) -> Trace:
    """The trace with what the ExecutionTrace knows of its ops."""
    from opreplay.cli import console
    from opreplay.traces import read_trace
    from opreplay.traces.shape_donor import join_shapes

    with ReadProgress() as progress:
        trace = read_trace(path, limits=limits, progress=progress, record_function_ids=True)
    with ReadProgress() as progress:
        donor = read_trace(
            the_one_path(execution_trace), limits=limits, progress=progress, record_function_ids=True
        )  # fmt: skip
    joined = join_shapes(trace, donor)
    for line in join_notes(joined):
        console.narrate(line)
    return joined


def join_notes(joined: Trace) -> list[str]:
    """What an ExecutionTrace gave a trace, and a warning where it looks like that of another run."""
    found = joined.info.joined
    if found is None:
        return []
    given = found.by_record_function_id + found.by_sequence + found.by_context
    notes = [
        f"--execution-trace gave {given} of {len(joined.ops)} calls their arguments: "
        f"{found.by_record_function_id} by id, {found.by_sequence} by sequence, {found.by_context} by context; "
        f"{found.already_recorded} had them ({found.disagreeing} disagree and are kept), "
        f"{found.no_arguments} have none, {found.unmatched} not found"
    ]
    if not found.same_process:
        notes.append(
            "opreplay: warning: the process ids of trace and ExecutionTrace differ: if they are of two runs, "
            "the arguments are those of another model"
        )
    return notes


def plan_of(
    read: Trace | ReplayPlan, selection: Selection, *, device: str, in_order: bool = False
) -> ReplayPlan:  # fmt: skip
    """The plan of a trace, or what the filters leave of a given plan. Raises UsageError as `restricted` does.

    With `in_order` that of a trace says in which order the ops of one step ran.
    """
    from opreplay.replay.ir import ReplayPlan

    return (
        restricted(read, selection, device=device)
        if isinstance(read, ReplayPlan)
        else planning.make_plan(read, selection, device=device, in_order=in_order)
    )


def restricted(plan: ReplayPlan, selection: Selection, *, device: str) -> ReplayPlan:
    """A plan with overloads and outputs filled in where it has none, and the filters applied; its order is kept.

    Raises UsageError for another --select than the plan was made with: what it left out is not there.
    """
    from opreplay.replay.named_arguments import resolve_named
    from opreplay.replay.outputs import with_outputs
    from opreplay.replay.passes import weight_of
    from opreplay.replay.policy import Policy
    from opreplay.replay.select import OpFilter, keep_heaviest, keeps_name, no_such_phase

    if selection.select not in ("owner", plan.selection):
        raise UsageError(
            f"{plan.source} is a plan of ops selected by {plan.selection}", hint="Make a plan with another --select."
        )
    filters = OpFilter(
        include=selection.include, exclude=selection.exclude, top=selection.top, min_share=selection.min_share
    )
    ops = [op for op in plan.ops if keeps_name(filters, op.name)]
    if selection.phase is not None:
        # A plan holds one batch an op, that of most of its time; calls of other phases were counted with it.
        batches = [op.batch for op in ops if op.batch is not None]
        ops = [op for op in ops if op.batch is not None and op.batch.phase == selection.phase]
        if not ops:
            raise no_such_phase(batches, selection.phase)
    kept = keep_heaviest(ops, filters, plan.device_us_total or plan.host_us_total, weight_of(plan))
    policy = Policy(allow_imports=selection.allow_imports)
    resolved = resolve_named(msgspec.structs.replace(plan, ops=tuple(kept)), policy, device=device)
    return with_outputs(resolved, policy=policy)


def with_recorded_children(plan: ReplayPlan, read: Trace | ReplayPlan) -> ReplayPlan:
    """The plan with the ops recorded below each op; a plan that was read has what its file has."""
    from opreplay.replay.child_ops import with_child_ops
    from opreplay.replay.ir import ReplayPlan

    return plan if isinstance(read, ReplayPlan) else with_child_ops(plan, read)
