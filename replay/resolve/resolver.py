# pyright: strict
"""Resolves one recorded op to a call, or to the reason why it cannot be called.

The call is an overload with its arguments, or user code. This module determines the order of the methods, which are in
`names`, `match`, `bind`, `conversions` and `executors`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache, partial

import msgspec
import numpy as np

from opreplay.replay.ir.labels import not_an_op, work_of_label
from opreplay.replay.ir.model import Assumption, Reason, ReplayArg, ReplayOp, Resolution
from opreplay.replay.ir.names import COLLECTIVE_NAMESPACES, split_name
from opreplay.replay.ir.recorded_call import MISSING, RecordedArg, recorded_args
from opreplay.replay.ir.verdicts import META_WRONG
from opreplay.replay.ops.aten import EQUIVALENTS
from opreplay.replay.ops.invented import invented_by
from opreplay.replay.ops.register import assumed_by, canonical_name
from opreplay.replay.resolve import schema
from opreplay.replay.resolve.bind import Unbound, bind, encode, refuse_absurd, unnamed_arguments
from opreplay.replay.resolve.gradient_mode import with_gradient_mode
from opreplay.replay.resolve.guess import autocast
from opreplay.replay.resolve.guess.texts import named_overload, tells_overload
from opreplay.replay.resolve.guess.values import Context
from opreplay.replay.resolve.kernels import wanted_layout, way_on
from opreplay.replay.resolve.match import Match, best_match, stack_rival, text_rival, unknown_code
from opreplay.replay.resolve.meta.check import check_ops
from opreplay.replay.resolve.names import Candidates, candidates, policy_verdict
from opreplay.replay.resolve.policy import Policy, refuse_name
from opreplay.replay.resolve.relatives import RelativesIndex
from opreplay.replay.resolve.schema import OpSpec
from opreplay.replay.resolve.user.conversions import (
    CONVERSIONS,
    Conversion,
    ConversionFailed,
    RecordedCall,
    convert,
    in_schema_order,
)
from opreplay.replay.resolve.user.executors import EXECUTORS, OtherOverload, UserExecutor, bind_by_name, bind_executor
from opreplay.replay.resolve.user.python_functions import PythonFunction, refused_text
from opreplay.replay.resolve.user.table import OpFunction, not_needed_text
from opreplay.replay.resolve.written.call import named_to_predict
from opreplay.replay.resolve.written.unfit import published_specs
from opreplay.traces.dtypes import torch_dtype_name
from opreplay.traces.errors import UsageError
from opreplay.traces.losses import unknown_types_of
from opreplay.traces.model import OpSignature, Trace

Recordeds = Sequence[RecordedArg]
_SPELLED = 12
"""Maximum number of arguments that the message shows if no overload fits."""


class Resolver:
    """Resolves the ops of one trace: name, overload, arguments."""

    def __init__(self, trace: Trace, policy: Policy, device: str) -> None:
        self._policy = policy
        self._device = device
        self._float_dtype = _common_float(trace)
        self._relatives = RelativesIndex(trace)
        self._lists_recorded = _records_lists(trace)
        self._number_lists_told = _tells_number_lists(trace)
        self._has_shapes = any(signature.dims is not None for signature in trace.signatures)

    def resolve(self, op: ReplayOp, signature: OpSignature, row: int) -> ReplayOp:
        """Return the op with its arguments, or with the reason why it cannot be replayed."""
        recorded = recorded_args(signature)
        kernels = tuple(kernel.name for kernel in op.recorded.kernels)
        relatives = cache(partial(self._relatives.around, row))
        on_device = op.recorded.device_us_median
        context = Context(
            device=self._device,
            float_dtype=self._float_dtype,
            kernels=kernels,
            relatives=relatives,
            lists_recorded=self._lists_recorded,
            number_lists_told=self._number_lists_told,
            calls=op.count,
            recorded_us=op.recorded.host_us_median if on_device is None else on_device,
        )
        try:
            refuse_absurd(recorded)
            return with_gradient_mode(self._with_users_code(op, signature, recorded, context))
        except Unbound as stopped:
            # A type that is not known must not be predicted as another one.
            known = not unknown_types_of(signature)
            args = _to_predict(op.name, recorded, context, self._policy) if known else ()
            return msgspec.structs.replace(op, reason=stopped.reason, args=args)

    def _with_users_code(self, op: ReplayOp, signature: OpSignature, recorded: Recordeds, context: Context) -> ReplayOp:
        """Resolve an op with users' code taken into account.

        The order is: the user's conversions and executors that override torch; the built-in methods; the user's other
        conversions and executors.
        """
        conversion, executor = _registered(op.name)
        if conversion is not None and conversion.override:
            converted = self._convert(op, conversion, recorded, context)
            if converted is not None:
                return converted
        if executor is not None and executor.override:
            with suppress(OtherOverload):
                return self._executed(op, executor, recorded, context)
        try:
            self._refuse(signature, context.kernels)
            resolved = self._resolve(op, signature.name, recorded, signature.overload, context)
        except Unbound:
            converted = self._convert(op, conversion, recorded, context)
            if converted is not None:
                return converted
            if executor is None or signature.dims is None:
                raise
            return self._executed(op, executor, recorded, context)
        unused = tuple(
            Assumption(argument="*", what=not_needed_text(entry))
            for entry in (conversion, executor)
            if entry is not None and not entry.override
        )
        return msgspec.structs.replace(resolved, assumptions=resolved.assumptions + unused)

    def _convert(
        self, op: ReplayOp, entry: OpFunction | None, recorded: Recordeds, context: Context
    ) -> ReplayOp | None:
        """Return the op as converted by a user's conversion; None if no conversion applies to the call."""
        if entry is None:
            return None
        call = RecordedCall(name=op.name, args=tuple(recorded), kernels=context.kernels, batch=op.batch)
        try:
            target = convert(entry, call)
        except ConversionFailed as failed:
            raise Unbound(Reason("failed", str(failed))) from failed
        if target is None:
            return None
        to = "" if target.op == op.name else f" to {target.op}"
        note = Assumption(argument="*", what=f"{op.name} converted{to} by {entry.shown}: {target.note}")
        return self._call_target(
            msgspec.structs.replace(op, assumptions=(*op.assumptions, note)), entry, target, context
        )

    def _call_target(self, op: ReplayOp, entry: OpFunction, target: Conversion, context: Context) -> ReplayOp:
        """Return the op as a call of a conversion's target. The target is run by a user's executor, or resolved like a
        recorded op.
        """
        parts = split_name(target.op)
        base = target.op if parts is None else f"{parts[0]}::{parts[1]}"
        executor = EXECUTORS.find(base)
        if parts is None:
            if executor is None:
                raise Unbound(Reason("failed", f"conversion {entry.shown}: {target.op!r} is not an op"))
            return self._executed(op, executor, target.args, context, via=base, by_name=target.kwargs)
        if (reason := refuse_name(target.op, self._policy)) is not None:
            raise Unbound(reason)
        if executor is not None and executor.override:
            return self._executed(op, executor, target.args, context, via=base, by_name=target.kwargs)
        try:
            args, overload = self._ordered(base, target, parts[2])
            resolved = self._resolve(op, target.op, args, overload, context)
        except Unbound:
            if executor is None:
                raise
            return self._executed(op, executor, target.args, context, via=base, by_name=target.kwargs)
        if resolved.resolved_by == "equivalent" and base in EQUIVALENTS:
            what = f"{base} has no kernel for {self._device}; convert to {resolved.via} instead"
            raise Unbound(Reason("failed", f"conversion {entry.shown}: {what}"))
        return msgspec.structs.replace(resolved, via=resolved.via or (base if base != op.name else None))

    def _ordered(self, name: str, target: Conversion, overload: str | None) -> tuple[Recordeds, str | None]:
        """Return a conversion's arguments in the order of the first overload that has such arguments, and this
        overload.
        """
        if not target.kwargs:
            return target.args, overload
        for spec in candidates(name, self._policy).specs:
            args = in_schema_order(spec, target.args, target.kwargs)
            if args is not None and overload in (None, spec.overload) and best_match([spec], args) is not None:
                return args, spec.overload
        raise Unbound(Reason("failed", f"no overload of {name} accepts arguments named {', '.join(target.kwargs)}"))

    def _executed(
        self,
        op: ReplayOp,
        entry: UserExecutor,
        recorded: Recordeds,
        context: Context,
        via: str | None = None,
        by_name: Mapping[str, RecordedArg] | None = None,
    ) -> ReplayOp:
        """Return the op as a call of a user's executor; `by_name` holds arguments that a conversion named."""
        name = via or op.name
        if by_name:
            args, assumptions = bind_by_name(entry, recorded, by_name, context)
            text = None
        else:
            args, assumptions, text = bind_executor(entry, name, recorded, context)
        via = None if via == op.name else via
        by: Resolution = "executor"
        if isinstance(entry, PythonFunction):
            by = "python function"
            if (refusal := refused_text(args)) is not None:
                raise Unbound(refusal)
        return msgspec.structs.replace(
            op, resolved_by=by, via=via, schema=text, args=args, assumptions=op.assumptions + assumptions
        )

    def _resolve(
        self, op: ReplayOp, name: str, recorded: Recordeds, overload: str | None, context: Context
    ) -> ReplayOp:
        """Resolve `op` to the overload of `name` that fits the recorded arguments. Raises Unbound."""
        overloads = candidates(name, self._policy)
        if overloads.reason is not None:
            raise Unbound(overloads.reason)
        if overloads.function is not None:
            return self._executed(op, overloads.function, recorded, context, via=name)
        wanted = overload or named_overload(name, recorded, context)
        match = _allowed_match(name, overloads.specs, recorded, wanted)
        resolved = self._bound(op, name, match, overloads, context)
        if overload is not None:
            return resolved
        if not tells_overload(name, context):
            resolved = _with_unread_text(resolved, match, overloads.specs)
        rival = stack_rival(match, overloads.specs, recorded)
        if rival is None or policy_verdict(rival.spec) is not None or not self._is_wrong(resolved):
            return resolved
        with suppress(Unbound):
            other = self._bound(op, name, rival, overloads, context)
            return resolved if self._is_wrong(other) else other
        return resolved

    def _is_wrong(self, op: ReplayOp) -> bool:
        """Check whether a call on meta tensors contradicts the resolved call."""
        return check_ops([op], self._policy)[0].status in META_WRONG

    def _bound(self, op: ReplayOp, name: str, match: Match, overloads: Candidates, context: Context) -> ReplayOp:
        """Return `op` as a call of the matched overload, or of its equivalent on the device."""
        layout = wanted_layout(match.spec)
        if layout is not None:
            raise Unbound(Reason("layout not recorded", f"the op accepts only {layout} tensors"))
        pairs = list(zip(match.spec.args, match.recorded, strict=False))
        scalars = [(arg, rec) for arg, rec in pairs if rec.kind in ("scalar", "scalars")]
        values = {arg.name: encode(arg, rec.value) for arg, rec in scalars if rec.value is not MISSING}
        values |= {arg.name: rec.tensor.shape for arg, rec in pairs if rec.tensor is not None}
        dtypes = {arg.name: rec.tensor.dtype for arg, rec in pairs if rec.tensor is not None}
        way = way_on(self._device, name, match.spec, overloads, dtypes, values)
        if way.reason is not None:
            raise Unbound(way.reason)
        args, assumptions = bind(match, context)
        args, cast = autocast.apply_autocast(name, args, context)
        if way.resolved_by == "reference":
            invented = _invented_weights(name)
            cast += invented
            if not invented:
                assumptions += tuple(Assumption(argument="*", what=what) for what in assumed_by(way.via or name))
        return msgspec.structs.replace(
            op,
            resolved_by=way.resolved_by,
            via=way.via,
            overload=match.spec.overload,
            schema=match.spec.text,
            args=args,
            assumptions=op.assumptions + assumptions + cast,
        )

    def _refuse(self, signature: OpSignature, kernels: tuple[str, ...]) -> None:
        """Raise Unbound for a call if it is clear without a schema that the call cannot be resolved."""
        name = signature.name
        reason = None if self._is_allowed_collective(name) else not_an_op(signature, on_device=bool(kernels))
        if reason is not None and reason.kind == "label, not an op":
            reason = work_of_label(kernels) or reason
        reason = reason or refuse_name(name, self._policy)
        if reason is None and signature.dims is None and not self._takes_nothing(name):
            reason = Reason("metadata missing", "shapes")
        if reason is None and (unknown := unknown_types_of(signature)):
            names = ", ".join(repr(name[:60]) for name in sorted(unknown)[:3])
            reason = Reason("metadata missing", f"opreplay does not know the type name {names}")
        if reason is not None:
            raise Unbound(reason)

    def _is_allowed_collective(self, name: str) -> bool:
        parts = split_name(name)
        return self._policy.collectives and parts is not None and parts[0] in COLLECTIVE_NAMESPACES

    def _takes_nothing(self, name: str) -> bool:
        """Check whether an op has no recorded shapes because it takes no arguments."""
        return self._has_shapes and any(not spec.args for spec in schema.specs_of(name))


def _to_predict(name: str, recorded: Recordeds, context: Context, policy: Policy) -> tuple[ReplayArg, ...]:
    """Return the arguments of a call that cannot run here, for predicting its time.

    Their names come from a schema that the op's vendor published. If none fits, they are the names that `opreplay op`
    would use. If there are no such names, they are arg0, arg1, ...
    """
    match = best_match(published_specs(name), recorded)
    if match is not None and not match.skipped and not match.dropped:
        with suppress(Unbound):
            return tuple(msgspec.structs.replace(arg, keyword_only=False) for arg in bind(match, context)[0])
    unnamed = unnamed_arguments(recorded, context.float_dtype)
    if split_name(name) is None or not any(arg.tensors for arg in unnamed):
        return unnamed
    return named_to_predict(name, unnamed, policy) or unnamed


def _records_lists(trace: Trace) -> bool:
    """Check whether a trace records sizes of tensor lists. It does if it records strides, or if it has sizes of at
    least one list.
    """
    return any(
        signature.strides is not None or any(dims and isinstance(dims[0], tuple) for dims in signature.dims or ())
        for signature in trace.signatures
    )


def _tells_number_lists(trace: Trace) -> bool:
    """Check whether the trace records lists of numbers with a type. Also True for a trace without any types."""
    typed = [signature.types for signature in trace.signatures if signature.types is not None]
    return not typed or any(kind.endswith("List") and kind != "TensorList" for types in typed for kind in types)


def _invented_weights(name: str) -> tuple[Assumption, ...]:
    weights = invented_by(canonical_name(name))
    return tuple(Assumption(argument=weight.argument, what=weight.what) for weight in weights)


def _registered(name: str) -> tuple[OpFunction | None, UserExecutor | None]:
    """Return a user's conversion and executor for an op. Raises Unbound if two patterns match its name."""
    try:
        return CONVERSIONS.find(name), EXECUTORS.find(name)
    except UsageError as error:
        raise Unbound(Reason("failed", error.problem)) from None


def _allowed_match(name: str, specs: tuple[OpSpec, ...], recorded: Recordeds, overload: str | None) -> Match:
    """Return the overload that fits best, or `overload` if that fits.

    If the policy forbids the overload, another one that fits equally well is returned. Raises Unbound if no overload
    fits, or if none that fits is allowed.
    """
    match = best_match(specs, recorded, overload)
    if (unknown := unknown_code(match, specs, recorded)) is not None:
        raise Unbound(Reason("failed", f"{name}: {unknown}"))
    if match is None:
        raise Unbound(Reason("failed", _no_fit(name, specs, recorded)))
    reason = policy_verdict(match.spec)
    if reason is None:
        return match
    other = best_match([spec for spec in specs if policy_verdict(spec) is None], recorded)
    if other is None or other.cost > match.cost:
        raise Unbound(reason)
    return other


def _no_fit(name: str, specs: tuple[OpSpec, ...], recorded: Recordeds) -> str:
    shown = ", ".join(
        "TensorList" if r.kind == "tensors" else r.tensor.dtype if r.tensor else r.kind for r in recorded[:_SPELLED]
    )
    more = ", ..." if len(recorded) > _SPELLED else ""
    overloads = f"none of {len(specs)} overloads" if len(specs) > 1 else "no overload"
    return f"{overloads} of {name} takes ({shown}{more})"


def _common_float(trace: Trace) -> str:
    """Return the most frequent floating dtype of recorded tensor arguments; float32 if there is none."""
    counts = np.bincount(trace.ops.signature, minlength=len(trace.signatures)) if len(trace.ops) else np.zeros(0)
    votes: Counter[str] = Counter()
    for signature, count in zip(trace.signatures, counts.tolist(), strict=False):
        for i, spelled in enumerate(signature.types or ()):
            dtype = torch_dtype_name(spelled) if spelled not in ("", "Scalar", "ScalarList", "TensorList") else None
            if dtype in ("float16", "bfloat16", "float32") and signature.dims and signature.dims[i]:
                votes[dtype] += int(count)
    return votes.most_common(1)[0][0] if votes else "float32"


def _with_unread_text(op: ReplayOp, match: Match, specs: Sequence[OpSpec]) -> ReplayOp:
    """Add a note to the op if another overload takes a string in place of an unrecorded argument."""
    unread = text_rival(match, specs)
    if unread is None:
        return op
    what = "None: another overload takes a string here, and strings are not recorded"
    return msgspec.structs.replace(op, assumptions=(*op.assumptions, Assumption(argument=unread.name, what=what)))
