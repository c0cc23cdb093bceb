# pyright: strict
"""Compares predictions with measured calls; `cost.correction` learns from the calls shipped with the package."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from functools import lru_cache

from opreplay.replay.ascend.calibrate.validate import Validation, figures_of, total_counts
from opreplay.replay.ascend.cost.correction import Learned, learned_calls
from opreplay.replay.ascend.devices.file import canonical_name, load_device, load_file
from opreplay.replay.ascend.measured.accuracy import Compared, errors_of
from opreplay.replay.ascend.measured.call_tables import CallTable, MeasuredCall, read_call_table
from opreplay.replay.ascend.profile import DeviceProfile
from opreplay.replay.ascend.simulate.op import is_predicted, simulate_in_turn
from opreplay.replay.ir.kernel import KernelCall
from opreplay.replay.ir.sizes import tensors_of
from opreplay.replay.ops.op_view import spec
from opreplay.replay.ops.work.contents import ContentsOf
from opreplay.replay.results.records import L2State, Simulated
from opreplay.traces.errors import Malformed

ASSUMED_L2: L2State = "loop"
"""L2 cache state assumed if neither the table nor the user gives one. It is "loop" because benchmarks usually run a
call in a loop.
"""


def validate_calls(
    tables: Sequence[CallTable],
    *,
    soc: str | None = None,
    l2: L2State | None = None,
) -> Validation:
    """Compare predictions with measured calls, each on the device that its row names.

    If `soc` is a device file, rows that name its base device are predicted with the file's device. `l2` is the cache
    state for rows that do not give one. Raises Malformed if no call in the tables can be predicted.
    """
    from opreplay.replay.ops.work.expected import expected_contents

    calls = [call for table in tables for call in table.calls]
    known, contents = {row.key for row in learned_calls()}, expected_contents()
    device_of = _devices_of_rows(soc)
    compared = [
        (call, row) for call in calls if (row := _compared(call, device_of(call.soc), l2, known, contents)) is not None
    ]
    if not compared:
        raise Malformed(
            "none of the calls in these tables can be predicted", hint="`opreplay op CALL --soc NAME` says why."
        )
    socs = {soc: [row for call, row in compared if call.soc == soc] for soc in dict.fromkeys(c.soc for c in calls)}
    unpredicted = len(calls) - len(compared)
    return Validation(
        figures=figures_of([row for _, row in compared]),
        socs={soc: errors_of(rows) for soc, rows in socs.items() if rows},
        compared=tuple(row for _, row in compared),
        rows=sum(table.rows for table in tables),
        measured_rows=len(calls),
        fitted_to=0,
        by_others=sum(call.key in known for call, _ in compared),
        dropped={
            **total_counts([table.dropped for table in tables]),
            **dict([("no prediction", unpredicted)] if unpredicted else []),
        },
    )


def _devices_of_rows(soc: str | None) -> Callable[[str], DeviceProfile]:
    """Return a function that loads the device for the SoC named in a table row.

    If `soc` is a device file, rows that name the file's base device are predicted with the file's device.
    """
    if soc is None or canonical_name(soc) is not None:
        return load_device
    device = load_device(soc)
    names = {device.name, load_file(soc).base}
    return lambda name: device if name in names else load_device(name)


def _compared(
    call: MeasuredCall, device: DeviceProfile, l2: L2State | None, known: Set[str], contents: ContentsOf
) -> Compared | None:
    """Return the predicted and measured times of a call; None if one of its ops cannot be predicted.

    If the shipped correction was learned from this call (its key is in `known`), the prediction leaves out all
    measurements of the call's source. `shipped_us` then holds the time predicted with these measurements, which `op`
    reports.
    """
    state = call.l2 or l2 or ASSUMED_L2
    parts = _predicted(call, device, state, contents)
    if parts is None or call.key not in known:
        return None if parts is None else row_of(call, parts)
    left_out = _predicted(call, device, state, contents, _without(call.source))
    return None if left_out is None else row_of(call, left_out, shipped_us=sum(part.time_us for part in parts))


def _predicted(
    call: MeasuredCall, device: DeviceProfile, state: L2State, contents: ContentsOf, learned: Learned | None = None
) -> list[Simulated] | None:
    """Return one prediction per op of a call; None if an op cannot be predicted or the total time is 0."""
    parts = simulate_in_turn(call.ops, device, state, contents, learned)
    are_predicted = all(is_predicted(op, part) for op, part in zip(call.ops, parts, strict=True))
    return parts if are_predicted and sum(part.time_us for part in parts) > 0 else None


@lru_cache(maxsize=64)
def _without(source: str) -> Learned:
    """Return the shipped correction, learned again without the measured calls of one source."""
    rows = [row for row in learned_calls() if row.source != source]
    return Learned.of([row.traits for row in rows], [row.log_ratio for row in rows], [row.soc for row in rows])


def row_of(call: MeasuredCall, parts: Sequence[Simulated], *, shipped_us: float | None = None) -> Compared:
    """Return a measured call with its prediction: the sum of `parts`, the predictions of the call's ops."""
    predicted = sum(part.time_us for part in parts)
    metas = tensors_of(call.ops[0])
    name = call.ops[0].name + (f" and {len(call.ops) - 1} more" if len(call.ops) > 1 else "")
    return Compared(
        call=KernelCall(type=name, inputs=tuple(spec(meta.shape, meta.dtype) for meta in metas), outputs=()),
        measured_us=call.time_us,
        predicted_us=predicted,
        low_us=sum(part.low_us for part in parts),
        high_us=sum(part.high_us for part in parts),
        count=1,
        total_us=call.time_us,
        absolute_us=abs(predicted - call.time_us),
        signed_us=predicted - call.time_us,
        extrapolated=any(part.extrapolated for part in parts),
        shipped_us=shipped_us,
    )


def read_call_tables(paths: Sequence[str], soc: str | None) -> list[CallTable]:
    """Read several tables of calls; see `read_call_table`."""
    return [read_call_table(path, soc=soc) for path in paths]
