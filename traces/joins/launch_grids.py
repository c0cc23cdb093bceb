# pyright: strict
"""Read the launch grids of a trace's kernels in a second pass over the file, for the few traces that need them."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np

from opreplay.traces.errors import TraceError
from opreplay.traces.limits import Limits
from opreplay.traces.model import Trace
from opreplay.traces.reader import read_trace
from opreplay.traces.times.kernel_classes import is_layer_of_experts

SMALL = 64 << 20
"""Maximum size in bytes of a file that is read a second time although the user did not ask for it."""


def with_launch_grids(trace: Trace, limits: Limits, *, most_bytes: int | None = None) -> Trace:
    """Return the trace with launch grids added to its kernels, if it has mixture-of-experts layers.

    Only the grids show the sizes of these layers. The trace is returned unchanged if it has no such layer, if its file
    cannot be read again, or if the file is larger than `most_bytes`.
    """
    path, kernels = Path(trace.info.path), trace.kernels
    layers = [at for at, call in enumerate(trace.signatures) if "::" in call.name and is_layer_of_experts(call.name)]
    if not layers:
        return trace
    owner = kernels.owner.astype(np.int64)
    owned = np.flatnonzero(owner >= 0)
    of_layers = owned[np.isin(trace.ops.signature[owner[owned]], layers)]
    known = np.full(len(kernels), -1, np.int64) if kernels.grid is None else kernels.grid
    if (known[of_layers] >= 0).all() or not path.is_file():
        return trace
    if most_bytes is not None and path.stat().st_size > most_bytes:
        return trace
    try:
        again = read_trace(trace.info.path, limits=limits, calls=True).kernels
    except (TraceError, OSError):
        return trace
    if again.grid is None or len(again) != len(kernels) or not np.array_equal(again.start_ns, kernels.start_ns):
        return trace
    return msgspec.structs.replace(
        trace, kernels=msgspec.structs.replace(kernels, grid=np.where(known < 0, again.grid, known))
    )
