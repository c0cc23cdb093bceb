"""One op without a file: from an event of a profile, or from the arguments of a call."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import msgspec

from opreplay.replay.ir.model import Reason, Recorded, ReplayArg, ReplayOp, ReplayPlan
from opreplay.replay.ir.names import split_name
from opreplay.replay.plugins import load_plugins
from opreplay.replay.session.op import Op
from opreplay.replay.session.setting import Setting
from opreplay.replay.session.trace import open
from opreplay.traces.errors import UsageError
from opreplay.traces.literals import plain_float
from opreplay.traces.model import TensorMeta

if TYPE_CHECKING:
    import torch

    from opreplay.replay.resolve.schema import ArgSpec, OpSpec

ALIGNED_BYTES = 512
"""What torch's allocators align memory to: where a tensor lies in it counts up to here."""


def op_of_event(event: Mapping[str, Any], *, device: str = "cpu", allow_imports: dict[str, str] | None = None) -> Op:
    """The op that an entry of a Kineto trace's `traceEvents` records, as it would be read from the file.

    What a trace would tell beside the event, its neighbours, kernels and iteration, is not there to fill gaps from.
    Raises Malformed for what is no event of an op. An op that cannot be replayed says so in its `reason`.
    """
    from opreplay.traces.one_event import trace_of_event

    return open(trace_of_event(event), select="all", device=device, allow_imports=allow_imports)[0]


def op_of_call(name: str, *args: Any, device: str | None = None, **kwargs: Any) -> Op:
    """The op "namespace::op" or "namespace::op.overload" as called with these arguments, which may be meta tensors.

    Shapes, types, strides and what shares memory are taken over, values of tensors are not: they are made anew, as for
    an op of a trace. `device` is that of the first tensor unless it is named, the CPU for meta tensors.
    Raises UsageError for an op that takes no such arguments, or that is not known or not allowed here.
    """
    from opreplay.replay.resolve.meta.outputs import with_outputs
    from opreplay.replay.resolve.names import candidates
    from opreplay.replay.resolve.policy import Policy

    load_plugins()
    policy = Policy()
    found = candidates(name, policy)
    if found.reason is not None:
        raise UsageError(f"{name} cannot be called: {found.reason}", hint="Name an op as a trace does: aten::mm.")
    metas = _Metas([*args, *kwargs.values()])
    on = device or metas.device
    reasons: list[Reason] = []
    for spec in found.specs:
        bound = _bound(spec, args, kwargs, metas)
        made = None if bound is None else _resolved(spec, bound, policy, on)
        if made is not None and made.reason is None:
            parts = split_name(name)
            assert parts is not None
            named = msgspec.structs.replace(made, name=f"{parts[0]}::{parts[1]}")
            return Op(with_outputs(_plan(named), policy=policy), Setting(device=on))
        if made is not None and made.reason is not None:
            reasons.append(made.reason)
    why = f": {reasons[0]}" if reasons else ""
    shown = "; ".join(spec.text for spec in found.specs[:3])
    raise UsageError(f"no overload of {name} takes these arguments{why}", hint=f"It is {shown}.")


def _plan(op: ReplayOp) -> ReplayPlan:
    return ReplayPlan(source="call", selection="all", device_us_total=0.0, host_us_total=0.0, ops=(op,))


def _resolved(spec: OpSpec, args: tuple[ReplayArg, ...], policy: Any, device: str) -> ReplayOp:
    """The call of one overload, or why it is none."""
    from opreplay.replay.resolve.by_argument_name import resolve_named

    identity = blake2b(msgspec.json.encode([spec.full_name, args]), digest_size=6).hexdigest()
    recorded = Recorded(host_us_total=0.0, host_us_median=0.0)
    op = ReplayOp(id=identity, name=spec.full_name, count=1, recorded=recorded, args=args)
    return resolve_named(_plan(op), policy, device=device).ops[0]


def _bound(spec: OpSpec, args: Sequence[Any], kwargs: Mapping[str, Any], metas: _Metas) -> tuple[ReplayArg, ...] | None:
    """Arguments by name in the schema's order; None where they do not go with its names."""
    positional = [arg for arg in spec.args if not arg.keyword_only]
    values = dict(zip((arg.name for arg in positional), args, strict=False))
    if len(args) > len(positional) or not kwargs.keys() <= {arg.name for arg in spec.args} - values.keys():
        return None
    values.update(kwargs)
    if any(not arg.has_default and arg.name not in values for arg in spec.args):
        return None
    return tuple(_argument(arg, values[arg.name], metas) for arg in spec.args if arg.name in values)


def _argument(arg: ArgSpec, value: Any, metas: _Metas) -> ReplayArg:
    """One argument in the form of the IR. Raises UsageError for a value that no argument of an op has."""
    import torch

    items = list(value) if isinstance(value, (list, tuple)) else [value]
    tensors = [item for item in items if isinstance(item, torch.Tensor)]
    is_list = isinstance(value, (list, tuple))
    if tensors or (arg.kind.startswith("Tensor") and value is None):
        kind = "Tensor[]" if is_list else arg.kind if value is None else "Tensor"
        found = tuple(None if item is None else metas.of(item) for item in items)
        return ReplayArg(name=arg.name, type=kind, tensors=found, keyword_only=arg.keyword_only, mutated=arg.mutated)
    plain = tuple(_plain(item) for item in items)
    kind = arg.kind if value is None or not items else f"{_kind(items[0])}{'[]' if is_list else ''}"
    return ReplayArg(
        name=arg.name,
        type=kind,
        value=plain if is_list else plain[0],
        keyword_only=arg.keyword_only,
        mutated=arg.mutated,
    )


def _kind(value: Any) -> str:
    """The IR's type of a plain value."""
    import torch

    kinds = {
        bool: "bool",
        int: "int",
        float: "float",
        complex: "complex",
        str: "str",
        torch.dtype: "ScalarType",
        torch.device: "Device",
        torch.layout: "Layout",
        torch.memory_format: "MemoryFormat",
    }
    kind = kinds.get(type(value))
    if kind is None:
        raise UsageError(f"an op takes no {type(value).__name__}", hint="Give tensors, numbers, texts, dtypes, lists.")
    return kind


def _plain(value: Any) -> Any:
    """A value as the IR holds it."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return plain_float(value)
    if isinstance(value, complex):
        return str(value).strip("()")
    _kind(value)
    return str(value)


class _Metas:
    """Metadata of the tensors among some arguments; those whose memory overlaps have the same storage."""

    def __init__(self, values: Sequence[Any]) -> None:
        import torch

        flat = [item for value in values for item in (value if isinstance(value, (list, tuple)) else [value])]
        tensors = {id(item): item for item in flat if isinstance(item, torch.Tensor)}
        times = Counter(map(id, flat))
        self._made: dict[int, TensorMeta] = {}
        kinds = [tensor.device.type for tensor in tensors.values()]
        first = next(iter(tensors.values()), None)
        self.device = "cpu" if first is None or kinds[0] == "meta" else str(first.device)
        spans = sorted((*_span(tensor), key) for key, tensor in tensors.items())
        groups: list[tuple[int, int, list[tuple[int, int]]]] = []
        for storage, begin, end, key in spans:
            if groups and groups[-1][0] == storage and begin < groups[-1][1]:
                groups[-1] = (storage, max(end, groups[-1][1]), [*groups[-1][2], (begin, key)])
            else:
                groups.append((storage, end, [(begin, key)]))
        number = 0
        for _, _, members in groups:
            base = members[0][0] // ALIGNED_BYTES * ALIGNED_BYTES
            shared = sum(times[key] for _, key in members) > 1
            for begin, key in members:
                self._made[key] = _meta(tensors[key], begin - base, number if shared else None)
            number += shared

    def of(self, tensor: torch.Tensor) -> TensorMeta:
        return self._made[id(tensor)]


def _span(tensor: torch.Tensor) -> tuple[int, int, int]:
    """Storage, first byte and end in it. Raises UsageError for a tensor that is not dense."""
    import torch

    if tensor.layout != torch.strided or tensor.is_nested or tensor.is_quantized:
        raise UsageError("only dense tensors can be taken over", hint="Sparse, nested and quantized ones cannot.")
    begin = int(tensor.storage_offset()) * tensor.itemsize
    reach = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True)) if tensor.numel() else 0
    return tensor.untyped_storage()._cdata, begin, begin + reach * tensor.itemsize


def _meta(tensor: torch.Tensor, begin: int, storage: int | None) -> TensorMeta:
    return TensorMeta(
        shape=tuple(tensor.shape),
        dtype=str(tensor.dtype).removeprefix("torch."),
        strides=tuple(tensor.stride()),
        storage_offset=begin // tensor.itemsize,
        storage=storage,
    )
