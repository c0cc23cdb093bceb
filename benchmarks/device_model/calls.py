# pyright: strict
"""The correction that is learned from measured calls, and how it is judged; `cost.correction` owns the method.

Judged is what was left out: single calls (5 folds), whole ops, whole sources.
"""

from __future__ import annotations

import csv
import io
import math
import random
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from benchmarks.device_model.op_tables import OpTable, kind_of, read_op_table
from benchmarks.device_model.tables import soc_in
from opreplay.replay.ascend.calibrate.calls import ASSUMED_L2, row_of
from opreplay.replay.ascend.cost.correction import Correction, Learned, Traits
from opreplay.replay.ascend.devices.file import list_devices, load_device
from opreplay.replay.ascend.measured.accuracy import Compared
from opreplay.replay.ascend.measured.call_tables import MeasuredCall, header_of, is_call_table, read_call_table
from opreplay.replay.ascend.simulate.op import Uncorrected, corrected, uncorrected
from opreplay.replay.results.records import L2State
from opreplay.traces.errors import Malformed


class Known(msgspec.Struct, frozen=True):
    """A measured call, and its prediction before any correction."""

    call: MeasuredCall
    bare: Uncorrected

    @property
    def traits(self) -> Traits:
        """The traits by which the call is compared with others."""
        return self.bare.traits

    @property
    def log_ratio(self) -> float:
        """Logarithm of measured over predicted."""
        return math.log(self.call.time_us / self.bare.simulated.time_us)


def known_calls(calls: Sequence[MeasuredCall], l2: L2State | None = None) -> list[Known]:
    """Return the single calls from which a correction can be learned."""
    known: list[Known] = []
    for call in calls:
        if len(call.ops) == 1:
            bare = uncorrected(call.ops[0], load_device(call.soc), call.l2 or l2 or ASSUMED_L2)
            if bare is not None:
                known.append(Known(call, bare))
    return known


def learn(known: Sequence[Known]) -> Learned:
    """Return the correction learned from these calls."""
    return Learned.of([k.traits for k in known], [k.log_ratio for k in known], [k.call.soc for k in known])


FOLDS = 5


def left_out(known: Sequence[Known], on_step: Callable[[str], None]) -> dict[str, list[tuple[Known, Correction]]]:
    """Return each call with the correction learned without it: "folds" of single calls, "unseen_op",
    "unseen_source".
    """
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


def corrected_row(known: Known, correction: Correction) -> Compared:
    """Return a measured call with its corrected prediction."""
    return row_of(known.call, [corrected(known.bare, correction, load_device(known.call.soc))])


def learned_text(calls: Sequence[MeasuredCall]) -> str:
    """Return the text of the shipped file of measured calls: traits and errors, no times."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*Traits.__struct_fields__, "log_ratio", "source", "soc", "pull", "key"])
    known = known_calls(calls)
    learned = Learned([k.traits for k in known], [0.0] * len(known))
    for k, pull in zip(known, learned.pulls_of([k.log_ratio for k in known]), strict=True):
        traits = [f"{value:.5g}" if isinstance(value, float) else value for value in msgspec.structs.astuple(k.traits)]
        writer.writerow([*traits, f"{k.log_ratio:.5g}", k.call.source, k.call.soc, f"{pull:.6g}", k.call.key])
    return out.getvalue()


def calls_in(folder: str | Path) -> list[MeasuredCall]:
    """Return the calls of all call tables in a folder, and the KernelBench problems that consist of a single call."""
    calls: list[MeasuredCall] = []
    for path in sorted(Path(folder).glob("*.csv")):
        with suppress(Malformed):
            if is_call_table(path):
                calls += read_call_table(path).calls
            elif kind_of(header_of(path)) == "KernelBench":
                calls += single_calls(read_op_table(path), path.stem)
    return calls


def single_calls(table: OpTable, source: str) -> list[MeasuredCall]:
    """Return the measured cases of a problem table that are single calls on a known device."""
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
