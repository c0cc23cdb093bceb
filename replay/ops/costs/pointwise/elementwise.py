# pyright: strict
"""Lowering of elementwise arithmetic, comparisons, selections, activations and their gradients, casts and copies."""

from __future__ import annotations

import re
from collections.abc import Iterable
from math import prod

from opreplay.replay.ir.kernel import KernelCall, TensorSpec
from opreplay.replay.ops.op_view import (
    DoesNotFit,
    OpView,
    is_contiguous,
    kernel,
    promote,
    spec,
    strided_copy,
)
from opreplay.replay.ops.table import Cost, costs

ROW = 4096
"""Elements of a row that a long vector is cut into."""

ARITHMETIC: dict[str, str] = {
    "add": "Add", "sub": "Sub", "rsub": "Sub", "subtract": "Sub", "mul": "Mul", "multiply": "Mul", "div": "RealDiv",
    "divide": "RealDiv", "true_divide": "RealDiv", "floor_divide": "FloorDiv", "remainder": "FloorMod", "fmod": "Mod",
    "pow": "Pow", "maximum": "Maximum", "minimum": "Minimum", "fmax": "Maximum", "fmin": "Minimum", "atan2": "Atan2",
    "lerp": "Lerp", "addcmul": "Addcmul", "addcdiv": "Addcdiv", "bitwise_and": "BitwiseAnd", "bitwise_or": "BitwiseOr",
    "bitwise_xor": "BitwiseXor", "__and__": "BitwiseAnd", "__or__": "BitwiseOr", "xlogy": "Xlogy", "hypot": "Add",
    "bitwise_left_shift": "BitwiseAnd", "bitwise_right_shift": "BitwiseAnd", "copysign": "Mul", "logaddexp": "Exp",
    "relu": "Relu", "gelu": "Gelu", "silu": "Swish", "sigmoid": "Sigmoid", "tanh": "Tanh", "exp": "Exp", "exp2": "Exp",
    "log": "Log", "log2": "Log", "log10": "Log", "log1p": "Log1p", "expm1": "Expm1", "sqrt": "Sqrt", "rsqrt": "Rsqrt",
    "reciprocal": "Reciprocal", "neg": "Neg", "negative": "Neg", "abs": "Abs", "sin": "Sin", "cos": "Cos", "tan": "Tan",
    "erf": "Erf", "erfinv": "Erfinv", "floor": "Floor", "ceil": "Ceil", "round": "Round", "trunc": "Trunc",
    "sign": "Sign", "sgn": "Sign", "square": "Square", "bitwise_not": "BitwiseNot", "frac": "Trunc", "asin": "Asin",
    "acos": "Acos", "atan": "Atan", "sinh": "Exp", "cosh": "Exp", "nan_to_num": "Select", "clamp": "ClipByValueV2",
    "clip": "ClipByValueV2", "clamp_min": "Maximum", "clamp_max": "Minimum", "hardtanh": "Hardtanh",
    "hardswish": "HardSwish", "hardsigmoid": "HardSigmoid", "leaky_relu": "LeakyRelu", "elu": "Elu", "selu": "Elu",
    "celu": "Elu", "relu6": "Relu6", "softplus": "Softplus", "mish": "Mish", "logit": "Log", "threshold": "Threshold",
    "log_sigmoid_forward": "LogSigmoid", "log_sigmoid": "LogSigmoid", "prelu": "PRelu", "_prelu_kernel": "PRelu",
    "tril": "Tril", "triu": "Triu", "where": "Select", "masked_fill": "MaskedFill", "_fused_dropout": "DropOutDoMask",
    "sinc": "Sin", "lgamma": "Lgamma", "digamma": "Digamma", "heaviside": "Select",
    "special_expit": "Sigmoid", "ldexp": "Mul", "positive": "Identity",
}  # fmt: skip
"""aten op → CANN type, for ops whose output has the broadcast shape of their inputs and their common dtype."""

COMPARISONS: dict[str, str] = {
    "eq": "Equal",
    "ne": "NotEqual",
    "gt": "Greater",
    "ge": "GreaterEqual",
    "lt": "Less",
    "le": "LessEqual",
    "logical_and": "LogicalAnd",
    "logical_or": "LogicalOr",
    "logical_not": "LogicalNot",
    "logical_xor": "LogicalXor",
    "isnan": "IsNan",
    "isinf": "IsInf",
    "isfinite": "IsFinite",
    "isclose": "Equal",
    "isposinf": "IsInf",
    "isneginf": "IsInf",
    "signbit": "Less",
    "greater": "Greater",
    "less": "Less",
    "not_equal": "NotEqual",
}
"""aten op → CANN type, for ops that give booleans."""

GRADIENTS: dict[str, str] = {
    "threshold_backward": "ReluGrad",
    "gelu_backward": "GeluGrad",
    "silu_backward": "SwishGrad",
    "sigmoid_backward": "SigmoidGrad",
    "tanh_backward": "TanhGrad",
    "hardswish_backward": "HardSwishGrad",
    "leaky_relu_backward": "LeakyReluGrad",
    "elu_backward": "EluGradV2",
    "hardtanh_backward": "HardtanhGrad",
    "softplus_backward": "SoftplusV2Grad",
    "mish_backward": "MishGrad",
    "logit_backward": "SigmoidGrad",
    "hardsigmoid_backward": "SigmoidGrad",
    "log_sigmoid_backward": "SigmoidGrad",
    "native_dropout_backward": "DropOutDoMask",
    "_prelu_kernel_backward": "LeakyReluGrad",
    "prelu_backward": "LeakyReluGrad",
    "masked_scale": "MaskedScale",
}
"""aten op → CANN type, for gradients that take two or three tensors of one shape."""


def one_kernel(kind: str, *, boolean: bool) -> Cost:
    """A rule for one kernel that reads all tensors once and writes what they broadcast to."""

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


for _table, _boolean in ((ARITHMETIC, False), (COMPARISONS, True), (GRADIENTS, False)):
    for _name, _kind in _table.items():
        costs(f"aten::{_name}")(one_kernel(_kind, boolean=_boolean))


def over_the_bus(op: OpView) -> bool:
    """Whether the recorded device spent most of an op's time on copies from or to the host."""
    kernels = op.op.recorded.kernels
    copied = sum(k.total_us for k in kernels if _HOST_COPY.search(k.name))
    return copied > 0.5 * sum(k.total_us for k in kernels)


def host_copy(op: OpView, source: TensorSpec, target: TensorSpec) -> list[KernelCall]:
    """A copy between host and device, which the bus decides."""
    pageable = any("pageable" in k.name.lower() for k in op.op.recorded.kernels)
    op.note("copied between host and device" + (", from or to the host's pageable memory" if pageable else ""))
    return [kernel("MemcpyAsync", [source], [target], core="HOST", pageable=pageable)]


def cast_or_copy(op: OpView, source_name: tuple[str, ...], target_dtype: str | None) -> list[KernelCall]:
    """A change of dtype, of layout, or a plain copy."""
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
"""Names of copies from and to the host in traces of NVIDIA's and AMD's devices."""

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
"""What follows aten::_cast_ → dtype."""


def _wanted_dtype(op: OpView) -> str | None:
    value = op.value("dtype")
    return value.removeprefix("torch.") if isinstance(value, str) else None


@costs(
    "aten::_to_copy",
    "aten::to",
    "aten::type_as",
    "aten::npu_dtype_cast",
    *(f"aten::_cast_{name}" for name in CASTS),
    "aten::chalf",
    "aten::_to_cpu",
    "aten::to_mkldnn",
    "aten::to_mkldnn_backward",
    "aten::_autocast_to_reduced_precision",
    "aten::_autocast_to_full_precision",
)
def cast(op: OpView) -> Iterable[KernelCall]:
    """Cast to the dtype asked for; TensorMove where only device or memory format change."""
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


@costs("aten::copy_", "aten::copy", "aten::_copy_from", "aten::_copy_from_and_resize")
def copy(op: OpView) -> Iterable[KernelCall]:
    """Copy src over self: Cast where dtypes differ, a strided copy where layouts do."""
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


@costs("aten::clone", "aten::contiguous", "aten::reshape", "aten::ravel")
def clone(op: OpView) -> Iterable[KernelCall]:
    """A copy; nothing where a view does."""
    meta = op.meta("self", "input", at=0)
    if meta is None or (op.op.name != "aten::clone" and is_contiguous(meta)):
        return []
    return cast_or_copy(op, ("self", "input"), None)


def _halves(op: OpView, kind: str) -> list[KernelCall]:
    # vLLM names the output first, SGLang and aiter vary: the wider tensor is the input.
    metas = sorted((t for t in op.tensors if t.shape), key=lambda t: -t.shape[-1])
    if not metas:
        raise DoesNotFit("no tensor has halves")
    source = metas[0]
    out = spec((*source.shape[:-1], source.shape[-1] // 2), source.dtype)
    return [kernel(kind, [spec(source.shape, source.dtype)], [out])]


@costs("vllm::silu_and_mul")
def swiglu(op: OpView) -> Iterable[KernelCall]:
    """SwiGlu on a tensor whose halves are gate and value."""
    return _halves(op, "SwiGlu")


@costs("aten::glu")
def geglu(op: OpView) -> Iterable[KernelCall]:
    """GeGluV2."""
    return _halves(op, "GeGluV2")


@costs("aten::glu_backward")
def swiglu_backward(op: OpView) -> Iterable[KernelCall]:
    """SwiGluGrad or GeGluGradV2."""
    if not op.tensors:
        raise DoesNotFit("no tensor is recorded")
    inputs = [op.packed(t) for t in op.tensors]
    kind = "SwiGluGrad" if "swiglu" in op.op.name else "GeGluGradV2"
    return [kernel(kind, inputs, [max(inputs, key=lambda s: len(s.shape) and s.shape[-1])])]


def vendor_activation(op: OpView) -> Iterable[KernelCall]:
    """An activation under another name."""
    source = op.packed(op.need(at=max(0, len(op.tensors) - 1)))
    return [kernel("Gelu" if "gelu" in op.op.name else "Swish", [source], [source])]


@costs("vllm::rotary_embedding", "npu::_npu_rotary_embedding", "aiter::rotary_embedding_fwd")
def rope(op: OpView) -> Iterable[KernelCall]:
    """Rotary embedding of queries and, where given, keys: one kernel each."""
    metas = [t for t in op.tensors if t.dtype not in ("int64", "int32") and len(t.shape) >= 2]
    named = [t for t in (op.meta("query", "q", "self", "x"), op.meta("key", "k")) if t is not None]
    turned = named or metas[:2]
    return [_rope_of(op, "RotaryPositionEmbedding", spec(t.shape, t.dtype)) for t in turned]


@costs("npu::npu_rotary_mul_backward")
def rope_backward(op: OpView) -> Iterable[KernelCall]:
    """Gradient of the rotary embedding."""
    meta = op.need(at=0, rank=1)
    return [_rope_of(op, "RotaryPositionEmbeddingGrad", spec(meta.shape, meta.dtype))]


def _rope_of(op: OpView, kind: str, source: TensorSpec) -> KernelCall:
    if not source.shape:
        raise DoesNotFit("nothing of a scalar can be turned")
    table = spec((source.shape[0], source.shape[-1]), source.dtype)
    return kernel(kind, [source, table, table], [source])


@costs(
    "_C::scaled_fp8_quant",
    "npu::npu_ascend_quant_v2",
    "aten::quantize_per_tensor",
    "aten::dequantize",
    "aten::quantize_per_channel",
    "aten::int_repr",
    "aten::_make_per_tensor_quantized_tensor",
    "aten::_make_per_channel_quantized_tensor",
    "npu::npu_quantize_per_channel",
)
def quantize(op: OpView) -> Iterable[KernelCall]:
    """AscendQuantV2: a given scale."""
    source = _wide_float(op)
    return [kernel("AscendQuantV2", [source], [spec(source.shape, "int8")])]


@costs(
    "aten::quantize_per_tensor_dynamic",
    "aten::choose_qparams_optimized",
    "aten::_choose_qparams_per_tensor",
    "aten::fused_moving_avg_obs_fake_quant",
    "aten::_fused_moving_avg_obs_fq_helper",
    "aiter::dynamic_per_group_scaled_quant_fp4",
)
def dynamic_quantize(op: OpView) -> Iterable[KernelCall]:
    """DynamicQuant: a scale per row is computed."""
    source = _wide_float(op)
    return [kernel("DynamicQuant", [source], [spec(source.shape, "int8"), spec(source.shape[:-1], "float32")])]


def _wide_float(op: OpView) -> TensorSpec:
    floats = [t for t in op.tensors if t.dtype in ("float16", "bfloat16", "float32") and t.shape]
    if not op.tensors:
        raise DoesNotFit("no tensor is recorded")
    meta = max(floats or op.tensors, key=lambda t: (len(t.shape) > 0, prod(t.shape)))
    return in_rows(spec(meta.shape, meta.dtype))


def in_rows(tensor: TensorSpec) -> TensorSpec:
    """A long vector in rows: kernels that work by rows and keep no value of a whole row deal it out to all cores."""
    n = prod(tensor.shape)
    return spec((-(-n // ROW), ROW), tensor.dtype) if len(tensor.shape) == 1 and n > ROW else tensor
