"""The lowering table: op name → rule that lists the kernels; refuses duplicates, knows what to do with the rest."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterable

import msgspec

from opreplay.replay.ascend.kernel import KernelCall
from opreplay.replay.ascend.lowering.view import OpView, kernel, spec
from opreplay.replay.ir import ReplayOp
from opreplay.replay.reference.registry import canonical_name
from opreplay.replay.work.contents import Contents

Rule = Callable[[OpView], Iterable[KernelCall]]

FAMILIES = (
    "views", "matmul", "convolution", "attention", "paged", "norms", "elementwise", "reductions", "pooling", "indexing",
    "movement", "optimizers", "random_fill", "moe", "collectives", "recurrent", "losses", "host_math", "spectral",
    "special_functions", "more_products", "resampling", "vendor_tables", "vendor_names",
)  # fmt: skip
"""Modules of this package that register rules."""

_rules: dict[str, Rule] = {}
_patterns: dict[str, tuple[re.Pattern[str], Rule]] = {}
_loaded = False


class Lowering(msgspec.Struct, frozen=True, kw_only=True):
    """The kernels that one call of an op becomes on the device."""

    kernels: tuple[KernelCall, ...]
    """In launch order; empty for a view."""
    notes: tuple[str, ...] = ()
    """What was assumed or left out."""
    known: bool = True
    """False when no rule exists and the op is costed by its bytes."""


def lowers(*names: str, override: bool = False) -> Callable[[Rule], Rule]:
    """Register a rule for ops by name ("aten::mm"; "aten::add" also stands for "aten::add_").

    Raises ValueError for a name that has a rule already, unless `override`.
    """

    def register(rule: Rule) -> Rule:
        for name in names:
            if name in _rules and not override:
                raise ValueError(f"{name} has a lowering rule already: {_rules[name].__name__}")
            _rules[name] = rule
        return rule

    return register


def lowers_like(*patterns: str) -> Callable[[Rule], Rule]:
    """Register a rule for all ops whose name starts with what a regular expression matches; exact names go first.

    Raises ValueError for a pattern that has a rule already.
    """

    def register(rule: Rule) -> Rule:
        for pattern in patterns:
            if pattern in _patterns:
                raise ValueError(f"{pattern} has a lowering rule already: {_patterns[pattern][1].__name__}")
            _patterns[pattern] = re.compile(pattern), rule
        return rule

    return register


def _load() -> None:
    global _loaded
    if not _loaded:
        _loaded = True
        for family in FAMILIES:
            importlib.import_module(f"opreplay.replay.ascend.lowering.{family}")


def known_ops() -> list[str]:
    """Names that have a rule, sorted."""
    _load()
    return sorted(_rules)


def find_rule(name: str) -> Rule | None:
    """The rule for a recorded name: the exact one, that of the name without overload or in-place underscore, that of a
    pattern."""
    _load()
    rule = _rules.get(name)
    if rule is None:
        namespace, _, rest = name.partition("::")
        rest = rest.split(".")[0]
        rule = _rules.get(f"{namespace}::{rest}") or _rules.get(f"{namespace}::{rest.rstrip('_')}")
    if rule is None:
        rule = next((found for pattern, found in _patterns.values() if pattern.match(name)), None)
    return rule


def _by_bytes(op: ReplayOp, view: OpView) -> list[KernelCall]:
    inputs = [spec(t.shape, t.dtype) for t in view.tensors]
    if not inputs and not op.outputs:
        return []
    written = [spec(t.shape, t.dtype) for a in op.args if a.mutated for t in a.tensors if t is not None]
    fallback = written or inputs[:1]
    return [kernel("Unknown", inputs, view.outputs(*fallback))]


def lower(op: ReplayOp, contents: Contents | None = None) -> Lowering:
    """The kernels of one call of `op`, with arguments of these contents. Never raises for a well-formed op.

    Without contents lengths follow from the batch of the op's iteration, and routing is taken as even. Where a rule
    meets arguments it cannot make sense of, the op is costed by its bytes, and a note says so.
    """
    view = OpView(op, contents)
    if op.reason is not None and not op.args:
        # Without this a rule would make an op on scalars of what is not known.
        return Lowering(kernels=(), notes=("no arguments recorded",), known=False)
    rule = find_rule(op.called) or find_rule(canonical_name(op.name))
    if rule is None and op.via is not None and (rule := find_rule(op.via)) is not None:
        # An op that torch has no more takes the arguments of the one in its place by the same names.
        view = OpView(msgspec.structs.replace(op, name=op.via), contents)
    if rule is not None:
        try:
            kernels = list(rule(view))
        except (LookupError, ValueError, TypeError, AttributeError, ArithmeticError, StopIteration):
            # A trace may record anything under a known name; the arguments then do not fit the rule.
            view = OpView(op)
            view.note(f"arguments do not fit what {op.name} takes: costed by bytes")
        else:
            return Lowering(kernels=(*view.prologue, *kernels), notes=tuple(view.notes))
    else:
        view.note(f"no lowering for {op.name}: costed by bytes")
    return Lowering(kernels=tuple(_by_bytes(op, view)), notes=tuple(view.notes), known=False)
