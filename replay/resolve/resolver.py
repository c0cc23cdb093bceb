# pyright: strict
"""One recorded op to a call: what users registered for it, its overload and arguments, or the reason why not.

Owns the order of the ways. The ways themselves are `names`, `match`, `bind`, `conversions`, `executors`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache, partial

import msgspec
import numpy as np

from opreplay.replay.ir.labels import not_an_op, work_of_label
from opreplay.replay.ir.model import Assumption, Reason, ReplayOp, Resolution
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
from opreplay.replay.resolve.match import Match, best_match, stack_rival, text_rival
from opreplay.replay.resolve.meta.check import check_ops
from opreplay.replay.resolve.names import Candidates, candidates, refused
from opreplay.replay.resolve.policy import Policy, refuse_name
from opreplay.replay.resolve.relatives import RelativesIndex
from opreplay.replay.resolve.schema import OpSpec
from opreplay.replay.resolve.user.conversions import (
    CONVERSIONS,
    ConversionFailed,
    Converted,
    RecordedCall,
    convert,
    in_schema_order,
)
from opreplay.replay.resolve.user.executors import EXECUTORS, OtherOverload, UserExecutor, bind_by_name, bind_executor
from opreplay.replay.resolve.user.python_functions import PythonFunction, refused_text
from opreplay.replay.resolve.user.table import OpFunction
from opreplay.traces.dtypes import torch_dtype_name
from opreplay.traces.errors import UsageError
from opreplay.traces.model import OpSignature, Trace

Recordeds = Sequence[RecordedArg]
_SPELLED = 12
"""Arguments shown when no overload fits."""


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
        """The op with its arguments, or with the reason why it cannot be replayed."""
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
            args = unnamed_arguments(recorded, self._float_dtype)
            return msgspec.structs.replace(op, reason=stopped.reason, args=args)

    def _with_users_code(self, op: ReplayOp, signature: OpSignature, recorded: Recordeds, context: Context) -> ReplayOp:
        """Users' conversions and executors that override, then what is built in, then the others of the user's."""
        try:
            conversion, executor = CONVERSIONS.find(op.name), EXECUTORS.find(op.name)
        except UsageError as error:
            raise Unbound(Reason("failed", str(error))) from None
        if conversion is not None and conversion.override:
            converted = self._convert(op, conversion, recorded, context)
            if converted is not None:
                return converted
        if executor is not None and executor.override:
            with suppress(OtherOverload):
                return self._executed(op, executor, recorded, context)
        try:
            self._refuse(signature, context.kernels)
            made = self._resolve(op, signature.name, recorded, signature.overload, context)
        except Unbound:
            converted = None if conversion is None else self._convert(op, conversion, recorded, context)
            if converted is not None:
                return converted
            if executor is None or signature.dims is None:
                raise
            return self._executed(op, executor, recorded, context)
        unused = tuple(
            Assumption(argument="*", what=f"{entry.shown} is not used: the op can be replayed without it")
            for entry in (conversion, executor)
            if entry is not None and not entry.override
        )
        return msgspec.structs.replace(made, assumptions=made.assumptions + unused) if unused else made

    def _convert(self, op: ReplayOp, entry: OpFunction, recorded: Recordeds, context: Context) -> ReplayOp | None:
        """The op as a user's conversion makes it, or None where that does not apply to the call."""
        try:
            made = convert(
                entry, RecordedCall(name=op.name, args=tuple(recorded), kernels=context.kernels, batch=op.batch)
            )
        except ConversionFailed as failed:
            raise Unbound(Reason("failed", str(failed))) from failed
        if made is None:
            return None
        parts = split_name(made.op)
        base = made.op if parts is None else f"{parts[0]}::{parts[1]}"
        executor = EXECUTORS.find(base)
        if parts is None and executor is None:
            raise Unbound(Reason("failed", f"conversion {entry.shown}: {made.op!r} is no op"))
        refused_name = None if parts is None else refuse_name(made.op, self._policy)
        if refused_name is not None:
            raise Unbound(refused_name)
        to = "" if made.op == op.name else f" to {made.op}"
        shown = Assumption(argument="*", what=f"{op.name} converted{to} by {entry.shown}: {made.note}")
        noted = msgspec.structs.replace(op, assumptions=(*op.assumptions, shown))
        if executor is not None and (executor.override or parts is None):
            return self._executed(noted, executor, made.args, context, via=base, by_name=made.by_name)
        overload = None if parts is None else parts[2]
        try:
            args, overload = self._ordered(base, made, overload) if made.by_name else (made.args, overload)
            resolved = self._resolve(noted, made.op, args, overload, context)
        except Unbound:
            if executor is None:
                raise
            return self._executed(noted, executor, made.args, context, via=base, by_name=made.by_name)
        if resolved.resolved_by == "equivalent" and base in EQUIVALENTS:
            what = f"{base} has no kernel for {self._device}; convert to {resolved.via}"
            raise Unbound(Reason("failed", f"conversion {entry.shown}: {what}"))
        return msgspec.structs.replace(resolved, via=resolved.via or (base if base != op.name else None))

    def _ordered(self, name: str, made: Converted, overload: str | None) -> tuple[Recordeds, str]:
        """Arguments that a conversion named in the order of the first overload that has them, and that overload."""
        for spec in candidates(name, self._policy).specs:
            args = in_schema_order(spec, made.args, made.by_name)
            if args is not None and overload in (None, spec.overload) and best_match([spec], args) is not None:
                return args, spec.overload
        raise Unbound(Reason("failed", f"no overload of {name} takes arguments named {', '.join(made.by_name)}"))

    def _executed(
        self,
        op: ReplayOp,
        entry: UserExecutor,
        recorded: Recordeds,
        context: Context,
        via: str | None = None,
        by_name: Mapping[str, RecordedArg] | None = None,
    ) -> ReplayOp:
        """The op, to be run by a user's callable; `by_name`: arguments that a conversion named."""
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
        """`op` with the overload of `name` that fits the recorded arguments, and these by name."""
        found = candidates(name, self._policy)
        if found.reason is not None:
            raise Unbound(found.reason)
        if found.function is not None:
            return self._executed(op, found.function, recorded, context, via=name)
        match = best_match(found.specs, recorded, overload or named_overload(name, recorded, context))
        if match is not None and refused(match.spec) is not None:
            other = best_match([spec for spec in found.specs if refused(spec) is None], recorded, overload)
            match = other if other is not None and other.cost <= match.cost else match
        if match is None:
            raise Unbound(Reason("failed", _no_fit(name, found.specs, recorded)))
        verdict = refused(match.spec)
        if verdict is not None:
            raise Unbound(verdict)
        made = self._bound(op, name, match, found, context)
        unread = None if overload is not None or tells_overload(name, context) else text_rival(match, found.specs)
        if unread is not None:
            what = "None: another overload takes a text here, and texts are not recorded"
            noted = (*made.assumptions, Assumption(argument=unread.name, what=what))
            made = msgspec.structs.replace(made, assumptions=noted)
        rival = stack_rival(match, found.specs, recorded) if overload is None else None
        if rival is None or refused(rival.spec) is not None or not self._is_wrong(made):
            return made
        with suppress(Unbound):
            other = self._bound(op, name, rival, found, context)
            return made if self._is_wrong(other) else other
        return made

    def _is_wrong(self, op: ReplayOp) -> bool:
        """Whether meta tensors speak against the call as it was understood."""
        return check_ops([op], self._policy)[0].status in META_WRONG

    def _bound(self, op: ReplayOp, name: str, match: Match, found: Candidates, context: Context) -> ReplayOp:
        """`op` as a call of the matched overload, in the way that the device has for it."""
        layout = wanted_layout(match.spec)
        if layout is not None:
            raise Unbound(Reason("layout not recorded", f"the op takes {layout} tensors alone"))
        pairs = list(zip(match.spec.args, match.recorded, strict=False))
        values = {arg.name: encode(arg, rec.value) for arg, rec in pairs if _is_told(rec)}
        dtypes = {arg.name: rec.tensor.dtype for arg, rec in pairs if rec.tensor is not None}
        way = way_on(self._device, name, match.spec, found, dtypes, values)
        if way.reason is not None:
            raise Unbound(way.reason)
        args, assumptions = bind(match, context)
        args, cast = autocast.settle(name, args, context)
        if way.resolved_by == "reference":
            made_up = invented_by(canonical_name(name))
            cast = (*cast, *(Assumption(argument=one.argument, what=one.what) for one in made_up))
            if not made_up:
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
        """Reasons that need no schema."""
        reason = not_an_op(signature, on_device=bool(kernels))
        if reason is not None and reason.kind == "label, not an op":
            reason = work_of_label(kernels) or reason
        parts = split_name(signature.name)
        if reason is not None and self._policy.collectives and parts and parts[0] in COLLECTIVE_NAMESPACES:
            reason = None
        if reason is None and parts is not None:
            reason = refuse_name(signature.name, self._policy)
        if reason is None and signature.dims is None and not self._takes_nothing(signature.name):
            reason = Reason("metadata missing", "shapes")
        if reason is not None:
            raise Unbound(reason)

    def _takes_nothing(self, name: str) -> bool:
        """Whether an op without shapes has none because it takes no arguments."""
        return self._has_shapes and any(not spec.args for spec in schema.specs_of(name))


def _records_lists(trace: Trace) -> bool:
    """Whether sizes of lists of tensors are recorded: wherever strides are, or where there is one."""
    return any(
        one.strides is not None or any(dims and isinstance(dims[0], tuple) for dims in one.dims or ())
        for one in trace.signatures
    )


def _tells_number_lists(trace: Trace) -> bool:
    """Whether some list of numbers has a type; a trace without any types tells nothing either way."""
    typed = [one.types for one in trace.signatures if one.types is not None]
    return not typed or any(kind.endswith("List") and kind != "TensorList" for types in typed for kind in types)


def _is_told(rec: RecordedArg) -> bool:
    return rec.kind == "scalar" and rec.value is not MISSING


def _no_fit(name: str, specs: tuple[OpSpec, ...], recorded: Recordeds) -> str:
    shown = ", ".join(
        "TensorList" if r.kind == "tensors" else r.tensor.dtype if r.tensor else r.kind for r in recorded[:_SPELLED]
    )
    more = ", ..." if len(recorded) > _SPELLED else ""
    overloads = f"none of {len(specs)} overloads" if len(specs) > 1 else "no overload"
    return f"{overloads} of {name} takes ({shown}{more})"


def _common_float(trace: Trace) -> str:
    """The floating dtype that most recorded tensor arguments have; float32 where there is none."""
    counts = np.bincount(trace.ops.signature, minlength=len(trace.signatures)) if len(trace.ops) else np.zeros(0)
    votes: Counter[str] = Counter()
    for signature, count in zip(trace.signatures, counts.tolist(), strict=False):
        for i, spelled in enumerate(signature.types or ()):
            dtype = torch_dtype_name(spelled) if spelled not in ("", "Scalar", "ScalarList", "TensorList") else None
            if dtype in ("float16", "bfloat16", "float32") and signature.dims and signature.dims[i]:
                votes[dtype] += int(count)
    return votes.most_common(1)[0][0] if votes else "float32"
