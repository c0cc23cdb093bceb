# pyright: strict
"""Guesses arguments whose values a trace does not record: strings, unrecorded scalars, index lists, dtypes.

Each guess has a reason, which becomes an assumption of the plan. In order of precedence, guesses come from: rules for
one op; rules for an argument name; the schema's default; a table of plain constants. Rules about shapes are in
`shapes`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any, cast

import msgspec

from opreplay.replay.ir.call import Call
from opreplay.replay.ir.model import Value
from opreplay.replay.resolve.guess import lists as lists
from opreplay.replay.resolve.guess import shapes as shapes
from opreplay.replay.resolve.guess import texts
from opreplay.replay.resolve.guess.batches import of_one_sample
from opreplay.replay.resolve.guess.search import search
from opreplay.replay.resolve.guess.values import Context, Guess, Relatives
from opreplay.replay.resolve.schema import ArgSpec, OpSpec
from opreplay.traces.dtypes import INTEGERS, ITEMSIZE_BYTES

__all__ = ["Context", "Guess", "Relatives", "guess", "list_dtype"]

STRINGS: dict[str, str] = {
    "kv_cache_dtype": "auto", "kvcache_dtype": "auto", "activation": "silu", "layer_name": "", "quant_method": "",
    "input_layout": "BSND", "layout": "BSND", "scoring_func": "softmax", "mode": "", "rotary_mode": "half",
    "mfma_type": "f16", "kv_cache_layout": "NHD", "attn_type": "decoder", "scale_fmt": "ue8m0", "fp8_format": "e4m3",
    "scaling_mode": "floor", "q_input_layout": "TND", "kv_input_layout": "TND", "backend": "auto", "kernelName": "",
    "norm_type": "rms", "prefix": "", "api_name": "", "assert_msg": "", "reduce": "sum", "padding": "valid",
    "indexing": "ij", "side": "left", "ord": "fro", "p": "fro",
}  # fmt: skip
"""Name of a string argument without a schema default → value; strings are never recorded."""

CONSTANTS: dict[str, Value] = {
    "alpha": 1, "beta": 1, "other": 1, "value": 0, "exponent": 2, "min": 0, "max": 1, "threshold": 0, "p": 0.5,
    "eps": 1e-5, "train": True, "training": True, "momentum": 0.1, "ord": 2, "keepdim": False, "non_blocking": False,
    "copy": False, "sparse_grad": False, "sparse": False, "scale_grad_by_freq": False, "padding_idx": -1,
    "accumulate": False, "unsafe": False, "implicit": False, "reduction": 1, "ignore_index": -100,
    "label_smoothing": 0.0, "half_to_float": False, "ceil_mode": False, "transposed": False, "groups": 1,
    "benchmark": False, "deterministic": False, "cudnn_enabled": True, "cudnn_enable": True, "allow_tf32": True,
    "storage_offset": 0, "start": 0, "step": 1, "index": 0, "start_dim": 0, "end_dim": -1, "diagonal": 0, "k": 1,
    "largest": True, "sorted": True, "descending": False, "stable": False, "chunks": 2, "out_int32": False,
    "right": False, "fill_value": 0, "s": 0, "self": 1, "nan": 0.0, "pin_memory": False, "negative_slope": 0.01,
    "lambd": 0.5, "align_corners": False, "log_target": False, "delta": 1.0, "scale": 1.0, "weight": 0.5,
    "is_causal": False, "dropout_p": 0.0, "async_op": False, "unbiased": True, "correction": 1, "upper": False,
    "exclusive": False, "reverse": False, "dim0": 0, "dim1": 1, "dim": 0, "requires_grad": False, "mean": 0.0,
    "std": 1.0, "from": 0.0, "to": 1.0, "scalar": 1, "end": 1, "affine": True, "causal": False,
    "is_grads_batched": False, "use_input_stats": True, "drop": 0.0, "atol": 1e-8, "rtol": 1e-5, "low": 0, "high": 2,
    "interpolation": "linear", "epsilon": 1e-6, "bounds_check_mode": 1, "pooling_mode": 0,
    "total_hash_size_bits": 32, "output_dtype": 0, "learning_rate": 0.01, "stochastic_rounding": False,
    "weight_decay": 0.0, "weight_decay_mode": 0, "beta1": 0.9, "beta2": 0.999, "iter": 1, "gradient_clipping": False,
    "max_gradient": 1.0, "counter_halflife": -1, "lr": 0.01, "count_include_pad": True,
}  # fmt: skip
"""Values that are guessed last, by argument name. A value is the one that most models use, or one that makes the op do
its work.
"""

_DTYPE_IN_KERNEL = {
    "c10::BFloat16": "bfloat16",
    "__nv_bfloat16": "bfloat16",
    "__hip_bfloat16": "bfloat16",
    "c10::Half": "float16",
    "__half": "float16",
    "float": "float32",
    "double": "float64",
    "long": "int64",
    "int": "int32",
    "bool": "bool",
}
_TEMPLATE_WORD = re.compile(r"(?<![\w:])(c10::\w+|__\w+|float|double|long|bool)(?![\w:])")
_INDEXES = re.compile(
    r"(?:^|_)(?:ids?|idx|index(?:es)?|indices|offsets?|lengths?|lens?|counts?|positions?|seqlens?|slots?|block_tables?)$"
)
"""Matches names of arguments that hold integers."""
_OPAQUE_SIZE = re.compile(r"OpaqueType<(\d+)u?>")


def guess(spec: OpSpec, arg: ArgSpec, known: Call, context: Context) -> Guess | None:
    """Guess a value for `arg`, with the reason; None if no sensible value is known.

    A call that vmap makes for a batch gets its value from the call for one sample. For other calls, the value is found
    by trial on meta tensors or, if that fails, by a rule. `known` holds the arguments that are already determined, by
    name. A list of index tensors counts as one argument.
    """
    mapped = of_one_sample(spec, arg, known, context, guess)
    if mapped is not None:
        return mapped
    tried = search(spec, known, context, by_rules)
    if tried is not None and arg.name in tried.values:
        return Guess(value=tried.values[arg.name], why=tried.why)
    return by_rules(spec, arg, known, context)


def by_rules(spec: OpSpec, arg: ArgSpec, known: Call, context: Context) -> Guess | None:
    """Guess a value for `arg` by the rules for its op, its name, or its type."""
    op = spec.name.partition("::")[2]
    if arg.kind == "Tensor[]" and op.startswith(("_foreach_", "_fused_")):
        if op.startswith("_foreach_"):
            return lists.each(known, context, spec.args.index(arg))
        return lists.OPTIMIZER_LISTS.get(arg.name, lists.parameters)(known, context)
    by_op = texts.TEXTS if arg.kind == "str" else shapes.BY_OP
    rules = [by_op.get((op, arg.name)), shapes.BY_ARGUMENT.get((arg.kind, arg.name))]
    if arg.name == "dim" and arg.has_default:  # what the schema says goes before what is usual
        rules.pop()
    for rule in filter(None, rules):
        guessed = rule(known, context)
        fitted = guessed and _of_kind(arg, guessed)
        if fitted is not None:
            return fitted if fitted.evident else _with_others(op, arg, fitted)
    usual = _typed(spec, arg, known, context)
    return _with_others(op, arg, usual) if usual is not None and arg.kind == "str" else usual


def _with_others(op: str, arg: ArgSpec, guessed: Guess) -> Guess:
    """Add a note to a guessed string about which the trace says nothing. The note says how long the op takes with other
    strings.
    """
    return msgspec.structs.replace(guessed, why=guessed.why + texts.what_others_take(op, arg.name, guessed.value))


def _of_kind(arg: ArgSpec, guessed: Guess) -> Guess | None:
    """Return the guess in the form that the argument's type requires; None if it does not fit.

    A guess may not fit, because one overload takes a list where another takes a number.
    """
    value: object = guessed.value
    if arg.kind in ("int", "float", "bool") and isinstance(value, tuple):
        values = cast("tuple[Any, ...]", value)
        return msgspec.structs.replace(guessed, value=values[0]) if len(values) == 1 else None
    return None if arg.kind in ("int", "int[]", "bool") and isinstance(guessed.value, str) else guessed


_BY_KIND = {
    "Layout": Guess(value="torch.strided", why="strided layout"),
    "Generator": Guess(value=None, why="default generator"),
}
_REQUIRED = {
    "MemoryFormat": Guess(value="torch.contiguous_format", why="contiguous format"),
    "Tensor": Guess(value=None, why="undefined tensor, as recorded"),
}
_UNNAMED = {"bool": Guess(value=False, why="False"), "Scalar": Guess(value=1, why="1")}


def _typed(spec: OpSpec, arg: ArgSpec, known: Call, context: Context) -> Guess | None:
    """Guess a value by the argument's type. If that fails, use the schema's default, or else the table of constants."""
    if arg.kind == "Device":
        return _device(spec, arg, context)
    if arg.kind == "ScalarType":
        return _dtype(known, context)
    if arg.kind == "Tensor[]" and arg.optional_elements and not arg.optional:
        return lists.read_inside(known, context)
    by_kind = _BY_KIND.get(arg.kind) or (None if arg.optional else _REQUIRED.get(arg.kind))
    if by_kind is not None:
        return by_kind
    if arg.default is not None and arg.has_default and not arg.out:
        return Guess(value=arg.default, why=f"{arg.default!r} (schema default)")
    if arg.kind == "str":
        return _string(arg)
    if arg.optional and arg.kind not in ("Scalar", "float", "bool"):
        return None  # A wrong size or index does harm; None lets the op find its own.
    value = CONSTANTS.get(arg.name)
    if _fits(arg.kind, value):
        return Guess(value=value, why=f"{value!r} (a common value)")
    return None if arg.optional else _UNNAMED.get(arg.kind)


def _fits(kind: str, value: Value) -> bool:
    if kind == "bool":
        return isinstance(value, bool)
    if kind == "int":
        return isinstance(value, int) and not isinstance(value, bool)
    return kind in ("float", "Scalar") and isinstance(value, int | float) and not isinstance(value, bool)


def _string(arg: ArgSpec) -> Guess | None:
    if arg.name in STRINGS:
        return Guess(value=STRINGS[arg.name], why=f"{STRINGS[arg.name]!r} (strings are not recorded)")
    return Guess(value=None, why=f"None: {texts.UNTOLD}") if arg.optional else None


def _device(spec: OpSpec, arg: ArgSpec, context: Context) -> Guess | None:
    """Guess a device, because devices are never recorded.

    The guess is the host if kernel names show a copy to the host. An op without tensor arguments always needs a device.
    """
    if any("DtoH" in name or "Device -> Host" in name for name in context.kernels):
        return Guess(value="cpu", why="cpu: the recorded call copied to the host")
    takes_tensors = any(a.kind in ("Tensor", "Tensor[]") and not a.out for a in spec.args)
    if not arg.optional or (not takes_tensors and context.device != "cpu"):
        return Guess(value=context.device, why=f"{context.device}: devices are not recorded")
    return None


def _dtype(known: Call, context: Context) -> Guess:
    meta = known.first_tensor()
    dtype = meta.dtype if meta is not None else context.float_dtype
    return Guess(value=f"torch.{dtype}", why=f"{dtype}: dtype of the first tensor" if meta else f"{dtype}: most common")


def list_dtype(name: str, siblings: Sequence[str], context: Context) -> tuple[str, str]:
    """Return the dtype of the tensors in the list `name`, whose dtypes were not recorded, and the reason.

    The dtype is that of other floating-point tensor arguments. Without such arguments, it comes from the list's name,
    the kernel, or the trace. Integer arguments do not count, because they may be indices into the list's tensors.
    """
    if (sibling := next((dtype for dtype in siblings if dtype not in INTEGERS | {"bool"}), None)) is not None:
        return sibling, "dtype of the other tensor arguments"
    if _INDEXES.search(name):
        return next(iter(siblings), "int64"), "an integer dtype, judging by the name of the argument"
    words = (word for name in context.kernels for word in _TEMPLATE_WORD.findall(name))
    votes = Counter(_DTYPE_IN_KERNEL[word] for word in words if word in _DTYPE_IN_KERNEL)
    floats = [dtype for dtype in votes if dtype.startswith(("float", "bfloat"))]
    if floats:
        return min(floats, key=lambda dtype: ITEMSIZE_BYTES[dtype] != 2), "from the name of the recorded kernel"
    sizes = (int(match[1]) for name in context.kernels if (match := _OPAQUE_SIZE.search(name)))
    if (size := next(sizes, None)) is not None:
        return _dtype_of_size(size, context), f"the recorded kernel moves {size}-byte elements"
    if votes:
        return votes.most_common(1)[0][0], "from the name of the recorded kernel"
    return context.float_dtype, "the most common floating-point dtype of the trace"


def _dtype_of_size(size: int, context: Context) -> str:
    if ITEMSIZE_BYTES.get(context.float_dtype) == size:
        return context.float_dtype
    return {1: "uint8", 2: "bfloat16", 4: "float32", 8: "int64", 16: "complex128"}.get(size, context.float_dtype)
