"""Checks what an op declares about itself. Its schema declares which arguments it writes and aliases. Its fake kernel
declares the shapes, strides and dtypes of its results.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
    UnsupportedOperatorException,
)

from opreplay.replay.arguments.tensors import flattened, tensors_in
from opreplay.replay.check import variants
from opreplay.replay.check.calling.calls import Arguments, Bench, is_float
from opreplay.replay.check.calling.refusals import words
from opreplay.replay.check.cases import Case
from opreplay.replay.check.model import Finding
from opreplay.replay.check.points.peak import arguments_for
from opreplay.replay.check.points.stateless import leaves_state
from opreplay.replay.check.points.trials import Attempt, attempt, failed, missing, nothing, passed
from opreplay.replay.check.points.values import layouts
from opreplay.replay.resolve.policy import TORCH_NAMESPACES

NO_FAKE = ("no fake impl", "register_fake", "no abstract impl", "Meta backend", "has no kernel for meta", "meta kernel")
"""Parts of torch's error messages for an op without a fake kernel."""


def schema(bench: Bench) -> list[Attempt]:
    """Return trials that check which memory the op writes, in each layout, and one that runs opcheck's schema test."""
    first = bench.first
    base = bench.compact_bases[0]
    if bench.operator(first) is None:
        if not bench.has_reference(base):
            return [Attempt(first.text, lambda: nothing("a Python function has no schema"))]
        return [
            *(attempt(bench, case, _writes_as_reference) for case in layouts(bench)),
            *(attempt(bench, case, only_accepted_calls(_shares_always)) for case in bench.other_calls(base)),
        ]
    others = [case for case in variants.vary_sizes(base) if case.kind in ("empty", "one element", "huge")]
    if variants.main_dtype(base) is not None:
        others += [variants.replace_dtype(base, dtype) for dtype in ("float64", "bfloat16")]
    return [
        *(attempt(bench, case, _writes) for case in (*layouts(bench), *others)),
        *(attempt(bench, case, only_accepted_calls(_writes)) for case in bench.other_calls(base)),
        attempt(bench, base, leaves_state, "state of torch"),
        Attempt(f"opcheck: {first.text}", lambda: opcheck(bench, base, "test_schema")),
    ]


def _writes(bench: Bench, case: Case) -> Finding:
    """Compare the arguments' storages, including bytes around each tensor, before and after one call."""
    arguments = arguments_for(bench, case)
    operator = bench.operator(case)
    assert operator is not None
    before = {name: _bits(value) for name, value in arguments.named_tensors().items()}
    try:
        returned = bench.call_of(case, arguments)()
    except Exception as error:  # judged by other points
        return nothing(words(error))
    for name, tensor in arguments.named_tensors().items():
        now = _bits(tensor)
        if name in arguments.written:
            if outside := _outside(tensor, before[name], now):
                return failed(f"writes {outside:,} bytes outside of {name}")
        elif _differ(now, before[name]):
            return failed(f"writes to {name}, which the schema does not declare")
    return _aliases(operator, arguments, tensors_in(returned))


def _writes_as_reference(bench: Bench, case: Case) -> Finding:
    """Check that a Python function, which has no schema, writes to no argument that its reference leaves unchanged."""
    arguments = arguments_for(bench, case)
    theirs = arguments.copy()
    before, before_theirs = (
        {name: _bits(value) for name, value in each.named_tensors().items()} for each in (arguments, theirs)
    )
    try:
        bench.call_of(case, arguments)()
        changed = _changed(arguments, before)
        if not changed:
            return passed()
        bench.reference_call(case, theirs)()
    except Exception as error:  # judged by other points
        return nothing(words(error))
    more = sorted(changed - _changed(theirs, before_theirs))
    return failed(f"writes to {', '.join(more)}, unlike the reference") if more else passed()


def _shares_always(bench: Bench, case: Case) -> Finding:
    """Check that a result shares an argument's memory in this call only if it also does in the usual one, or if the
    reference's does. A function that sometimes returns its argument lets the caller change it by mistake.
    """
    arguments = arguments_for(bench, case)
    base = bench.compact_bases[0]
    usual = bench.arguments(base).copy()
    theirs = arguments.copy()
    try:
        shared = _shared(arguments, bench.call_of(case, arguments)())
        if not shared or _shared(usual, bench.call_of(base, usual)()):
            return passed()
        more = sorted(shared - _shared(theirs, bench.reference_call(case, theirs)()))
    except Exception as error:  # judged by other points
        return nothing(words(error))
    return failed(f"the result shares the memory of {', '.join(more)} only in this call") if more else passed()


def _shared(arguments: Arguments, returned: Any) -> set[str]:
    """Return the names of the arguments that share memory with the results of a call."""
    owners = _owners(arguments)
    places = {tensor.untyped_storage().data_ptr() for tensor in tensors_in(list(flattened(returned)))}
    return {name for place, name in owners.items() if place in places}


def _changed(arguments: Arguments, before: Mapping[str, torch.Tensor]) -> set[str]:
    """Return the names of changed arguments, except those that the op declares it writes to."""
    now = {name: _bits(value) for name, value in arguments.named_tensors().items() if name not in arguments.written}
    return {name for name, bits in now.items() if _differ(bits, before[name])}


def _differ(now: torch.Tensor, before: torch.Tensor) -> bool:
    """Check whether the bytes or the size of a storage changed."""
    return now.shape != before.shape or not torch.equal(now, before)


def _owners(arguments: Arguments) -> dict[int, str]:
    """Map the address of each storage to the name of the first argument that uses it."""
    owners: dict[int, str] = {}
    for name, tensor in arguments.named_tensors().items():
        if tensor.untyped_storage().nbytes() and tensor.device.type != "meta":
            owners.setdefault(tensor.untyped_storage().data_ptr(), name)
    return owners


def _aliases(operator: torch._ops.OpOverload, arguments: Arguments, results: Sequence[torch.Tensor]) -> Finding:
    """Check that the schema declares all memory that results share with arguments or with each other."""
    declared = operator._schema.returns
    owners = _owners(arguments)
    first_results: dict[int, int] = {}
    for i, tensor in enumerate(results):
        alias = declared[min(i, len(declared) - 1)].alias_info if declared else None
        place = tensor.untyped_storage().data_ptr() if tensor.untyped_storage().nbytes() else 0
        if place and alias is None and not _may_alias(operator):
            if place in owners:
                return failed(f"result {i} shares the memory of {owners[place]}, which the schema does not declare")
            if place in first_results:
                return failed(f"results {first_results[place]} and {i} share memory, which the schema does not declare")
        first_results.setdefault(place, i)
    return passed()


def _may_alias(operator: torch._ops.OpOverload) -> bool:
    """Check whether torch allows the op to return either an argument or a copy of it. This holds for composite ops such
    as `reshape` and `contiguous`.
    """
    return operator.namespace == "aten" and operator.has_kernel_for_dispatch_key(
        torch._C.DispatchKey.CompositeImplicitAutograd
    )


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """Return all bytes of a tensor's storage."""
    memory = torch.empty(0, dtype=torch.uint8, device=tensor.device)
    return memory.set_(tensor.untyped_storage()).clone()


def _outside(tensor: torch.Tensor, before: torch.Tensor, now: torch.Tensor) -> int:
    """Return the number of changed bytes in a tensor's storage that belong to none of its elements."""
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
    """Run one of torch.library.opcheck's tests on a case."""
    return msgspec.structs.replace(_opcheck(bench, case, test), case=f"opcheck {test}: {case.text}")


def _opcheck(bench: Bench, case: Case, test: str) -> Finding:
    operator = bench.operator(case)
    if operator is None:
        return nothing("a Python function is not in the dispatcher")
    arguments = bench.arguments(case)
    logging.disable(logging.CRITICAL)
    try:
        outcomes = torch.library.opcheck(
            operator, tuple(arguments.positional), arguments.by_name, test_utils=test, raise_exception=False
        )
    except Exception as error:  # what it raises before the test
        return nothing(words(error))
    finally:
        logging.disable(logging.NOTSET)
    said = str(outcomes.get(test, "SUCCESS"))
    if "not implemented for 'Float8" in said and any(
        t.is_floating_point() and not is_float(t) for t in arguments.tensors()
    ):
        return nothing("opcheck cannot compare 8-bit floats")
    if said in ("SUCCESS", "SKIPPED"):
        return passed()
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return without_fake(bench, case) or failed(" ".join(lines[:3])[:400])


def without_fake(bench: Bench, case: Case) -> Finding | None:
    """Return a "missing" finding if the op has no fake kernel; otherwise None. A missing fake kernel explains failures
    of other tests.
    """
    if bench.operator(case) is None:
        return None
    fake = _fake_results(bench, case, arguments_for(bench, case))
    return fake if isinstance(fake, Finding) and fake.verdict == "missing" else None


def shape_inference(bench: Bench) -> list[Attempt]:
    """Return trials of the fake kernel for every case with different sizes, strides or dtypes."""
    first = bench.first
    if bench.operator(first) is None:
        return [Attempt(first.text, lambda: nothing("a Python function has no fake kernel"))]
    compact = bench.compact_bases[0]
    cases: list[Case] = [*bench.bases, *variants.vary_sizes(compact), *layouts(bench)]
    if variants.main_dtype(compact) is not None:
        cases += [variants.replace_dtype(compact, dtype) for dtype in variants.DTYPES if hasattr(torch, dtype)]
    return [
        *(attempt(bench, case, compare_fake) for case in cases),
        *(attempt(bench, case, only_accepted_calls(compare_fake)) for case in bench.other_calls(compact)),
        Attempt(f"opcheck: {compact.text}", lambda: opcheck(bench, compact, "test_faketensor")),
    ]


def only_accepted_calls(judge: Callable[[Bench, Case], Finding]) -> Callable[[Bench, Case], Finding]:
    """Restrict a trial to calls that the reference accepts, if there is a reference. The right result of other calls is
    unknown.
    """

    def judged(bench: Bench, case: Case) -> Finding:
        if bench.reference_refuses(case, arguments_for(bench, case)):
            return nothing("the reference refuses the call")
        return judge(bench, case)

    return judged


def broadcast_fakes(bench: Bench) -> list[Attempt]:
    """Return trials of the fake kernel with one tensor smaller than the others, for calls that the op accepts."""
    compact = bench.compact_bases[0]

    def judged(case: Case) -> Finding:
        finding = msgspec.structs.replace(compare_fake(bench, case), case=case.text)
        is_missing = finding.verdict == "missing"
        return msgspec.structs.replace(finding, verdict="not applicable") if is_missing else finding

    cases = [] if bench.operator(compact) is None else variants.broadcast(compact)
    return [Attempt(f"fake kernel, {case.text}", partial(judged, case)) for case in cases]


def compare_fake(bench: Bench, case: Case) -> Finding:
    """Compare the results of the fake kernel with the real results."""
    arguments = arguments_for(bench, case)
    try:
        real = list(flattened(bench.call_of(case, arguments.copy())()))
    except Exception as error:  # judged by other points
        return nothing(words(error))
    fake = _fake_results(bench, case, arguments)
    if isinstance(fake, Finding):
        return fake
    if len(fake) != len(real):
        return failed(f"the fake kernel returns {len(fake)} results, the op {len(real)}")
    pairs = [(f" of result {i}" if len(real) > 1 else "", *pair) for i, pair in enumerate(zip(fake, real, strict=True))]
    pairs = [pair for pair in pairs if isinstance(pair[1], torch.Tensor) and isinstance(pair[2], torch.Tensor)]
    wrong = next(filter(None, (_other_form(*pair) for pair in pairs)), None)
    if wrong is not None:
        return failed(f"the fake kernel returns {wrong}")
    strides = next(filter(None, (_other_strides(*pair) for pair in pairs)), None)
    if strides is None:
        return passed()
    operator = bench.operator(case)
    # Of its own ops torch lets fake kernels, many of them decompositions, differ in strides: nobody else can mend that.
    of_torch = operator is not None and operator.namespace in TORCH_NAMESPACES
    return (passed if of_torch else failed)(f"the fake kernel returns {strides}")


def _fake_results(bench: Bench, case: Case, arguments: Arguments) -> list[Any] | Finding:
    """Return the results of the fake kernel, or a finding for the exception that it raises."""
    mode = FakeTensorMode(allow_non_fake_inputs=False)
    # A real call may give NaN in integers and the like; only what tensors look like is compared.
    fakes = arguments.changed(mode.from_tensor)
    try:
        with mode, torch.no_grad():
            return list(flattened(bench.call_of(case, fakes)()))
    except (DynamicOutputShapeException, DataDependentOutputException) as error:
        return nothing(f"result sizes depend on values: {words(error)}")
    except (UnsupportedOperatorException, NotImplementedError) as error:
        return missing(_no_fake(case, error))
    except Exception as error:  # fake kernels raise anything
        if any(part in str(error) for part in NO_FAKE):
            return missing(_no_fake(case, error))
        return failed(f"the fake kernel raises {words(error)}")


def _no_fake(case: Case, error: Exception) -> str:
    return f'no fake kernel: register one with @torch.library.register_fake("{case.op.name}") ({words(error)})'


def _other_form(which: str, fake: torch.Tensor, real: torch.Tensor) -> str | None:
    """Describe a difference in dtype or shape between a fake result and the real one; None if there is none."""
    if fake.dtype != real.dtype:
        return f"{fake.dtype}{which}, the op {real.dtype}"
    try:
        shape = tuple(int(size) for size in fake.shape)
    except Exception:  # a size that depends on values has no number
        return None
    if shape != tuple(real.shape):
        return f"sizes {list(shape)}{which}, the op {list(real.shape)}"
    return None if fake.device == real.device else f"{fake.device}{which}, the op {real.device}"


def _other_strides(which: str, fake: torch.Tensor, real: torch.Tensor) -> str | None:
    """Describe how the strides of a fake result differ from the real result's; None if they match."""
    if fake.dim() != real.dim() or not fake.layout == real.layout == torch.strided or not real.numel():
        return None
    strides = [(a, b) for a, b, n in zip(fake.stride(), real.stride(), real.shape, strict=True) if n > 1]
    if all(int(a) == int(b) for a, b in strides):
        return None
    return f"strides {list(fake.stride())}{which}, the op {list(real.stride())}"
