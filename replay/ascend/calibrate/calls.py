# pyright: strict
"""Measured calls: predictions against them, the correction that is learned from them, and how it is judged.

Judged is what was left out: single calls (5 folds), whole ops, whole sources. `cost.correction` owns the method.
"""

from __future__ import annotations

import csv
import io
import math
import random
from collections.abc import Callable, Hashable, Sequence, Set
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

import msgspec

from opreplay.replay.ascend.calibrate.tables import soc_in
from opreplay.replay.ascend.calibrate.validate import Figures, Validation, figures_of, total_counts
from opreplay.replay.ascend.cost.correction import Correction, Learned, Traits, learned_calls
from opreplay.replay.ascend.devices.file import list_devices, load_device
from opreplay.replay.ascend.measured.accuracy import Compared, errors_of
from opreplay.replay.ascend.measured.call_tables import (
    CallTable,
    MeasuredCall,
    is_call_table,
    read_call_table,
)
from opreplay.replay.ascend.measured.op_tables import OpTable, header_of, kind_of, read_op_table
from opreplay.replay.ascend.profile import DeviceProfile
from opreplay.replay.ascend.simulate.op import Uncorrected, corrected, is_predicted, simulate_in_turn, uncorrected
from opreplay.replay.ir.kernel import KernelCall
from opreplay.replay.ir.model import ReplayOp
from opreplay.replay.ir.sizes import tensors_of
from opreplay.replay.ops.op_view import spec
from opreplay.replay.ops.work.contents import Contents
from opreplay.replay.results.records import L2State, Simulated
from opreplay.traces.errors import Malformed

ContentsOf = Callable[[ReplayOp], Contents | None]
ASSUMED_L2: L2State = "loop"
"""State of the caches where neither a table nor the user says it: benchmarks loop over a call."""


def validate_calls(
    tables: Sequence[CallTable],
    *,
    l2: L2State | None = None,
    cross: bool = False,
    on_step: Callable[[str], None] | None = None,
) -> Validation:
    """Compare predictions with measured calls; `l2` is what caches hold where a row does not say.

    `cross` predicts calls, ops and sources by what was learned from the others. Raises Malformed where no call of the
    tables has a prediction.
    """
    from opreplay.replay.ops.work.expected import expected_contents

    tell: Callable[[str], None] = on_step or (lambda step: None)
    calls = [call for table in tables for call in table.calls]
    known, contents = {row.key for row in learned_calls()}, expected_contents()
    compared = [(call, row) for call in calls if (row := _compared(call, l2, known, contents)) is not None]
    if not compared:
        raise Malformed("no call of these tables has a prediction", hint="opreplay op CALL --soc NAME says why.")
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
        cross=_cross(calls, l2, tell) if cross else {},
    )


def _compared(call: MeasuredCall, l2: L2State | None, known: Set[str], contents: ContentsOf) -> Compared | None:
    """Return a call as predicted and measured; None where a part of it has no prediction.

    A call that the correction was learned from is predicted by what was learned of other sources; `shipped_us` is then
    what `op` says.
    """
    device, state = load_device(call.soc), call.l2 or l2 or ASSUMED_L2
    parts = _predicted(call, device, state, contents)
    if parts is None or call.key not in known:
        return None if parts is None else _row(call, parts)
    left_out = _predicted(call, device, state, contents, _without(call.source))
    return None if left_out is None else _row(call, left_out, shipped_us=sum(part.time_us for part in parts))


def _predicted(
    call: MeasuredCall, device: DeviceProfile, state: L2State, contents: ContentsOf, learned: Learned | None = None
) -> list[Simulated] | None:
    """Return the predictions of a call's parts; None where one has none, or all take no time."""
    parts = simulate_in_turn(call.ops, device, state, contents, learned)
    are_predicted = all(is_predicted(op, part) for op, part in zip(call.ops, parts, strict=True))
    return parts if are_predicted and sum(part.time_us for part in parts) > 0 else None


@lru_cache(maxsize=64)
def _without(source: str) -> Learned:
    """The correction that ships, without what one source measured."""
    rows = [row for row in learned_calls() if row.source != source]
    return Learned.of([row.traits for row in rows], [row.log_ratio for row in rows], [row.soc for row in rows])


def _row(call: MeasuredCall, parts: Sequence[Simulated], *, shipped_us: float | None = None) -> Compared:
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


class Known(msgspec.Struct, frozen=True):
    """A measured call, and its prediction before any correction."""

    call: MeasuredCall
    bare: Uncorrected

    @property
    def traits(self) -> Traits:
        """What the call is compared by."""
        return self.bare.traits

    @property
    def log_ratio(self) -> float:
        """Logarithm of measured over predicted."""
        return math.log(self.call.time_us / self.bare.simulated.time_us)


def known_calls(calls: Sequence[MeasuredCall], l2: L2State | None = None) -> list[Known]:
    """Single calls of which a correction can be learned."""
    known: list[Known] = []
    for call in calls:
        if len(call.ops) == 1:
            bare = uncorrected(call.ops[0], load_device(call.soc), call.l2 or l2 or ASSUMED_L2)
            if bare is not None:
                known.append(Known(call, bare))
    return known


def learn(known: Sequence[Known]) -> Learned:
    """The correction that these calls make."""
    return Learned.of([k.traits for k in known], [k.log_ratio for k in known], [k.call.soc for k in known])


FOLDS = 5


def left_out(known: Sequence[Known], on_step: Callable[[str], None]) -> dict[str, list[tuple[Known, Correction]]]:
    """Return each call as corrected by others: "folds" of single calls, "unseen_op", "unseen_source"."""
    deal = random.Random(0)
    order = list(range(len(known)))
    deal.shuffle(order)
    fold_of = {id(known[i]): place % FOLDS for place, i in enumerate(order)}
    labels: dict[str, Callable[[Known], Hashable]] = {
        "folds": lambda k: fold_of[id(k)],
        "unseen_op": lambda k: k.traits.op,
        "unseen_source": lambda k: k.call.source,
    }
    learned = learn(known)
    logs = [k.log_ratio for k in known]
    out: dict[str, list[tuple[Known, Correction]]] = {}
    for name, label in labels.items():
        parts = list(map(label, known))
        if len(set(parts)) > 1:
            on_step(f"leaving out {len(set(parts))} parts: {name}")
            out[name] = list(zip(known, learned.left_out(logs, parts), strict=True))
    return out


def _cross(calls: Sequence[MeasuredCall], l2: L2State | None, on_step: Callable[[str], None]) -> dict[str, Figures]:
    sets = left_out(known_calls(calls, l2), on_step)
    return {name: figures_of([corrected_row(k, c) for k, c in pairs]) for name, pairs in sets.items()}


def corrected_row(known: Known, correction: Correction) -> Compared:
    """Return a measured call beside its prediction with a correction."""
    return _row(known.call, [corrected(known.bare, correction, load_device(known.call.soc))])


def learned_text(calls: Sequence[MeasuredCall]) -> str:
    """The file of measured calls that ships: traits and errors, no times."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*Traits.__struct_fields__, "log_ratio", "source", "soc", "pull", "key"])
    known = known_calls(calls)
    learned = Learned([k.traits for k in known], [0.0] * len(known))
    for k, pull in zip(known, learned.pulls_of([k.log_ratio for k in known]), strict=True):
        traits = [f"{value:.5g}" if isinstance(value, float) else value for value in msgspec.structs.astuple(k.traits)]
        writer.writerow([*traits, f"{k.log_ratio:.5g}", k.call.source, k.call.soc, f"{pull:.6g}", k.call.key])
    return out.getvalue()


def read_call_tables(paths: Sequence[str], soc: str | None) -> list[CallTable]:
    """Several tables of calls; see `read_call_table`."""
    return [read_call_table(path, soc=soc) for path in paths]


def calls_in(folder: str | Path) -> list[MeasuredCall]:
    """Return the calls of all tables of calls in a folder, and KernelBench's problems that are a single call."""
    calls: list[MeasuredCall] = []
    for path in sorted(Path(folder).glob("*.csv")):
        with suppress(Malformed):
            if is_call_table(path):
                calls += read_call_table(path).calls
            elif kind_of(header_of(path)) == "KernelBench":
                calls += single_calls(read_op_table(path), path.stem)
    return calls


def single_calls(table: OpTable, source: str) -> list[MeasuredCall]:
    """Return the measured cases of a table of problems that are one call on a known device."""
    devices = list_devices()
    return [
        MeasuredCall(
            text=case.label,
            ops=case.calls,
            soc=soc,
            l2="warm" if table.state == "warm" else "cold",
            time_us=case.duration_us,
            source=source,
        )
        for case in table.cases
        if (soc := case.soc or soc_in(source, devices)) in devices and case.duration_us and len(case.calls) == 1
    ]
