# pyright: strict
"""Checks that a plan is well-formed.

Every pass must keep the plan well-formed. A plan file is checked before any op is called. This module checks form, not
policy: whether an op may run is checked again when the op is resolved (`resolve.find_overload`).
"""

from __future__ import annotations

import itertools
import math
import re

from opreplay.replay.collectives.model import MAX_ELEMENTS, MAX_PARTS, Collective
from opreplay.replay.ir.model import (
    MAX_CALLS,
    MAX_RANKS,
    SCHEMA_VERSION,
    RecordedSequence,
    ReplayArg,
    ReplayOp,
    ReplayPlan,
    Value,
)
from opreplay.replay.ir.names import is_overload, split_name
from opreplay.traces.dtypes import ITEMSIZE_BYTES
from opreplay.traces.errors import FormatError
from opreplay.traces.limits import MAX_RANK
from opreplay.traces.model import TensorMeta

MAX_NAME = 4096
"""Maximum number of characters in a recorded name."""
_ID = re.compile(r"[0-9a-f]{12}")
_NAMED = {
    "ScalarType": re.compile(r"torch\.\w+"),
    "Layout": re.compile(r"torch\.\w+"),
    "MemoryFormat": re.compile(r"torch\.\w+"),
    "Device": re.compile(r"[a-z]+(:\d{1,3})?"),
}
_PLAIN = frozenset({"int", "float", "bool", "Scalar", "complex", "str"})
SCALAR_TYPES = _PLAIN | {*_NAMED, "Generator", "opaque"}
LIST_TYPES = frozenset(f"{kind}[]" for kind in _PLAIN)


def verify(plan: ReplayPlan) -> None:
    """Raise FormatError, naming the op and the field, unless the plan is well-formed."""
    if plan.schema_version > SCHEMA_VERSION:
        raise FormatError(
            f"the plan has schema {plan.schema_version}, but this opreplay reads up to {SCHEMA_VERSION}",
            hint="Update opreplay.",
        )
    _times("the plan", plan.device_us_total, plan.host_us_total, plan.unowned_device_us)
    seen: set[str] = set()
    for op in plan.ops:
        where = f"op {op.id!r} ({op.name[:80]})"
        _need(_ID.fullmatch(op.id) is not None, where, "an id must have 12 hex digits")
        _need(op.id not in seen, where, "the id occurs twice")
        seen.add(op.id)
        _verify_op(where, op)
    if plan.sequence is not None:
        _verify_sequence(plan.sequence)


def _need(is_right: bool, where: str, fault: str) -> None:
    if not is_right:
        raise FormatError(f"{where}: {fault}")


def _verify_sequence(sequence: RecordedSequence) -> None:
    calls, collectives = len(sequence.calls), sequence.collectives
    checks = {
        f"the sequence has {calls} calls, over the limit of {MAX_CALLS}": calls <= MAX_CALLS,
        "the sequence does not have one recorded time per call": (
            len(sequence.host_us) == calls and len(sequence.device_us) in (0, calls)
        ),
        "the sequence does not give the memories of every call": len(sequence.memories) in (0, calls),
        "the sequence does not give phase and module of every call": (
            {len(sequence.phases), len(sequence.modules)} <= {0, calls}
        ),
        "a call of the sequence refers to a module that it does not list": (
            all(-1 <= index < len(sequence.module_names) for index in sequence.modules)
        ),
        "a call of the sequence refers to an op that it does not list": (
            all(0 <= index < len(sequence.ids) for index in sequence.calls)
        ),
        "a collective has a position outside the sequence": (
            len(collectives) <= MAX_CALLS and all(0 <= call.at <= call.wait <= calls for call in collectives)
        ),
        "the sequence lists an op twice": len(set(sequence.ids)) == len(sequence.ids),
    }
    for fault, is_right in checks.items():
        if not is_right:
            raise FormatError(fault)
    _times("a collective of the sequence", *(us for call in collectives for us in (call.us, call.op_us)))
    totals = (sequence.dur_us, sequence.device_us_total, sequence.unowned_device_us, sequence.host_us_total)
    _times("the sequence", *totals, *sequence.host_us, *sequence.device_us)


def _verify_op(where: str, op: ReplayOp) -> None:
    _need(0 < len(op.name) <= MAX_NAME, where, f"a name must have 1 to {MAX_NAME} characters")
    _need(op.count >= 1, where, f"count {op.count}")
    _need(op.overload is None or is_overload(op.overload), where, "the overload is not a single word")
    is_called_by_name = op.via is None or op.resolved_by == "equivalent" or split_name(op.via) is not None
    _need(is_called_by_name, where, "the op that it calls is not in the form namespace::op")
    ranks_fit = op.ranks is None or 1 <= op.ranks <= MAX_RANKS
    _need(ranks_fit, where, f"a collective has {op.ranks} ranks instead of 1 to {MAX_RANKS}")
    recorded = op.recorded
    for kernel in recorded.kernels:
        _need(kernel.count >= 1, where, f"a kernel has count {kernel.count} instead of 1 or more")
    totals = (recorded.host_us_total, recorded.host_us_median, recorded.device_us_total)
    _times(where, *totals, recorded.device_us_median or 0.0, *(kernel.total_us for kernel in recorded.kernels))
    # Both may be set: a reason found after resolving, such as a budget, leaves resolved_by.
    is_resolved = op.resolved_by is not None
    _need(is_resolved or op.reason is not None, where, "the op has neither a resolution nor a reason")
    if op.collective is not None:
        _verify_collective(where, op.collective)
    else:
        is_named = not is_resolved or split_name(op.name) is not None
        _need(is_named, where, "the op is resolved, but its name is not in the form namespace::op")
    verify_arguments(where, op)
    for meta in filter(None, (*(op.outputs or ()), *(op.recorded_outputs or ()))):
        _verify_tensor(f"{where}, outputs", meta)


def verify_arguments(where: str, op: ReplayOp) -> None:
    """Raise FormatError, with a message starting with `where`, unless an op's arguments and their order are valid."""
    _need(len({arg.name for arg in op.args}) == len(op.args), where, "two arguments have the same name")
    keyword_only = [arg.keyword_only for arg in op.args]
    _need(keyword_only == sorted(keyword_only), where, "a positional argument follows a keyword-only one")
    for arg in op.args:
        verify_argument(f"{where}, argument {arg.name!r}", arg)


def _verify_collective(where: str, collective: Collective) -> None:
    lists = (collective.in_splits, collective.out_splits, collective.parts)
    sizes = (collective.in_elements, collective.out_elements, *itertools.chain(*lists))
    wrong = next((n for n in sizes if not 0 <= n <= MAX_ELEMENTS), 0)
    _need(not wrong, where, f"a collective has {wrong} elements, which are not in 0..{MAX_ELEMENTS}")
    _need(collective.dtype in ITEMSIZE_BYTES, where, f"dtype {collective.dtype!r} is unknown")
    ranks = (collective.rank, collective.root, collective.source, collective.target, *collective.group_ranks)
    _need(all(0 <= n <= MAX_RANKS for n in ranks if n is not None), where, f"a rank is not in 0..{MAX_RANKS}")
    parts_fit = max(map(len, (*lists, collective.group_ranks))) <= MAX_PARTS
    _need(parts_fit, where, f"a collective has more than {MAX_PARTS} parts")
    size = collective.group_size
    _need(size is None or 1 <= size <= MAX_RANKS, where, f"a group has {size} ranks instead of 1 to {MAX_RANKS}")
    for total, splits in zip(sizes[:2], lists[:2], strict=True):
        splits_fit = not splits or sum(splits) == total
        _need(splits_fit, where, f"the splits have {sum(splits)} elements, but the message has {total}")


def _times(where: str, *values: float) -> None:
    times_fit = all(math.isfinite(value) and value >= 0 for value in values)
    _need(times_fit, where, "a time is negative or not finite")


def verify_argument(where: str, arg: ReplayArg) -> None:
    """Raise FormatError, with a message that begins with `where`, unless an argument's type, tensors and
    value match.
    """
    _need(arg.name.isidentifier(), where, "not a name")
    if arg.type in ("Tensor", "Tensor[]"):
        _verify_tensors(where, arg)
        return
    _need(not arg.tensors, where, f"an argument of type {arg.type} contains tensors")
    if arg.type in LIST_TYPES:
        _need(arg.value is None or isinstance(arg.value, tuple), where, f"the value of {arg.type} must be a list")
    else:
        _need(arg.type in SCALAR_TYPES, where, f"type {arg.type!r} is unknown")
        _need(not isinstance(arg.value, tuple), where, f"the value of {arg.type} must not be a list")
    for item in arg.value if isinstance(arg.value, tuple) else (arg.value,):
        kind = arg.type.removesuffix("[]")
        _need(item is None or _fits(kind, item), where, f"{item!r} is not of type {kind}")


def _verify_tensors(where: str, arg: ReplayArg) -> None:
    if arg.type == "Tensor":
        is_single = len(arg.tensors) <= 1 and _is_wrapped(arg)
        _need(is_single, where, "a Tensor needs at most one tensor, and a value only if it is a number")
    else:
        is_list = arg.value is None or (arg.value == () and not arg.tensors)
        _need(is_list, where, "a Tensor[] needs tensors, or () as its value if it is empty")
    for meta in filter(None, arg.tensors):
        _verify_tensor(where, meta)


def _is_wrapped(arg: ReplayArg) -> bool:
    """Check whether the value of a tensor argument is None, or a number that torch wraps as a 0-dim tensor."""
    if arg.value is None:
        return True
    meta = arg.tensors[0] if arg.tensors else None
    return meta is not None and meta.shape == () and _fits("Scalar", arg.value)


def _fits(kind: str, value: Value) -> bool:
    """Check whether a plain value matches the argument type `kind`."""
    pattern = _NAMED.get(kind)
    is_bool = isinstance(value, bool)
    return {
        "int": isinstance(value, int) and not is_bool,
        "bool": is_bool,
        "float": _is_number(value),
        "Scalar": is_bool or _is_number(value) or _is_complex(value),
        "complex": _is_number(value) or _is_complex(value),
        "str": isinstance(value, str),
    }.get(kind, pattern is not None and isinstance(value, str) and bool(pattern.fullmatch(value)))


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
    _need(meta.dtype in ITEMSIZE_BYTES, where, f"dtype {meta.dtype!r} is unknown")
    _need(
        len(meta.shape) <= MAX_RANK, where, f"a tensor has {len(meta.shape)} dimensions, over the limit of {MAX_RANK}"
    )
    strides_fit = meta.strides is None or len(meta.strides) == len(meta.shape)
    _need(strides_fit, where, f"strides {meta.strides} do not fit shape {meta.shape}")
    numbers = (*meta.shape, *(meta.strides or ()), meta.storage_offset, meta.storage or 0)
    numbers_fit = all(0 <= n < 2**63 for n in numbers)
    _need(numbers_fit, where, "a size, stride or offset is negative or needs more than 64 bits")
