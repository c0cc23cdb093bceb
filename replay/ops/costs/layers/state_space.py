# pyright: strict
"""Lowering of state-space layers: causal convolutions over a few steps, and selective scans.

CANN has no kernel of these: they are costed as passes over all rows, one for each tap or state.
"""

from __future__ import annotations

from collections.abc import Iterable

from opreplay.replay.ir.kernel import KernelCall
from opreplay.replay.ops.op_view import OpView, kernel, spec

PASSES = "no kernel of CANN does this: costed as a pass over all rows for each"


def causal_convolution(op: OpView) -> Iterable[KernelCall]:
    """A product and sum for each tap, and the activation: x (..., D, L), weight (D, taps), or both turned on NPUs."""
    x, weight = op.need("x", at=0, rank=1), op.need("weight", rank=2)
    tap_count = max(1, min(weight.shape[-2:]))
    op.assume(f"{PASSES} of {tap_count} taps")
    rows = spec(x.shape, x.dtype)
    taps = kernel("Addcmul", [rows, rows, spec((*x.shape[:-1], 1), x.dtype)], [rows], tap_count)
    return [taps, kernel("Swish", [rows], [rows])] if op.flag("silu_activation") else [taps]


def selective_scan(op: OpView) -> Iterable[KernelCall]:
    """A decay, a product with the input and one with the output for each state: u (..., D, L), A (D, states)."""
    u, decay = op.need("u", at=0, rank=2), op.need("A", rank=2)
    states = max(1, decay.shape[-1])
    op.assume(f"{PASSES} of {states} states")
    rows = spec(u.shape, "float32")
    return [kernel("Exp", [rows], [rows], states), kernel("Addcmul", [rows, rows, rows], [rows], 2 * states)]
