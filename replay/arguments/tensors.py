# pyright: strict
"""Allocate tensors from recorded metadata, with the recorded strides. Convert recorded scalars to torch values.

A fresh tensor's contents are undefined until an initializer fills it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any, cast

import torch

from opreplay.initializers.base import InitContext
from opreplay.replay.ir import shared_memory as aliasing
from opreplay.replay.ir import sizes as budget
from opreplay.replay.ir.model import Reason, ReplayArg, ReplayOp, Value
from opreplay.replay.ir.reasons import NotReplayable
from opreplay.traces.dtypes import ITEMSIZE_BYTES, QUANTIZED
from opreplay.traces.limits import MAX_RANK
from opreplay.traces.model import TensorMeta, contiguous_strides

DTYPES: dict[str, torch.dtype] = {
    name: found for name in ITEMSIZE_BYTES if isinstance(found := getattr(torch, name, None), torch.dtype)
}
_LAYOUTS = ("strided", "sparse_coo", "sparse_csr", "sparse_csc", "sparse_bsr", "sparse_bsc")
_MEMORY_FORMATS = ("contiguous_format", "channels_last", "channels_last_3d", "preserve_format")
NAMED_VALUES: dict[str, Any] = {
    **{f"torch.{name}": dtype for name, dtype in DTYPES.items()},
    **{f"torch.{name}": getattr(torch, name) for name in (*_LAYOUTS, *_MEMORY_FORMATS)},
}
"""Torch objects that a plan may name: dtypes, layouts and memory formats. Other names are refused and never
looked up.
"""
NON_FINITE = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}


def allocate(
    meta: TensorMeta, *, device: torch.device, base_elements: int = 0, memory: torch.UntypedStorage | None = None
) -> torch.Tensor:
    """Return an uninitialised tensor of the given shape, dtype, strides and storage offset.

    The tensor is placed in `memory` if that is given, otherwise in its own storage of at least `base_elements`.
    Expanded (stride 0) and overlapping tensors share storage as recorded. They may therefore need far less memory than
    their shape suggests. The caller checks budgets.

    Raises NotReplayable for impossible metadata and for a tensor that reaches beyond `memory`.
    """
    dtype = DTYPES.get(meta.dtype)
    if dtype is None:
        raise NotReplayable(Reason("failed", f"torch {torch.__version__} does not know dtype {meta.dtype}"))
    if meta.dtype in QUANTIZED:
        raise NotReplayable(Reason("metadata missing", f"the scale of a quantized tensor ({meta.dtype}) is unknown"))
    _check(meta)
    if memory is None:
        elements = max(budget.extent(meta), base_elements)
        memory = torch.empty(elements, dtype=dtype, device=device).untyped_storage()
    elif aliasing.reach_bytes(meta) > memory.nbytes():
        raise NotReplayable(Reason("failed", "arguments that share memory do not fit into one storage"))
    strides = meta.strides if meta.strides is not None else contiguous_strides(meta.shape)
    offset = meta.storage_offset if memory.nbytes() else 0
    # No view of another tensor: ops such as detach_ refuse views.
    return torch.empty(0, dtype=dtype, device=device).set_(memory, offset, meta.shape, strides)


def arguments(op: ReplayOp, *, device: torch.device) -> dict[str, Any]:
    """Return the arguments of an op by name, with uninitialised tensors. Raises NotReplayable.

    Arguments that share memory in the plan share it here, too.
    """
    first = budget.base_elements(op)
    memories = shared_memories(op, device=device)
    return {arg.name: _argument(arg, device, first if i == 0 else 0, memories) for i, arg in enumerate(op.args)}


def shared_memories(op: ReplayOp, *, device: torch.device) -> dict[int, torch.UntypedStorage]:
    """Allocate one storage for each memory that several arguments share.

    It is large enough for the argument that reaches furthest.

    Raises NotReplayable for impossible metadata.
    """
    storages: dict[int, torch.UntypedStorage] = {}
    base = next((meta for arg in op.args[:1] for meta in arg.tensors), None)
    for number, members in aliasing.groups(op.args).items():
        for _, meta in members:
            _check(meta)
        reach = max(aliasing.reach_bytes(meta) for _, meta in members)
        if base is not None and base.storage == number:
            reach = max(reach, budget.base_elements(op) * budget.itemsize(base.dtype))
        storages[number] = torch.empty(reach, dtype=torch.uint8, device=device).untyped_storage()
    return storages


def _argument(
    arg: ReplayArg, device: torch.device, base_elements: int, memories: dict[int, torch.UntypedStorage]
) -> Any:
    def one(meta: TensorMeta) -> torch.Tensor:
        memory = None if meta.storage is None else memories[meta.storage]
        return allocate(meta, device=device, base_elements=base_elements, memory=memory)

    if arg.type == "Tensor" and arg.tensors:
        return None if arg.tensors[0] is None else one(arg.tensors[0])
    if arg.type == "Tensor[]" and (arg.tensors or arg.value is None):
        return [None if meta is None else one(meta) for meta in arg.tensors] if arg.tensors else None
    return scalar_value(arg, device=device)


def wrapped_number(arg: ReplayArg) -> bool | int | float | complex:
    """Return the Python number, in its recorded type, of an argument that an op takes as a zero-dimensional tensor."""
    meta = arg.tensors[0] if arg.tensors else None
    kinds: dict[str, Any] = {"bool": bool, "int64": int, "float64": float}
    return kinds.get("" if meta is None else meta.dtype, complex)(arg.value)


def scalar_value(arg: ReplayArg, *, device: torch.device) -> Any:
    """Return the Python or torch value of an argument without tensors. See `opreplay.replay.ir.model.ReplayArg.value`.

    Devices are replaced by the replay device. Only "cpu" is kept, because a copy to the host must stay a copy to the
    host. Raises NotReplayable for a name that is not in `NAMED_VALUES`.
    """
    kind = arg.type.removesuffix("[]")
    if isinstance(arg.value, tuple):
        return [_one_value(kind, arg.name, item, device) for item in arg.value]
    return _one_value(kind, arg.name, arg.value, device)


def _one_value(kind: str, name: str, value: Value, device: torch.device) -> Any:
    if isinstance(value, tuple):
        return [_one_value(kind, name, item, device) for item in value]
    if not isinstance(value, str):
        return float(value) if kind == "float" and type(value) is int else value
    if kind == "str":
        return value
    if kind == "Device":
        return torch.device("cpu") if value.startswith("cpu") else device
    if kind in ("ScalarType", "Layout", "MemoryFormat"):
        if value not in NAMED_VALUES:
            raise NotReplayable(Reason("policy", f"argument {name} has the unsupported value {value!r}"))
        return NAMED_VALUES[value]
    return _number_of(kind, name, value)


def _number_of(kind: str, name: str, value: str) -> float | complex:
    """Parse a number that JSON cannot represent (infinity, NaN, complex). Raises NotReplayable."""
    if value in NON_FINITE:
        return NON_FINITE[value]
    try:
        return complex(value)
    except ValueError:
        raise NotReplayable(
            Reason("metadata missing", f"argument {name}: {value!r} is not of type {arg_kind(kind)}")
        ) from None


def arg_kind(kind: str) -> str:
    """Return a schema type's name as messages show it."""
    return {"Scalar": "number", "int": "whole number", "float": "number"}.get(kind, kind)


def _check(meta: TensorMeta) -> None:
    """Raise NotReplayable for metadata that torch would refuse, with a clear reason instead of torch's exception."""
    if len(meta.shape) > MAX_RANK:
        raise NotReplayable(
            Reason("metadata missing", f"a tensor has {len(meta.shape)} dimensions, over the limit of {MAX_RANK}")
        )
    if meta.strides is not None and len(meta.strides) != len(meta.shape):
        raise NotReplayable(Reason("metadata missing", f"strides {meta.strides} do not fit shape {meta.shape}"))
    if any(n < 0 for n in (*meta.shape, *(meta.strides or ()), meta.storage_offset)):
        raise NotReplayable(Reason("metadata missing", f"negative size, stride or offset in {meta.shape}"))


def seed_of(op: ReplayOp, seed: int) -> int:
    """Return the seed of one op. It depends on the run's seed and the op's id, but not on the rest of the plan."""
    return int.from_bytes(blake2b(f"{seed}:{op.id}".encode(), digest_size=7).digest(), "little")


def init_context(
    op: ReplayOp, args: Mapping[str, Any], seed: int, *, name: str, device: torch.device | None = None
) -> InitContext:
    """Return the context that an initializer gets for a call.

    `seed` is the run's seed, `name` the op's name, `device` the device of the tensors.
    """
    op_seed = seed_of(op, seed)
    return InitContext(
        op=name,
        args=args,
        metas={arg.name: arg.tensors for arg in op.args if arg.tensors},
        generator=torch.Generator(device=device or "cpu").manual_seed(op_seed),
        seed=op_seed,
        outputs=op.outputs,
        batch=op.batch,
        run_seed=seed,
        keyword_only=frozenset(arg.name for arg in op.args if arg.keyword_only),
    )


def flattened(returned: Any) -> Iterable[Any]:
    """Yield the results of a call one by one; expands lists and tuples and skips None."""
    if isinstance(returned, list | tuple):
        items = cast("Sequence[Any]", returned)
        for item in items:
            yield from flattened(item)
    elif returned is not None:
        yield returned


def tensors_in(values: object) -> list[torch.Tensor]:
    """Return the tensors among values, including those in lists and tuples."""
    return [item for item in flattened(values) if isinstance(item, torch.Tensor)]
