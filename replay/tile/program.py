"""Classes that describe a program: its function of tensors, its arguments and settings, and its reference."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from opreplay.initializers.user_code import place_of, shown_place
from opreplay.traces.errors import OpReplayError, UsageError
from opreplay.traces.model import TensorMeta, contiguous_strides

Value = TensorMeta | float | int | bool | str | None
"""A value that a case gives for an argument of a program."""

FLOATS = ("float32", "float16", "bfloat16")


class Parameter(msgspec.Struct, frozen=True, kw_only=True):
    """An argument of a program."""

    name: str
    role: str
    """"in", "out", "inout" or "sum" for tensors; "scalar" for numbers."""
    default: Any = None
    required: bool = True


class Program(msgspec.Struct, kw_only=True):
    """A kernel written with tiles: its function, its op, and the reference for its values."""

    op: str
    function: Callable[..., Any]
    parameters: tuple[Parameter, ...]
    settings: dict[str, Any]
    """Keyword-only arguments with their defaults; they can be set, swept and tuned."""
    reference: Callable[..., Any] | None = None
    results: Callable[..., Any] | None = None
    cases: tuple[str, ...] = ()
    """Cases that are evaluated if no cases are requested."""
    checks: tuple[str, ...] = ()
    """Cases for the default set, for programs whose sizes depend on each other."""
    given: Callable[..., Mapping[str, Any]] | None = None
    """Function of the random inputs and numbers. It returns tensors that replace inputs when values are checked."""
    dtypes: tuple[str, ...] = FLOATS
    cores: int | None = None
    tolerance: Mapping[str, float] = msgspec.field(default_factory=dict[str, float])
    choices: Mapping[str, Sequence[Any]] = msgspec.field(default_factory=dict[str, Sequence[Any]])
    """Setting → values that --tune tries."""
    when: Callable[..., bool] | None = None
    arguments: Callable[..., Mapping[str, Any]] | None = None
    library: bool = False
    measured: Path | None = None
    """Table of measured times that calibrates the predictions."""
    source: str = ""
    runner: Callable[..., tuple[Any, ...]] | None = None
    """Runs the program on torch tensors."""

    @property
    def name(self) -> str:
        """Name of the function."""
        return self.function.__name__

    @property
    def place(self) -> str:
        """Location of the function: "file:line"."""
        return place_of(self.function)

    @property
    def shown(self) -> str:
        """Text "name (file.py:line)", without the folder."""
        return shown_place(self.function)

    @property
    def inputs(self) -> tuple[Parameter, ...]:
        """Arguments that callers pass."""
        return tuple(p for p in self.parameters if p.role not in ("out", "sum"))

    @property
    def required(self) -> frozenset[str]:
        """Names of the inputs without a default."""
        return frozenset(p.name for p in self.inputs if p.required)

    @property
    def outputs(self) -> tuple[Parameter, ...]:
        """Arguments that are results."""
        return tuple(p for p in self.parameters if p.role in ("out", "sum", "inout"))

    def __call__(self, *args: Any, **settings: Any) -> Any:
        """Run the program on torch tensors, on the CPU. Return the result, or a tuple if there are several results."""
        assert self.runner is not None
        results = self.runner(self, dict(zip((p.name for p in self.inputs), args, strict=False)), settings)
        return results[0] if len(results) == 1 else results


class Bound(msgspec.Struct, frozen=True, kw_only=True):
    """A program with arguments and settings: everything that its time depends on, except the device."""

    program: Program
    tensors: Mapping[str, TensorMeta]
    scalars: Mapping[str, Any]
    settings: Mapping[str, Any]

    @property
    def shown_settings(self) -> str:
        """Settings as text: "rows=32, buffers=2"."""
        return ", ".join(f"{name}={value}" for name, value in self.settings.items())


def bind(program: Program, arguments: Mapping[str, Any], settings: Mapping[str, Any] | None = None) -> Bound:
    """Bind arguments and settings to a program by name, and check them.

    Results that are not given are derived from the inputs. Raises UsageError for unknown and for missing names.
    """
    names = [p.name for p in program.parameters]
    chosen = dict(settings or {})
    unknown = sorted((set(arguments) - set(names)) | (set(chosen) - set(program.settings)))
    if unknown:
        takes = ", ".join([*names, *program.settings])
        raise UsageError(f"{program.name} has no argument {unknown[0]}", hint=f"It takes {takes}.")
    tensors: dict[str, TensorMeta] = {}
    scalars: dict[str, Any] = {}
    for p in program.parameters:
        value = arguments.get(p.name, p.default)
        if p.role == "scalar":
            if p.name not in arguments and p.required:
                raise UsageError(f"{program.name} needs {p.name}", hint=f"Add {p.name}=VALUE to the case.")
            scalars[p.name] = value
        elif isinstance(value, TensorMeta):
            tensors[p.name] = value
        elif p.role in ("in", "inout"):
            raise UsageError(
                f"{program.name} needs the tensor {p.name}",
                hint=f"Add {p.name}=bf16[4096,1024], for example, to the case.",
            )
    missing = [p for p in program.parameters if p.role in ("out", "sum") and p.name not in tensors]
    if missing:
        for p, meta in zip(missing, _results(program, tensors, scalars, len(missing)), strict=True):
            tensors[p.name] = meta
    return Bound(program=program, tensors=tensors, scalars=scalars, settings={**program.settings, **chosen})


def _results(
    program: Program, tensors: Mapping[str, TensorMeta], scalars: Mapping[str, Any], count: int
) -> list[TensorMeta]:
    """Return shapes and dtypes of the results by running `results`, the reference, or the op on meta tensors."""
    import torch

    inputs = [
        torch.empty_strided(
            meta.shape, meta.strides or contiguous_strides(meta.shape), dtype=getattr(torch, meta.dtype), device="meta"
        )
        if (meta := tensors.get(p.name)) is not None
        else scalars.get(p.name)
        for p in program.inputs
    ]
    function = program.results or reference_of(program)
    if function is None:
        raise UsageError(
            f"the results of {program.name} are unknown",
            hint=("Pass reference= or results= to @tile.kernel, or give the result in the case: y=bf16[4096,1024]."),
        )
    try:
        with torch.no_grad():
            outputs = _called(function, inputs)
    except OpReplayError:
        raise
    except Exception as error:
        raise UsageError(
            f"the reference of {program.name} rejects these shapes: {type(error).__name__}: "
            f"{str(error).splitlines()[0]}",
            hint="Check the case, or give the results' shapes in it.",
        ) from error
    listed = list(outputs) if isinstance(outputs, tuple | list) else [outputs]
    if len(listed) < count:
        raise UsageError(f"the reference of {program.name} returns {len(listed)} results, but the program has {count}")
    wrong = next((type(t).__name__ for t in listed if not isinstance(t, torch.Tensor)), None)
    if wrong is not None:
        raise UsageError(
            f"the reference or results= of {program.name} returns a {wrong} instead of a tensor",
            hint="Return tensors; empty or meta tensors suffice if only sizes and dtypes matter.",
        )
    return [TensorMeta(shape=tuple(t.shape), dtype=str(t.dtype).removeprefix("torch.")) for t in listed[:count]]


def _called(function: Callable[..., Any], inputs: Sequence[Any]) -> Any:
    """Call a function of meta tensors. Tensors that it creates, such as masks, are meta tensors, too.

    If this fails, call it again with new tensors on the default device, because the function may read their values.
    """
    import torch

    try:
        with torch.device("meta"):
            return function(*inputs)
    except Exception:
        try:
            return function(*inputs)
        except Exception:
            pass
        raise


def reference_of(program: Program) -> Callable[..., Any] | None:
    """Return the function that gives the reference values of a program; None if there is none.

    It is the program's own reference, the op itself, or the op's reference implementation.
    """
    if program.reference is not None:
        return program.reference
    namespace, _, name = program.op.partition("::")
    if namespace == "tile":
        return None
    import torch

    from opreplay.replay.ops import register

    if program.op in OWN_LIBRARY:
        return None
    name, _, overload = name.partition(".")
    if namespace not in ("aten", "prims"):
        register.register_op(f"{namespace}::{name}")
    packet = getattr(getattr(torch.ops, namespace, None), name, None)
    return getattr(packet, overload, None) if overload else packet


OWN_LIBRARY: dict[str, Program] = {}
"""Library op → program that defines it. The op cannot be the reference for its own program."""
