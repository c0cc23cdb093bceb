"""How an op goes with the rest of torch: in-place and out= variants, a CPU kernel, autocast, vmap, ONNX."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch

from opreplay.replay.arguments.tensors import flattened
from opreplay.replay.check.calling.calls import Arguments, Bench
from opreplay.replay.check.calling.closeness import compare
from opreplay.replay.check.calling.refusals import words
from opreplay.replay.check.cases import Case
from opreplay.replay.check.model import Finding
from opreplay.replay.check.points.trials import Attempt, nothing
from opreplay.replay.resolve import schema as schemas

Ask = Callable[[Bench, Case, torch._ops.OpOverload], Finding]

BATCH = 3
"""Slices of the batch that torch.vmap is tried with."""


def _asked(bench: Bench, ask: Ask) -> list[Attempt]:
    """One trial of an op of the dispatcher."""
    case = bench.compact_bases[0]
    operator = bench.operator(case)
    if operator is None:
        return [Attempt(case.text, lambda: nothing(case.text, "a Python function is not in the dispatcher"))]
    return [Attempt(case.text, lambda: ask(bench, case, operator))]


def in_place(bench: Bench) -> list[Attempt]:
    """The in-place form and the out form of the op, where they exist."""
    case = bench.compact_bases[0]
    operator = bench.operator(case)
    if operator is None or any(arg.mutated for arg in case.op.args):
        why = "a Python function has no variants" if operator is None else "the op writes to its arguments itself"
        return [Attempt(case.text, lambda: nothing(case.text, why))]
    found = list(_variants(operator))
    if not found:
        detail = f"there is neither {operator.namespace}::{operator._opname}_ nor an overload out"
        return [Attempt(case.text, lambda: Finding(case=case.text, verdict="missing", detail=detail))]
    return [
        Attempt(f"{name}: {case.text}", lambda name=name, spec=spec: _agrees(bench, case, name, spec))
        for name, spec in found
    ]


def _variants(operator: torch._ops.OpOverload) -> list[tuple[str, schemas.OpSpec]]:
    """Names and schemas of in-place and out= variants whose other arguments are those of the op."""
    own = [argument.name for argument in operator._schema.arguments]
    qualified = f"{operator.namespace}::{operator._opname}"
    made: list[tuple[str, schemas.OpSpec]] = []
    for name in (f"{qualified}_", qualified, f"{qualified}_out"):
        for spec in schemas.specs_of(name):
            names = [arg.name for arg in spec.args]
            kinds = [arg.kind for arg in spec.args if arg.name in own]
            same = [str(a.real_type) for a in operator._schema.arguments if a.name in names]
            types = [arg.type_text for arg in spec.args if arg.name in own]
            writes = [arg for arg in spec.args if arg.mutated]
            rest = [arg.name for arg in spec.args if arg.name not in own]
            fits = bool(writes) and set(own) <= set(names) and same == types and len(kinds) == len(own)
            if fits and all(arg.mutated for arg in spec.args if arg.name in rest):
                made.append((spec.full_name, spec))
    return made


def _agrees(bench: Bench, case: Case, name: str, spec: schemas.OpSpec) -> Finding:
    """One variant against the functional op."""
    text = f"{name}: {case.text}"
    arguments = bench.arguments(case)
    try:
        wanted = bench.call(case, arguments.copy()).returned
    except Exception as error:  # judged by other points
        return nothing(text, words(error))
    namespace, _, op = spec.name.partition("::")
    function = getattr(getattr(getattr(torch.ops, namespace), op), spec.overload or "default")
    given = arguments.copy()
    values = dict(given.values)
    own = [given.values[arg.name] for arg in spec.args if arg.mutated and arg.name in given.values]
    looks = [(one.dtype, one.shape) for one in own if isinstance(one, torch.Tensor)]
    if looks and looks != [(one.dtype, one.shape) for one in wanted]:
        return nothing(text, "the result does not go into the argument: another dtype or shape")
    outs = [arg.name for arg in spec.args if arg.mutated and arg.name not in values]
    if outs:
        if len(outs) != len(wanted):
            return nothing(text, "results and buffers for them do not go together")
        values.update({o: torch.full_like(w, 3) for o, w in zip(outs, wanted, strict=True)})
    else:
        outs = [arg.name for arg in spec.args if arg.mutated]
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            function(**values)
    except Exception as error:  # ops raise anything
        first = values.get(outs[0])
        if (
            wanted
            and isinstance(first, torch.Tensor)
            and (first.shape, first.dtype)
            != (
                wanted[0].shape,
                wanted[0].dtype,
            )
        ):
            return nothing(text, f"the result does not fit into {outs[0]}: {words(error)}")
        return Finding(case=text, verdict="fail", detail=words(error))
    for out, right in zip(outs, wanted, strict=False):
        left = values[out]
        if not isinstance(left, torch.Tensor) or left.dtype != right.dtype or left.shape != right.shape:
            return Finding(case=text, verdict="fail", detail=f"leaves {out} of another shape or dtype")
        distance = compare(left, right, right)
        if not distance.fits:
            return Finding(case=text, verdict="fail", detail=f"{out}: {distance.where}")
    return Finding(case=text, verdict="pass", detail=name)


def cpu_fallback(bench: Bench) -> list[Attempt]:
    """A kernel for the CPU."""
    return _asked(bench, _cpu)


def _cpu(bench: Bench, case: Case, operator: torch._ops.OpOverload) -> Finding:
    there = torch._C._dispatch_has_computed_kernel_for_dispatch_key(operator.name(), "CPU")
    return Finding(
        case=case.text, verdict="pass" if there else "missing", detail="" if there else "no kernel for the CPU"
    )


def autocast(bench: Bench) -> list[Attempt]:
    """A cast policy for the device, or for none in particular."""
    return _asked(bench, _autocast)


def _autocast(bench: Bench, case: Case, operator: torch._ops.OpOverload) -> Finding:
    keys = {"cpu": "AutocastCPU", "cuda": "AutocastCUDA"}
    key = keys.get(bench.device.type, "AutocastPrivateUse1")
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    if has(operator.name(), key):
        return Finding(case=case.text, verdict="pass", detail=f"a kernel for {key}")
    if torch._C._dispatch_has_kernel_for_dispatch_key(operator.name(), "CompositeImplicitAutograd"):
        return Finding(case=case.text, verdict="pass", detail="made of other ops, which have theirs")
    return Finding(case=case.text, verdict="missing", detail=f"no kernel for {key}: dtypes are taken as they come")


def vmap(bench: Bench) -> list[Attempt]:
    """torch.vmap against a loop."""
    return _asked(bench, _vmap)


def _vmap(bench: Bench, case: Case, operator: torch._ops.OpOverload) -> Finding:
    text = case.text
    arguments = bench.arguments(case)
    if arguments.written:
        return nothing(text, "the op writes to its arguments")
    tensors = arguments.tensors()
    if not tensors or any(isinstance(value, list) for value in arguments.values.values()):
        return nothing(text, "lists of tensors are not batched here" if tensors else "no tensor among the arguments")
    batches = [
        torch.stack([t + i if t.is_floating_point() and t.itemsize > 1 else t for i in range(BATCH)]) for t in tensors
    ]

    def call(*given: torch.Tensor) -> Any:
        by_place = dict(zip(map(id, tensors), given, strict=True))
        changed: Arguments = arguments.changed(lambda t: by_place.get(id(t), t))
        return bench.call_of(case, changed)()

    try:
        with torch.no_grad():
            loop = [list(flattened(call(*(batch[i] for batch in batches)))) for i in range(BATCH)]
    except Exception as error:  # judged by other points
        return nothing(text, words(error))
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made = list(flattened(torch.vmap(call, randomness="same")(*batches)))
    except Exception as error:  # no batching rule, or one that raises
        return Finding(case=text, verdict="missing", detail=words(error))
    if torch.Tag.nondeterministic_seeded in operator.tags:
        return Finding(case=text, verdict="pass", detail="random: values are not compared")
    for place, one in enumerate(made):
        parts = [results[place] for results in loop]
        if not isinstance(one, torch.Tensor) or not all(isinstance(part, torch.Tensor) for part in parts):
            continue
        wanted = torch.stack(parts)
        distance = compare(one, wanted, wanted, terms=float(max(t.numel() for t in tensors)))
        if not distance.fits:
            return Finding(case=text, verdict="fail", detail=f"not what a loop gives: {distance.where}")
    return Finding(case=text, verdict="pass", detail="as a loop")


def onnx_export(bench: Bench) -> list[Attempt]:
    """A translation to ONNX."""
    return _asked(bench, _onnx)


def _onnx(bench: Bench, case: Case, operator: torch._ops.OpOverload) -> Finding:
    name = f"{operator.namespace}::{operator._opname}"
    try:
        from torch.onnx._internal.torchscript_exporter import registration, utils
    except ImportError:
        return nothing(case.text, "this torch does not tell what it exports")
    utils._setup_trace_module_map  # noqa: B018 - the import above registers what torch ships

    there = registration.registry.is_registered_op(name, 18)
    return Finding(
        case=case.text,
        verdict="pass" if there else "missing",
        detail="" if there else "no symbolic function is registered",
    )
