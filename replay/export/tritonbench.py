# pyright: strict
"""Writes ops and their inputs in the form of TritonBench's `input_configs` and BackendBench's op traces.

In this form, each op maps input signatures to numbers of calls. A signature is a Python expression, as in PyTorch's
operator benchmarks (benchmarks/dynamo/microbenchmarks/operator_inp_utils.py): `((T([4096, 1024], bf16), T([1024, 3072],
bf16)), {})`. The benchmarks evaluate it with `T` and the short names of dtypes.
"""

from __future__ import annotations

from collections import Counter
from typing import Literal

import msgspec

from opreplay.replay.export.whole import spec_of
from opreplay.replay.ir.model import PlainValue, ReplayArg, ReplayOp, ReplayPlan
from opreplay.replay.ir.plain_json import plain_json
from opreplay.replay.ir.sizes import tensors_of
from opreplay.replay.resolve.schema import OpSpec
from opreplay.replay.resolve.written.backendbench import DTYPES as READ_DTYPES
from opreplay.replay.resolve.written.backendbench import MADE_UP
from opreplay.traces.model import TensorMeta, contiguous_strides

DTYPES = {name: short for short, name in READ_DTYPES.items()}
"""torch's names of dtypes → their short names in operator_inp_utils, which can read only these dtypes."""
Strides = Literal["stride=(1, 4)", "[1, 4]"]
"""How strides are written. operator_inp_utils takes them as a keyword argument, BackendBench as a positional one."""


class Exported(msgspec.Struct, frozen=True, kw_only=True):
    """The signatures, and the ops that were left out."""

    ops: dict[str, dict[str, int]]
    """Number of calls by op ("aten.mm.default") and signature."""
    left_out: dict[str, dict[str, int]]
    """Reason → op name → number of ops of the plan that were left out."""
    shared_memory_ops: int
    """Number of ops whose tensors share memory or have a storage offset. Signatures cannot express either."""


def _spec_or_why(op: ReplayOp) -> OpSpec | str:
    """Return the overload that an op calls, or the reason why the op is left out."""
    if op.reason is not None:
        return op.reason.kind
    unread = {meta.dtype for meta in tensors_of(op)} - DTYPES.keys()
    spec = spec_of(op)
    if spec is not None and unread:
        return f"the file has no name for {', '.join(sorted(unread))}"
    return spec or "no schema here"


def input_configs(plan: ReplayPlan, strides: Strides = "stride=(1, 4)") -> Exported:
    """Return the export. It has every op of a plan whose overload this torch has, with its call counts."""
    calls_by_op: dict[str, Counter[str]] = {}
    left_out: dict[str, Counter[str]] = {}
    unsaid = 0
    for op in plan.ops:
        spec = _spec_or_why(op)
        if isinstance(spec, str):
            left_out.setdefault(spec, Counter())[op.name] += 1
            continue
        name = f"{spec.name.replace('::', '.')}.{spec.overload or 'default'}"
        calls_by_op.setdefault(name, Counter())[signature(op, spec, strides)] += op.count * (op.origin != MADE_UP)
        unsaid += any(meta.storage is not None or meta.storage_offset for meta in tensors_of(op))
    return Exported(
        ops={name: dict(counts.most_common()) for name, counts in calls_by_op.items()},
        left_out={reason: dict(names) for reason, names in left_out.items()},
        shared_memory_ops=unsaid,
    )


def json_text(exported: Exported) -> str:
    """Return the export as JSON: {op: {signature: calls}}."""
    return plain_json(msgspec.json.format(msgspec.json.encode(exported.ops), indent=2)).decode() + "\n"


def log_text(exported: Exported) -> str:
    """Return the export as text for PyTorch's operator benchmarks. Its lines are "Operator: ..." and "cnt: N,
    signature".
    """
    lines: list[str] = []
    for name, counts in exported.ops.items():
        lines += [f"Operator: {name}", *(f"cnt: {count}, {text}" for text, count in counts.items())]
    return "\n".join(lines) + "\n"


def signature(op: ReplayOp, spec: OpSpec, strides: Strides) -> str:
    """Return the inputs of one call: positional ones in a tuple, keyword-only ones in a dict."""
    arguments = {arg.name: arg for arg in op.args}
    by_place: list[str] = []
    positional = [arg for arg in spec.args if not arg.keyword_only]
    last = max((i for i, arg in enumerate(positional) if arg.name in arguments), default=-1)
    for arg in positional[: last + 1]:
        absent = ReplayArg(name=arg.name, type=arg.kind, value=arg.default)
        by_place.append(_argument(arguments.get(arg.name, absent), strides))
    by_name = [
        f"'{arg.name}': {_argument(arguments[arg.name], strides)}"
        for arg in spec.args
        if arg.keyword_only and arg.name in arguments
    ]
    places = f"({by_place[0]},)" if len(by_place) == 1 else f"({', '.join(by_place)})"
    return f"({places}, {{{', '.join(by_name)}}})"


def _argument(arg: ReplayArg, strides: Strides) -> str:
    if arg.type == "Tensor" and arg.value is None:
        return _tensor(arg.tensors[0] if arg.tensors else None, strides)
    if arg.type == "Tensor":
        return _plain("Scalar", arg.value if not isinstance(arg.value, tuple) else None)  # a number of Python's
    if arg.tensors:
        return f"[{', '.join(_tensor(meta, strides) for meta in arg.tensors)}]"
    if isinstance(arg.value, tuple):
        return f"[{', '.join(_plain(arg.type, item) for item in arg.value)}]"
    return _plain(arg.type, arg.value)


def _tensor(meta: TensorMeta | None, strides: Strides) -> str:
    if meta is None:
        return "None"
    usual = meta.strides is None or meta.strides == contiguous_strides(meta.shape)
    if usual or meta.strides is None:
        return f"T({list(meta.shape)}, {DTYPES[meta.dtype]})"
    stride = f"stride={meta.strides}" if strides == "stride=(1, 4)" else list(meta.strides)
    return f"T({list(meta.shape)}, {DTYPES[meta.dtype]}, {stride})"


def _plain(kind: str, value: PlainValue | tuple[PlainValue, ...]) -> str:
    if isinstance(value, tuple):
        return repr(list(value))
    base = kind.removesuffix("[]")
    if isinstance(value, str) and base == "ScalarType":
        return DTYPES.get(value.removeprefix("torch."), value)
    if isinstance(value, str) and base in ("Layout", "MemoryFormat"):
        return value
    if isinstance(value, str) and base in ("float", "Scalar", "complex"):
        if value in ("inf", "-inf", "nan"):
            return f"float('{value}')"
        return f"complex('{value}')" if "n" in value else value
    return repr(value)
