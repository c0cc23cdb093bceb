# pyright: strict
"""Launch grids of a trace's kernels, read in a second pass over the file, for the few traces that need them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from opreplay.traces.errors import TraceError
from opreplay.traces.limits import Limits
from opreplay.traces.model import Trace
from opreplay.traces.reader import read_trace
from opreplay.traces.times.kernel_classes import is_layer_of_experts


def with_launch_grids(trace: Trace, limits: Limits) -> Trace:
    """Return the trace with the grids of its launches if it has layers of experts, whose sizes only grids show.

    The trace is returned as it is if it has no such layer, or if its file cannot be read again.
    """
    layers = [at for at, call in enumerate(trace.signatures) if "::" in call.name and is_layer_of_experts(call.name)]
    owner = trace.kernels.owner[trace.kernels.owner >= 0].astype(np.int64)
    if not layers or not np.isin(trace.ops.signature[owner], layers).any() or not Path(trace.info.path).is_file():
        return trace
    try:
        again = read_trace(trace.info.path, limits=limits, calls=True).kernels
    except (TraceError, OSError):
        return trace
    kernels = trace.kernels
    if again.grid is None or len(again) != len(kernels) or not np.array_equal(again.start_ns, kernels.start_ns):
        return trace
    known = np.full(len(kernels), -1, np.int64) if kernels.grid is None else kernels.grid
    return replace(trace, kernels=replace(kernels, grid=np.where(known < 0, again.grid, known)))
