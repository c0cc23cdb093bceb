"""Predicts the times of the op and its reference on Ascend devices. The op's own kernels are predicted if the simulator
knows them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from opreplay.replay.check.calling.calls import Arguments, Bench
from opreplay.replay.check.cases import Case, case_of
from opreplay.replay.ir.model import ReplayArg, ReplayOp
from opreplay.replay.resolve import schema
from opreplay.traces.model import TensorMeta

if TYPE_CHECKING:
    from opreplay.replay.ascend import DeviceProfile
    from opreplay.replay.ops.work.expected import ExpectedContents
    from opreplay.replay.results.records import Simulated


CACHE: Literal["warm"] = "warm"
"""State of the simulated L2 cache before each op."""


def simulated(bench: Bench, case: Case, socs: Sequence[str]) -> tuple[dict[str, Simulated], dict[str, Simulated]]:
    """Return two predictions by device: for the op's case, and for the ops that the reference calls, one after the
    other.

    The reference's calls are split as in `plan` and `simulate`. If the simulator has a rule for a call, the call is
    predicted as a whole. Otherwise, the calls inside it are predicted. An op that is a Python function is predicted
    like the reference, from the torch ops that it calls; its other work is ignored. There is no prediction for an op
    without kernels in the simulator, nor for a function that calls such an op.
    """
    if not socs:
        return {}, {}
    from opreplay.replay.ascend.simulate.devices import load_socs

    devices = load_socs(socs)
    other = _added(_called(bench.refer, bench, case, devices)) if bench.has_reference(case) else {}
    if bench.operator(case) is not None:
        from opreplay.replay.ops.work.expected import expected_contents

        return _of_op(_with_outputs(bench, case), devices, expected_contents()), other
    return _added(_called(bench.call, bench, case, devices)), other


def _added(parts: Sequence[dict[str, Simulated]]) -> dict[str, Simulated]:
    """Return the total time of consecutive calls on each device. Devices whose total is 0 are left out. Empty if any
    call has no prediction.
    """
    if not parts or not all(parts):
        return {}
    totals = {name: _total([part[name] for part in parts]) for name in parts[0]}
    return {name: total for name, total in totals.items() if total.time_us > 0.0}


def _total(calls: Sequence[Simulated]) -> Simulated:
    """Add up consecutive calls: times are summed, kernels joined, other facts are those of the longest call."""
    return msgspec.structs.replace(
        max(calls, key=lambda call: call.time_us),
        time_us=sum(call.time_us for call in calls),
        low_us=sum(call.low_us for call in calls),
        high_us=sum(call.high_us for call in calls),
        kernels=tuple(kernel for call in calls for kernel in call.kernels),
        terms_us={},
        extrapolated=any(call.extrapolated for call in calls),
    )


def _of_op(
    op: ReplayOp, devices: dict[str, DeviceProfile], contents: ExpectedContents | None = None
) -> dict[str, Simulated]:
    """Return predictions of an op by device, made by the simulator's rules. With `contents` (expected values of the
    op's tensors) they equal those of `opreplay op`.
    """
    from opreplay.replay.ascend.custom.registrations import CustomOpError
    from opreplay.replay.ascend.simulate.op import is_predicted, simulate_op

    op_contents = None if contents is None else contents(op)
    try:
        by_device = {name: simulate_op(op, device, op_contents, CACHE) for name, device in devices.items()}
    except CustomOpError:  # the prediction of a user's function that fails is missing
        return {}
    return {name: found for name, found in by_device.items() if is_predicted(op, found) and found.by != "bytes"}


def _with_outputs(bench: Bench, case: Case) -> ReplayOp:
    """Return the case's op with metadata of its results."""
    try:
        returned = bench.call(case, bench.arguments(case)).returned
    except Exception:  # judged by other points
        return case.op
    return msgspec.structs.replace(case.op, outputs=_metas(returned))


class _Calls(TorchDispatchMode):
    """Predicts the ops that are called while this mode is active."""

    def __init__(self, devices: dict[str, DeviceProfile]) -> None:
        super().__init__()
        self.devices = devices
        self.parts: list[dict[str, Simulated]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        returned = func(*args, **(kwargs or {}))
        self.parts.append(_of_op(_op_of(func, args, kwargs or {}, returned), self.devices))
        return returned


class _Outermost(TorchFunctionMode):
    """Predicts torch functions that have an op's name and their own rule (`rms_norm`), before the dispatcher decomposes
    them.
    """

    def __init__(self, calls: _Calls) -> None:
        super().__init__()
        self.calls = calls

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        overload = _composite(func, args, kwargs)
        if overload is None:
            return func(*args, **kwargs)
        before = len(self.calls.parts)
        returned = func(*args, **kwargs)
        whole = _of_op(_op_of(overload, args, kwargs, returned), self.calls.devices)
        if whole:
            self.calls.parts[before:] = [whole]
        return returned


def _composite(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch._ops.OpOverload | None:
    """Return the aten overload that a torch function calls, if the dispatcher would decompose that overload; None
    otherwise.
    """
    packet = getattr(torch.ops.aten, getattr(func, "__name__", ""), None)
    if not isinstance(packet, torch._ops.OpOverloadPacket):
        return None
    try:
        overload = getattr(packet, torch._C._jit_resolve_packet(packet._qualified_op_name, *args, **kwargs))
    except Exception:  # the function has other arguments than the op
        return None
    return overload if overload._can_decompose() else None


def _called(
    run: Callable[[Case, Arguments], object], bench: Bench, case: Case, devices: dict[str, DeviceProfile]
) -> list[dict[str, Simulated]]:
    """Return predictions of the calls that a function makes on a case; empty if the function fails."""
    try:
        arguments = bench.arguments(case)
        with _Calls(devices) as calls, _Outermost(calls):
            run(case, arguments)
    except Exception:  # judged by other points
        return []
    return calls.parts


def _op_of(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], returned: Any) -> ReplayOp:
    spec = schema.compile_schema(func._schema)
    values = {**dict(zip((arg.name for arg in spec.args), args, strict=False)), **kwargs}
    replay_args: list[ReplayArg] = []
    for arg in spec.args:
        if arg.name in values:
            metas = _metas(values[arg.name])
            tensors, value = (metas, None) if any(metas) else ((), _plain(values[arg.name]))
            replay_args.append(
                ReplayArg(name=arg.name, type=arg.kind, tensors=tensors, value=value, keyword_only=arg.keyword_only)
            )
    op = case_of("called", spec.name, spec, tuple(replay_args)).op
    return msgspec.structs.replace(op, outputs=_metas(returned))


def _plain(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return tuple(map(_plain, value))
    if isinstance(value, torch.dtype | torch.layout | torch.device | torch.memory_format):
        return str(value)
    return value if isinstance(value, bool | int | float | str) else None


def _metas(values: Any) -> tuple[TensorMeta | None, ...]:
    """Return the metadata of a tensor or of each item of a list; the entry is None for items that are not tensors."""
    items = values if isinstance(values, list | tuple) else (values,)
    return tuple(
        TensorMeta(shape=tuple(item.shape), dtype=str(item.dtype).removeprefix("torch."), strides=tuple(item.stride()))
        if isinstance(item, torch.Tensor)
        else None
        for item in items
    )
