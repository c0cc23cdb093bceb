"""Integration of an op with other features of torch: in-place and out= variants, a CPU kernel, autocast, vmap, ONNX."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from opreplay.replay.arguments.tensors import flattened
from opreplay.replay.check.calling.calls import Arguments, Bench, is_float
from opreplay.replay.check.calling.closeness import compare
from opreplay.replay.check.calling.refusals import words
from opreplay.replay.check.calling.target import overload_of
from opreplay.replay.check.cases import Case
from opreplay.replay.check.model import Finding
from opreplay.replay.check.points.trials import Attempt, attempt, failed, missing, nothing, passed, refused
from opreplay.replay.resolve import schema as schemas

BATCH = 3
"""Batch size for the torch.vmap trial."""


def of_operator(
    judge: Callable[[Bench, Case, torch._ops.OpOverload], Finding],
) -> Callable[[Bench], list[Attempt]]:
    """Turn `judge` into a function that creates the single trial of a point. The trial judges the op's small
    base case.
    """

    def trials(bench: Bench) -> list[Attempt]:
        case = bench.compact_bases[0]
        operator = bench.operator(case)
        if operator is None:
            return [Attempt(case.text, lambda: nothing("a Python function is not registered in the dispatcher"))]
        return [Attempt(case.text, lambda: judge(bench, case, operator))]

    return trials


def _with_gaps(result: torch.Tensor) -> torch.Tensor:
    """Return a transposed buffer for a result; between its elements is memory that belongs to none of them."""
    dims = list(result.shape)
    if len(dims) > 1:
        dims[-1], dims[-2] = dims[-2], dims[-1]
    wide = torch.full((*dims, 2), 3, dtype=result.dtype, device=result.device)[..., 0]
    return wide.transpose(-1, -2) if len(dims) > 1 else wide


BUFFERS: dict[str, Callable[[torch.Tensor], torch.Tensor] | None] = {
    "transposed buffers with gaps": _with_gaps,
    "empty buffers": lambda result: torch.empty(0, dtype=result.dtype, device=result.device),
    "an argument as buffer": None,
}
"""Unusual result buffers of out= variants, and the function that creates one for a result; None for an argument."""


def in_place(bench: Bench) -> list[Attempt]:
    """Return the trials of the in-place and out= variants of the op, if they exist."""
    case = bench.compact_bases[0]
    operator = bench.operator(case)
    if operator is None or any(arg.mutated for arg in case.op.args):
        why = "a Python function has no variants" if operator is None else "the op writes to its arguments itself"
        return [Attempt(case.text, lambda: nothing(why))]
    specs = _variants(operator)
    if not specs:
        detail = f"neither {operator.namespace}::{operator._opname}_ nor an overload out exists"
        return [Attempt(case.text, lambda: missing(detail))]
    plain = [attempt(bench, case, partial(_agrees, spec=spec), spec.full_name) for spec in specs]
    names = {argument.name for argument in operator._schema.arguments}
    with_buffers = [spec for spec in specs if any(arg.mutated and arg.name not in names for arg in spec.args)]
    unusual = [
        attempt(bench, case, partial(_writes_into, spec=spec, made=made), f"{spec.full_name}, {name}")
        for spec in with_buffers
        for name, made in BUFFERS.items()
    ]
    return [*plain, *unusual]


def _variants(operator: torch._ops.OpOverload) -> list[schemas.OpSpec]:
    """Return the in-place and out= variants of the op. They take the same arguments as the op; any additional arguments
    are result buffers.
    """
    types = {argument.name: str(argument.real_type) for argument in operator._schema.arguments}
    qualified = f"{operator.namespace}::{operator._opname}"
    specs = [spec for name in (f"{qualified}_", qualified, f"{qualified}_out") for spec in schemas.specs_of(name)]
    return [spec for spec in specs if _is_variant(spec, types)]


def _is_variant(spec: schemas.OpSpec, types: Mapping[str, str]) -> bool:
    """Check whether an overload writes to arguments, and has all arguments of the op plus only result buffers."""
    shared = {arg.name: arg.type_text for arg in spec.args if arg.name in types}
    buffers = [arg for arg in spec.args if arg.name not in types]
    return shared == types and any(arg.mutated for arg in spec.args) and all(arg.mutated for arg in buffers)


def _agrees(bench: Bench, case: Case, *, spec: schemas.OpSpec) -> Finding:
    """Compare the results of one variant with those of the functional op."""
    arguments = bench.arguments(case)
    try:
        wanted = bench.call(case, arguments.copy()).returned
    except Exception as error:  # judged by other points
        return nothing(words(error))
    forms = [(tensor.dtype, tensor.shape) for tensor in wanted]
    values = dict(arguments.copy().values)
    outs = [arg.name for arg in spec.args if arg.mutated]
    overwritten = [values[name] for name in outs if isinstance(values.get(name), torch.Tensor)]
    if overwritten and [(tensor.dtype, tensor.shape) for tensor in overwritten] != forms:
        return nothing("the result does not fit into the argument: dtype or shape differs")
    if buffers := [name for name in outs if name not in values]:
        outs = buffers
        if len(buffers) != len(wanted):
            return nothing("the numbers of results and buffers differ")
        values.update({name: torch.full_like(tensor, 3) for name, tensor in zip(buffers, wanted, strict=True)})
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            overload_of(spec)(**values)
    except Exception as error:  # ops raise anything
        first = values.get(outs[0])
        if forms and isinstance(first, torch.Tensor) and (first.dtype, first.shape) != forms[0]:
            return nothing(f"the result does not fit into {outs[0]}: {words(error)}")
        return failed(words(error))
    return _written_as(values, outs, wanted) or passed(spec.full_name)


def _written_as(values: Mapping[str, Any], outs: Sequence[str], wanted: Sequence[torch.Tensor]) -> Finding | None:
    """Return a finding if a buffer of `outs` does not hold the wanted result after a call; None if all do."""
    for out, tensor in zip(outs, wanted, strict=False):
        written, form = values[out], (tensor.dtype, tensor.shape)
        if not isinstance(written, torch.Tensor) or (written.dtype, written.shape) != form:
            return failed(f"changes the shape or dtype of {out}")
        distance = compare(written, tensor, tensor)
        if not distance.fits:
            return failed(f"{out}: {distance.where}")
    return None


def _writes_into(
    bench: Bench, case: Case, *, spec: schemas.OpSpec, made: Callable[[torch.Tensor], torch.Tensor] | None
) -> Finding:
    """Check that an out= variant writes its results into unusual buffers, or refuses them with an error.

    An argument may be the buffer only if each result depends on the argument's element in the same place.
    """
    arguments = bench.arguments(case)
    try:
        wanted = bench.call(case, arguments.copy()).returned
    except Exception as error:  # judged by other points
        return nothing(words(error))
    values = dict(arguments.copy().values)
    outs = [arg.name for arg in spec.args if arg.mutated and arg.name not in values]
    if len(outs) != len(wanted) or not all(tensor.numel() for tensor in wanted):
        return nothing("the numbers of results and buffers differ, or a result is empty")
    tried = [values | {name: made(tensor) for name, tensor in zip(outs, wanted, strict=True)}] if made else []
    if made is None and len(outs) == 1:
        names = [name for name in arguments.named_tensors() if _in_place_of(bench, case, arguments, name, wanted[0])]
        copies = [dict(arguments.copy().values) for _ in names]
        tried = [copy | {outs[0]: copy[name]} for name, copy in zip(names, copies, strict=True)]
    if not tried:
        return nothing("no argument can serve as the buffer")
    for values in tried:
        gaps = _gaps(values[outs[0]]) if made is _with_gaps else None
        before = None if gaps is None else gaps.clone()
        try:
            with torch.no_grad(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                overload_of(spec)(**values)
        except Exception as error:  # such buffers may be refused
            return refused(words(error))
        if (wrong := _written_as(values, outs, wanted)) is not None:
            return wrong
        if gaps is not None and before is not None and not torch.equal(gaps, before):
            return failed(f"writes outside of {outs[0]}")
    return passed(spec.full_name)


def _gaps(buffer: torch.Tensor) -> torch.Tensor | None:
    """Return the elements between those of a buffer of `_with_gaps`; None for a single number, whose buffer some ops
    enlarge for a while.
    """
    if not buffer.dim():
        return None
    return buffer.as_strided(buffer.shape, buffer.stride(), buffer.storage_offset() + 1)


def _in_place_of(bench: Bench, case: Case, arguments: Arguments, name: str, result: torch.Tensor) -> bool:
    """Check whether an argument has the form of the result, and its second element changes only that of the result."""
    tensor = arguments.named_tensors()[name]
    if (tensor.dtype, tensor.shape) != (result.dtype, result.shape) or not is_float(tensor) or tensor.numel() < 2:
        return False
    if not tensor.is_contiguous():
        return False
    other = arguments.copy()
    changed = other.named_tensors()[name].view(-1)
    changed[1] = 2 * changed.abs().max() + 1
    try:
        (after,) = bench.call(case, other).returned
    except Exception:  # it is not known, then
        return False
    places = (after != result).reshape(-1).nonzero().reshape(-1).tolist()
    return places == [1]


@of_operator
def cpu_fallback(bench: Bench, case: Case, operator: torch._ops.OpOverload) -> Finding:
    """Check for a CPU kernel."""
    there = torch._C._dispatch_has_computed_kernel_for_dispatch_key(operator.name(), "CPU")
    return passed() if there else missing("no kernel for the CPU")


@of_operator
def autocast(bench: Bench, case: Case, operator: torch._ops.OpOverload) -> Finding:
    """Check for an autocast policy, for this device or for all devices."""
    keys = {"cpu": "AutocastCPU", "cuda": "AutocastCUDA"}
    key = keys.get(bench.device.type, "AutocastPrivateUse1")
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    if has(operator.name(), key):
        return passed(f"a kernel for {key}")
    if has(operator.name(), "CompositeImplicitAutograd"):
        return passed("implemented by other ops, which have their own policies")
    return missing(f"no kernel for {key}: dtypes are not converted")


@of_operator
def vmap(bench: Bench, case: Case, operator: torch._ops.OpOverload) -> Finding:
    """Compare torch.vmap of the op with a loop over the batch."""
    arguments = bench.arguments(case)
    if arguments.written:
        return nothing("the op writes to its arguments")
    tensors = arguments.tensors()
    if not tensors or any(isinstance(value, list) for value in arguments.values.values()):
        return nothing("lists of tensors are not batched by this check" if tensors else "no tensor among the arguments")
    batches = [torch.stack([t + i if is_float(t) else t for i in range(BATCH)]) for t in tensors]

    def call(*values: torch.Tensor) -> Any:
        by_tensor = dict(zip(map(id, tensors), values, strict=True))
        changed = arguments.changed(lambda t: by_tensor.get(id(t), t))
        return bench.call_of(case, changed)()

    try:
        with torch.no_grad():
            loop = [list(flattened(call(*(batch[i] for batch in batches)))) for i in range(BATCH)]
    except Exception as error:  # judged by other points
        return nothing(words(error))
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            batched = list(flattened(torch.vmap(call, randomness="same")(*batches)))
    except Exception as error:  # no batching rule, or one that raises
        return missing(words(error))
    if bench.is_random(case):
        return passed("random: values are not compared")
    for batch, parts in zip(batched, zip(*loop, strict=True), strict=True):
        if not all(isinstance(tensor, torch.Tensor) for tensor in (batch, *parts)):
            continue
        wanted = torch.stack(parts)
        distance = compare(batch, wanted, wanted, terms=float(max(t.numel() for t in tensors)))
        if not distance.fits:
            return failed(f"differs from a loop: {distance.where}")
    return passed("as a loop")


@of_operator
def onnx_export(bench: Bench, case: Case, operator: torch._ops.OpOverload) -> Finding:
    """Check for a translation to ONNX."""
    try:
        from torch.onnx._internal.torchscript_exporter import registration, utils
    except ImportError:
        return nothing("this torch does not show which ops it can export")
    utils._setup_trace_module_map  # noqa: B018 - the import above registers what torch ships

    there = registration.registry.is_registered_op(f"{operator.namespace}::{operator._opname}", 18)
    return passed() if there else missing("no symbolic function is registered")
