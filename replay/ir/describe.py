"""Short texts for people of a plan's ops: "bf16[512,512] · bf16[512,2048]"; knows no terminal and no format."""

from __future__ import annotations

from opreplay.replay.ir.model import ReplayArg, ReplayOp
from opreplay.traces.model import TensorMeta

SHORT_DTYPES = {
    "bfloat16": "bf16", "float16": "f16", "float32": "f32", "float64": "f64", "complex32": "c32", "complex64": "c64",
    "complex128": "c128", "int8": "i8", "int16": "i16", "int32": "i32", "int64": "i64", "uint8": "u8",
    "uint16": "u16", "uint32": "u32", "uint64": "u64", "float8_e4m3fn": "f8e4m3", "float8_e4m3fnuz": "f8e4m3z",
    "float8_e5m2": "f8e5m2", "float8_e5m2fnuz": "f8e5m2z", "float8_e8m0fnu": "f8e8m0", "float4_e2m1fn_x2": "f4e2m1x2",
}  # fmt: skip
LIST_SHOWN = 3
"""Tensors of a list that are spelled out."""


def describe_tensor(meta: TensorMeta) -> str:
    """dtype and shape, with an asterisk when it is not contiguous."""
    strides, expected = meta.strides, 1
    dense = True
    for size, stride in zip(reversed(meta.shape), reversed(strides or ()), strict=strides is not None):
        dense = dense and (size <= 1 or stride == expected)
        expected *= max(1, size)
    shape = ",".join(map(str, meta.shape))
    return f"{SHORT_DTYPES.get(meta.dtype, meta.dtype)}[{shape}]{'' if dense else '*'}"


def describe_inputs(op: ReplayOp) -> str:
    """The tensor arguments of an op, in order; scalars are left out."""
    return " · ".join(text for arg in op.args if (text := _describe_argument(arg)))


def _describe_argument(arg: ReplayArg) -> str:
    present = [meta for meta in arg.tensors if meta is not None]
    if not present:
        return ""
    if arg.type != "Tensor[]":
        return describe_tensor(present[0])
    shown = [describe_tensor(meta) for meta in present[:LIST_SHOWN]]
    more = [f"… {len(present)} in all"] if len(present) > LIST_SHOWN else []
    return f"({', '.join(shown + more)})"
