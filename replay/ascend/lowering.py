# pyright: strict
"""Lowers an op call to the kernels that it launches on the device: by a user's rule, a built-in rule, or its bytes."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial

import msgspec

from opreplay.initializers.user_code import failed_at, place_of
from opreplay.initializers.user_table import UserFunction
from opreplay.replay.ascend.custom.registrations import USER_RULES, CustomOpError, refuse_no_op
from opreplay.replay.ir.kernel import KernelCall, TensorSpec, itemsize
from opreplay.replay.ir.model import ReplayOp
from opreplay.replay.ops import op_view as view_module
from opreplay.replay.ops.kin import kin_of
from opreplay.replay.ops.op_view import DoesNotFit, OpView, elements, kernel, spec
from opreplay.replay.ops.register import canonical_name
from opreplay.replay.ops.table import Cost, cost_of, is_pattern, spellings
from opreplay.replay.ops.work.contents import Contents
from opreplay.traces.errors import internal_error

_OWN_FILES = (__file__, view_module.__file__)


class Lowering(msgspec.Struct, frozen=True, kw_only=True):
    """The kernels that one call of an op launches on the device."""

    kernels: tuple[KernelCall, ...]
    """Kernels in launch order; empty for a view."""
    notes: tuple[str, ...] = ()
    """Notes on what was assumed or left out."""
    assumed: bool = False
    """Whether sizes that determine the time were assumed because no argument gives them; `notes` lists them."""
    invented: bool = False
    """Whether all that is known about the assumed sizes is a bound derived from the recorded time."""
    unbounded: str = ""
    """Reason why nothing determines or bounds the assumed sizes. If it is set, there is no prediction; "" otherwise."""
    near: str = ""
    """Op with a similar name whose rule was used; "" if none."""
    fills_nothing: bool = False
    """Whether all results are empty, so that no kernel is launched."""
    known: bool = True
    """Whether a lowering rule exists; otherwise the cost of the op is based on its bytes."""
    source: str = ""
    """The user's rule as "function (file.py:line)"; "" if no user's rule was used."""
    placed: tuple[tuple[str, int], ...] = ()
    """Arguments that replace an argument which a user's rule requested but the op does not have.

    Each entry is (requested name, position of the argument used instead).
    """


def lowers(*names: str, override: bool = False) -> Callable[[Cost], Cost]:
    """Register a user's rule for the ops with these names ("aten::mm"; "aten::add" also applies to "aten::add_").

    The rule takes precedence over built-in rules. Raises ValueError for a name that has a built-in rule, unless
    `override` is set.
    """

    def register(rule: Cost) -> Cost:
        refuse_no_op(names, "rule", rule)
        for name in () if override else names:
            if cost_of(name) is not None:
                raise ValueError(f"{name} already has a built-in lowering rule; override=True replaces it")
        USER_RULES.add(UserFunction(ops=names, function=rule), replace=override)
        return rule

    return register


def lowers_like(*patterns: str) -> Callable[[Cost], Cost]:
    """Register a user's rule for ops by regular expressions that match the start of the op's name.

    Rules for exact names take precedence. Raises ValueError for a pattern that already has a rule.
    """

    def register(rule: Cost) -> Cost:
        for pattern in patterns or ("",):
            _refuse_no_pattern(pattern, rule)
            if is_pattern(pattern):
                raise ValueError(f"{pattern} already has a built-in lowering rule")
        USER_RULES.add(UserFunction(ops=patterns, function=rule), {op: re.compile(op) for op in patterns})
        return rule

    return register


def _refuse_no_pattern(pattern: str, rule: Cost) -> None:
    """Raise CustomOpError for an empty or invalid regular expression."""
    try:
        re.compile(pattern)
    except re.error as error:
        raise CustomOpError(f"{place_of(rule)}: {pattern!r} is not a regular expression: {error}") from None
    if not pattern:
        raise CustomOpError(f"{place_of(rule)}: a rule needs the beginning of an op name, such as mylib::norm")


def _by_bytes(op: ReplayOp, view: OpView) -> list[KernelCall]:
    inputs = [spec(t.shape, t.dtype) for t in view.tensors]
    if not inputs and not op.outputs:
        return []
    written = [spec(t.shape, t.dtype) for a in op.args if a.mutated for t in a.tensors if t is not None]
    outputs = [*view.outputs(*(written or inputs[:1]))]
    work = None if view.contents is None else view.contents.work
    if work is not None and (work.bytes_read is not None or work.bytes_written is not None):
        view.note("the bytes come from the op's initializer")
        inputs, outputs = _of_bytes(work.bytes_read, inputs), _of_bytes(work.bytes_written, outputs)
    return [kernel("Unknown", inputs, outputs)]


def _of_bytes(size_bytes: int | None, recorded: list[TensorSpec]) -> list[TensorSpec]:
    """Return one tensor of `size_bytes` with the dtype of the first recorded tensor.

    If `size_bytes` is None, the recorded tensors are returned.
    """
    if size_bytes is None:
        return recorded
    dtype = recorded[0].dtype if recorded else "float32"
    return [spec((-(-size_bytes // itemsize(dtype)),), dtype)]


OPAQUE = frozenset({"label, not an op", "triton kernel"})
"""Reasons of unresolved ops whose work cannot be derived from the name and the size of the arguments."""
COLLECTIVE = "record_param_comms"
"""Name of the op whose lowering rule is used for all collectives."""


def lower(op: ReplayOp, contents: Contents | None = None) -> Lowering:
    """Return the kernels of one call of `op`.

    `contents` describes the values of its arguments. Without contents, sequence lengths are derived from the batch of
    the op's iteration, and experts are assumed to get equal numbers of tokens. If a rule cannot interpret the
    arguments, the cost is based on the op's bytes, and a note says so.

    Raises CustomOpError if a user's rule fails, InternalError if a built-in rule fails.
    """
    if op.on_host:
        return Lowering(kernels=(), notes=("runs on the host: it counts an optimizer's steps",))
    view = OpView(op, contents)
    if op.reason is not None and op.collective is None and not any(arg.tensors for arg in op.args):
        # Without this a rule would make an op on scalars of what is not known.
        return Lowering(kernels=(), notes=("no arguments recorded",), known=False)
    users = USER_RULES.find(*spellings(op.called), *spellings(op.name), canonical_name(op.name))
    if users is not None:
        return _by_user(users, op, contents)
    if _fills_nothing(op):
        return Lowering(kernels=(), notes=("all results are empty, so no kernel is launched",), fills_nothing=True)
    known = COLLECTIVE if op.collective is not None else op.called
    rule = cost_of(known) or cost_of(canonical_name(op.name))
    is_unresolved = op.resolved_by is None and (op.reason is None or op.reason.kind not in OPAQUE)
    # An op that torch has no more takes the arguments of the one in its place by the same names.
    other = op.via if op.via is not None else kin_of(op.name) if is_unresolved else None
    near = ""
    if rule is None and other is not None and (rule := cost_of(other)) is not None:
        view = OpView(msgspec.structs.replace(op, name=other), contents)
        if other != op.via:
            near = other
            view.assume(f"no lowering for {op.name}: costed as {other}, which has a similar name")
    if rule is not None:
        if op.unfit:
            view.assume(
                f"the arguments do not match the known schema of {op.name}, so they are used by position and name"
            )
        try:
            kernels = list(rule(view))
        except DoesNotFit as misfit:
            view = OpView(op)
            view.note(f"the arguments do not fit {op.name} ({misfit}): costed by bytes")
        except Exception as error:
            raise internal_error(f"lowering rule {rule.__name__} for {op.name} ({op.id})", error) from error
        else:
            return Lowering(
                kernels=(*view.prologue, *kernels),
                notes=tuple(view.notes),
                assumed=view.assumed,
                invented=view.invented,
                unbounded=view.unbounded,
                near=near,
            )
    else:
        view.note(f"no lowering for {op.name}: costed by bytes")
    return Lowering(kernels=tuple(_by_bytes(op, view)), notes=tuple(view.notes), assumed=is_unresolved, known=False)


def _fills_nothing(op: ReplayOp) -> bool:
    """Check whether an op produces and writes only empty tensors.

    Libraries launch no kernel for such an op. False if the sizes of the results are unknown, and for collectives.
    """
    results = [meta for meta in op.outputs or () if meta is not None]
    written = [meta for arg in op.args if arg.mutated for meta in arg.tensors if meta is not None]
    return op.collective is None and bool(results) and not any(map(elements, (*results, *written)))


def _by_user(users: UserFunction, op: ReplayOp, contents: Contents | None) -> Lowering:
    """Lower an op by a user's rule. Raises CustomOpError if the rule fails or returns anything but kernels."""
    view = OpView(op, contents, by_order=True, known=partial(_argument_names, op))
    try:
        kernels = list(users.function(view))
    except (Exception, SystemExit) as error:  # user code may raise anything
        place = failed_at(error, _OWN_FILES) or users.place
        raise CustomOpError(
            f"{place}: the rule {users.name} failed for {op.name}: {type(error).__name__}: {error}",
            hint="`opreplay plan TRACE --explain OP` shows the arguments that were recorded.",
        ) from error
    if not all(isinstance(call, KernelCall) for call in kernels):
        raise CustomOpError(f"{users.place}: the rule for {op.name} returned something other than kernels")
    return Lowering(
        kernels=(*view.prologue, *kernels),
        notes=tuple(view.notes),
        assumed=view.assumed,
        source=users.shown,
        placed=tuple(view.placed.items()),
    )


def _argument_names(op: ReplayOp) -> list[str]:
    """Return the argument names of an op over all its overloads; empty if the installed torch does not have the op."""
    from opreplay.replay.resolve.schema import specs_of

    name = op.called.partition(".")[0]
    return list(dict.fromkeys(arg.name for spec in specs_of(name) for arg in spec.args))
