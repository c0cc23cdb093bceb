"""Declaration of portable reference implementations of vendor ops, and their registration with torch.

They are registered if the vendor's library is not installed. This module defines the declaration, the overload names of
schema versions, and the rule that real ops are never overridden. The implementations are in the `reference_*` modules.
`opreplay.replay.resolve.names` decides whether to call a vendor op.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from opreplay.replay.host.dispatcher import parse_schema, registered_schemas, with_numbered_types

if TYPE_CHECKING:
    import torch

from opreplay.replay.ops.calls import arguments_read, call_with
from opreplay.replay.ops.catalog import ALIASES, LIBRARIES, PROFILER_WRAPPERS
from opreplay.replay.ops.modes import computed, is_computed, untaken_modes
from opreplay.replay.ops.table import Reference, find, loading, row, rows
from opreplay.traces.dtypes import SCALAR_TYPE_CODES

_NAME = re.compile(r"[A-Za-z_]\w*::[A-Za-z_]\w*(\.[A-Za-z_]\w*)?")
_WRAPPER = re.compile(r"sglang_profiler::(\w+?)_\d{1,9}")


_registered: dict[str, tuple[str, ...]] = {}
_libraries: dict[str, torch.library.Library] = {}


def reference(
    schema: str,
    *,
    since: str = "",
    fake: Callable[..., Any] | None = None,
    assumes: Sequence[str] = (),
    random: bool = False,
    **bound: Any,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Declare a plain torch function as the reference implementation of `schema` ("ns::op(Tensor x) -> Tensor").

    The function receives only the schema's arguments that it reads (`calls.arguments_read`). Hence one function may
    serve several versions. `bound` holds the other fields of a `Reference`, for renamed arguments. `since` orders the
    versions of an op: the newest becomes the default overload, an older version becomes overload `since_YYYYMMDD`.

    `assumes` lists what the function has to assume because no argument contains it. `fake` gives the outputs' shapes
    and dtypes if the function's control flow depends on tensor contents. `random` says that the function uses torch's
    random numbers. Raises ValueError if the same version is declared twice or the name is malformed.
    """
    qualified = schema.partition("(")[0].strip()
    if not _NAME.fullmatch(qualified):
        raise ValueError(f"not a qualified op name: {qualified!r}")
    name, _, overload = qualified.partition(".")

    def declare(run: Callable[..., Any]) -> Callable[..., Any]:
        versions = row(name).declared_references()
        if any((version.overload, version.since) == (overload, since) for version in versions):
            raise ValueError(f"{qualified} of {since or 'no date'} is declared twice")
        versions.append(
            Reference(
                name=name,
                overload=overload,
                schema=schema,
                since=since,
                run=run,
                fake=fake,
                assumes=tuple(assumes),
                random=random,
                **bound,
            )
        )
        return run

    return declare


def canonical_name(name: str) -> str:
    """Return the name under which a recorded op is implemented.

    Aliases are resolved: `_rocm_C::wvSpltK` becomes `_rocm_C::wvSplitK`. Numbered profiling wrappers lose their number:
    `sglang_profiler::rmsnorm_rmsnorm2d_fwd_109` becomes `sglang_profiler::rmsnorm_rmsnorm2d_fwd`. Any other name is
    returned unchanged.
    """
    wrapper = _WRAPPER.fullmatch(name)
    if wrapper and wrapper[1] in PROFILER_WRAPPERS:
        return f"sglang_profiler::{wrapper[1]}"
    return ALIASES.get(name, name)


def is_reference(op_name: str) -> bool:
    """Check whether calling `op_name` ("ns::op") in this process runs an implementation of this package."""
    return canonical_name(op_name) in _registered


def implemented() -> dict[str, tuple[str, ...]]:
    """Return, by namespace, the names of the ops that have a reference implementation. Imports torch."""
    known = [op.name for op in rows() if op.references]
    return {space: tuple(name for name in known if name.startswith(f"{space}::")) for space in LIBRARIES}


def register_namespace(namespace: str) -> tuple[str, ...]:
    """Define and implement every known op of `namespace` that does not exist yet.

    Returns the names of the defined ops, or () for an unknown namespace. Further calls change nothing. An op that a
    library has defined is never changed, even if it has no kernels. Hence import the library first. The implementations
    run on any device (CompositeExplicitAutograd) and have fake kernels.
    """
    known = [op.name for op in rows() if op.name.startswith(f"{namespace}::")] if namespace in LIBRARIES else []
    return tuple(name for name in known if register_op(name))


def register_op(name: str) -> bool:
    """Define and implement one op as `register_namespace` does.

    Returns True if "namespace::op" then runs an implementation of this package.
    """
    with loading:
        if name not in _registered and (versions := _versions(name)) and not _exists(name):
            _registered[name] = tuple(_define(version, overload) for version, overload in versions)
        return name in _registered


def overloads_defined() -> int:
    """Return the number of reference overloads that this process has registered with torch."""
    return sum(map(len, _registered.values()))


def stand_in_of(name: str) -> Callable[..., Any] | None:
    """Return the newest reference implementation of "namespace::op", or None if there is none.

    It is a function of the schema's arguments. The dispatcher may use another implementation for the op. Imports torch.
    """
    versions = _versions(name)
    return _adapt(versions[0][0], parse_schema(versions[0][0].schema)) if versions else None


def reference_of(name: str, overload: str) -> Reference | None:
    """Return the reference implementation that an overload of "namespace::op" runs, or None. Imports torch."""
    return next((version for version, spelled in _versions(name) if spelled == overload), None)


def assumed_by(op_name: str) -> tuple[str, ...]:
    """Return the assumptions of an op's reference implementation, or () for an op without one."""
    name = canonical_name(op_name)
    versions = row(name).references if name in _registered else ()
    return tuple(dict.fromkeys(what for version in versions for what in version.assumes))


def _exists(name: str) -> bool:
    return bool(registered_schemas(name))


def _versions(name: str) -> list[tuple[Reference, str]]:
    """Return (version, overload name) of each version of an op, newest first.

    The list is empty for an op without references.
    """
    op = find(name) if name.partition("::")[0] in LIBRARIES else None
    seen: set[str] = set()
    versions_by_date: list[tuple[Reference, str]] = []
    for version in sorted(op.references if op is not None else (), key=lambda version: version.since, reverse=True):
        overload = version.overload
        if overload in seen:
            overload = "_".join(part for part in (overload, f"since_{version.since.replace('-', '')}") if part)
        seen.add(version.overload)
        versions_by_date.append((version, overload))
    return versions_by_date


def _define(version: Reference, overload: str) -> str:
    """Register one schema version; return its overload name."""
    import torch

    namespace, _, operator = version.name.partition("::")
    operator = f"{operator}.{overload}" if overload else operator
    text = f"{operator}({version.schema.partition('(')[2]}"
    library = _libraries.get(namespace)
    if library is None:
        # A Library takes its definitions along when it is collected, so it has to outlive every call.
        library = _libraries[namespace] = torch.library.Library(namespace, "FRAGMENT")
    library.define(with_numbered_types(text), tags=(torch.Tag.nondeterministic_seeded,) if version.random else ())
    schema = parse_schema(f"{namespace}::{text}")
    library.impl(operator, _adapt(version, schema), "CompositeExplicitAutograd")
    fake = _adapt(version, schema, fake=True) if schema.returns or version.fake else _nothing
    torch.library.register_fake(f"{namespace}::{operator}", fake, lib=library)
    return overload


def _nothing(*_args: Any, **_kwargs: Any) -> None:
    """Do nothing: fake kernel of an op that only writes to its arguments."""


def _adapt(version: Reference, schema: Any, *, fake: bool = False) -> Callable[..., Any]:
    """Return a kernel that calls the function of a schema version.

    It adds defaults that the dispatcher omits. Arguments that the function requires but the schema does not have are
    None. The kernel raises ValueError for an unsupported argument whose value would change the result. With `fake`, it
    returns results without values.
    """
    run = (version.fake if fake else None) or version.run
    names: Sequence[str] = [argument.name for argument in schema.arguments]
    defaults = {a.name: _default(a) for a in schema.arguments if a.has_default_value()}
    modes = {mode: computed(schema, mode) for mode in untaken_modes(version.takes, schema)}
    bind = _binding(version, run, names)

    def kernel(*args: Any, **kwargs: Any) -> Any:
        values_by_name = {**defaults, **dict(zip(names, args, strict=False)), **kwargs}
        for mode, values in modes.items():
            if mode in values_by_name and not is_computed(values_by_name[mode], values):
                raise ValueError(
                    f"{schema.name}: {mode}={_brief(values_by_name[mode])} is not implemented by the reference"
                )
        targets = [values_by_name[name] for name in version.into]
        if fake and targets:
            return targets[0].clone() if schema.returns else None
        result = call_with(run, bind(values_by_name))
        if not targets:
            return result if schema.returns else None
        for target, value in zip(targets, result if isinstance(result, tuple) else (result,), strict=True):
            target.copy_(value.reshape(target.shape) if value.numel() == target.numel() else value)
        return targets[0].clone() if schema.returns else None

    return kernel


def _binding(
    version: Reference, run: Callable[..., Any], names: Sequence[str]
) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    """Return a function that maps arguments named as in a schema to the argument names of `run`."""
    places = {name: version.renames.get(name, name).partition(".")[::2] for name in arguments_read(run)}
    needed = {name for name, needed in arguments_read(run).items() if needed}
    absent = {name: None for name, (here, _) in places.items() if here not in names and name in needed}
    present = {name: place for name, place in places.items() if place[0] in names}

    def bind(values: Mapping[str, Any]) -> dict[str, Any]:
        bound = {name: (values[here], attribute) for name, (here, attribute) in present.items() if here in values}
        return {**absent, **{name: _part(*place) for name, place in bound.items()}, **version.fixed}

    return bind


def _part(value: Any, attribute: str) -> Any:
    """Return the attribute of an argument. "name()" calls the method, and "" returns the argument itself."""
    if value is None or not attribute:
        return value
    part = getattr(value, attribute.removesuffix("()"))
    return part() if attribute.endswith("()") else part


def _brief(value: Any) -> str:
    import torch

    return f"a tensor {list(value.shape)}" if isinstance(value, torch.Tensor) else repr(value)


def _default(argument: Any) -> Any:
    """Return an argument's default as the dispatcher passes it.

    A conversion is needed because a schema stores dtypes as codes.
    """
    import torch

    value = argument.default_value
    if isinstance(value, int) and "ScalarType" in str(argument.real_type):
        return getattr(torch, SCALAR_TYPE_CODES[value])
    return value
