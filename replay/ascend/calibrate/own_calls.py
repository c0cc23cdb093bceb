# pyright: strict
"""Calibrates a device with calls that a user measured on it. Selects the rows that the device file stores, and computes
the errors before and after. `cost.own_measurements` adjusts predictions by the stored rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import exp, log
from statistics import median

import msgspec

from opreplay.replay.ascend.calibrate.calls import ASSUMED_L2
from opreplay.replay.ascend.calibrate.validate import total_counts
from opreplay.replay.ascend.cost.own_measurements import own_measurements
from opreplay.replay.ascend.cost.predictor import Predictor
from opreplay.replay.ascend.cost.residency import resident_of, touches_in, written_back
from opreplay.replay.ascend.devices.file import MOST_MEASURED, canonical_name
from opreplay.replay.ascend.devices.text import measured_text, with_measured
from opreplay.replay.ascend.lowering import lower
from opreplay.replay.ascend.measured.call_tables import CallTable, MeasuredCall
from opreplay.replay.ascend.profile import DeviceProfile, OwnMeasurement
from opreplay.replay.ascend.simulate.measured import estimate_of
from opreplay.replay.ascend.simulate.op import is_predicted, simulate_by_family
from opreplay.replay.ir.model import ReplayOp
from opreplay.replay.ops.work.contents import Contents, ContentsOf
from opreplay.replay.results.records import L2State
from opreplay.traces.errors import Malformed
from opreplay.traces.names import plural


class OwnError(msgspec.Struct, frozen=True, kw_only=True):
    """Prediction errors of a measured call, as log(measured / predicted)."""

    row: OwnMeasurement
    before: float
    held_out: float
    """Error of the prediction that uses all measured calls except this one."""
    contradicted: bool
    """Whether this call disagrees with the other calls. Such a call gets little weight in predictions."""


class OwnFit(msgspec.Struct, frozen=True, kw_only=True):
    """A device before and after it was adjusted to measured calls, with the prediction errors."""

    before: DeviceProfile
    after: DeviceProfile
    errors: tuple[OwnError, ...]
    """One entry per measured call and cache state; repeated rows are merged."""
    rows: int
    """Number of rows read, whether used or not."""
    dropped: dict[str, int]
    """Reason → number of rows that could not be used."""


def fit_calls(tables: Sequence[CallTable], device: DeviceProfile, contents: ContentsOf) -> OwnFit:
    """Return the device with the measured calls of the tables added.

    Its existing calls are kept, except those measured again. `contents` returns, for a call, the argument values that
    affect its cost. Raises Malformed if no row can be used, or if there are more calls than a device file may hold.
    """
    bare = msgspec.structs.replace(device, measured=())
    dropped: Counter[str] = Counter(total_counts([table.dropped for table in tables]))
    rows: dict[tuple[str, str], list[MeasuredCall]] = {}
    for call in (call for table in tables for call in table.calls):
        why = _unusable(call, device)
        if why:
            dropped[why] += 1
        else:
            rows.setdefault((call.text, call.l2 or ASSUMED_L2), []).append(call)
    predict = Predictor(bare)
    measured: dict[tuple[str, str], OwnMeasurement] = {(row.call, row.l2): row for row in device.measured}
    for calls in rows.values():
        row = _measurement(calls, bare, predict, contents)
        if row is None:
            dropped["no prediction"] += len(calls)
        else:
            measured[row.call, row.l2] = row
    if not measured or len(measured) > MOST_MEASURED:
        reasons = "; ".join(f"{plural(n, 'row')}: {reason}" for reason, n in dropped.most_common(3))
        raise Malformed(
            f"{len(measured):,} calls for calibration exceed the limit of {MOST_MEASURED:,}"
            + (f" ({reasons})" * bool(reasons)),
            hint=f"Each row needs a time, a call as `opreplay op` writes it, and soc {device.name}.",
        )
    after = msgspec.structs.replace(device, measured=tuple(measured.values()))
    before = [log(row.measured_us / row.predicted_us) for row in after.measured]
    known = own_measurements(after.measured, in_network=False)
    return OwnFit(
        before=device,
        after=after,
        errors=tuple(
            OwnError(
                row=row,
                before=log_ratio,
                held_out=log_ratio - by_others,
                contradicted=place in known.contradicted,
            )
            for place, (row, log_ratio, by_others) in enumerate(
                zip(after.measured, before, known.leave_one_out(), strict=True)
            )
        ),
        rows=sum(table.rows for table in tables),
        dropped=dict(dropped),
    )


def median_error(logs: Sequence[float]) -> float:
    """Return the median of |predicted / measured - 1|, given values of log(measured / predicted)."""
    return median(abs(exp(-value) - 1.0) for value in logs)


def own_text(fit: OwnFit, *, name: str, file_text: str = "") -> str:
    """Return the TOML text of the calibrated device.

    For a shipped device, the text contains the device's name and the measured calls. For a user's device, it is
    `file_text` with the measured calls added.
    """
    title = f"{fit.before.title}, with measured calls"
    header = (
        f"{fit.before.title} ({fit.before.name}, version {fit.before.version}) with calls that were measured on it.\n"
        "Written by `opreplay calibrate`. Use it by its path: --soc FILE."
    )
    if canonical_name(fit.before.name) is not None:
        return measured_text(fit.after, name=name, title=title, header=header)
    return with_measured(file_text, fit.after, name=name)


def _unusable(call: MeasuredCall, device: DeviceProfile) -> str:
    """Return why a row cannot be used for a device; empty if it can."""
    if len(call.ops) > 1:
        return "several calls were timed together"
    if canonical_name(device.name) is not None and call.soc != device.name:
        return f"the call was measured on a {call.soc}"
    return "" if call.text.isprintable() else "the call contains unprintable characters"


def _measurement(
    calls: Sequence[MeasuredCall], device: DeviceProfile, predict: Predictor, contents: ContentsOf
) -> OwnMeasurement | None:
    """Merge the measurements of one call in one cache state into one row of the device file.

    Returns None if the call cannot be predicted.
    """
    op = calls[0].ops[0]
    l2 = calls[0].l2 or ASSUMED_L2
    assert l2 != "sequence"
    simulated, families_us = simulate_by_family(op, device, predict, contents(op), l2=l2)
    network_us = in_network_us(op, predict, contents(op), l2)
    if not is_predicted(op, simulated) or simulated.time_us <= 0 or network_us <= 0:
        return None
    estimate = estimate_of(op, families_us, simulated)
    times = [call.time_us for call in calls]
    return OwnMeasurement(
        call=estimate.call,
        op=estimate.op,
        family=estimate.family,
        l2=l2,
        measured_us=median(times),
        spread=max(max(call.spread for call in calls), (max(times) - min(times)) / (2 * median(times))),
        predicted_us=simulated.time_us,
        network_us=network_us,
        band=estimate.band,
    )


def in_network_us(op: ReplayOp, predict: Predictor, contents: Contents | None, l2: L2State) -> float:
    """Return the predicted time of an isolated call if its kernels behaved as in a network.

    The call is predicted as in a network, except that the caches start as for an isolated call. An isolated call is
    normally predicted with other constants and with other users' measurements of isolated calls. The time returned here
    shows, beside a measured call, how the same call behaves in a network.
    """
    kernels = lower(op, contents).kernels
    state = "warm" if l2 == "warm" else "cold"
    return sum(
        call.count
        * predict(call, resident_of(written_back(call, touches), predict.device), "network", l2 != "cold").time_us
        for call, touches in zip(kernels, touches_in(kernels, state), strict=True)
    )
