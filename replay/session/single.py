"""Create one op without a file: from a text, an event of a profile, or the arguments of a call."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from operator import index
from typing import TYPE_CHECKING, Any

from opreplay.replay.ir.model import ReplayPlan
from opreplay.replay.ir.notation import CallText, CallValue, TorchName
from opreplay.replay.plugins import load_plugins
from opreplay.replay.resolve.policy import Imports, named_modules
from opreplay.replay.session.benchmarking import tensors_in
from opreplay.replay.session.op import Op
from opreplay.replay.session.setting import Setting
from opreplay.replay.session.trace import open
from opreplay.traces.errors import UsageError
from opreplay.traces.model import TensorMeta

if TYPE_CHECKING:
    import torch

ALIGNED_BYTES = 512
"""Alignment in bytes of memory from torch's allocators. A tensor's offset is counted from such a boundary."""


def op_of_event(event: Mapping[str, Any], *, device: str = "cpu", allow_imports: Imports | None = None) -> Op:
    """Return the op that an entry of a Kineto trace's `traceEvents` records, as if it were read from the file.

    Other parts of the trace, such as neighbouring events, kernels and the iteration, cannot fill in missing
    information. An op that cannot be replayed has a `reason`. Raises Malformed for an event that is not an op.
    """
    from opreplay.traces.one_event import trace_of_event

    return open(trace_of_event(event), select="all", device=device, allow_imports=allow_imports)[0]


def op(
    text: str,
    *,
    device: str = "cpu",
    allow_imports: Imports | None = None,
    plugins: Sequence[str] = (),
    **sizes: int,
) -> Op:
    """Return the op of a call that is written as in reports: "aten::mm(bf16[4096,1024], bf16[1024,n])" with n=47.

    `sizes` are the values of names in the text. `allow_imports` and `plugins` are the same as in `open`. A call that
    cannot run here, such as one of torch_npu, has a `reason`. It can be simulated, but calling or measuring it raises
    NotReplayable.

    Raises UsageError for a text that is not a call, for shapes that do not fit together, and for names that are
    probably misspelt.
    """
    from opreplay.replay.ir.notation import size_names
    from opreplay.replay.resolve.written.sweep import Written, is_refused, plan_of_calls, refuse_unknown_sizes

    refuse_unknown_sizes(sizes, size_names(text))
    sizes = {name: _whole(name, value) for name, value in sizes.items()}
    load_plugins(plugins)
    imports = named_modules(allow_imports)
    plan, _ = plan_of_calls([Written(text=text, sizes=sizes)], allow_imports=imports, device=device)
    if is_refused(plan.ops[0]):
        raise UsageError(f"{text} cannot be called: {plan.ops[0].reason}", hint="Pass arguments that match each other.")
    return Op(plan, Setting(device=device, allow_imports=imports, plugins=tuple(plugins)))


def _whole(name: str, value: object) -> int:
    """Return a size as an int; integers of numpy and torch are accepted. Raises UsageError for any other value."""
    try:
        return index(value)  # pyright: ignore[reportArgumentType]
    except TypeError:
        raise UsageError(f"{name} is {value!r}, which is not a whole number", hint=f"Write {name}=128.") from None


def op_of_call(name: str, *args: Any, device: str | None = None, **kwargs: Any) -> Op:
    """Return the op of a call with these arguments; `name` is "namespace::op" or "namespace::op.overload".

    Tensors may be meta tensors. Their shapes, dtypes, strides and shared memory are copied. Their values are generated,
    as for an op of a trace. `device` defaults to the device of the first tensor, or to the CPU for meta tensors. As
    with `op`, a call that cannot run here has a `reason` and can be simulated.

    Raises UsageError for anything that is not a call of an op, and for names that are probably misspelt.
    """
    from opreplay.replay.resolve.meta.outputs import with_outputs
    from opreplay.replay.resolve.policy import Policy
    from opreplay.replay.resolve.written.call import op_of_written

    if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"{name!r} is not an op name", hint='Write it as "aten::mm" or "aten::add.Tensor".')
    load_plugins()
    policy = Policy()
    metas = _Metas([*args, *kwargs.values()])
    on = device or metas.device
    call = CallText(
        name=name,
        args=tuple(_value(value, metas) for value in args),
        kwargs={key: _value(value, metas) for key, value in kwargs.items()},
    )
    resolved_op = op_of_written(call, policy, device=on)
    plan = ReplayPlan(source="call", selection="all", device_us_total=0.0, host_us_total=0.0, ops=(resolved_op,))
    return Op(with_outputs(plan, policy=policy), Setting(device=on))


def _value(value: Any, metas: _Metas) -> CallValue:
    """Convert an argument to the form used in calls. Raises UsageError for a value that no op accepts."""
    import torch

    if isinstance(value, torch.Tensor):
        return metas.of(value)
    if isinstance(value, (list, tuple)):
        return [_value(item, metas) for item in value]
    if value is None or isinstance(value, (bool, int, float, complex, str)):
        return value
    if isinstance(value, torch.device):
        return str(value)
    if isinstance(value, (torch.dtype, torch.layout, torch.memory_format)):
        return TorchName(str(value))
    raise UsageError(
        f"an op does not accept {type(value).__name__}", hint="Pass tensors, numbers, strings, dtypes or lists."
    )


class _Metas:
    """Collects the metadata of tensors among arguments. Tensors whose memory overlaps get the same storage number."""

    def __init__(self, values: Sequence[Any]) -> None:
        listed = tensors_in(values)
        tensors = {id(tensor): tensor for tensor in listed}
        times = Counter(map(id, listed))
        self._made: dict[int, TensorMeta] = {}
        kinds = [tensor.device.type for tensor in tensors.values()]
        first = next(iter(tensors.values()), None)
        self.device = "cpu" if first is None or kinds[0] == "meta" else str(first.device)
        number = 0
        for members in _overlapping((*_span(tensor), key) for key, tensor in tensors.items()):
            base = members[0][0] // ALIGNED_BYTES * ALIGNED_BYTES
            shared = sum(times[key] for _, key in members) > 1
            for begin, key in members:
                self._made[key] = _meta(tensors[key], begin - base, number if shared else None)
            number += shared

    def of(self, tensor: torch.Tensor) -> TensorMeta:
        return self._made[id(tensor)]


def _overlapping(spans: Iterable[tuple[int, int, int, int]]) -> list[list[tuple[int, int]]]:
    """Group overlapping spans (storage, first byte, end, key). Return the (first byte, key) pairs of each group."""
    groups: list[tuple[int, int, list[tuple[int, int]]]] = []
    for storage, begin, end, key in sorted(spans):
        if groups and groups[-1][0] == storage and begin < groups[-1][1]:
            groups[-1] = (storage, max(end, groups[-1][1]), [*groups[-1][2], (begin, key)])
        else:
            groups.append((storage, end, [(begin, key)]))
    return [members for _, _, members in groups]


def _span(tensor: torch.Tensor) -> tuple[int, int, int]:
    """Return a tensor's span of memory: (storage, first byte, end byte), in bytes from the start of the storage.

    Raises UsageError if the tensor is not dense.
    """
    import torch

    if tensor.layout != torch.strided or tensor.is_nested or tensor.is_quantized:
        raise UsageError(
            "only dense tensors can be used", hint="Sparse, nested and quantized tensors are not supported."
        )
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
