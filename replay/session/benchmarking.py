# pyright: strict
"""Measure the time of any callable, with the measuring engine of `run`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from opreplay.replay.execute.options import RunOptions
from opreplay.replay.host.needs_torch import require_torch
from opreplay.replay.results.measurement import CacheState, Measurement
from opreplay.replay.session.setting import Setting, executor_on
from opreplay.traces.errors import UsageError

if TYPE_CHECKING:
    import torch

ACCELERATORS = ("cuda", "npu", "xpu")
"""Device types that run asynchronously, so that a host clock measures only the launch of the work."""


def benchmark(
    function: Callable[..., Any],
    *args: Any,
    kwargs: Mapping[str, Any] | None = None,
    device: str | None = None,
    cache: CacheState = "cold",
    op_time_s: float = 0.2,
    options: RunOptions | None = None,
    **named: Any,
) -> Measurement:
    """Time `function(*args)` in this process.

    The call is warmed up and then sampled until the median is precise; the result holds its interval and warnings.

    Args:
        function: the function to call repeatedly.
        args: positional arguments. Each call uses another copy of their tensors, so that these are not in the caches;
            without tensors, or if they cannot be copied, the measurement says "warm".
        named: keyword arguments; their tensors are copied as well.
        kwargs: keyword arguments whose names are also parameters of `benchmark`.
        device: device on which the function computes; by default the device of the tensors.
        cache: "cold", or "warm" to use the same memory in each call.
        op_time_s: seconds for the samples.
        options: all options of a run, in place of `cache` and `op_time_s`.

    Runs in the caller's gradient mode, on as many CPU threads as are idle. Exceptions of the function are not caught.
    Raises UsageError for tensors on several devices, and if no tensor shows which accelerator to synchronise.
    """
    require_torch()
    import torch

    from opreplay.replay.execute.engines import worker_config
    from opreplay.replay.execute.executors.torch.device import TorchPrepared
    from opreplay.replay.execute.threads import measure_on_idle

    asked = options or RunOptions(op_time_s=op_time_s, cache=cache)
    if asked.cache == "step":
        raise UsageError(
            'a callable has no recorded step, so cache="step" is not possible', hint='Use cache="cold" or cache="warm".'
        )
    call = partial(function, *args, **named, **(kwargs or {}))
    tensors = tensors_in([*call.args, *call.keywords.values()])
    if asked.cache == "cold" and any(tensor.grad_fn is not None for tensor in tensors):
        raise UsageError("a tensor with a gradient history cannot be copied", hint='Detach it, or use cache="warm".')
    wanted = asked.device if device is None and asked.device != RunOptions().device else device
    chosen = Setting(device=device_of(tensors, wanted)).of_run(asked)
    with_gradients = torch.is_grad_enabled()
    with executor_on(chosen) as executor, torch.set_grad_enabled(with_gradients):
        prepared = TorchPrepared(call, (), worker_config(chosen).memory_bytes)
        return measure_on_idle(executor, prepared, chosen)


def device_of(tensors: Sequence[torch.Tensor], named: str | None) -> str:
    """Return the device of a call with these tensors. Raises UsageError if it is ambiguous or differs from `named`."""
    import torch

    devices = sorted({str(tensor.device) for tensor in tensors})
    kinds = {tensor.device.type for tensor in tensors}
    if len(devices) > 1:
        raise UsageError(
            f"tensors are on several devices: {' and '.join(devices)}",
            hint="Pass a closure over them, and name the device.",
        )
    if named is not None and kinds - {torch.device(named).type}:
        raise UsageError(f"the tensors are on {devices[0]}, not on {named}", hint="Remove the device argument.")
    if named is not None or devices:
        return named or devices[0]
    backends = ((kind, getattr(torch, kind, None)) for kind in ACCELERATORS)
    here = next((kind for kind, backend in backends if backend is not None and backend.is_available()), None)
    if here is not None:
        raise UsageError(
            f"no tensor is on {here}, so it is unknown whether the timed code uses this device",
            hint=f'Pass device="{here}" or device="cpu", or pass the tensors as arguments.',
        )
    return "cpu"


def tensors_in(values: Sequence[Any]) -> list[torch.Tensor]:
    """Return all tensors among arguments, including those in lists and tuples."""
    from opreplay.replay.arguments import tensors

    return tensors.tensors_in(list(values))
