"""What an op promises of itself: writing and aliasing by its schema, results by its fake kernel."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
    UnsupportedOperatorException,
)

from opreplay.replay.arguments.tensors import flattened
from opreplay.replay.check import variants
from opreplay.replay.check.calling.calls import Arguments, Bench
from opreplay.replay.check.calling.refusals import words
from opreplay.replay.check.cases import Case
from opreplay.replay.check.model import Finding
from opreplay.replay.check.points.peak import too_much
from opreplay.replay.check.points.settled import left_alone
from opreplay.replay.check.points.trials import Attempt, attempt, nothing
from opreplay.replay.check.points.values import layouts
from opreplay.replay.ir.reasons import NotReplayable
from opreplay.replay.resolve.policy import TORCH_NAMESPACES

NO_FAKE = ("no fake impl", "register_fake", "no abstract impl", "Meta backend", "has no kernel for meta", "meta kernel")
"""In what torch says where an op has no fake kernel."""


def schema(bench: Bench) -> list[Attempt]:
    """Every layout, and opcheck's test of the schema."""
    first = bench.first
    if bench.operator(first) is None:
        return [Attempt(first.text, lambda: nothing(first.text, "a Python function has no schema"))]
    base = bench.compact_bases[0]
    others = [case for case in variants.sized(base) if case.kind in ("empty", "one element", "huge")]
    if variants.main_dtype(base) is not None:
        others += [variants.typed(base, dtype) for dtype in ("float64", "bfloat16")]
    return [
        *(attempt(case, lambda case: _writes(bench, case)) for case in (*layouts(bench), *others)),
        Attempt(f"state of torch: {base.text}", lambda: left_alone(bench, base)),
        Attempt(f"opcheck: {first.text}", lambda: opcheck(bench, base, "test_schema")),
    ]


def _writes(bench: Bench, case: Case) -> Finding:
    """One call with memory looked at before and after it, around the arguments as well."""
    text = case.text
    if (why := too_much(bench, case)) is not None:
        return nothing(text, why)
    try:
        arguments = bench.arguments(case)
    except NotReplayable as stopped:
        return nothing(text, f"no arguments can be made: {stopped.reason}")
    operator = bench.operator(case)
    assert operator is not None
    before = {name: _bits(value) for name, value in arguments.named_tensors().items()}
    try:
        returned = bench.call_of(case, arguments)()
    except Exception as error:  # judged by other points
        return nothing(text, words(error))
    written = set(arguments.written)
    for name, tensor in arguments.named_tensors().items():
        now = _bits(tensor)
        if name in written:
            outside = _outside(tensor, before[name], now)
            if outside:
                return Finding(case=text, verdict="fail", detail=f"writes {outside:,} bytes beside {name}")
        elif now.shape != before[name].shape or not torch.equal(now, before[name]):
            return Finding(case=text, verdict="fail", detail=f"writes to {name}, which the schema does not say")
    return _aliases(text, operator, arguments, returned)


def _aliases(text: str, operator: torch._ops.OpOverload, arguments: Arguments, returned: Any) -> Finding:
    """Whether results share memory with arguments or each other, and the schema says so."""
    places = {
        name: tensor.untyped_storage().data_ptr()
        for name, tensor in arguments.named_tensors().items()
        if tensor.untyped_storage().nbytes() and tensor.device.type != "meta"
    }
    declared = operator._schema.returns
    results = [item for item in flattened(returned) if isinstance(item, torch.Tensor)]
    seen: dict[int, int] = {}
    for i, result in enumerate(results):
        place = result.untyped_storage().data_ptr() if result.untyped_storage().nbytes() else 0
        alias = declared[min(i, len(declared) - 1)].alias_info if declared else None
        if place and alias is None:
            shared = next((name for name, at in places.items() if at == place), None)
            if shared is not None and not _may_alias(operator):
                detail = f"result {i} shares the memory of {shared}, which the schema does not say"
                return Finding(case=text, verdict="fail", detail=detail)
            if place in seen and not _may_alias(operator):
                detail = f"results {seen[place]} and {i} share memory, which the schema does not say"
                return Finding(case=text, verdict="fail", detail=detail)
        seen.setdefault(place, i)
    return Finding(case=text, verdict="pass")


def _may_alias(operator: torch._ops.OpOverload) -> bool:
    """Whether torch itself lets the op return an argument or a copy: `reshape`, `contiguous` and their like, which
    are made of other ops."""
    return operator.namespace == "aten" and operator.has_kernel_for_dispatch_key(
        torch._C.DispatchKey.CompositeImplicitAutograd
    )


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """All bytes of the memory that a tensor lies in."""
    memory = torch.empty(0, dtype=torch.uint8, device=tensor.device)
    return memory.set_(tensor.untyped_storage()).clone()


def _outside(tensor: torch.Tensor, before: torch.Tensor, now: torch.Tensor) -> int:
    """Bytes that changed in the memory of a tensor, but in none of its elements."""
    if before.shape != now.shape:
        return 0
    inside = torch.zeros_like(before, dtype=torch.bool)
    view = torch.empty(0, dtype=torch.bool, device=tensor.device).set_(
        inside.untyped_storage(), 0, inside.shape, inside.stride()
    )
    width, offset = tensor.itemsize, tensor.storage_offset() * tensor.itemsize
    mask = view.as_strided((*tensor.shape, width), (*(s * width for s in tensor.stride()), 1), offset)
    mask.fill_(True)
    return int(((before != now) & ~view).sum())


def opcheck(bench: Bench, case: Case, test: str) -> Finding:
    """One of torch.library.opcheck's tests on a case."""
    text = f"opcheck {test}: {case.text}"
    operator = bench.operator(case)
    if operator is None:
        return nothing(text, "a Python function is not in the dispatcher")
    arguments = bench.arguments(case)
    logging.disable(logging.CRITICAL)
    try:
        found = torch.library.opcheck(
            operator, tuple(arguments.positional), arguments.by_name, test_utils=test, raise_exception=False
        )
    except Exception as error:  # what it raises before the test
        return nothing(text, words(error))
    finally:
        logging.disable(logging.NOTSET)
    said = str(found.get(test, "SUCCESS"))
    if "not implemented for 'Float8" in said and any(
        t.is_floating_point() and t.itemsize == 1 for t in arguments.tensors()
    ):
        return nothing(text, "opcheck cannot compare numbers of 8 bits")
    if said in ("SUCCESS", "SKIPPED"):
        return Finding(case=text, verdict="pass")
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return Finding(case=text, verdict="fail", detail=" ".join(lines[:3])[:400])


def shape_inference(bench: Bench) -> list[Attempt]:
    """The fake kernel on every case whose sizes, strides or dtypes differ."""
    first = bench.first
    if bench.operator(first) is None:
        return [Attempt(first.text, lambda: nothing(first.text, "a Python function has no fake kernel"))]
    compact = bench.compact_bases[0]
    cases: list[Case] = [*bench.bases, *variants.sized(compact), *layouts(bench)]
    if variants.main_dtype(compact) is not None:
        cases += [variants.typed(compact, dtype) for dtype in variants.DTYPES if hasattr(torch, dtype)]
    return [
        *(attempt(case, lambda case: faked(bench, case)) for case in cases),
        Attempt(f"opcheck: {compact.text}", lambda: opcheck(bench, compact, "test_faketensor")),
    ]


def broadcast_fakes(bench: Bench) -> list[Attempt]:
    """The fake kernel where one tensor is smaller than the others and the op takes it."""
    compact = bench.compact_bases[0]
    if bench.operator(compact) is None:
        return []

    def run(case: Case) -> Finding:
        found = faked(bench, case)
        return nothing(found.case, found.detail) if found.verdict == "missing" else found

    return [Attempt(f"fake kernel, {case.text}", lambda case=case: run(case)) for case in variants.broadcast(compact)]


def faked(bench: Bench, case: Case) -> Finding:
    """The results of the fake kernel beside real ones."""
    text = case.text
    if (why := too_much(bench, case)) is not None:
        return nothing(text, why)
    try:
        arguments = bench.arguments(case)
        real = list(flattened(bench.call_of(case, arguments.copy())()))
    except Exception as error:  # judged by other points
        return nothing(text, words(error))
    mode = FakeTensorMode(allow_non_fake_inputs=False)
    # A real call may give NaN in integers and the like; only what tensors look like is compared.
    fakes = arguments.changed(mode.from_tensor)
    try:
        with mode, torch.no_grad():
            made = list(flattened(bench.call_of(case, fakes)()))
    except (DynamicOutputShapeException, DataDependentOutputException) as error:
        return nothing(text, f"sizes of results depend on values: {words(error)}")
    except (UnsupportedOperatorException, NotImplementedError) as error:
        return Finding(case=text, verdict="missing", detail=f"no fake kernel: {words(error)}")
    except Exception as error:  # fake kernels raise anything
        verdict = "missing" if any(part in str(error) for part in NO_FAKE) else "fail"
        return Finding(case=text, verdict=verdict, detail=f"the fake kernel raises {words(error)}")
    wrong = _unlike(made, real)
    if wrong:
        return Finding(case=text, verdict="fail", detail=wrong)
    operator = bench.operator(case)
    strides = _other_strides(made, real)
    # Of its own ops torch lets fake kernels, many of them decompositions, differ in strides: nobody else can mend that.
    own = operator is not None and operator.namespace in TORCH_NAMESPACES
    return Finding(case=text, verdict="fail" if strides and not own else "pass", detail=strides)


def _unlike(made: Sequence[Any], real: Sequence[Any]) -> str:
    """What the fake results have otherwise than the real ones, strides aside; "" for nothing."""
    if len(made) != len(real):
        return f"the fake kernel gives {len(made)} results, the op {len(real)}"
    for i, (fake, true) in enumerate(zip(made, real, strict=True)):
        which = f" of result {i}" if len(real) > 1 else ""
        if not isinstance(true, torch.Tensor) or not isinstance(fake, torch.Tensor):
            continue
        if fake.dtype != true.dtype:
            return f"the fake kernel says {fake.dtype}{which}, it is {true.dtype}"
        try:
            shape = tuple(int(size) for size in fake.shape)
        except Exception:  # a size that depends on values has no number
            continue
        if shape != tuple(true.shape):
            return f"the fake kernel says sizes {list(shape)}{which}, they are {list(true.shape)}"
        if fake.device != true.device:
            return f"the fake kernel says {fake.device}{which}, it is {true.device}"
    return ""


def _other_strides(made: Sequence[Any], real: Sequence[Any]) -> str:
    """The first results that are as large, but lie otherwise in memory; "" for none."""
    for i, (fake, true) in enumerate(zip(made, real, strict=True)):
        which = f" of result {i}" if len(real) > 1 else ""
        if not isinstance(true, torch.Tensor) or not isinstance(fake, torch.Tensor) or fake.dim() != true.dim():
            continue
        if fake.layout == true.layout == torch.strided and true.numel():
            strides = [(a, b) for a, b, n in zip(fake.stride(), true.stride(), true.shape, strict=True) if n > 1]
            if any(int(a) != int(b) for a, b in strides):
                return f"the fake kernel says strides {list(fake.stride())}{which}, they are {list(true.stride())}"
    return ""
