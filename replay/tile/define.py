# pyright: strict
"""The decorator that turns a function into a kernel, and the annotations for its results."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from opreplay.initializers.user_code import current_source, place_of
from opreplay.replay.tile.check import run_values
from opreplay.replay.tile.language.tiles import Ref
from opreplay.replay.tile.program import FLOATS, Parameter, Program
from opreplay.replay.tile.registration import register_program
from opreplay.traces.errors import UsageError


class _Result(Ref):
    def __init__(self, *args: Any) -> None:
        raise UsageError(
            f"tile.{type(self).__name__}{args!r}: annotations of results take no arguments",
            hint=("Shapes and dtypes of results come from reference=, or from results= if there is no reference."),
        )


class Out(_Result):
    """Annotation of an argument that the program writes."""


class InOut(_Result):
    """Annotation of an argument that the program reads and writes."""


class Sum(_Result):
    """Annotation of an argument that starts as zero. Stores add to it, from all cores in any order."""


_ROLES = {"Out": "out", "InOut": "inout", "Sum": "sum"}


def kernel(
    op: str | None = None,
    *,
    reference: Callable[..., Any] | None = None,
    results: Callable[..., Any] | None = None,
    cases: Sequence[str] = (),
    checks: Sequence[str] = (),
    inputs: Callable[..., Mapping[str, Any]] | None = None,
    dtypes: Sequence[str] = FLOATS,
    cores: int | None = None,
    tolerance: Mapping[str, float] | None = None,
    choices: Mapping[str, Sequence[Any]] | None = None,
    when: Callable[..., bool] | None = None,
    arguments: Callable[..., Mapping[str, Any]] | None = None,
    library: bool = False,
    measured: str | None = None,
) -> Callable[[Callable[..., Any]], Program]:
    """Return a decorator that turns a function of tensors in GM, written with tiles, into a kernel of `op`.

    Arguments are tensors. Results are annotated with `tile.Out`, `tile.InOut` or `tile.Sum`. Arguments with a default,
    or annotated with `int`, `float` or `bool`, are numbers. Keyword-only arguments are settings such as tile sizes.

    `op` is "namespace::name". `library` also registers the kernel as a torch.library op. `choices` holds the values of
    settings that --tune tries. `cores` is the maximum number of cores. `measured` is a CSV of measured times, in the
    folder of the kernel's file, that calibrates its predictions. Raises UsageError for an invalid kernel.

    `reference`, `results` and `when` are functions of the inputs and numbers. `reference` returns the expected values.
    Without it, `results` returns tensors of the results' shapes and dtypes. `when` returns whether this kernel runs a
    recorded call. `inputs` gets the same arguments with random values. It returns a dict of inputs, such as page tables
    or offsets, that replace random ones when values are checked. `arguments` converts a recorded call's arguments,
    given by name, to this kernel's.
    """

    def register(function: Callable[..., Any]) -> Program:
        parameters, settings = _parameters(function)
        program = Program(
            op=op or f"tile::{function.__name__}",
            function=function,
            parameters=parameters,
            settings=settings,
            reference=reference,
            results=results,
            cases=tuple(cases),
            checks=tuple(checks),
            given=inputs,
            dtypes=tuple(dtypes),
            cores=cores,
            tolerance=dict(tolerance or {}),
            choices=dict(choices or {}),
            when=when,
            arguments=arguments,
            library=library,
            measured=None if measured is None else Path(place_of(function).rpartition(":")[0]).parent / measured,
            source=current_source(),
            runner=run_values,
        )
        register_program(program)
        return program

    return register


def _role(p: inspect.Parameter) -> str:
    """Return the role of an argument: "out", "inout", "sum", "scalar" or "in" (a tensor).

    The first three are given by the annotation. Other arguments are scalars if they have a default or are annotated as
    numbers or `str`.
    """
    annotation = p.annotation if isinstance(p.annotation, str) else getattr(p.annotation, "__name__", "")
    scalar = p.default is not p.empty or annotation in ("int", "float", "bool", "str")
    return _ROLES.get(annotation.rpartition(".")[2]) or ("scalar" if scalar else "in")


def _parameters(function: Callable[..., Any]) -> tuple[tuple[Parameter, ...], dict[str, Any]]:
    place = place_of(function)
    parameters: list[Parameter] = []
    settings: dict[str, Any] = {}
    for p in inspect.signature(function).parameters.values():
        if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
            raise UsageError(f"{place}: a kernel cannot have *{p.name}", hint="Name each tensor.")
        if p.kind is p.KEYWORD_ONLY:
            if p.default is p.empty:
                raise UsageError(f"{place}: setting {p.name} has no default", hint=f"Write {p.name}=128.")
            settings[p.name] = p.default
            continue
        required = p.default is p.empty
        default = None if required else p.default
        parameters.append(Parameter(name=p.name, role=_role(p), default=default, required=required))
    if not any(p.role in ("out", "inout", "sum") for p in parameters):
        raise UsageError(f"{place}: {function.__name__} has no result", hint="Annotate one as y: tile.Out.")
    return tuple(parameters), settings
