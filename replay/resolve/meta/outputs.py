# pyright: strict
"""Derives shapes and dtypes of an op's results from a call on meta tensors.

Nothing is allocated or computed. A composite recurrent op takes milliseconds per time step. It is therefore run on a
short sequence, and the results are extended.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import msgspec
import torch

from opreplay.replay.arguments.tensors import DTYPES, allocate, flattened, scalar_value, shared_memories
from opreplay.replay.ir.model import Reason, ReplayArg, ReplayOp, ReplayPlan
from opreplay.replay.ir.reasons import NotReplayable
from opreplay.replay.ir.sizes import ABSURD, absurd_results, flood, refuse_floods
from opreplay.replay.resolve.guess.indices import with_numbers
from opreplay.replay.resolve.meta import forked
from opreplay.replay.resolve.meta.misfits import refuse_misfits
from opreplay.replay.resolve.meta.refusals import refused_sizes
from opreplay.replay.resolve.names import find_overload
from opreplay.replay.resolve.policy import Policy
from opreplay.replay.resolve.schema import specs_of
from opreplay.replay.resolve.user.executors import EXECUTORS
from opreplay.traces.limits import MAX_RANK
from opreplay.traces.model import TensorMeta

MAX_RESULTS = 4096
_META = torch.device("meta")
_DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}
Results = tuple[TensorMeta | None, ...]
"""Results of one call, with lists flattened and None for a result that is not a tensor; at most `MAX_RESULTS`."""
_RESULTS = msgspec.msgpack.Decoder(Results | Reason | None)
RECURRENT = frozenset(
    {
        "aten::lstm",
        "aten::gru",
        "aten::rnn_tanh",
        "aten::rnn_relu",
        "aten::quantized_lstm",
        "aten::quantized_gru",
        "aten::_cudnn_rnn",
        "aten::miopen_rnn",
    }
)
"""Ops whose first argument and first result are sequences of equal length."""
STEPS = 2
"""Number of time steps for which a recurrent op is run. It is two, so that one step's result is the next
one's input.
"""
_OVERFLOW = ("calculation overflowed", "integer multiplication overflow")
"""Parts of torch's error messages for more elements or bytes than 64 bits can count."""


def with_outputs(plan: ReplayPlan, *, policy: Policy | None = None) -> ReplayPlan:
    """Fill in `outputs` of a plan's ops from calls on meta tensors.

    If a call does not show the outputs, they stay None. If no device accepts an op's combination of sizes, this becomes
    the op's reason. Two limits exist because a plan may come from a file that has not been checked. Ops with too many
    results are stopped before the calls. Ops with results larger than any memory are stopped after the calls, because
    sizes may come from arguments that are not tensors (`zeros([2**40, 2**40])`).
    """
    chosen = Policy() if policy is None else policy
    plan = refuse_floods(plan)
    unknown = [op for op in plan.ops if op.reason is None and op.resolved_by is not None and op.outputs is None]
    results: dict[int, Results | Reason | None] = {}
    for op, answer in zip(unknown, forked.each(_encoded_outputs, unknown, chosen), strict=True):
        results[id(op)] = None if isinstance(answer, Reason) else _RESULTS.decode(answer)
    return msgspec.structs.replace(plan, ops=tuple(_with_outputs(op, results.get(id(op))) for op in plan.ops))


def _with_outputs(op: ReplayOp, results: Results | Reason | None) -> ReplayOp:
    if isinstance(results, Reason):
        return msgspec.structs.replace(op, reason=results)
    if results is not None:
        op = msgspec.structs.replace(op, outputs=results)
    reason = absurd_results(op) if op.reason is None else None
    return op if reason is None else msgspec.structs.replace(op, reason=reason, outputs=None)


@forked.function
def _encoded_outputs(op: ReplayOp, policy: Policy) -> bytes:
    results: Results | Reason | None = None
    try:
        results = meta_outputs(op, policy)
    except Exception as error:  # decompositions in Python raise anything for arguments that do not fit
        if any(text in str(error) for text in _OVERFLOW):
            results = Reason("metadata missing", f"{ABSURD}: a result exceeds 2^63 elements")
        else:
            results = refused_sizes(op, error)
    return msgspec.msgpack.encode(results)


class MetaCall(msgspec.Struct, frozen=True, kw_only=True):
    """Arguments and results of one call on meta tensors."""

    arguments: dict[str, Any]
    """Arguments by name, as they are after the call."""
    results: Results


def meta_outputs(op: ReplayOp, policy: Policy) -> Results:
    """Return the results of one op on meta tensors. Raises what the meta kernel raises, and may hang; see `forked`."""
    return call_on_meta(op, policy).results


def call_on_meta(op: ReplayOp, policy: Policy) -> MetaCall:
    """Call an op of a plan on meta tensors; a recurrent op is called on a short sequence.

    Raises what the meta kernel raises. The call may hang or crash, as torch does for some arguments. Run ops of unknown
    origin in `forked`.
    """
    if (reason := flood(op)) is not None:
        raise NotReplayable(reason)
    refuse_misfits(op)
    whole = with_numbers(op)
    op = shorten_steps(whole)
    arguments = _arguments(op)
    positional, by_name = op.in_call(arguments)
    if _is_factory(op) and "device" not in by_name and _takes_device(op):
        by_name["device"] = _META
    with torch.no_grad():
        returned = _call(op, policy, positional, by_name)
    results = tuple(_meta_of(result) for result in flattened(returned))[:MAX_RESULTS]
    return MetaCall(arguments=arguments, results=results if op is whole else lengthen_results(whole, results))


def _is_factory(op: ReplayOp) -> bool:
    return not any(arg.tensors for arg in op.args)


def _arguments(op: ReplayOp) -> dict[str, Any]:
    """Return the arguments by name, as meta tensors. An `out=` tensor is empty, so that the call gives it the size of
    the result.
    """
    is_factory, memories = _is_factory(op), shared_memories(op, device=_META)
    arguments = {arg.name: _argument(arg, is_factory, memories) for arg in op.args}
    for arg in op.args:
        if is_torch_out(op, arg) and arguments[arg.name] is not None:
            arguments[arg.name] = torch.empty(0, dtype=arguments[arg.name].dtype, device=_META)
    return arguments


def is_torch_out(op: ReplayOp, arg: ReplayArg) -> bool:
    """Check whether torch resizes this argument to the result: an `out=` of ATen, but not a buffer of a vendor op."""
    return arg.mutated and arg.keyword_only and arg.type == "Tensor" and op.called.startswith("aten::")


def _takes_device(op: ReplayOp) -> bool:
    specs = specs_of(op.called.partition(".")[0])
    return any(spec.overload == op.overload and any(arg.name == "device" for arg in spec.args) for spec in specs)


def _call(op: ReplayOp, policy: Policy, positional: list[Any], by_name: dict[str, Any]) -> Any:
    """Call the meta kernel of the recorded op itself, if it has one. This is done even if an equivalent will be
    replayed.
    """
    if op.resolved_by == "equivalent" and op.name.startswith("aten::"):
        with suppress(Exception):
            native = msgspec.structs.replace(op, resolved_by="jit", via=None)
            return find_overload(native, policy)(*positional, **by_name)
    if op.resolved_by == "executor":
        return _call_fake(op, positional, by_name)
    if op.resolved_by == "python function":
        raise NotReplayable(Reason("metadata missing", f"shapes of the results: {op.called} has no schema"))
    return find_overload(op, policy)(*positional, **by_name)


def _call_fake(op: ReplayOp, positional: list[Any], by_name: dict[str, Any]) -> Any:
    """Call the `fake` of a user's callable.

    The callable itself never gets meta tensors, because it may access a tensor's memory.
    """
    entry = EXECUTORS.find(op.called)
    if entry is None or entry.fake is None:
        raise NotReplayable(
            Reason("metadata missing", f"shapes of the results: the executor of {op.called} has no fake function")
        )
    try:
        return entry.fake(*positional, **by_name)
    except Exception as error:  # user code may raise anything
        raise NotReplayable(Reason("failed", f"fake of {entry.shown}: {type(error).__name__}: {error}")) from error


def _argument(arg: ReplayArg, is_factory: bool, memories: dict[int, torch.UntypedStorage]) -> Any:
    if arg.tensors:
        tensors = [None if meta is None else _empty(meta, memories) for meta in arg.tensors]
        return tensors[0] if arg.type == "Tensor" else tensors
    value = scalar_value(arg, device=_META)
    # A factory would allocate for real on the CPU; a pinned allocation needs a driver.
    if arg.type == "Device":
        return _META if is_factory or arg.value is not None else None
    return False if arg.name == "pin_memory" and value else value


def _empty(meta: TensorMeta, memories: dict[int, torch.UntypedStorage]) -> torch.Tensor:
    if meta.storage is not None:
        return allocate(meta, device=_META, memory=memories[meta.storage])
    dtype = DTYPES.get(meta.dtype)
    if dtype is None or len(meta.shape) > MAX_RANK or any(n < 0 for n in meta.shape):
        raise ValueError(f"a tensor cannot be {meta}")
    if meta.strides is None or len(meta.strides) != len(meta.shape) or any(n < 0 for n in meta.strides):
        return torch.empty(meta.shape, dtype=dtype, device=_META)
    return torch.empty_strided(meta.shape, meta.strides, dtype=dtype, device=_META)


def _meta_of(result: Any) -> TensorMeta | None:
    if not isinstance(result, torch.Tensor) or result.dtype not in _DTYPE_NAMES:
        return None
    strides = tuple(result.stride()) if result.layout is torch.strided else None
    return TensorMeta(shape=tuple(result.shape), dtype=_DTYPE_NAMES[result.dtype], strides=strides)


def shorten_steps(op: ReplayOp) -> ReplayOp:
    """Shorten a recurrent op's sequence to `STEPS` steps if it is longer. Other ops are returned unchanged."""
    dim = _sequence_dim(op)
    meta = op.args[0].tensors[0] if dim is not None else None
    if dim is None or meta is None or meta.shape[dim] <= STEPS:
        return op
    first = msgspec.structs.replace(op.args[0], tensors=(_with_size(meta, dim, STEPS),))
    return msgspec.structs.replace(op, args=(first, *op.args[1:]))


def lengthen_results(op: ReplayOp, results: tuple[TensorMeta | None, ...]) -> tuple[TensorMeta | None, ...]:
    """Return the results of `op`, given the results of `shorten_steps(op)`."""
    dim = _sequence_dim(op)
    meta = op.args[0].tensors[0] if dim is not None else None
    if dim is None or meta is None or not results or results[0] is None or len(results[0].shape) != len(meta.shape):
        return results
    return (_with_size(results[0], dim, meta.shape[dim]), *results[1:])


def _sequence_dim(op: ReplayOp) -> int | None:
    """Return the time dimension of a recurrent op's first argument; None for a packed sequence and for other ops."""
    if op.called not in RECURRENT or not op.args or len(op.args[0].tensors) != 1:
        return None
    meta = op.args[0].tensors[0]
    if meta is None or len(meta.shape) != 3:
        return None
    batch_first = op.values.get("batch_first", False)
    return 1 if batch_first else 0


def _with_size(meta: TensorMeta, dim: int, size: int) -> TensorMeta:
    shape = (*meta.shape[:dim], size, *meta.shape[dim + 1 :])
    return TensorMeta(shape=shape, dtype=meta.dtype)
