# pyright: strict
"""Finds schemas for a recorded name, and the function to call for a plan's op.

This is the only module that accesses torch.ops. It searches these sources in order: the dispatcher's table; an
allow-listed import of the library; a plain function of a module that the user named; opreplay's reference
implementation. A plan file is as untrusted as a trace. Therefore a name is looked up in the dispatcher's table before
it is used as an attribute, and the policy is checked each time. `match` chooses the overload; equivalents are in
`ops.aten`.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from difflib import get_close_matches
from functools import lru_cache
from typing import Any

import msgspec

from opreplay.replay.host.dispatcher import has_computed_kernel, parse_schema, registered_in, registered_ops
from opreplay.replay.ir.model import Reason, ReplayOp, Resolution
from opreplay.replay.ir.names import split_name
from opreplay.replay.ir.reasons import NotReplayable
from opreplay.replay.ops import aten as portable
from opreplay.replay.ops.catalog import UNDER_ATEN, library_of
from opreplay.replay.ops.register import canonical_name, is_reference, register_op
from opreplay.replay.resolve import schema
from opreplay.replay.resolve.policy import TORCH_NAMESPACES, Policy, refuse_arguments, refuse_name, refuse_value
from opreplay.replay.resolve.schema import OpSpec
from opreplay.replay.resolve.user.executors import EXECUTORS
from opreplay.replay.resolve.user.python_functions import PythonFunction, python_function, refused_text

RENAMED: dict[str, str] = {
    **portable.RENAMED,
    **UNDER_ATEN,
}
"""Ops that were replaced, by the recorded name → op that replaced it, with the same leading arguments.

The replaced ops are ops that torch removed, and npu ops under the aten namespace.
"""

_DISPATCH_KEYS = {"cpu": "CPU", "cuda": "CUDA", "npu": "PrivateUse1", "xpu": "XPU", "mps": "MPS", "hpu": "HPU"}
_CPU_RELATED = ("CPU", "SparseCPU", "SparseCsrCPU", "QuantizedCPU", "MkldnnCPU", "NestedTensorCPU")

_UNDECIDED: Any = object()
_verdicts: dict[str, Reason | None] = {}
"""Text of a schema → cached verdict of the policy. Each overload has its own text."""
_imported: dict[str, tuple[str, ...]] = {}


class Candidates(msgspec.Struct, frozen=True, kw_only=True):
    """What can be called for a name: its overloads or a Python function, and how they were found. If there is nothing,
    it says why.
    """

    specs: tuple[OpSpec, ...] = ()
    resolved_by: Resolution = "jit"
    via: str | None = None
    """Name of the overloads; None if they have the recorded name."""
    function: PythonFunction | None = None
    """Function that runs the op if no overload does."""
    reason: Reason | None = None


def candidates(name: str, policy: Policy) -> Candidates:
    """Return every overload of a recorded "namespace::op[.overload]", or a substitute.

    If there is neither, the result holds the reason, e.g. the policy. May import a library that the policy allows, or
    register references. Never raises, whatever the text is.
    """
    parts = split_name(name)
    if parts is None:
        return Candidates(reason=Reason("label, not an op"))
    namespace, op, overload = parts
    refused = refuse_name(name, policy)
    if refused is not None:
        return Candidates(reason=refused)
    overloads = _lookup(f"{namespace}::{op}", policy)
    if overload is None or overloads.reason is not None:
        return overloads
    if overloads.function is not None:
        return Candidates(reason=Reason("library missing", f"{overloads.function.module} does not register {name}"))
    exact = tuple(spec for spec in overloads.specs if spec.torch_name == overload)
    if not exact:
        known = ", ".join(sorted({spec.torch_name for spec in overloads.specs}))
        why = f"{namespace}::{op} has no overload {overload} here, but {known}"
        return Candidates(reason=Reason("library missing", why))
    return msgspec.structs.replace(overloads, specs=exact)


def _lookup(name: str, policy: Policy) -> Candidates:
    namespace = name.partition("::")[0]
    if specs := schema.specs_of(name) + _old_forms(name):
        return Candidates(specs=specs, resolved_by=_registered_by(specs[0], namespace, policy))
    if name in RENAMED:
        renamed = _lookup(RENAMED[name], policy)
        return Candidates(specs=renamed.specs, resolved_by="equivalent", via=RENAMED[name], reason=renamed.reason)
    imported = _imported_candidates(name, namespace, policy) if _import_library(namespace, policy) else Candidates()
    if imported.specs or imported.function is not None:
        return imported
    canonical = canonical_name(name)
    if register_op(canonical):
        schema.forget()
        if specs := schema.specs_of(canonical):
            return Candidates(specs=specs, resolved_by="reference", via=canonical if canonical != name else None)
    return Candidates(reason=imported.reason or _why_unknown(name, namespace, policy))


def _imported_candidates(name: str, namespace: str, policy: Policy) -> Candidates:
    """Return what an imported library provides for a name: overloads, or a function of a module that the user named."""
    if specs := schema.specs_of(name):
        return Candidates(specs=specs, resolved_by="import")
    if namespace not in policy.allow_imports:
        return Candidates()
    found = [python_function(name, sys.modules[module]) for module in _imported[namespace]]
    functions = [each for each in found if isinstance(each, PythonFunction)]
    if functions:
        return Candidates(resolved_by="python function", function=functions[0])
    return Candidates(reason=next(each for each in found if isinstance(each, Reason)))


def _registered_by(spec: OpSpec, namespace: str, policy: Policy) -> Resolution:
    """Return how an overload got into the dispatcher's table.

    A library counts as imported no matter what imported it.
    """
    if is_reference(spec.name):
        return "reference"
    if namespace in _imported or any(module in sys.modules for module in policy.modules_for(namespace)):
        return "import"
    in_python = namespace not in TORCH_NAMESPACES and registered_in(spec.full_name) is not None
    return "torch.ops" if in_python else "jit"


@lru_cache(maxsize=1024)
def _old_forms(name: str) -> tuple[OpSpec, ...]:
    """Return the overloads that torch 1.8 to 1.13 had under this name and later removed."""
    texts = [f"aten::{row.schema}" for row in portable.legacy_of(name)]
    return tuple(schema.compile_schema(parse_schema(text), registered=False) for text in texts)


def _why_unknown(name: str, namespace: str, policy: Policy) -> Reason:
    detail = _missing_library(name, namespace, policy)
    if detail is not None:
        return Reason("library missing", detail)
    return Reason(
        "policy", f"namespace {namespace} is on no allow-list (--allow-import {namespace}=MODULE, --plugin FILE)"
    )


def _missing_library(name: str, namespace: str, policy: Policy) -> str | None:
    modules = policy.modules_for(namespace)
    if modules and namespace in _imported:
        loaded = _imported[namespace]
        others = "".join(f"; {module} cannot be imported" for module in modules if module not in loaded)
        return f"{', '.join(loaded)} has no {name}{others}"
    detail = next(filter(None, map(_import_failure, modules)), None) or library_of(namespace)
    if detail is not None:
        return detail
    if modules:
        is_users = namespace in policy.allow_imports
        return (
            f"{' or '.join(modules)} cannot be imported: is it on PYTHONPATH?"
            if is_users
            else modules[0].partition(".")[0]
        )
    if namespace in ("aten", "prims", "quantized"):
        import torch

        return f"torch {torch.__version__.partition('+')[0]} has no {name}"
    if known := _registered(namespace):
        near = near_names(name) or tuple(sorted(known)[:MOST_NEAR])
        return f"the installed {namespace} has no {name}, only {', '.join(near)}"
    return None


MOST_NEAR = 3


def near_names(name: str) -> tuple[str, ...]:
    """Return ops of torch or of users' files in the namespace of "ns::op" with similar names; most similar first."""
    return tuple(get_close_matches(name, sorted(_registered(name.partition("::")[0])), n=MOST_NEAR, cutoff=0.75))


def _registered(namespace: str) -> set[str]:
    """Return the names in a namespace, without overloads, that are in the dispatcher or have a user's executor."""
    begin = f"{namespace}::"
    names = {name.partition(".")[0] for name in registered_ops() if name.startswith(begin)}
    return names | {op for entry in EXECUTORS for op in entry.ops if op.startswith(begin) and "*" not in op}


def _import_library(namespace: str, policy: Policy) -> bool:
    """Import the modules that the policy allows for `namespace`, each once; return whether any of them is available."""
    modules = policy.modules_for(namespace)
    loaded = tuple(module for module in modules if _is_installed(module) and _import_failure(module) is None)
    if loaded and _imported.get(namespace) != loaded:
        _imported[namespace] = loaded
        schema.forget()
    return bool(loaded)


@lru_cache(maxsize=256)
def _is_installed(module: str) -> bool:
    return importlib.util.find_spec(module.partition(".")[0]) is not None


@lru_cache(maxsize=256)
def _import_failure(module: str) -> str | None:
    """Import a module named by the user or by the policy. Returns the error if the module exists but its import fails;
    otherwise None.
    """
    if not _is_installed(module):
        return None
    try:
        importlib.import_module(module)
    except (Exception, SystemExit) as error:  # a library may raise anything
        first = str(error).strip().partition("\n")[0]
        return f"{module.partition('.')[0]} is installed, but its import fails: {type(error).__name__}: {first}"
    return None


def imported_libraries() -> dict[str, tuple[str, ...]]:
    """Return the modules imported in this process to resolve ops, by namespace, for the report."""
    return dict(_imported)


def policy_verdict(spec: OpSpec) -> Reason | None:
    """Return why the policy forbids an overload because of its arguments; None if it is allowed."""
    verdict = _verdicts.get(spec.text, _UNDECIDED)
    if verdict is _UNDECIDED:
        verdict = refuse_arguments(spec.name, ((arg.name, arg.type_text) for arg in spec.args if not arg.out))
        _verdicts[spec.text] = verdict
    return verdict


def device_has_kernels(device: str) -> bool:
    """Check whether this torch build has any kernels for a device. If it has none, the lack of a kernel for one op
    proves nothing.
    """
    return _has_kernel("aten::add.Tensor", device.partition(":")[0])


def has_kernel(spec: OpSpec, device: str) -> bool:
    """Check whether the dispatcher has a kernel of this overload for a device such as "cpu" or "cuda:0"."""
    return _has_kernel(spec.full_name, device.partition(":")[0])


@lru_cache(maxsize=65536)
def _has_kernel(full_name: str, kind: str) -> bool:
    keys = _CPU_RELATED if kind == "cpu" else (_DISPATCH_KEYS.get(kind, "PrivateUse1"),)
    return any(has_computed_kernel(full_name, key) for key in keys)


def find_overload(op: ReplayOp, policy: Policy) -> Callable[..., Any]:
    """Return the function to call for an op of a plan.

    It takes positional arguments in schema order, and the other arguments by name. The name, overload and argument
    values are checked again, against the dispatcher's table and the policy. Raises NotReplayable if the op cannot be
    called.
    """
    _stop_for(op.reason)
    for arg in op.args:
        _stop_for(refuse_value(arg.name, arg.value))
    if op.resolved_by == "executor":
        executor = EXECUTORS.find(op.called)
        if executor is None:
            raise NotReplayable(Reason("library missing", f"no executor for {op.called} (--plugin)"))
        return executor.function
    if op.resolved_by == "python function":
        return _function_of(op, policy)
    equivalent = portable.equivalent_of(op)
    spec = _checked_overload(op, op.name if equivalent is not None else op.via or op.name, policy)
    return _overload(spec) if equivalent is None else equivalent.load()


def _checked_overload(op: ReplayOp, name: str, policy: Policy) -> OpSpec:
    """Return the overload of `name` that a plan's op calls. Raises NotReplayable if none may be called."""
    overloads = candidates(name, policy)
    _stop_for(overloads.reason)
    spec = next((spec for spec in overloads.specs if spec.overload == (op.overload or "")), None)
    if spec is None:
        raise NotReplayable(Reason("failed", f"{name} has no overload {op.overload!r} here"))
    _stop_for(policy_verdict(spec))
    unknown = {arg.name for arg in op.args} - {arg.name for arg in spec.args}
    if unknown:
        raise NotReplayable(Reason("failed", f"{spec.full_name} has no argument {min(unknown)}"))
    return spec


def _stop_for(reason: Reason | None) -> None:
    if reason is not None:
        raise NotReplayable(reason)


def _function_of(op: ReplayOp, policy: Policy) -> Callable[..., Any]:
    """Return the user's Python function that a plan's op calls.

    The lookup and the checks are the same as when the op was resolved.
    """
    entry = candidates(op.called, policy)
    _stop_for(entry.reason or refused_text(op.args))
    if entry.function is None:
        why = f"the plan's call was made without a schema, but {op.called} has one here"
        raise NotReplayable(Reason("failed", why))
    return entry.function.function


def known_overload(op: ReplayOp) -> Callable[..., Any] | None:
    """Return the overload that a plan's op names; None if the dispatcher does not have it.

    The overload is for inspection, not for calls.
    """
    parts = split_name(op.via or op.name)
    if parts is None:
        return None
    namespace, name, overload = parts
    specs = schema.specs_of(f"{namespace}::{name}")
    wanted = overload or op.overload or ""
    spec = next((spec for spec in specs if spec.overload == wanted), specs[0] if specs else None)
    return None if spec is None else _overload(spec)


def _overload(spec: OpSpec) -> Callable[..., Any]:
    """Return the torch.ops overload of a spec. The spec comes from the dispatcher's table, so its names are safe to use
    as attributes.
    """
    import torch

    namespace, _, name = spec.name.partition("::")
    return getattr(getattr(getattr(torch.ops, namespace), name), spec.torch_name)
