# pyright: strict
"""Assigns the argument names of the nearest schema to calls that no overload here accepts.

Such calls are predicted. They run only if `name_arguments` completes them. Values are assigned in order to the
arguments whose types they fit. A value that fits no argument gets a numbered name. A named value keeps its name even if
the schema does not have it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from opreplay.replay.host.dispatcher import parse_schema
from opreplay.replay.ir.notation import CallText, CallValue, TorchName
from opreplay.replay.ops.declared import published
from opreplay.replay.resolve.schema import ArgSpec, OpSpec, compile_schema
from opreplay.traces.model import TensorMeta

_PLAIN: dict[str, tuple[type, ...]] = {
    "int": (int,),
    "bool": (bool,),
    "float": (int, float),
    "complex": (int, float, complex),
    "Scalar": (bool, int, float, complex),
    "ScalarType": (TorchName,),
    "Layout": (TorchName,),
    "MemoryFormat": (TorchName,),
    "str": (str,),
    "Device": (str,),
    "Tensor": (TensorMeta,),
}
"""Python types that a written value may have, by the IR type of an argument or list element."""


class Unfit(NamedTuple):
    """A call with the argument names of the nearest schema."""

    spec: OpSpec | None
    """The nearest schema; None if neither the op nor an op with a similar name has a known schema."""
    values: dict[str, CallValue]
    misfits: tuple[str, ...] = ()
    """Names of values that the schema does not accept, and of arguments that were skipped."""
    absent: tuple[str, ...] = ()
    """Required arguments that are not given."""


@lru_cache(maxsize=1024)
def published_specs(name: str) -> tuple[OpSpec, ...]:
    """Return the schemas that a vendor has published for "ns::op", newest first; the op need not be installed."""
    versions = sorted(published(name), reverse=True)
    return tuple(compile_schema(parse_schema(text), registered=False) for _, text in versions)


def nearest(call: CallText, specs: Sequence[OpSpec]) -> Unfit:
    """Return the call with the argument names of the schema that accepts the most of its values.

    If several schemas accept equally many, the first of them is used.
    """
    fits = [_under(spec, call) for spec in specs]
    unnamed = {f"arg{i}": value for i, value in enumerate(call.args)}
    return min(fits, key=lambda fit: 2 * len(fit.misfits) + len(fit.absent), default=Unfit(None, unnamed | call.kwargs))


def name_arguments(fit: Unfit) -> CallText | None:
    """Return the call with all arguments by name, and with False for missing flags. None if the call does not fit in
    any other way.
    """
    if fit.spec is None or fit.misfits:
        return None
    kinds = {arg.name: arg.kind for arg in fit.spec.args}
    if any(kinds[name] != "bool" for name in fit.absent):
        return None
    values: dict[str, CallValue] = {**fit.values, **dict.fromkeys(fit.absent, False)}
    kwargs = {name: as_list(kinds[name], value) for name, value in values.items()}
    return CallText(name=f"{fit.spec.name}.{fit.spec.torch_name}", kwargs=kwargs)


def as_list(kind: str, value: CallValue) -> CallValue:
    """Wrap the value in a list if `kind` is a list type and the value is not a list."""
    return [value] if kind.endswith("[]") and value is not None and not isinstance(value, list) else value


def _under(spec: OpSpec, call: CallText) -> Unfit:
    values, misfits = _by_place([arg for arg in spec.args if arg.name not in call.kwargs and not arg.out], call.args)
    by_name = {arg.name: arg for arg in spec.args}
    misfits += [name for name, value in call.kwargs.items() if name not in by_name or not takes(by_name[name], value)]
    values |= call.kwargs
    absent = tuple(arg.name for arg in spec.args if arg.name not in values and not arg.has_default)
    return Unfit(spec, values, tuple(misfits), absent)


def _by_place(unfilled: list[ArgSpec], positional: Sequence[CallValue]) -> tuple[dict[str, CallValue], list[str]]:
    """Assign values in order to the arguments that accept them; return the values by name, and the names of misfits."""
    values: dict[str, CallValue] = {}
    misfits: list[str] = []
    last: list[CallValue] = []
    for i, value in enumerate(positional):
        place = next((at for at, arg in enumerate(unfilled) if takes(arg, value)), None)
        if place is None and last and isinstance(value, TensorMeta):
            last.append(value)
            continue
        if place is None:
            values[f"arg{i}"] = value
            misfits.append(f"arg{i}")
            continue
        value = as_list(unfilled[place].kind, value)
        last = value if unfilled[place].kind == "Tensor[]" and isinstance(value, list) else []
        misfits += [arg.name for arg in unfilled[:place] if not arg.has_default]
        values[unfilled[place].name] = value
        unfilled = unfilled[place + 1 :]
    return values, misfits


def takes(arg: ArgSpec, value: CallValue) -> bool:
    """Check whether an argument accepts a value; a list of tensors or numbers also accepts a single element."""
    if value is None:
        return arg.optional
    kind = arg.kind.removesuffix("[]")
    items = value if isinstance(value, list) and kind != arg.kind else [value]
    return all((item is None and arg.optional_elements) or type(item) in _PLAIN.get(kind, ()) for item in items)


def unknown(name: str) -> ArgSpec:
    """Return an argument that is not in any schema."""
    return ArgSpec(
        name=name,
        kind="Scalar",
        type_text="",
        optional=True,
        optional_elements=True,
        size=None,
        has_default=False,
        default=None,
        keyword_only=False,
        mutated=False,
        out=False,
    )
