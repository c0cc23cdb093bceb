# pyright: strict
"""Run programs on tensors, and compare their values with the reference. Reports the line that stored a wrong value."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, cast

import msgspec

from opreplay.replay.ascend.devices.file import load_device
from opreplay.replay.ascend.profile import DeviceProfile
from opreplay.replay.ir.notation import tensor_text
from opreplay.replay.tile.language.memory import prepare
from opreplay.replay.tile.language.places import TileError
from opreplay.replay.tile.language.tiles import Memory
from opreplay.replay.tile.program import Bound, Program, bind, reference_of
from opreplay.replay.tile.running import cores_for_values, memories, run_on_cores, unwritten
from opreplay.traces.errors import UsageError
from opreplay.traces.model import TensorMeta

TOLERANCE = {
    "float32": 2e-5,
    "float16": 4e-3,
    "bfloat16": 2e-2,
    "int8": 1.0,
    "float8_e4m3fn": 0.07,
    "float8_e5m2": 0.13,
}
"""Dtype → largest allowed difference from the reference. Results of other dtypes must be equal.

For floating-point dtypes, the difference is divided by |reference element| + min(largest |reference element|, 1). The
tolerances allow sums in a different order. For 2-byte types, they also allow errors of a few units in the last place.
Quantised int8 results may be rounded to the neighbouring value.
"""

MOST_ELEMENTS = 1 << 24
"""Values are computed only for cases with up to this many elements in all tensors together."""
MOST_PRODUCTS = 1 << 30
"""Values are computed only for cases with up to this many multiply-adds, estimated from the largest matrices."""

VALUE_DEVICE = "910b3"
"""Device assumed when values are computed and none is given. All 910B and 910C have the same memory limits."""


class Checked(msgspec.Struct, frozen=True, kw_only=True):
    """The result of checking one case's values."""

    same: bool
    error: float
    """Largest absolute difference from the reference."""
    allowed: bool
    """Whether every difference from the reference is within its tolerance."""


def run_values(
    program: Program,
    arguments: Mapping[str, Any],
    settings: Mapping[str, Any] | None = None,
    device: DeviceProfile | None = None,
) -> tuple[Any, ...]:
    """Return a program's results for torch tensors, computed on the CPU. Raises TileError, and UsageError for wrong
    arguments.
    """
    metas = {name: as_meta(value) for name, value in arguments.items()}
    bound = bind(program, metas, settings)
    tensors = _with_data(bound, arguments)
    _run(bound, device or load_device(VALUE_DEVICE), tensors)
    unwritten(bound, tensors)
    return tuple(_view(tensors[p.name]).clone() for p in program.outputs)


def as_meta(value: Any) -> Any:
    """Return the shape, dtype and strides of a tensor; return any other value unchanged."""
    if not hasattr(value, "stride"):
        return value
    return TensorMeta(
        shape=tuple(value.shape), dtype=str(value.dtype).removeprefix("torch."), strides=tuple(value.stride())
    )


def _view(memory: Memory) -> Any:
    return memory.data.as_strided(memory.shape, memory.strides, memory.offset)


def _with_data(bound: Bound, arguments: Mapping[str, Any]) -> dict[str, Memory]:
    tensors = memories(bound)
    for name, memory in tensors.items():
        prepare(memory, arguments.get(name) if memory.role in ("in", "inout") else None)
    return tensors


NAN = "one NaN"
DRAWS: dict[str, Callable[[Any], Any]] = {
    "": lambda t: t,
    "all negative": lambda t: -t.abs(),
    "up to 1e4": lambda t: t * 3e3,
    "about 0.01": lambda t: t * 1e-2,
    "all zero": lambda t: t * 0,
    "many equal": lambda t: t.clamp(-2, 2).round(),
    NAN: lambda t: t.index_fill(0, t.new_tensor([t.numel() // 2]).long(), float("nan")),
}
"""Name → function that turns flattened normal random numbers into floating-point inputs of another kind.

A correct program gives correct results for inputs of all kinds.
"""
MOST_DRAWN = 1 << 16
"""Cases with up to this many elements in all tensors together are run with every kind of `DRAWS`."""
SCALED = {"up to 1e4", "about 0.01"}
SCALED_TOLERANCE = 1e-2
"""Tolerance for inputs that are not of order 1, relative to the largest element of a result.

With such inputs, sums may cancel, and small values may be subnormal.
"""


def draw(bound: Bound, seed: int = 0, kind: str = "") -> dict[str, Any]:
    """Return random inputs for a case. The same seed gives the same inputs.

    Floating-point inputs are normal random numbers, changed by the function `DRAWS[kind]`. Integer dtypes get small
    integers. The program's `inputs=` function may replace inputs. Raises UsageError if it returns anything but matching
    tensors.
    """
    import torch

    inputs: dict[str, Any] = {}
    generator = torch.Generator().manual_seed(seed)
    for p in bound.program.inputs:
        if p.role == "scalar":
            inputs[p.name] = bound.scalars[p.name]
            continue
        meta = bound.tensors[p.name]
        dtype = getattr(torch, meta.dtype)
        if dtype == torch.bool:
            data = torch.rand(meta.shape, generator=generator) < 0.5
        elif dtype.is_floating_point:
            normal = torch.randn(meta.shape, generator=generator)
            data = (DRAWS[kind](normal.reshape(-1)).reshape(meta.shape) if normal.numel() else normal).to(dtype)
        else:
            low, high = (0, 8) if dtype in (torch.uint8, torch.int32, torch.int64) else (-8, 8)
            data = torch.randint(low, high, meta.shape, generator=generator).to(dtype)
        inputs[p.name] = data
    if bound.program.given is not None:
        inputs |= _fitting(bound, bound.program.given(*(_cloned(value) for value in inputs.values())))
    return inputs


def _fitting(bound: Bound, given: Any) -> Mapping[str, Any]:
    """Return the given tensors by name, unchanged. Raises UsageError for names, shapes and dtypes that the case does
    not have.
    """
    if not isinstance(given, Mapping):
        raise UsageError(
            f"{bound.program.place}: inputs= of {bound.program.name} returned a {type(given).__name__} "
            "instead of a dict",
            hint="Name the inputs: inputs=lambda x, table: {'table': torch.arange(len(table)).int()}.",
        )
    for name, value in cast("Mapping[str, Any]", given).items():
        meta, actual = bound.tensors.get(name), as_meta(value)
        if meta is None or getattr(actual, "shape", None) != meta.shape or actual.dtype != meta.dtype:
            wanted = "no argument with that name" if meta is None else tensor_text(meta)
            shown = tensor_text(actual) if isinstance(actual, TensorMeta) else repr(value)
            raise UsageError(
                f"{bound.program.name}: {name} is {shown}, but the case has {wanted}",
                hint=("Inputs must have the shapes and dtypes of each case, also of the cases of the default set."),
            )
    return cast("Mapping[str, Any]", given)


def too_large(bound: Bound, part: int = 1) -> str:
    """Return why the values of a case are too expensive to compute; "" if they are not. `part` divides the limits."""
    elements = sum(prod(meta.shape) for meta in bound.tensors.values())
    if elements > MOST_ELEMENTS // part:
        return f"the case has {elements:,} elements, but values are checked only up to {MOST_ELEMENTS:,}"
    sizes = sorted((prod(meta.shape) for meta in bound.tensors.values()), reverse=True)[:3]
    # Of a product of [m, k] and [k, n] the root of m k * k n * m n.
    if len(sizes) == 3 and len(set(sizes)) > 1 and prod(sizes) > (MOST_PRODUCTS // part) ** 2:
        needed = f"about {prod(sizes) ** 0.5:.2g} multiplications are needed"
        return f"{needed}, but values are checked only up to {MOST_PRODUCTS:,}"
    return ""


def check(bound: Bound, device: DeviceProfile, seed: int = 0, inputs: Mapping[str, Any] | None = None) -> Checked:
    """Run a case and compare it with the reference.

    A small case is run with each kind of `DRAWS` that the reference accepts. `inputs` replaces some of the random
    inputs. Then the other inputs are always normally distributed. Raises TileError for an exceeded limit. If a result
    differs by more than its dtype's tolerance, the limit is `values`, and the error names the line that stored the
    worst element. Raises UsageError if there is no reference, or if it rejects the inputs.
    """
    arguments = draw(bound, seed) | dict(_fitting(bound, inputs or {}))
    tensors = _outcome(bound, device, arguments)
    comparisons = [
        _compare(bound, tensors[p.name], reference)
        for p, reference in zip(bound.program.outputs, _expected(bound, arguments), strict=False)
    ]
    has_floats = any(getattr(value, "is_floating_point", bool)() for value in arguments.values())
    if inputs is None and has_floats and sum(prod(meta.shape) for meta in bound.tensors.values()) <= MOST_DRAWN:
        for kind in [*DRAWS][1:]:
            arguments = draw(bound, seed, kind)
            try:
                references = _expected(bound, arguments)
            except UsageError:  # a reference that does not take such values
                continue
            tensors = _outcome(bound, device, arguments)
            for p, reference in zip(bound.program.outputs, references, strict=False):
                _compare(bound, tensors[p.name], reference, kind)
    return Checked(
        same=all(comparison.same for comparison in comparisons),
        error=max((comparison.error for comparison in comparisons), default=0.0),
        allowed=all(comparison.allowed for comparison in comparisons),
    )


def _expected(bound: Bound, arguments: Mapping[str, Any]) -> list[Any]:
    """Return the results of a program's reference. Raises UsageError if there is none, or if it rejects the inputs."""
    import torch

    function = reference_of(bound.program)
    if function is None:
        raise UsageError(
            f"{bound.program.name} has no reference to compare values with",
            hint="Pass reference= to @tile.kernel, a function of the same inputs.",
        )
    try:
        with torch.no_grad():
            results: Any = function(*(_cloned(arguments[p.name]) for p in bound.program.inputs))
    except Exception as error:
        raise UsageError(
            f"the reference of {bound.program.name} rejects these inputs: {type(error).__name__}: "
            f"{(str(error).splitlines() or [''])[0]}",
            hint="Check the case, or give valid values with inputs=.",
        ) from error
    return [*results] if isinstance(results, tuple | list) else [results]


def require_accepted(bound: Bound) -> None:
    """Raise UsageError if the reference does not accept the inputs that `check` draws."""
    _expected(bound, draw(bound))


def compared(bound: Bound, arguments: Mapping[str, Any], results: Sequence[Any]) -> Checked:
    """Compare the results of another implementation with the program's reference, for the same arguments.

    Raises TileError if they differ by more than the tolerance.
    """
    function = reference_of(bound.program)
    assert function is not None
    references: Any = function(*(_cloned(arguments[p.name]) for p in bound.program.inputs))
    tensors = _with_data(bound, arguments)
    comparisons: list[Checked] = []
    listed: list[Any] = [*references] if isinstance(references, tuple | list) else [references]
    for p, result, reference in zip(bound.program.outputs, results, listed, strict=True):
        _view(tensors[p.name]).copy_(result)
        comparisons.append(_compare(bound, tensors[p.name], reference))
    return Checked(
        same=all(comparison.same for comparison in comparisons),
        error=max(comparison.error for comparison in comparisons),
        allowed=all(comparison.allowed for comparison in comparisons),
    )


def _outcome(bound: Bound, device: DeviceProfile, arguments: Mapping[str, Any]) -> dict[str, Memory]:
    """Run a case and return its tensors. Raises TileError."""
    tensors = _with_data(bound, arguments)
    _run(bound, device, tensors)
    unwritten(bound, tensors)
    return tensors


def _run(bound: Bound, device: DeviceProfile, tensors: Mapping[str, Memory]) -> None:
    """Run the program on all cores; torch uses one CPU thread, because tiles are too small for several."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        run_on_cores(bound, device, tensors, cores_for_values(bound, device))
    finally:
        torch.set_num_threads(threads)


def _cloned(value: Any) -> Any:
    return value.clone() if hasattr(value, "clone") else value


def _compare(bound: Bound, memory: Memory, reference: Any, kind: str = "") -> Checked:
    import torch

    got = _view(memory)
    if tuple(reference.shape) != tuple(got.shape):
        raise UsageError(
            f"{bound.program.name}: the reference returns {list(reference.shape)} for {memory.name}{list(got.shape)}",
            hint="It must return the program's results, in order.",
        )
    if not got.numel():
        return Checked(same=True, error=0.0, allowed=True)
    if torch.equal(got, reference.to(got.dtype)) and got.dtype == reference.dtype:
        return Checked(same=True, error=0.0, allowed=True)
    a, b = got.double(), reference.double()
    both = (a == b) | (a.isnan() & b.isnan())
    if kind:
        # What becomes of what is not finite differs from device to device: of a NaN, only that it goes nowhere else.
        both |= ~b.isfinite() | (~a.isnan() if kind == NAN else False)
    difference = torch.where(both, torch.zeros_like(a), (a - b).abs())
    difference = torch.where(difference.isnan(), torch.full_like(difference, float("inf")), difference)
    tolerance = bound.program.tolerance.get(memory.dtype, TOLERANCE.get(memory.dtype, 0.0))
    size = torch.where(b.isfinite(), b.abs(), torch.zeros_like(b))
    # Relative to 1 alone, a result of zeros would pass for one of many small values, a softmax of long rows.
    relative = difference / (size + float(size.max().clamp(1e-30, float("inf") if kind in SCALED else 1.0)))
    tolerance = max(tolerance, SCALED_TOLERANCE) if kind in SCALED else tolerance
    if memory.dtype in ("int8", "uint8", "int32"):
        relative = difference
    at = int(relative.reshape(-1).argmax())
    worst = float(difference.reshape(-1)[at])
    if float(relative.reshape(-1)[at]) > tolerance:
        index = tuple(int(i) for i in torch.unravel_index(torch.tensor(at), got.shape))
        raise TileError(
            "values",
            f"{memory.name}{list(index)} is {float(a.reshape(-1)[at]):.6g}, the reference "
            f"{float(b.reshape(-1)[at]):.6g}" + (f" (floating inputs {kind})" if kind else ""),
            _stored_at(bound, memory, index),
            hint=(
                f"{int((relative > tolerance).sum())} of {relative.numel()} values differ by more than {tolerance:g}."
            ),
        )
    return Checked(same=worst == 0.0, error=worst, allowed=True)


def _stored_at(bound: Bound, memory: Memory, index: Sequence[int]) -> tuple[str, int]:
    if memory.line_of is not None and memory.lines:
        line = int(memory.line_of.as_strided(memory.shape, memory.strides, memory.offset)[tuple(index)])
        if line >= 0:
            return memory.lines[line]
    code = bound.program.function.__code__
    return code.co_filename, code.co_firstlineno
