"""Ops with 16-bit floats and the same ops in float32; owns no decision about when (`widen`, `attempt`)."""

from __future__ import annotations

import re

import msgspec

from opreplay.replay.ir import Assumption, ReplayArg, ReplayOp
from opreplay.traces.model import TensorMeta

HALVES = ("bfloat16", "float16")
_LACKS = re.compile(r"not implemented for '(?:Half|BFloat16)'")


def in_float32(op: ReplayOp) -> ReplayOp:
    """The op with float32 for every 16-bit float: tensors, results, and arguments that name the type."""
    outputs = None if op.outputs is None else tuple(m and _wide(m) for m in op.outputs)
    return msgspec.structs.replace(op, args=tuple(_wide_argument(arg) for arg in op.args), outputs=outputs)


def narrow_types(op: ReplayOp) -> tuple[str, ...]:
    """The 16-bit float types of the op's tensors."""
    return tuple(sorted({m.dtype for arg in op.args for m in arg.tensors if m is not None and m.dtype in HALVES}))


def without_kernel(op: ReplayOp, error: Exception) -> tuple[ReplayOp, Assumption] | None:
    """For an op that failed because torch has no kernel of its narrow type: itself in float32, and what to report."""
    types = narrow_types(op)
    if not types or _LACKS.search(str(error)) is None:
        return None
    what = f"computed in float32: torch has no {' and '.join(types)} kernel of this op for this device"
    return in_float32(op), Assumption(argument="dtype", what=what)


def _wide(meta: TensorMeta) -> TensorMeta:
    return msgspec.structs.replace(meta, dtype="float32") if meta.dtype in HALVES else meta


def _wide_argument(arg: ReplayArg) -> ReplayArg:
    value = arg.value
    if isinstance(value, str) and value.removeprefix("torch.") in HALVES:
        value = "torch.float32"
    made = tuple(None if m is None else _wide(m) for m in arg.tensors)
    return msgspec.structs.replace(arg, tensors=made, value=value)
