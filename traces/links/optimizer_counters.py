# pyright: strict
"""Find calls that only count an optimizer's steps.

Even if the model is on a device, torch keeps these counters on the host: torch.optim makes `state["step"]` a CPU scalar
unless the optimizer is fused or capturable. For each parameter, it reads the scalar and adds one to it. In a CPU trace,
nothing else distinguishes these calls from the model's work.
"""

from __future__ import annotations

import numpy as np

from opreplay.traces.arrays import Bools, distinct
from opreplay.traces.links.annotations import AnnotationTable
from opreplay.traces.model import OpSignature, Trace

NAMES = frozenset({"aten::add_", "aten::_foreach_add_", "aten::item", "aten::_local_scalar_dense"})
"""Ops that torch.optim runs on a counter to increment and read it."""
STEP = "Optimizer.step#"
"""Prefix of the annotation that torch.optim puts around a step."""


def optimizer_counters(trace: Trace) -> Bools:
    """Return a mask of the ops that only count an optimizer's steps.

    They are recognised by name, scalar arguments and enclosing annotation. The mask is all False if the trace has
    device work, because device work itself shows what ran on the device.
    """
    counts = np.zeros(len(trace.ops), bool)
    notes = AnnotationTable.of(trace.annotations)
    steps = np.array([name.startswith(STEP) for name in notes.names], bool)
    if not steps.any() or len(trace.kernels):
        return counts
    counting = np.array([_on_scalars(signature) for signature in trace.signatures], bool)
    rows = np.flatnonzero(counting[trace.ops.signature])
    chosen = np.flatnonzero(steps[notes.name])
    chosen = chosen[np.argsort(notes.start_ns[chosen], kind="stable")]
    for track in distinct(notes.track[chosen]):
        here = chosen[notes.track[chosen] == track]
        start, end = notes.start_ns[here], notes.start_ns[here] + notes.dur_ns[here]
        on_track = rows[trace.ops.track[rows] == track]
        at = np.searchsorted(start, trace.ops.start_ns[on_track], side="right") - 1
        counts[on_track] = (at >= 0) & (trace.ops.start_ns[on_track] < end[np.maximum(at, 0)])
    return counts


def _on_scalars(signature: OpSignature) -> bool:
    """Check whether a call is one of `NAMES` and takes only float32 scalars."""
    dims, types = signature.dims, signature.types
    if signature.name not in NAMES or not dims or not types:
        return False
    scalars = all(entry == () or all(inner == () for inner in entry) for entry in dims)
    return scalars and types[0] in ("float", "TensorList")
