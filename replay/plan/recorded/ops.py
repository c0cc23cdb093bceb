# pyright: strict
"""Groups the recorded calls that a selection keeps into unique ops with counts, times and work. Does not need torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import msgspec
import numpy as np

from opreplay.replay.ir.describe import describe_signature
from opreplay.replay.ir.model import Assumption, Recorded, ReplayOp, ReplayPlan
from opreplay.replay.ir.recorded_call import recorded_results
from opreplay.replay.ops.recorded.roofline import works_of
from opreplay.replay.ops.recorded.sizes import work_of
from opreplay.replay.plan import passes
from opreplay.replay.plan.collectives.arguments import ranks_of
from opreplay.replay.plan.recorded.groups import (
    Rows,
    device_ns_of,
    grouped_rows,
    heaviest_rows,
    kernels_by_signature,
    owner_among,
    signature_id,
    signature_of,
)
from opreplay.replay.plan.select import keep_heaviest, no_such_phase, outermost_us, selected_rows
from opreplay.replay.plan.selection import OpFilter, Selection
from opreplay.traces.arrays import distinct
from opreplay.traces.errors import TooLarge
from opreplay.traces.links.iterations import BatchIndex, DominantBatch
from opreplay.traces.links.optimizer_counters import optimizer_counters
from opreplay.traces.model import Trace
from opreplay.traces.names import file_name

MOST_OPS = 100_000
"""Maximum number of unique ops in a plan; a real model has a few hundred."""
_HINT_OPS = "Select some of them: --top N, --set min_share=SHARE or --include PATTERN."


class RecordedOps(NamedTuple):
    """The unique ops of a trace, before they are resolved."""

    shell: ReplayPlan
    """The plan without its ops: totals and facts about the trace."""
    rows: Rows
    """Rows of the selected calls, including calls of ops that `top` and `min_share` leave out."""
    ops: tuple[tuple[int, ReplayOp], ...]
    """(row of one of the op's calls, op) for each op, heaviest op first."""


class RecordedPlan(NamedTuple):
    """The ops of a plan with the texts that a table shows."""

    plan: ReplayPlan
    inputs: Mapping[str, str]
    """Recorded input tensors by op id."""


def recorded_plan(trace: Trace, selection: Selection) -> RecordedPlan:
    """Return the ops of a plan as they were recorded, in the plan's order. Raises the same errors as `recorded_ops`."""
    recorded = recorded_ops(trace, select=selection.select, filters=selection)
    plan = passes.run(msgspec.structs.replace(recorded.shell, ops=tuple(op for _, op in recorded.ops)))
    inputs = {op.id: describe_signature(signature_of(trace, row)) for row, op in reversed(recorded.ops)}
    return RecordedPlan(plan, inputs)


def recorded_ops(trace: Trace, *, select: str, filters: OpFilter) -> RecordedOps:
    """Return the ops that a selection and filters keep.

    Raises UsageError for an unknown selection and for a phase without iterations, TooLarge if more than `MOST_OPS` ops
    remain.
    """
    rows = selected_rows(trace, select)
    batches = BatchIndex(trace)
    if filters.phase is not None:
        rows = batches.in_phase(rows, filters.phase)
        if not len(rows):
            raise no_such_phase(batches.contexts, filters.phase)
    # A leaf is a part of a call: what its time is a share of is that of the outermost calls.
    around = _outermost_rows(trace, batches, filters.phase) if select == "leaf" else rows
    shell = _shell(trace, around, select, filters)
    total_us = shell.device_us_total or shell.host_us_total
    heaviest = heaviest_rows(trace, rows, select, filters, total_us, on_device=shell.device_us_total > 0)
    if not filters.ops:
        _refuse_too_many(trace, len(distinct(trace.ops.signature[heaviest])))
    weight = passes.weight_of(shell)
    ops = sorted(_unresolved(trace, heaviest, select, batches), key=lambda pair: -weight(pair[1]))
    chosen = keep_heaviest([op for _, op in ops], filters, total_us, weight)
    _refuse_too_many(trace, len(chosen))
    ids = {op.id for op in chosen}
    return RecordedOps(shell, rows, tuple((row, op) for row, op in ops if op.id in ids))


def _outermost_rows(trace: Trace, batches: BatchIndex, phase: str | None) -> Rows:
    """Return the calls that are not inside another op, of all iterations or of the iterations of a phase."""
    rows = selected_rows(trace, "top")
    return rows if phase is None else batches.in_phase(rows, phase)


def _shell(trace: Trace, rows: Rows, select: str, filters: OpFilter) -> ReplayPlan:
    """Return the plan without its ops. It has the totals, with the host time of the given rows, and facts about the
    trace.
    """
    unowned = trace.kernels.owner < 0
    # Where no op owns any of the device's time, ops can only be weighed by the host's.
    on_device = len(trace.kernels) and not (unowned.all() and len(trace.ops))
    device_us = float(trace.kernels.dur_ns.sum(dtype=np.int64)) / 1e3 if on_device else 0.0
    host_us = float(trace.ops.dur_ns[rows].sum(dtype=np.int64)) / 1e3
    if select != "all" and filters.phase is None and not device_us:
        # What labels spend outside of ops is time of the model as well: generated code, a compiler's wrappers.
        host_us = max(host_us, outermost_us(trace))
    return ReplayPlan(
        source=file_name(trace.info.path),
        selection=select,
        device=next(iter(trace.info.device_names), None),
        device_us_total=device_us,
        host_us_total=host_us,
        ops=(),
        unowned_device_us=float(trace.kernels.dur_ns[unowned].sum(dtype=np.int64)) / 1e3,
        losses=trace.info.report.losses,
    )


def _unresolved(trace: Trace, rows: Rows, select: str, batches: BatchIndex) -> Iterator[tuple[int, ReplayOp]]:
    """Yield (row of the first call, unresolved op) for each signature."""
    device_ns = device_ns_of(trace, rows, select)
    kernels = kernels_by_signature(trace, owner_among(trace, rows, select))
    works = {trace.signatures[index]: work for index, work in works_of(trace).items()}
    gradients, assumed, counters = trace.ops.gradients, trace.ops.gradients_assumed, optimizer_counters(trace)
    for part in grouped_rows(trace, rows):
        signature = signature_of(trace, part[0])
        host, on_device = trace.ops.dur_ns[part] / 1e3, device_ns[part] / 1e3
        busy = on_device[on_device > 0]
        batch, on_host = batches.dominant(part, on_device), bool(counters[part].all())
        # The number of calls with device time, and the work of all these calls.
        calls, work = works.get(signature) or (1, work_of(signature))
        yield (
            int(part[0]),
            ReplayOp(
                id=signature_id(signature),
                name=signature.name,
                count=len(part),
                recorded=Recorded(
                    host_us_total=float(host.sum()),
                    host_us_median=float(np.median(host)),
                    device_us_total=float(on_device.sum()),
                    device_us_median=float(np.median(busy)) if len(busy) else None,
                    kernels=kernels.get(int(trace.ops.signature[part[0]]), ()),
                    gradient_calls=None if gradients is None else int(np.count_nonzero(gradients[part])),
                    gradient_calls_assumed=0 if assumed is None else int(np.count_nonzero(assumed[part])),
                ),
                recorded_outputs=recorded_results(signature),
                batch=batch and batch.context,
                assumptions=_shared_batch(batch) + (COUNTER if on_host else ()),
                on_host=on_host,
                ranks=ranks_of(signature, trace.info.world_size),
                flops=None if work.flops is None else round(work.flops / calls),
                moved_bytes=None if work.bytes is None else round(work.bytes / calls),
                work_dtype=work.dtype,
                work_unknown=work.why,
                work_assumed=work.assumed,
            ),
        )


def _refuse_too_many(trace: Trace, ops: int) -> None:
    if ops > MOST_OPS:
        raise TooLarge(
            f"{file_name(trace.info.path)} has {ops:,} different ops; a plan resolves at most {MOST_OPS:,}",
            hint=_HINT_OPS,
        )


COUNTER = (Assumption(argument="device", what="optimizer step counter, kept on the host"),)


def _shared_batch(batch: DominantBatch | None) -> tuple[Assumption, ...]:
    """Return a note if calls of one op had different batches. All its calls are replayed with the batch that took the
    most time.
    """
    if batch is None or not batch.others:
        return ()
    what = f"this batch took {100 * batch.share:.0f} % of the recorded time; batches not replayed: {batch.others}"
    return (Assumption(argument="batch", what=what),)
