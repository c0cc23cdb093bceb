# pyright: strict
"""Adjusts an op's prediction to the user's measurements on the device. `cost.own_measurements` computes the
adjustment.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from opreplay.replay.ascend.cost.own_measurements import Estimate, own_measurements
from opreplay.replay.ascend.profile import DeviceProfile
from opreplay.replay.ir.model import ReplayOp
from opreplay.replay.ir.notation import call_identity
from opreplay.replay.results.records import Simulated


def work_of(op: ReplayOp, simulated: Simulated) -> str:
    """Return a key for the work of an op: for an aten op its kernel types, for any other op its name."""
    kinds = dict.fromkeys(simulated.kernels)
    if len(kinds) > 1:
        kinds.pop("TensorMove", None)  # of what is then written in place
    return "+".join(kinds) if op.name.startswith("aten::") and kinds else op.name.partition(".")[0].rstrip("_")


def estimate_of(op: ReplayOp, families_us: Mapping[str, float], simulated: Simulated) -> Estimate:
    """Return the prediction as an `Estimate`, for comparison with the user's measurements."""
    return Estimate(
        call=call_identity(op),
        op=work_of(op, simulated),
        family=max(families_us, key=families_us.__getitem__, default=""),
        time_us=simulated.time_us,
        band=max(simulated.high_us, simulated.time_us) / simulated.time_us,
        state=simulated.l2,
    )


def adjust(simulated: Simulated, estimate: Estimate, device: DeviceProfile) -> tuple[float, Simulated]:
    """Return two values: the factor that the user's measurements give, and the prediction multiplied by this factor,
    with its new band.
    """
    own = own_measurements(device.measured, in_network=simulated.l2 == "sequence").ask(estimate)
    time_us = simulated.time_us * own.factor
    is_of_op = own.nearest in ("call", "op")
    return own.factor, msgspec.structs.replace(
        simulated.times(own.factor),
        low_us=time_us / own.band,
        high_us=time_us * own.band,
        confidence="calibrated" if is_of_op else simulated.confidence,
        evidence="this SoC" if is_of_op else simulated.evidence,
        extrapolated=simulated.extrapolated and own.nearest != "call",
        measured=own.nearest,
    )
