# pyright: strict
"""Lowering of state-space layers: causal convolutions over a few steps, and selective scans.

CANN has no kernels for these layers. Their cost is one pass over all rows for each convolution tap or each state.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

from opreplay.replay.ir.kernel import KernelCall
from opreplay.replay.ops.op_view import OpView, kernel, spec

PASSES = "no kernel of CANN does this: costed as a pass over all rows for each"


def causal_convolution(op: OpView) -> Iterable[KernelCall]:
    """Return one multiply-add per tap, and the activation if there is one.

    x is (..., D, L). weight is (D, taps), or transposed on NPUs.
    """
    x, weight = op.need("x", at=0, rank=1), op.need("weight", rank=2)
    tap_count = max(1, min(weight.shape[-2:]))
    op.assume(f"{PASSES} of {tap_count} taps")
    rows = spec(x.shape, x.dtype)
    taps = kernel("Addcmul", [rows, rows, spec((*x.shape[:-1], 1), x.dtype)], [rows], tap_count)
    return [taps, kernel("Swish", [rows], [rows])] if op.flag("silu_activation", "activation_mode") else [taps]


def selective_scan(op: OpView) -> Iterable[KernelCall]:
    """Return the kernels of a selective scan.

    Each state needs one decay and two products, with the input and with the output. u is (..., D, L) and A is (D,
    states).
    """
    u, decay = op.need("u", at=0, rank=2), op.need("A", rank=2)
    states = max(1, decay.shape[-1])
    op.assume(f"{PASSES} of {states} states")
    rows = spec(u.shape, "float32")
    return [kernel("Exp", [rows], [rows], states), kernel("Addcmul", [rows, rows, rows], [rows], 2 * states)]


CHUNK = 64
"""Tokens per chunk of the chunked delta rule."""


def delta_rule(op: OpView) -> Iterable[KernelCall]:
    """Return the kernels of the gated delta rule, recurrent or chunked.

    In the recurrent form, each sequence's state is read and written at every step. In the chunked form, there are
    products within each chunk and products with the states between chunks, at the speed of attention.
    """
    q, v = op.need("query", "q", at=0, rank=3), op.need("value", "v", "u", at=2, rank=3)
    k = op.need("key", "k", at=1, rank=3)
    rows, out = prod(v.shape[:-1]), op.output(spec(v.shape, v.dtype))
    operands = [spec(meta.shape, meta.dtype) for meta in (q, k, v)]
    state = op.meta("state", "recurrent_state")
    op.assume("the kernel was never measured: costed as passes over states, or as attention within chunks")
    if state is not None and len(state.shape) > 2:
        passed = spec((min(state.shape[0], prod(q.shape[:-2])), *state.shape[1:]), state.dtype)
        return [kernel("Addcmul", [*operands, passed], [out, passed])]
    sizes = q.shape[-1], v.shape[-1]
    # A token meets half of its chunk twice, for the inverse and for the result, and its state twice.
    pairs = rows * (CHUNK + 2 * prod(sizes) / max(1, sum(sizes)))
    attrs = {"rows": rows, "head_dim": sizes[0], "value_dim": sizes[1]}
    return [kernel("FlashAttentionScore", operands, [out], pairs=float(pairs), **attrs)]


def delta_gates(op: OpView) -> Iterable[KernelCall]:
    """Return one pass over a and b (tokens, heads), which yields float32 log decays and the write strengths."""
    a, b = op.need("a", rank=1), op.need("b", rank=1)
    op.note("the kernel was never measured: costed as a softplus")
    gates = op.outputs(spec(a.shape, "float32"), spec(b.shape, b.dtype))
    return [kernel("SoftplusV2", [op.packed(meta) for meta in op.tensors], gates)]


def mixed_streams(op: OpView) -> Iterable[KernelCall]:
    """Return the kernel of hyper-connections.

    It mixes n streams (..., n, D) into one stream, or spreads one stream over n. Every tensor is moved once.
    """
    x = op.widest(rank=2)
    wide = spec(x.shape, x.dtype)
    one = spec((*x.shape[:-2], x.shape[-1]), x.dtype)
    op.assume("the kernel was never measured: costed as one pass over every tensor")
    return [
        kernel("Addcmul", [op.packed(meta) for meta in op.tensors], op.outputs(one if "_pre" in op.op.name else wide))
    ]
