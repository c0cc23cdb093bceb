# pyright: strict
"""Checks that a plan is one: what every pass must keep and what a file must hold before anything is called.

Owns form, not policy: whether an op may run is asked again where it is resolved (`resolve.find_overload`).
"""

from __future__ import annotations

import math
import re

from opreplay.replay.collectives.model import MAX_ELEMENTS, MAX_PARTS, Collective
from opreplay.replay.ir.model import (
    MAX_CALLS,
    MAX_RANKS,
    SCHEMA_VERSION,
    RecordedKernel,
    RecordedSequence,
    ReplayArg,
    ReplayOp,
    ReplayPlan,
    Value,
)
from opreplay.replay.ir.names import split_name
from opreplay.traces.dtypes import ITEMSIZE_BYTES
from opreplay.traces.errors import FormatError
from opreplay.traces.limits import MAX_RANK
from opreplay.traces.model import TensorMeta

MAX_NAME = 4096
"""Characters of a recorded name."""
SCALAR_TYPES = frozenset(
    {
        "int",
        "float",
        "bool",
        "Scalar",
        "complex",
        "str",
        "ScalarType",
        "Layout",
        "Device",
        "MemoryFormat",
        "Generator",
        "opaque",
    }
)
LIST_TYPES = frozenset({"int[]", "float[]", "bool[]", "Scalar[]", "complex[]", "str[]"})
_ID = re.compile(r"[0-9a-f]{12}")
_NAMED = {
    "ScalarType": re.compile(r"torch\.\w+"),
    "Layout": re.compile(r"torch\.\w+"),
    "MemoryFormat": re.compile(r"torch\.\w+"),
    "Device": re.compile(r"[a-z]+(:\d{1,3})?"),
}


def verify(plan: ReplayPlan) -> None:
    """Raise FormatError, naming the op and the field, unless the plan is well-formed."""
    if plan.schema_version > SCHEMA_VERSION:
        raise FormatError(
            f"the plan has schema {plan.schema_version}; this opreplay reads up to {SCHEMA_VERSION}",
            hint="Update opreplay.",
        )
    _times("the plan", plan.device_us_total, plan.host_us_total, plan.unowned_device_us)
    seen: set[str] = set()
    for op in plan.ops:
        where = f"op {op.id!r} ({op.name[:80]})"
        if not _ID.fullmatch(op.id):
            raise FormatError(f"{where}: an id has 12 hex digits")
        if op.id in seen:
            raise FormatError(f"{where}: the id occurs twice")
        seen.add(op.id)
        _verify_op(where, op)
    if plan.sequence is not None:
        _verify_sequence(plan.sequence)


def _verify_sequence(sequence: RecordedSequence) -> None:
    calls = len(sequence.calls)
    if calls > MAX_CALLS:
        raise FormatError(f"the sequence has {calls} calls, limit {MAX_CALLS}")
    if len(sequence.host_us) != calls or len(sequence.device_us) not in (0, calls):
        raise FormatError("the sequence has not one recorded time a call")
    if len(sequence.memories) not in (0, calls):
        raise FormatError("the sequence has not the memories of each call")
    if any(len(each) not in (0, calls) for each in (sequence.phases, sequence.modules)):
        raise FormatError("the sequence has not the phase and the module of each call")
    if any(not -1 <= index < len(sequence.module_names) for index in sequence.modules):
        raise FormatError("a call of the sequence is of no module that it names")
    if any(not 0 <= index < len(sequence.ids) for index in sequence.calls):
        raise FormatError("a call of the sequence is of no op that it names")
    if len(sequence.collectives) > MAX_CALLS or any(
        not 0 <= one.at <= one.wait <= calls for one in sequence.collectives
    ):
        raise FormatError("a collective of the sequence is not at a place of it")
    _times("a collective of the sequence", *(us for one in sequence.collectives for us in (one.us, one.op_us)))
    if len(set(sequence.ids)) != len(sequence.ids):
        raise FormatError("the sequence names an op twice")
    totals = (sequence.dur_us, sequence.device_us_total, sequence.unowned_device_us, sequence.host_us_total)
    _times("the sequence", *totals, *sequence.host_us, *sequence.device_us)


def _verify_op(where: str, op: ReplayOp) -> None:
    if not op.name or len(op.name) > MAX_NAME:
        raise FormatError(f"{where}: a name has 1 to {MAX_NAME} characters")
    if op.count < 1:
        raise FormatError(f"{where}: count {op.count}")
    if op.ranks is not None and not 1 <= op.ranks <= MAX_RANKS:
        raise FormatError(f"{where}: a collective of {op.ranks} ranks, limit {MAX_RANKS}")
    recorded = op.recorded
    _times(where, recorded.host_us_total, recorded.host_us_median, recorded.device_us_total)
    _times(where, recorded.device_us_median or 0.0, *(_kernel_time(where, kernel) for kernel in recorded.kernels))
    # Both may be set: a reason found after resolving, such as a budget, leaves resolved_by.
    if op.reason is None and op.resolved_by is None:
        raise FormatError(f"{where}: neither resolved nor a reason why not")
    if op.collective is not None:
        _verify_collective(where, op.collective)
    elif op.resolved_by is not None and split_name(op.name) is None:
        raise FormatError(f"{where}: resolved, but its name is not namespace::op")
    names = [arg.name for arg in op.args]
    if len(set(names)) != len(names):
        raise FormatError(f"{where}: two arguments of one name")
    keyword_only = [arg.keyword_only for arg in op.args]
    if keyword_only != sorted(keyword_only):
        raise FormatError(f"{where}: a positional argument after a keyword-only one")
    for arg in op.args:
        verify_argument(f"{where}, argument {arg.name!r}", arg)
    for meta in (*(op.outputs or ()), *(op.recorded_outputs or ())):
        if meta is not None:
            _verify_tensor(f"{where}, outputs", meta)


def _verify_collective(where: str, one: Collective) -> None:
    sizes = (one.in_elements, one.out_elements, *one.in_splits, *one.out_splits, *one.parts)
    if any(not 0 <= n <= MAX_ELEMENTS for n in sizes):
        raise FormatError(f"{where}: a collective of {max(sizes)} elements, limit {MAX_ELEMENTS}")
    if one.dtype not in ITEMSIZE_BYTES:
        raise FormatError(f"{where}: dtype {one.dtype!r} is not known")
    places = (*one.group_ranks, one.rank or 0, one.root or 0, one.source or 0, one.target or 0)
    if any(not 0 <= n <= MAX_RANKS for n in places):
        raise FormatError(f"{where}: a rank beyond {MAX_RANKS}")
    lists = (one.in_splits, one.out_splits, one.parts, one.group_ranks)
    if max(map(len, lists)) > MAX_PARTS:
        raise FormatError(f"{where}: a collective of more than {MAX_PARTS} parts")
    if one.group_size is not None and not 1 <= one.group_size <= MAX_RANKS:
        raise FormatError(f"{where}: a group of {one.group_size} ranks, limit {MAX_RANKS}")
    for total, splits in ((one.in_elements, one.in_splits), (one.out_elements, one.out_splits)):
        if splits and sum(splits) != total:
            raise FormatError(f"{where}: splits of {sum(splits)} elements in a message of {total}")


def _kernel_time(where: str, kernel: RecordedKernel) -> float:
    if kernel.count < 1:
        raise FormatError(f"{where}: a kernel with count {kernel.count}")
    return kernel.total_us


def _times(where: str, *values: float) -> None:
    if not all(math.isfinite(value) and value >= 0 for value in values):
        raise FormatError(f"{where}: a time is negative or not finite")


def verify_argument(where: str, arg: ReplayArg) -> None:
    """Raise FormatError, which begins with `where`, unless type, tensors and value of one argument fit each other."""
    if not arg.name.isidentifier():
        raise FormatError(f"{where}: not a name")
    if arg.type in ("Tensor", "Tensor[]"):
        if arg.type == "Tensor" and (len(arg.tensors) > 1 or not _is_wrapped(arg)):
            raise FormatError(f"{where}: a Tensor has at most one tensor, and a value where it is a number's")
        if arg.type == "Tensor[]" and (arg.value not in (None, ()) or (arg.tensors and arg.value == ())):
            raise FormatError(f"{where}: a Tensor[] has tensors, or () as value where it is empty")
        for meta in arg.tensors:
            if meta is not None:
                _verify_tensor(where, meta)
        return
    if arg.tensors:
        raise FormatError(f"{where}: tensors in an argument of type {arg.type}")
    if arg.type in LIST_TYPES:
        if arg.value is not None and not isinstance(arg.value, tuple):
            raise FormatError(f"{where}: {arg.type} needs a list")
        for item in arg.value or ():
            _verify_value(where, arg.type[:-2], item)
    elif arg.type in SCALAR_TYPES:
        if isinstance(arg.value, tuple):
            raise FormatError(f"{where}: {arg.type} is no list")
        _verify_value(where, arg.type, arg.value)
    else:
        raise FormatError(f"{where}: type {arg.type!r} is not known")


def _is_wrapped(arg: ReplayArg) -> bool:
    """Whether the value of a tensor argument is that of the number which torch makes a 0-dim tensor of, or none."""
    if arg.value is None:
        return True
    meta = arg.tensors[0] if arg.tensors else None
    return meta is not None and meta.shape == () and _fits_scalar(arg.value)


def _verify_value(where: str, kind: str, value: Value) -> None:
    """One plain value against its type."""
    if value is None:
        return
    pattern = _NAMED.get(kind)
    fits = {
        "int": isinstance(value, int) and not isinstance(value, bool),
        "bool": isinstance(value, bool),
        "float": _is_number(value),
        "Scalar": _fits_scalar(value),
        "complex": _is_number(value) or _is_complex(value),
        "str": isinstance(value, str),
        "Generator": False,
        "opaque": False,
    }.get(kind, pattern is not None and isinstance(value, str) and bool(pattern.fullmatch(value)))
    if not fits:
        raise FormatError(f"{where}: {value!r} is no {kind}")


def _fits_scalar(value: Value) -> bool:
    return isinstance(value, bool) or _is_number(value) or _is_complex(value)


def _is_number(value: Value) -> bool:
    if isinstance(value, str):
        return value in ("inf", "-inf", "nan")
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_complex(value: Value) -> bool:
    if not isinstance(value, str):
        return False
    try:
        complex(value)
    except ValueError:
        return False
    return True


def _verify_tensor(where: str, meta: TensorMeta) -> None:
    if meta.dtype not in ITEMSIZE_BYTES:
        raise FormatError(f"{where}: dtype {meta.dtype!r} is not known")
    if len(meta.shape) > MAX_RANK:
        raise FormatError(f"{where}: {len(meta.shape)} dimensions, limit {MAX_RANK}")
    if meta.strides is not None and len(meta.strides) != len(meta.shape):
        raise FormatError(f"{where}: strides {meta.strides} do not fit shape {meta.shape}")
    if any(not 0 <= n < 2**63 for n in (*meta.shape, *(meta.strides or ()), meta.storage_offset, meta.storage or 0)):
        raise FormatError(f"{where}: a size, stride or offset is negative or beyond 64 bits")
