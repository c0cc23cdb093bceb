# pyright: strict
"""Lowering of elementwise arithmetic, comparisons, selections, activations and their gradients, casts and copies."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import pairwise
from math import prod

from opreplay.replay.ir.kernel import KernelCall, TensorSpec, itemsize
from opreplay.replay.ops.op_view import (
    DoesNotFit,
    OpView,
    is_contiguous,
    kernel,
    length,
    promote,
    spec,
    strided_copy,
)
from opreplay.replay.ops.table import Cost, costs, costs_by_kernel

ROW = 4096
"""Elements per row when a long vector is reshaped to rows."""


def one_kernel(kind: str, *, boolean: bool = False) -> Cost:
    """Return a cost rule for one kernel that reads all tensors once and writes one result of their broadcast shape."""

    def rule(op: OpView) -> Iterable[KernelCall]:
        inputs = [op.packed(t) for t in op.tensors]
        out = op.broadcast_output()
        if boolean and not op.op.outputs:
            out = spec(out.shape, "bool")
        wide = promote([s.dtype for s in inputs]) if inputs else out.dtype
        if kind == "RealDiv" and wide in ("int64", "int32", "int8", "uint8", "bool") and not op.op.outputs:
            out = spec(out.shape, "float32")
        return [kernel(kind, inputs or [out], [out])]

    rule.__name__ = f"one_{kind}"
    return rule


# Ops whose output has the broadcast shape of their inputs and their common dtype, and gradients of two or three
# tensors of one shape.
costs_by_kernel(
    """
        Add=add,hypot Sub=sub,rsub,subtract Mul=mul,multiply,copysign,ldexp RealDiv=div,divide,true_divide
        FloorDiv=floor_divide FloorMod=remainder Mod=fmod Pow=pow Maximum=maximum,fmax,clamp_min
        Minimum=minimum,fmin,clamp_max Atan2=atan2 Lerp=lerp Addcmul=addcmul Addcdiv=addcdiv
        BitwiseAnd=bitwise_and,__and__,bitwise_left_shift,bitwise_right_shift BitwiseOr=bitwise_or,__or__
        BitwiseXor=bitwise_xor Xlogy=xlogy Exp=logaddexp,exp,exp2,sinh,cosh Relu=relu Gelu=gelu Swish=silu
        Sigmoid=sigmoid,special_expit Tanh=tanh Log=log,log2,log10,logit Log1p=log1p Expm1=expm1 Sqrt=sqrt Rsqrt=rsqrt
        Reciprocal=reciprocal Neg=neg,negative Abs=abs Sin=sin,sinc Cos=cos Tan=tan Erf=erf Erfinv=erfinv Floor=floor
        Ceil=ceil Round=round Trunc=trunc,frac Sign=sign,sgn Square=square BitwiseNot=bitwise_not Asin=asin Acos=acos
        Atan=atan Select=nan_to_num,where,heaviside ClipByValueV2=clamp,clip Hardtanh=hardtanh HardSwish=hardswish
        HardSigmoid=hardsigmoid LeakyRelu=leaky_relu Elu=elu,selu,celu Relu6=relu6 Softplus=softplus Mish=mish
        Threshold=threshold LogSigmoid=log_sigmoid_forward,log_sigmoid PRelu=prelu,_prelu_kernel Tril=tril Triu=triu
        MaskedFill=masked_fill DropOutDoMask=_fused_dropout,native_dropout_backward Lgamma=lgamma Digamma=digamma
        Identity=positive ReluGrad=threshold_backward GeluGrad=gelu_backward SwishGrad=silu_backward
        SigmoidGrad=sigmoid_backward,logit_backward,hardsigmoid_backward,log_sigmoid_backward TanhGrad=tanh_backward
        HardSwishGrad=hardswish_backward LeakyReluGrad=leaky_relu_backward,_prelu_kernel_backward,prelu_backward
        EluGradV2=elu_backward HardtanhGrad=hardtanh_backward SoftplusV2Grad=softplus_backward MishGrad=mish_backward
        MaskedScale=masked_scale
    """,
    one_kernel,
)
costs_by_kernel(
    """
        Equal=eq,isclose NotEqual=ne,not_equal Greater=gt,greater GreaterEqual=ge Less=lt,signbit,less LessEqual=le
        LogicalAnd=logical_and LogicalOr=logical_or LogicalNot=logical_not LogicalXor=logical_xor IsNan=isnan
        IsInf=isinf,isposinf,isneginf IsFinite=isfinite
    """,
    lambda kind: one_kernel(kind, boolean=True),
)


def over_the_bus(op: OpView) -> bool:
    """Check whether the recorded device spent most of an op's time on copies from or to the host."""
    kernels = op.op.recorded.kernels
    copied = sum(k.total_us for k in kernels if _HOST_COPY.search(k.name))
    return copied > 0.5 * sum(k.total_us for k in kernels)


def host_copy(op: OpView, source: TensorSpec, target: TensorSpec) -> list[KernelCall]:
    """Return a copy between host and device, whose time depends on the bus."""
    pageable = any("pageable" in k.name.lower() for k in op.op.recorded.kernels)
    op.note("copied between host and device" + (", from or to the host's pageable memory" if pageable else ""))
    return [kernel("MemcpyAsync", [source], [target], core="HOST", pageable=pageable)]


def cast_or_copy(op: OpView, source_name: tuple[str, ...], target_dtype: str | None) -> list[KernelCall]:
    """Return the kernels of a dtype cast, a layout change, or a plain copy."""
    meta = op.meta(*source_name, at=0)
    if meta is None:
        return []
    out = op.output(spec(meta.shape, target_dtype or meta.dtype))
    if over_the_bus(op):
        return host_copy(op, spec(meta.shape, meta.dtype), out)
    if out.dtype != meta.dtype:
        return [kernel("Cast", [op.packed(meta)], [spec(meta.shape, out.dtype)])]
    if not is_contiguous(meta):
        return [strided_copy(meta)]
    source = spec(meta.shape, meta.dtype)
    return [kernel("TensorMove", [source], [source])]


_HOST_COPY = re.compile(r"Memcpy (HtoD|DtoH)|Copy(HostToDevice|DeviceToHost)|memcpy_?(h2d|d2h)", re.IGNORECASE)
"""Kernel names of copies from and to the host in traces of NVIDIA and AMD devices."""

CASTS = {
    "Byte": "uint8",
    "Char": "int8",
    "Short": "int16",
    "Int": "int32",
    "Long": "int64",
    "Half": "float16",
    "Float": "float32",
    "Double": "float64",
}
"""Suffix of aten::_cast_* → dtype."""


def _wanted_dtype(op: OpView) -> str | None:
    value = op.value("dtype")
    return value.removeprefix("torch.") if isinstance(value, str) else None


@costs(
    """
        aten::_to_copy aten::to aten::type_as aten::npu_dtype_cast aten::chalf aten::_to_cpu aten::to_mkldnn
        aten::to_mkldnn_backward aten::_autocast_to_reduced_precision aten::_autocast_to_full_precision
    """,
    *(f"aten::_cast_{name}" for name in CASTS),
)
def cast(op: OpView) -> Iterable[KernelCall]:
    """Return Cast to the requested dtype, or TensorMove if only device or memory format changes."""
    other = op.meta("other")
    named = CASTS.get(op.op.name.removeprefix("aten::_cast_"))
    wanted = other.dtype if other is not None else named or _wanted_dtype(op)
    source = op.meta("self", at=0)
    if op.op.name in ("aten::to", "aten::type_as") and source is not None and wanted in (None, source.dtype):
        return []
    if wanted is None and "npu_dtype_cast" in op.op.name and not op.op.outputs:
        op.note("target dtype not recorded: float32 assumed")
        wanted = "float32"
    return cast_or_copy(op, ("self",), wanted)


@costs("aten::copy_ aten::copy aten::_copy_from aten::_copy_from_and_resize")
def copy(op: OpView) -> Iterable[KernelCall]:
    """Return the copy of src to self. It is a Cast if the dtypes differ, and a strided copy if the layouts differ."""
    target, source = op.meta("self", at=0), op.meta("src", at=1)
    if target is None or source is None:
        return []
    out = spec(target.shape, target.dtype)
    if over_the_bus(op):
        return host_copy(op, spec(source.shape, source.dtype), out)
    if target.dtype != source.dtype:
        return [kernel("Cast", [op.packed(source)], [out])]
    if not is_contiguous(source) and (target.strides != source.strides):
        return [strided_copy(source)]
    if source.shape != target.shape:
        return [kernel("BroadcastTo", [spec(source.shape, source.dtype)], [out])]
    if not is_contiguous(target):
        return [kernel("ViewCopy", [spec(source.shape, source.dtype)], [out])]
    return [kernel("TensorMove", [out], [out])]


@costs("aten::clone aten::contiguous aten::reshape aten::ravel")
def clone(op: OpView) -> Iterable[KernelCall]:
    """Return the copy kernel, or no kernel if a view is enough."""
    meta = op.meta("self", "input", at=0)
    if meta is None or (op.op.name != "aten::clone" and is_contiguous(meta)):
        return []
    return cast_or_copy(op, ("self", "input"), None)


def _halves(op: OpView, kind: str) -> list[KernelCall]:
    # vLLM names the output first, SGLang and aiter vary: the wider tensor is the input.
    metas = sorted((t for t in op.tensors if t.shape), key=lambda t: -t.shape[-1])
    if not metas:
        raise DoesNotFit("no tensor can be split into halves")
    source = metas[0]
    halved = op.integer("dim", default=-1) % len(source.shape)
    shape = (*source.shape[:halved], source.shape[halved] // 2, *source.shape[halved + 1 :])
    out = spec(shape, source.dtype)
    return [kernel(kind, [spec(source.shape, source.dtype)], [out])]


BLOCK_BYTES = 32
"""Size of a block in a vector core's memory; rows are padded to whole blocks."""


def swiglu(op: OpView) -> Iterable[KernelCall]:
    """Return SwiGlu on a tensor whose two halves are gate and value.

    If the rows of a half do not fill whole blocks, a 910B runs a Slice first (according to the kernels listed in
    hicann/cann-bench).
    """
    (glu,) = _halves(op, "SwiGlu")
    source, half = glu.inputs[0], glu.outputs[0]
    if source is None or half is None or source.shape[-1] != half.shape[-1]:
        return [glu]
    if source.shape[-1] * itemsize(source.dtype) % BLOCK_BYTES == 0:
        return [glu]
    return [kernel("Slice", [half], [half], forward=True), glu]


@costs("aten::glu")
def geglu(op: OpView) -> Iterable[KernelCall]:
    """Return the GeGluV2 kernel."""
    return _halves(op, "GeGluV2")


@costs("aten::glu_backward")
def swiglu_backward(op: OpView) -> Iterable[KernelCall]:
    """Return the SwiGluGrad or GeGluGradV2 kernel."""
    if not op.tensors:
        raise DoesNotFit("no tensor was recorded")
    inputs = [op.packed(t) for t in op.tensors]
    kind = "SwiGluGrad" if "swiglu" in op.op.name else "GeGluGradV2"
    return [kernel(kind, inputs, [max(inputs, key=lambda s: len(s.shape) and s.shape[-1])])]


def vendor_activation(op: OpView) -> Iterable[KernelCall]:
    """Return Gelu or Swish for a vendor's activation op."""
    source = op.packed(op.need(at=max(0, len(op.tensors) - 1)))
    return [kernel("Gelu" if "gelu" in op.op.name else "Swish", [source], [source])]


def rope(op: OpView) -> Iterable[KernelCall]:
    """Return one rotary-embedding kernel for the queries and, if given, one for the keys."""
    metas = [t for t in op.tensors if t.dtype not in ("int64", "int32") and len(t.shape) >= 2]
    named = [t for t in (op.meta("query", "q", "self", "x"), op.meta("key", "k")) if t is not None]
    turned = named or metas[:2]
    return [_rope_of(op, "RotaryPositionEmbedding", spec(t.shape, t.dtype)) for t in turned]


@costs("npu::npu_rotary_mul_backward")
def rope_backward(op: OpView) -> Iterable[KernelCall]:
    """Return the kernel for the gradient of the rotary embedding."""
    meta = op.need(at=0, rank=1)
    return [_rope_of(op, "RotaryPositionEmbeddingGrad", spec(meta.shape, meta.dtype))]


def _rope_of(op: OpView, kind: str, source: TensorSpec) -> KernelCall:
    if not source.shape:
        raise DoesNotFit("a scalar cannot be rolled or flipped")
    table = spec((source.shape[0], source.shape[-1]), source.dtype)
    return kernel(kind, [source, table, table], [source])


@costs(
    """
        aten::quantize_per_tensor aten::dequantize aten::quantize_per_channel aten::int_repr
        aten::_make_per_tensor_quantized_tensor aten::_make_per_channel_quantized_tensor
    """
)
def quantize(op: OpView) -> Iterable[KernelCall]:
    """Return AscendQuantV2, which quantises with a given scale."""
    source = _wide_float(op)
    return [kernel("AscendQuantV2", [source], [spec(source.shape, "int8")])]


@costs(
    """
        aten::quantize_per_tensor_dynamic aten::choose_qparams_optimized aten::_choose_qparams_per_tensor
        aten::fused_moving_avg_obs_fake_quant aten::_fused_moving_avg_obs_fq_helper
        aten::_fused_moving_avg_obs_fq_helper_functional
    """
)
def dynamic_quantize(op: OpView) -> Iterable[KernelCall]:
    """Return DynamicQuant, which computes a scale per row and quantises."""
    source = _wide_float(op)
    return [kernel("DynamicQuant", [source], [spec(source.shape, "int8"), spec(source.shape[:-1], "float32")])]


FP8_CODES = {35: "float8_e5m2", 36: "float8_e4m3fn"}
"""torch_npu's `dst_type` code → dtype; codes 40 and 41 are 4-bit numbers, two per byte."""
FP4_CODES = frozenset({40, 41})
NO_HALF_TO_FP4 = 5.0
"""Cost of converting a float16 element to 4 bits, as a multiple of the cost for a bfloat16 element.

float16 has no direct conversion to 4 bits: it is converted to float32 and then bfloat16 first. For 1 to 17 million
elements, a core of a 950PR takes 0.6 cycles per float16 element and 0.12 per bfloat16 element
(npu_dynamic_mx_quant_with_dual_axis, hicann/cann-bench).
"""
MX_BLOCK = 32
"""Elements per scale in OCP's microscaling formats."""


def quantised(op: OpView, source: TensorSpec) -> TensorSpec:
    """Return the quantised output in the dtype that the argument `dst_type` selects."""
    code = op.integer("dst_type", default=36)
    if code in FP4_CODES and source.shape:
        return spec((*source.shape[:-1], -(-source.shape[-1] // 2)), "uint8")
    return spec(source.shape, FP8_CODES.get(code, "int8"))


def mx_quantised(op: OpView, source: TensorSpec) -> tuple[TensorSpec, TensorSpec]:
    """Return the quantised output and its scales, one byte per block."""
    return quantised(op, source), spec((-(-prod(source.shape) // MX_BLOCK),), "uint8")


BOTH_ROWS, BOTH_COLUMNS = 64, 256
"""Rows and columns of a tile when quantising along both dimensions.

Source: the measured times of 17 shapes rise by one step for every 64 tiles, one tile per core (950PR,
hicann/cann-bench).
"""


def both_axes_quantize(op: OpView) -> Iterable[KernelCall]:
    """Return DynamicMxQuantWithDualAxis, which quantises along rows and along columns, tile by tile."""
    meta = op.need("input", "x", at=0, rank=2)
    source = spec(meta.shape, meta.dtype)
    height, width = meta.shape[-2:]
    tiles = prod(meta.shape[:-2]) * -(-height // BOTH_ROWS) * -(-width // BOTH_COLUMNS)
    dear = meta.dtype == "float16" and op.integer("dst_type", default=36) in FP4_CODES
    return [
        kernel(
            "DynamicMxQuantWithDualAxis",
            [source],
            mx_quantised(op, source) * 2,
            lines=max(1, tiles),
            cols=min(height, BOTH_ROWS) * BOTH_COLUMNS,
            each=NO_HALF_TO_FP4 if dear else 1.0,
        )
    ]


def _row_groups(op: OpView, rows: int) -> tuple[int, int]:
    """Return the number of row groups and the number of rows of the largest group.

    If the groups are not recorded, they are assumed to be equal.
    """
    ends = op.integers("group_list")
    if ends:
        counted = op.integer("group_list_type", default=0) != 0
        sizes = ends if counted else tuple(end - begin for begin, end in pairwise((0, *ends)))
        return len(ends), min(rows, max(1, *sizes))
    groups = max(1, length(next((t for t in op.tensors if t.dtype in ("int32", "int64")), None)))
    return groups, max(1, -(-rows // groups))


def grouped_block_quantize(op: OpView) -> Iterable[KernelCall]:
    """Return GroupedDynamicBlockQuant. A core takes one column of blocks of a group and iterates over its blocks."""
    meta = op.need("x", "input", at=0, rank=2)
    groups, rows = _row_groups(op, meta.shape[-2])
    height, width = op.integer("row_block_size", default=1), op.integer("col_block_size", default=128)
    if height < 1 or width < 1:
        raise DoesNotFit("blocks have no elements")
    source = spec(meta.shape, meta.dtype)
    columns = max(1, prod(meta.shape[:-2]) * groups * -(-meta.shape[-1] // width))
    steps = -(-rows // height)
    scales = spec((columns * steps,), "float32")
    return [
        kernel(
            "GroupedDynamicBlockQuant",
            [source],
            [quantised(op, source), scales],
            lines=columns,
            cols=rows * width,
            steps=steps,
        )
    ]


def _wide_float(op: OpView) -> TensorSpec:
    floats = [t for t in op.tensors if t.dtype in ("float16", "bfloat16", "float32") and t.shape]
    if not op.tensors:
        raise DoesNotFit("no tensor was recorded")
    meta = max(floats or op.tensors, key=lambda t: (len(t.shape) > 0, prod(t.shape)))
    return in_rows(spec(meta.shape, meta.dtype))


def in_rows(tensor: TensorSpec) -> TensorSpec:
    """Reshape a long vector to rows, and return any other tensor unchanged.

    The reason is that row kernels without per-row values split a vector over all cores.
    """
    n = prod(tensor.shape)
    return spec((-(-n // ROW), ROW), tensor.dtype) if len(tensor.shape) == 1 and n > ROW else tensor
