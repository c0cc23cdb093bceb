# pyright: strict
"""Finds ops for which a guessed size must be wrong: with it, they would move or compute more than any device could in
the recorded time.

Only necessary accesses count: arguments that are read completely, and results. Each memory is counted once. For views
and ops that may read only part of an argument, only results count.
"""

from __future__ import annotations

import math

import msgspec

from opreplay.replay.arguments.shrink.flops import product_flops
from opreplay.replay.ir.model import Assumption, ReplayOp, ReplayPlan
from opreplay.replay.ir.names import names_in
from opreplay.replay.ir.sizes import tensors_of
from opreplay.traces.dtypes import ITEMSIZE_BYTES
from opreplay.traces.model import TensorMeta
from opreplay.traces.times import peaks

TOLERANCE = 1.3
"""Factor by which a computed minimum time may exceed the recorded time. It is needed because clocks and sizes are not
exact.
"""
FASTEST = (8.0e12, 256 << 20)
"""Memory bandwidth (bytes/s) and last-level cache size (bytes) assumed for unlisted devices. No device exceeds these
values.
"""
FASTEST_FLOPS = 2.5e15
"""16-bit FLOP/s assumed for unlisted devices."""
CACHE_SPEEDUP = 4.0
"""Maximum ratio of last-level cache bandwidth to memory bandwidth."""
SHORTEST_US = 2.0
"""Shortest recorded time, in µs, that shows more than the launch. If the recorded time is shorter, the call's computed
minimum time is compared with this value instead.
"""

_READ_IN_PART = names_in(
    """
    index _unsafe_index index_select gather embedding embedding_bag _embedding_bag take _embedding_bag_forward_only
    take_along_dim masked_select index_put index_put_ _index_put_impl_ scatter scatter_ scatter_add scatter_add_
    scatter_reduce index_add index_add_ index_copy_ index_fill_ searchsorted bucketize grid_sampler_2d
    grid_sampler_3d index_copy index_fill scatter_reduce_ nll_loss_forward nll_loss_backward cross_entropy_loss
    nll_loss_nd nll_loss2d_forward embedding_dense_backward embedding_backward resize_ resize_as_ masked_fill
    masked_fill_ native_dropout_backward _flash_attention_forward _flash_attention_backward set_
    """
)
"""ATen ops that may read only a part of each argument."""
_WRITTEN_ONLY = names_in(
    """
    fill_ zero_ normal_ uniform_ random_ bernoulli_ exponential_ fill empty empty_like empty_strided new_empty
    new_empty_strided zeros_like ones_like full_like rand_like randn_like new_zeros new_ones new_full
    """
)
"""ATen ops that read no element of their arguments."""


def mark_impossible(plan: ReplayPlan) -> ReplayPlan:
    """Return the plan with an assumption on each op that cannot have run in its recorded time. The ops must already
    have the results that `with_outputs` adds.
    """
    return msgspec.structs.replace(plan, ops=tuple(_marked(op, plan.device) for op in plan.ops))


def _marked(op: ReplayOp, device: str | None) -> ReplayOp:
    what = impossible(op, device)
    if what is None or any(note.what == what for note in op.assumptions):
        return op
    return msgspec.structs.replace(op, refuted=True, assumptions=(*op.assumptions, Assumption(argument="*", what=what)))


def impossible(op: ReplayOp, device: str | None) -> str | None:
    """Return the reason why an op, as guessed, cannot be the recorded call; None if it can be.

    Only ops with recorded device time are checked; `device` is the name of the recorded device. A vendor op may read
    any part of its arguments, so only its matrix products and results count.
    """
    recorded_us = op.recorded.device_us_median
    if op.reason is not None or recorded_us is None:
        return None
    done, fastest = least_flops(op), flops_of(device)
    if done / fastest * 1e6 > TOLERANCE * max(recorded_us, SHORTEST_US):
        return (
            f"more work than possible in the recorded time: {done / 1e9:.1f} GFLOP take at least "
            f"{done / fastest * 1e6:.0f} µs at "
            f"{fastest / 1e12:.0f} TFLOP/s, but only {recorded_us:.1f} µs were recorded"
        )
    touched = least_bytes(op)
    peak, cache = peak_of(device)
    least_us = 1e6 * (max(0, touched - cache) / peak + min(touched, cache) / (CACHE_SPEEDUP * peak))
    if least_us <= TOLERANCE * max(recorded_us, SHORTEST_US):
        return None
    return (
        f"more work than possible in the recorded time: {touched / 1e6:.1f} MB take at least {least_us:.0f} µs at "
        f"{peak / 1e12:.2f} TB/s ({CACHE_SPEEDUP:g} times as fast in the last-level cache), but only "
        f"{recorded_us:.1f} µs were recorded"
    )


def peak_of(device: str | None) -> tuple[float, int]:
    """Return (memory bandwidth in bytes/s, last-level cache size in bytes) of the device with this name."""
    peak = None if device is None else peaks.peak_of((device,))
    return FASTEST if peak is None else (peak.gb_per_s * 1e9, peak.cache_mib << 20)


def least_flops(op: ReplayOp) -> float:
    """Return the minimum number of floating-point operations that the op's matrix products require.

    Half of the scores of an attention may be masked. Convolutions with small filters may need only a quarter of the
    operations (Winograd). Complex numbers need three real products instead of four.
    """
    flops = product_flops(op)
    if any("complex" in meta.dtype for meta in tensors_of(op)):
        flops *= 0.75
    return flops / (4.0 if "convolution" in op.name else 2.0 if "scaled_dot_product" in op.name else 1.0)


def flops_of(device: str | None) -> float:
    """Return the FLOP/s of the device with this name, for its fastest dtype."""
    peak = None if device is None else peaks.peak_of((device,))
    return FASTEST_FLOPS if peak is None else max(peak.tflops.values()) * 1e12


def least_bytes(op: ReplayOp) -> int:
    """Return the minimum number of bytes that one call accesses. Two things count: arguments that are read completely,
    and results that are not views of arguments.
    """
    namespace, _, name = op.name.partition("::")
    results = sum(_bytes(meta) for meta in op.outputs or () if meta is not None)
    if name in _WRITTEN_ONLY:
        return 0 if name.startswith(("empty", "new_empty")) else results
    if any(arg.mutated for arg in op.args):
        return _read_bytes(op) if namespace == "aten" and name not in _READ_IN_PART else 0
    if namespace != "aten":
        return results
    if name in _READ_IN_PART:
        return results if op.recorded.kernels else 0
    return _read_bytes(op) + results


def _read_bytes(op: ReplayOp) -> int:
    """Return the bytes of the arguments, counting each memory once."""
    memories: dict[tuple[str, int], TensorMeta] = {}
    for at, meta in enumerate(tensors_of(op)):
        memories.setdefault(("own", at) if meta.storage is None else ("shared", meta.storage), meta)
    return sum(map(_bytes, memories.values()))


def _bytes(meta: TensorMeta) -> int:
    """Return the bytes of a tensor's distinct elements. Elements that repeat along an expanded dimension count once."""
    strides = meta.strides or (1,) * len(meta.shape)
    return math.prod(n for n, step in zip(meta.shape, strides, strict=True) if step or not n) * ITEMSIZE_BYTES.get(
        meta.dtype, 1
    )
