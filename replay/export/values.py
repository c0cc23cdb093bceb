# pyright: strict
"""Describes values for an op's tensors, so that a bundle's script can create them without opreplay.

If no initializer writes the values, their kind describes them. If an initializer writes them and they are few, they are
stored. If they are many, their kind describes them, too; if no kind fits, the op is not exported. `script` generates
the numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

import msgspec
import torch

from opreplay.initializers import fill
from opreplay.initializers.base import InitContext, InitializerError
from opreplay.initializers.dense import DenseInit, safe_bound, values_for
from opreplay.initializers.fill import elements
from opreplay.initializers.registry import Registry
from opreplay.replay.arguments import tensors
from opreplay.replay.ir import shared_memory as aliasing
from opreplay.replay.ir import sizes as budget
from opreplay.replay.ir.model import Assumption, Reason, ReplayOp
from opreplay.replay.ir.reasons import NotReplayable

Spec = dict[str, Any]
"""Description of a tensor's values for `script.fill`: {"fill": kind, ...}."""
KEPT_VALUES = 8192
"""Maximum number of elements of a tensor for which each value is stored."""
UNIFORM_INTEGERS = frozenset({"index", "index_list", "few_ties", "unpool_indices", "pool_indices", "domain", "repeats"})
"""Initializers that draw their integers uniformly from a range. Other integers from the same range may therefore
replace them.
"""


def describe(
    op: ReplayOp, registry: Registry, *, seed: int, memory_bytes: int
) -> tuple[ReplayOp, dict[str, list[Spec | None]], tuple[Assumption, ...]]:
    """Return (the op, a description of each tensor of each argument, what was assumed or approximated).

    Nothing is allocated unless an initializer applies. An initializer fills the arguments on the CPU, and arguments
    that it sets one by one no longer share memory. Raises NotReplayable.
    """
    look = _context(op, "meta", seed)
    try:
        rule = registry.find(look)
    except InitializerError as error:
        raise NotReplayable(Reason("failed", f"initializer {error}")) from error
    high = safe_bound(look)
    specs = {name: [_plain(name, t, high) for t in _listed(look.args[name])] for name in look.metas}
    if rule is None:
        return op, specs, ()
    args, apart = aliasing.give_own_memory(op.args, aliasing.INDEXED, integers_only=True)
    op = msgspec.structs.replace(op, args=args)
    if (reason := budget.over_budget(op, memory_bytes)) is not None:
        raise NotReplayable(reason)
    context = _context(op, "cpu", seed)
    DenseInit().initialize(context)
    before = {name: [None if t is None else t.clone() for t in _listed(context.args[name])] for name in context.metas}
    try:
        report = registry.apply(rule, context)
    except InitializerError as error:
        raise NotReplayable(Reason("failed", f"initializer {rule.name}: {error}")) from error
    notes = [*apart, *(Assumption(argument=argument, what=what) for argument, what in report.assumed.items())]
    for name in context.metas:
        for i, (tensor, old) in enumerate(zip(_listed(context.args[name]), before[name], strict=True)):
            if tensor is not None and old is not None and not _same(tensor, old):
                specs[name][i], about = _arranged(op, rule.name, name, tensor)
                notes += [Assumption(argument=name, what=about)] if about else []
    return op, specs, tuple(notes)


def _context(op: ReplayOp, device: str, seed: int) -> InitContext:
    return tensors.init_context(op, tensors.arguments(op, device=torch.device(device)), seed, name=op.called)


def _listed(value: Any) -> Sequence[torch.Tensor | None]:
    return cast("list[torch.Tensor | None]", value) if isinstance(value, list) else [value]


def _plain(name: str, tensor: torch.Tensor | None, high: int) -> Spec | None:
    if tensor is None:
        return None
    values = values_for(name, tensor.dtype, high)
    if values.kind == "integers":
        top = int(values.high)
        if fill.is_integer(tensor.dtype):
            top = min(top, torch.iinfo(tensor.dtype).max)
        return {"fill": "integers", "low": int(values.low), "high": top}
    return (
        {"fill": "uniform", "low": values.low, "high": values.high}
        if values.kind == "uniform"
        else {"fill": values.kind}
    )


def _same(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Check whether all bytes are equal; NaN then equals NaN."""
    # A single element can have any stride.
    first, second = (t.flatten().contiguous().as_strided((t.numel(),), (1,)) for t in (first, second))
    return torch.equal(first.view(torch.uint8), second.view(torch.uint8))


def _arranged(op: ReplayOp, rule: str, name: str, tensor: torch.Tensor) -> tuple[Spec, str | None]:
    """Describe what an initializer wrote into one tensor. If the description is approximate, a note says so."""
    if tensor.numel() == 0:
        return {"fill": "normal"}, None
    if rule == "saved_softmax":
        dim = next((arg.value for arg in op.args if arg.name == "dim"), -1)
        return {"fill": "softmax", "dim": dim, "log": "log_softmax" in op.called}, None
    if rule == "well_conditioned":
        return {"fill": "positive definite"}, None
    low, high = _bounds(tensor)
    if tensor.dtype is torch.bool:
        return _boolean(tensor)
    if low == high and math.isfinite(low):
        if fill.is_integer(tensor.dtype):
            return {"fill": "integers", "low": int(low), "high": int(low) + 1}, None
        return {"fill": "uniform", "low": low, "high": low}, None
    if tensor.dim() > 1 and (causal := _causal(tensor)) is not None:
        return causal, None
    if rule in UNIFORM_INTEGERS and fill.is_integer(tensor.dtype):
        return {"fill": "integers", "low": int(low), "high": int(high) + 1}, None
    if bool((tensor.abs() == 1).all()):
        return {"fill": "signs"}, None
    if tensor.numel() <= KEPT_VALUES:
        return {"fill": "values", "values": _json_values(tensor)}, None
    if _ascends(tensor):
        return {"fill": "ramp", "low": low, "high": high}, f"ascending from {low:g} to {high:g} in even steps"
    if fill.is_integer(tensor.dtype):
        what = f"{name} has {tensor.numel()} integers of initializer {rule}, but the limit is {KEPT_VALUES}"
        raise NotReplayable(Reason("budget", f"values: {what}"))
    if not (math.isfinite(low) and math.isfinite(high)):
        raise NotReplayable(
            Reason("budget", f"values: {name} contains {tensor.numel()} numbers that are not all finite")
        )
    exact = rule in ("domain", "attention_backward")
    return {"fill": "uniform", "low": low, "high": high}, None if exact else f"uniform in [{low:g}, {high:g}]"


def _boolean(tensor: torch.Tensor) -> tuple[Spec, str | None]:
    causal = _causal(tensor) if tensor.dim() > 1 else None
    return causal or {"fill": "chosen", "count": int(tensor.sum())}, None


def _causal(tensor: torch.Tensor) -> Spec | None:
    """Return the description of a causal mask, or None for any other tensor."""
    rows, columns = tensor.shape[-2:]
    if rows < 2 or columns < 2:
        return None
    seen = torch.ones(rows, columns, dtype=torch.bool).tril(columns - rows)
    if tensor.dtype is torch.bool:
        return {"fill": "causal"} if bool((tensor == seen).all()) else None
    if not tensor.dtype.is_floating_point or tensor.dtype.itemsize == 1:
        return None
    low = tensor.min().item()
    wanted = torch.where(seen, 0.0, low).to(tensor.dtype)
    return {"fill": "causal", "low": _number(low)} if low < 0 and bool((tensor == wanted).all()) else None


def _bounds(tensor: torch.Tensor) -> tuple[float, float]:
    wide = tensor.to(torch.float64) if tensor.dtype.is_floating_point else tensor
    if wide.is_complex():
        wide = torch.view_as_real(wide.to(torch.complex128))
    wide = wide.to(torch.uint8) if wide.dtype is torch.bool else wide
    return wide.min().item(), wide.max().item()


def _ascends(tensor: torch.Tensor) -> bool:
    first = tensor.reshape(-1, tensor.shape[-1])
    wide = first.to(torch.float64)
    return bool((wide.diff(dim=-1) >= 0).all()) and bool((wide == wide[:1]).all())


def _json_values(tensor: torch.Tensor) -> list[Any]:
    if tensor.is_complex():
        raise NotReplayable(Reason("failed", "complex values of an initializer cannot be exported"))
    wide = tensor.to(torch.float64) if tensor.dtype.is_floating_point else tensor
    return [_number(value) for value in elements(wide.reshape(-1))]


def _number(value: float) -> float | str:
    return value if math.isfinite(value) else {math.inf: "inf", -math.inf: "-inf"}.get(value, "nan")
