# pyright: strict
"""From a recorded name to schemas, and from a plan's op to what is called: only here torch.ops is reached into.

Order: the dispatcher's table by name, an allow-listed import of the library, opreplay's reference implementation. A
name is looked up in the dispatcher's table before it is ever used as an attribute, and the policy is asked each time,
since a plan file is as untrusted as a trace. Does not own matching (`matching`) nor equivalents (`portable`).
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from typing import Any

from opreplay.replay.host.dispatcher import has_computed_kernel, parse_schema, registered_ops
from opreplay.replay.ir.model import Reason, ReplayOp, Resolution
from opreplay.replay.ir.names import split_name
from opreplay.replay.ir.reasons import NotReplayable
from opreplay.replay.resolve import schema
from opreplay.replay.resolve.policy import Policy, refuse_arguments, refuse_name, refuse_value
from opreplay.replay.resolve.schema import OpSpec
from opreplay.replay.resolve.user.executors import EXECUTORS
from opreplay.replay.standins import aten as portable
from opreplay.replay.standins import canonical_name, is_reference, library_of, register_namespace

RENAMED: dict[str, str] = {
    **portable.RENAMED,
    "aten::npu_dtype_cast": "npu::npu_dtype_cast",
    "aten::npu_format_cast": "npu::npu_format_cast",
}
"""Ops that torch no longer has, and npu's under aten's name → what took their place with the same leading arguments."""

_DISPATCH_KEYS = {"cpu": "CPU", "cuda": "CUDA", "npu": "PrivateUse1", "xpu": "XPU", "mps": "MPS", "hpu": "HPU"}
_CPU_RELATED = ("CPU", "SparseCPU", "SparseCsrCPU", "QuantizedCPU", "MkldnnCPU", "NestedTensorCPU")

_UNDECIDED: Any = object()
_verdicts: dict[str, Reason | None] = {}
"""By schema text, which is unique to an overload."""
_imported: dict[str, tuple[str, ...]] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """The overloads of a name that may be called, and how they were found; or why there are none."""

    specs: tuple[OpSpec, ...] = ()
    resolved_by: Resolution = "jit"
    via: str | None = None
    """The name of the overloads where it is not the recorded one."""
    reason: Reason | None = None


def candidates(name: str, policy: Policy) -> Candidates:
    """Every overload of a recorded "namespace::op[.overload]", with the policy's verdict on the name.

    May import a library that the policy allows, or register references; never raises for a name of any form.
    """
    parts = split_name(name)
    if parts is None:
        return Candidates(reason=Reason("label, not an op"))
    namespace, op, overload = parts
    refused = refuse_name(name, policy)
    if refused is not None:
        return Candidates(reason=refused)
    found = _lookup(f"{namespace}::{op}", policy)
    if overload is not None and found.specs:
        exact = tuple(spec for spec in found.specs if spec.overload == overload)
        return Candidates(specs=exact or found.specs, resolved_by=found.resolved_by, via=found.via)
    return found


def _lookup(name: str, policy: Policy) -> Candidates:
    specs = schema.specs_of(name) + _old_forms(name)
    if specs:
        by: Resolution = "jit"
        if is_reference(name):
            by = "reference"
        elif name.partition("::")[0] in _imported:
            by = "import"
        return Candidates(specs=specs, resolved_by=by)
    if name in RENAMED:
        found = _lookup(RENAMED[name], policy)
        return Candidates(specs=found.specs, resolved_by="equivalent", via=RENAMED[name], reason=found.reason)
    namespace = name.partition("::")[0]
    if _import_library(namespace, policy):
        specs = schema.specs_of(name)
        if specs:
            return Candidates(specs=specs, resolved_by="import")
    if register_namespace(namespace):
        schema.forget()
        canonical = canonical_name(name)
        specs = schema.specs_of(canonical)
        if specs:
            return Candidates(specs=specs, resolved_by="reference", via=canonical if canonical != name else None)
    return Candidates(reason=_why_unknown(name, namespace, policy))


@lru_cache(maxsize=1024)
def _old_forms(name: str) -> tuple[OpSpec, ...]:
    """The overloads that torch 1.8 to 1.13 had under this name and has no more."""

    texts = [f"aten::{row.schema}" for row in portable.legacy_of(name)]
    return tuple(schema.compile_schema(parse_schema(text), registered=False) for text in texts)


def _why_unknown(name: str, namespace: str, policy: Policy) -> Reason:
    if namespace in _imported:
        return Reason("library missing", f"{', '.join(_imported[namespace])} has no {name}")
    library = library_of(namespace)
    if library is not None:
        return Reason("library missing", library)
    modules = policy.modules_for(namespace)
    if modules and namespace in policy.allow_imports:
        return Reason("library missing", f"{modules[0]} not importable: is it on PYTHONPATH?")
    if modules:
        return Reason("library missing", modules[0].partition(".")[0])
    if schema.specs_of("aten::add") and namespace in ("aten", "prims", "quantized"):
        import torch

        return Reason("library missing", f"torch {torch.__version__.partition('+')[0]} has no {name}")
    if known := _registered(namespace):
        near = near_names(name) or tuple(sorted(known)[:MOST_NEAR])
        return Reason("library missing", f"what registers {namespace} here has no {name}; it has {', '.join(near)}")
    return Reason("policy", f"namespace {namespace} is on no list (--allow-import {namespace}=MODULE, --plugin FILE)")


MOST_NEAR = 3


def near_names(name: str) -> tuple[str, ...]:
    """Ops that torch or users' files have in the namespace of "ns::op", whose names are near; most alike first."""
    return tuple(get_close_matches(name, sorted(_registered(name.partition("::")[0])), n=MOST_NEAR, cutoff=0.75))


def _registered(namespace: str) -> set[str]:
    """Names of a namespace, without overloads, that the dispatcher or a user's executor has."""
    begin = f"{namespace}::"
    names = {name.partition(".")[0] for name in registered_ops() if name.startswith(begin)}
    return names | {op for entry in EXECUTORS for op in entry.ops if op.startswith(begin) and "*" not in op}


def _import_library(namespace: str, policy: Policy) -> bool:
    """Import what the policy allows for `namespace`, once; whether anything is imported now or before."""
    if namespace in _imported:
        return True
    loaded = tuple(module for module in policy.modules_for(namespace) if _import(module))
    if loaded:
        _imported[namespace] = loaded
        schema.forget()
    return bool(loaded)


@lru_cache(maxsize=256)
def _import(module: str) -> bool:
    """Import a module of the user's or of the policy's table; False when it is not installed or fails to load."""
    if importlib.util.find_spec(module.partition(".")[0]) is None:
        return False
    try:
        importlib.import_module(module)
    except (ImportError, OSError, RuntimeError, AttributeError):
        return False
    return True


def imported_libraries() -> dict[str, tuple[str, ...]]:
    """Modules that resolving has imported in this process, by namespace, for the report."""
    return dict(_imported)


def refused(spec: OpSpec) -> Reason | None:
    """The policy's verdict on one overload's arguments."""
    verdict = _verdicts.get(spec.text, _UNDECIDED)
    if verdict is _UNDECIDED:
        verdict = refuse_arguments(spec.name, ((arg.name, arg.type_text) for arg in spec.args if not arg.out))
        _verdicts[spec.text] = verdict
    return verdict


def device_has_kernels(device: str) -> bool:
    """Whether this torch build knows kernels of a device at all; if not, what it lacks says nothing."""
    return _has_kernel("aten::add.Tensor", device.partition(":")[0])


def has_kernel(spec: OpSpec, device: str) -> bool:
    """Whether the dispatcher has anything to run for this overload on a device such as "cpu" or "cuda:0"."""
    return _has_kernel(spec.full_name, device.partition(":")[0])


@lru_cache(maxsize=65536)
def _has_kernel(full_name: str, kind: str) -> bool:
    keys = _CPU_RELATED if kind == "cpu" else (_DISPATCH_KEYS.get(kind, "PrivateUse1"),)
    return any(has_computed_kernel(full_name, key) for key in keys)


def find_overload(op: ReplayOp, policy: Policy) -> Callable[..., Any]:
    """What to call for an op of a plan: positional arguments in schema order, keyword-only ones by name.

    Checks name, overload and argument values against the dispatcher's table and the policy again. Raises NotReplayable.
    """
    if op.reason is not None:
        raise NotReplayable(op.reason)
    for arg in op.args:
        value_refused = refuse_value(arg.name, arg.value)
        if value_refused is not None:
            raise NotReplayable(value_refused)
    if op.resolved_by == "executor":
        executor = EXECUTORS.find(op.called)
        if executor is None:
            raise NotReplayable(Reason("library missing", f"no executor for {op.called} (--plugin)"))
        return executor.function
    equivalent = portable.equivalent_of(op)
    name = op.name if equivalent is not None else op.via or op.name
    found = candidates(name, policy)
    if found.reason is not None:
        raise NotReplayable(found.reason)
    spec = next((spec for spec in found.specs if spec.overload == (op.overload or "")), None)
    if spec is None:
        raise NotReplayable(Reason("failed", f"{name} has no overload {op.overload!r} here"))
    verdict = refused(spec)
    if verdict is not None:
        raise NotReplayable(verdict)
    unknown = {arg.name for arg in op.args} - {arg.name for arg in spec.args}
    if unknown:
        raise NotReplayable(Reason("failed", f"{spec.full_name} has no argument {min(unknown)}"))
    if equivalent is not None:
        return equivalent.load()
    return _overload(spec)


def known_overload(op: ReplayOp) -> Callable[..., Any] | None:
    """The overload that an op of a plan names, to look at rather than to call; None when the dispatcher has none."""
    parts = split_name(op.via or op.name)
    if parts is None:
        return None
    namespace, name, overload = parts
    specs = schema.specs_of(f"{namespace}::{name}")
    wanted = overload or op.overload or ""
    spec = next((spec for spec in specs if spec.overload == wanted), specs[0] if specs else None)
    return None if spec is None else _overload(spec)


def _overload(spec: OpSpec) -> Callable[..., Any]:
    """The torch.ops overload of a spec; the spec comes from the dispatcher's table, so its names are safe to follow."""
    import torch

    namespace, _, name = spec.name.partition("::")
    return getattr(getattr(getattr(torch.ops, namespace), name), spec.overload or "default")
