# pyright: strict
"""Register decorated programs: the op's cost on simulated devices, an executor, and optionally a torch op."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, cast

from opreplay.initializers.user_code import redefines
from opreplay.replay.ascend.custom.op_invoke import OpInvokeInfo
from opreplay.replay.ascend.custom.programs import register_program_cost
from opreplay.replay.ascend.custom.registrations import CustomOpError, op_name
from opreplay.replay.ascend.profile import DeviceProfile
from opreplay.replay.ir.kernel import State
from opreplay.replay.ir.model import ReplayOp
from opreplay.replay.resolve.schema import specs_of
from opreplay.replay.resolve.user.executors import register_executor
from opreplay.replay.results.records import Simulated
from opreplay.replay.tile.check import as_meta, run_values
from opreplay.replay.tile.chip import TileTime, estimate
from opreplay.replay.tile.language.places import TileError
from opreplay.replay.tile.measured import calibration_of, with_measured
from opreplay.replay.tile.program import OWN_LIBRARY, Bound, Program, bind
from opreplay.traces.errors import UsageError
from opreplay.traces.model import TensorMeta

_programs: dict[str, Program] = {}


def programs() -> tuple[Program, ...]:
    """Return all defined programs, in order."""
    return tuple(_programs.values())


def forget_programs() -> None:
    """Remove all programs; for tests and long-lived processes."""
    _programs.clear()


def register_program(program: Program) -> None:
    """Register a program as the cost of its op, and as the op's executor if nothing else can run the op.

    Raises UsageError if another program or another user function is registered for the op.
    """
    _refuse_unknown_overload(program)
    coster = functools.wraps(program.function)(functools.partial(_cost, program))
    namespace = program.op.partition("::")[0]
    if namespace != "tile":
        # Ops of the namespace "tile" are programs without an op of torch's: no trace holds one.
        register_program_cost(program.op, coster)
        if namespace != "aten":
            runner = functools.wraps(program.function)(functools.partial(_execute, program))
            runner.__signature__ = _open_signature()  # type: ignore[attr-defined]
            register_executor(program.op, program=True)(runner)
    for place, earlier in list(_programs.items()):
        if redefines(program.function, earlier.function):
            del _programs[place]
    _programs[program.place] = program
    if program.library:
        _make_library_op(program)


def _refuse_unknown_overload(program: Program) -> None:
    """Raise UsageError for an overload that a known op does not have."""
    name, _, overload = program.op.partition(".")
    known = {spec.overload or "default" for spec in specs_of(name)} if overload else set[str]()
    if known and overload not in known:
        raise UsageError(
            f"{program.place}: {name} has no overload {overload}",
            hint=f"Its overloads: {', '.join(sorted(known))}; {name!r} without an overload means all of them.",
        )


def _open_signature() -> Any:
    import inspect

    return inspect.Signature([inspect.Parameter("args", inspect.Parameter.VAR_POSITIONAL)])


def bound_to(program: Program, op: ReplayOp) -> Bound | None:
    """Return a program bound to the arguments of a recorded call; None if its `when` rejects the call.

    If the call names all required arguments, they are matched by name. Otherwise, tensors are matched in order, and so
    are numbers. Raises CustomOpError if the program does not fit the call.
    """
    info = OpInvokeInfo(op)
    if program.when is not None and not _call_user_function(program, program.when, op, info):
        return None
    arguments = _arguments(program, op, info)
    metas = {name: as_meta(value) for name, value in arguments.items()}
    results = [meta for meta in op.outputs or op.recorded_outputs or () if meta is not None]
    wanted = [p.name for p in program.parameters if p.role in ("out", "sum") and p.name not in metas]
    if len(results) >= len(wanted):
        metas |= dict(zip(wanted, results, strict=False))
    try:
        return bind(program, {name: value for name, value in metas.items() if value is not None})
    except UsageError as error:
        raise CustomOpError(
            f"{program.place}: {program.name} does not fit this call of {op.name}: {error.problem}",
            hint="Use @tile.kernel(arguments=...) to convert the call's arguments, or when=... to exclude calls.",
        ) from error


def _call_user_function(program: Program, function: Any, op: ReplayOp, info: OpInvokeInfo) -> Any:
    try:
        return function(*info.args, **{k: v for k, v in info.kwargs.items() if v is not None})
    except Exception as error:  # user code may raise anything
        raise CustomOpError(
            f"{program.place}: {program.name} failed in when= or arguments= for {op.name}: {type(error).__name__}: "
            f"{error}",
            hint="`when` and `arguments` get the call's arguments in order, tensors as meta tensors.",
        ) from error


def _arguments(program: Program, op: ReplayOp, info: OpInvokeInfo) -> Mapping[str, Any]:
    """Return the program's arguments for a recorded call: by `arguments=` of its decorator, by name, or in order."""
    if program.arguments is None:
        if program.when is None:
            _check_numbers_used(program, op)
        return _by_name_or_order(program, op)
    arguments: Any = _call_user_function(program, program.arguments, op, info)
    if not isinstance(arguments, Mapping):
        kind = type(arguments).__name__
        raise CustomOpError(
            f"{program.place}: arguments= of {program.name} returned a {kind} instead of a dict",
            hint="Name the program's arguments: arguments=lambda self, dim: {'x': self}.",
        )
    return cast("Mapping[str, Any]", arguments)


def _by_name_or_order(program: Program, op: ReplayOp) -> dict[str, Any]:
    named: dict[str, Any] = {}
    tensors: list[TensorMeta] = []
    numbers: list[Any] = []
    for arg in op.args:
        if arg.tensors:
            if arg.tensors[0] is not None:
                tensors += [meta for meta in arg.tensors if meta is not None]
                named[arg.name] = arg.tensors[0]
        elif arg.value is not None:
            numbers.append(arg.value)
            named[arg.name] = arg.value
    if program.required <= named.keys():
        names = {p.name for p in program.inputs}
        return {name: value for name, value in named.items() if name in names}
    return _in_order(program, tensors, numbers)


def _in_order(program: Program, tensors: Sequence[Any], numbers: Sequence[Any]) -> dict[str, Any]:
    """Assign tensors to the program's tensor names and numbers to its number names, in order."""
    tensor_names = [p.name for p in program.inputs if p.role != "scalar"]
    number_names = [p.name for p in program.inputs if p.role == "scalar"]
    return dict(zip(tensor_names, tensors, strict=False)) | dict(zip(number_names, numbers, strict=False))


def _check_numbers_used(program: Program, op: ReplayOp) -> None:
    """Raise CustomOpError if the call has a non-default number for which the program has no argument.

    This is checked only for calls whose schema is known here. It is meant for programs without `when`, because `when`
    checks all arguments itself.
    """
    spec = next((spec for spec in specs_of(op_name(op.called)) if spec.overload == (op.overload or "")), None)
    if spec is None:
        return
    defaults = {arg.name: arg.default for arg in spec.args if arg.has_default}
    names = {p.name for p in program.inputs}
    numbers = [arg for arg in op.args if not arg.tensors and arg.value is not None]
    if not program.required <= {arg.name for arg in op.args}:
        numbers = numbers[sum(p.role == "scalar" for p in program.inputs) :]
    for arg in numbers:
        if arg.name in names or (arg.name in defaults and arg.value == defaults[arg.name]):
            continue
        raise CustomOpError(
            f"{program.place}: {program.name} does not fit this call of {op.name}: the program has no {arg.name}, "
            f"which is {arg.value} in the call",
            hint="Use @tile.kernel(arguments=...) to convert the call's arguments, or when=... to exclude calls.",
        )


def _cost(program: Program, op: ReplayOp, device: DeviceProfile, state: State) -> Simulated | None:
    """Return a program's cost for a recorded call. Raises CustomOpError if a limit is exceeded."""
    bound = bound_to(program, op)
    if bound is None:
        return None
    time = cached_estimate(bound, device, state)
    # What bounds the rest of the time, beside the launch.
    terms = {
        "launch": time.launch_us,
        time.bound if time.bound != "launch" else "vector": time.time_us - time.launch_us,
    }
    return Simulated(
        time_us=time.time_us,
        low_us=time.low_us,
        high_us=time.high_us,
        terms_us={name: us for name, us in terms.items() if us > 0},
        kernels=(),
        bound=time.bound,
        confidence=time.confidence,
        by="tile program",
        extrapolated=bool(time.outside),
        source=program.shown,
    )


def cached_estimate(bound: Bound, device: DeviceProfile, state: State) -> TileTime:
    """Return the result of `estimate`, calibrated by the program's measured times. Equal calls use a cached result.

    Raises CustomOpError where `estimate` raises TileError, and UsageError if the measured times cannot be read.
    """
    key = (
        bound.program.function,
        tuple(sorted((n, m.shape, m.dtype, m.strides) for n, m in bound.tensors.items())),
        repr((sorted(bound.scalars.items()), sorted(bound.settings.items()))),
        device.name,
        device.version,
        state,
    )
    time = _cache.get(key)
    if time is None:
        try:
            time = estimate(bound, device, state=state)
        except TileError as error:
            shapes = ", ".join(f"{n}={m.dtype}{list(m.shape)}" for n, m in bound.tensors.items())
            raise CustomOpError(
                f"{error.problem} (limit {error.limit}), for {bound.program.op} of {shapes}",
                hint=f"{error.hint} With @tile.kernel(when=...), other calls use the built-in rule.".strip(),
            ) from error
        time = with_measured(time, bound, device, state, calibration_of(bound.program, device))
        if len(_cache) >= MOST_CACHED:
            _cache.clear()
        _cache[key] = time
    return time


MOST_CACHED = 10_000
_cache: dict[object, TileTime] = {}


def _execute(program: Program, *args: Any) -> Any:
    """Run an op with its program on the CPU, whatever device its tensors are on. For ops that nothing else can run."""
    import torch

    tensors = [a for a in args if isinstance(a, torch.Tensor)]
    numbers = [a for a in args if not isinstance(a, torch.Tensor) and a is not None]
    arguments = _in_order(program, tensors, numbers)
    device = next((a.device for a in arguments.values() if isinstance(a, torch.Tensor)), torch.device("cpu"))
    computed = run_values(program, {n: v.cpu() if isinstance(v, torch.Tensor) else v for n, v in arguments.items()})
    results = tuple(tensor.to(device) for tensor in computed)
    return results[0] if len(results) == 1 else results


_TYPES = {bool: "bool", int: "int", float: "float", str: "str"}


def schema_of(program: Program) -> str:
    """Return the schema as text, such as "(Tensor x, float eps=1e-06) -> Tensor"."""
    parts: list[str] = []
    for p in program.inputs:
        if p.role == "inout":
            raise UsageError(f"{program.place}: an op with {p.name}: tile.InOut cannot become a library op")
        if p.role != "scalar":
            parts.append(f"Tensor {p.name}")
        elif p.required or type(p.default) not in _TYPES:
            raise UsageError(f"{program.place}: {p.name} needs a default number in a library op")
        else:
            shown = f'"{p.default}"' if isinstance(p.default, str) else p.default
            parts.append(f"{_TYPES[type(p.default)]} {p.name}={shown}")
    count = len(program.outputs)
    return f"({', '.join(parts)}) -> {'Tensor' if count == 1 else '(' + ', '.join(['Tensor'] * count) + ')'}"


def _make_library_op(program: Program) -> None:
    """Define a torch op that has the program's name.

    It runs the program on the CPU. Its fake kernel (for meta tensors) returns the results' shapes and dtypes.
    """
    import torch

    name, schema = program.op, schema_of(program)
    earlier = OWN_LIBRARY.get(name)
    if earlier is not None and schema_of(earlier) != schema:
        raise UsageError(
            f"{program.place}: torch already has {name}{schema_of(earlier)}, from {earlier.place}",
            hint="An op's arguments cannot change while Python runs: restart it, or rename the op.",
        )
    OWN_LIBRARY[name] = program
    if earlier is not None:
        return
    library_op = torch.library.custom_op(
        name, lambda *args: _execute(OWN_LIBRARY[name], *args), mutates_args=(), schema=schema
    )

    def fake(*args: Any) -> Any:
        program = OWN_LIBRARY[name]
        arguments = {p.name: as_meta(value) for p, value in zip(program.inputs, args, strict=False)}
        bound = bind(program, arguments)
        results = tuple(
            torch.empty(meta.shape, dtype=getattr(torch, meta.dtype), device="meta")
            for meta in (bound.tensors[p.name] for p in program.outputs)
        )
        device = next(a.device for a in args if isinstance(a, torch.Tensor))
        placed = tuple(torch.empty_like(tensor, device=device) for tensor in results)
        return placed[0] if len(placed) == 1 else placed

    library_op.register_fake(fake)  # pyright: ignore[reportUnknownMemberType]
