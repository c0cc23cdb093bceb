"""From a trace to a plan: groups recorded calls into unique ops, sums what was measured, and resolves each once.

Owns the grouping and the order of the steps. The steps themselves are `select`, `labels`, `resolve`, `matching`,
`binding` and `passes`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from pathlib import PurePath

import msgspec
import numpy as np
import numpy.typing as npt

from opreplay.replay import passes
from opreplay.replay.binding import Unbound, bind, unnamed_arguments
from opreplay.replay.inference_base import Context
from opreplay.replay.ir import Assumption, Reason, Recorded, RecordedKernel, ReplayOp, ReplayPlan
from opreplay.replay.labels import not_an_op
from opreplay.replay.matching import best_match
from opreplay.replay.policy import COLLECTIVE_NAMESPACES, Policy, refuse_name, split_name
from opreplay.replay.portable import equivalent_for
from opreplay.replay.recorded import RecordedArg, recorded_args
from opreplay.replay.relatives import RelativesIndex
from opreplay.replay.resolve import candidates, device_has_kernels, has_kernel, refused
from opreplay.replay.schema import OpSpec
from opreplay.replay.select import OpFilter, keep_heaviest, keeps_name, parents_of, selected_rows
from opreplay.traces.dtypes import torch_dtype_name
from opreplay.traces.iterations import BatchIndex, DominantBatch
from opreplay.traces.model import OpSignature, Trace

Rows = npt.NDArray[np.int64]
_NO_FILTER = OpFilter()
_DEFAULT_POLICY = Policy()
_SPELLED = 12
"""Arguments shown when no overload fits."""


def build_plan(
    trace: Trace, *, select: str = "owner", filters: OpFilter = _NO_FILTER, policy: Policy = _DEFAULT_POLICY,
    device: str = "cpu",
) -> ReplayPlan:  # fmt: skip
    """The unique ops of a trace, each resolved for `device` or with the reason why not, heaviest first.

    `select`: "owner" (ops that own device time; the outermost ops where none does), "leaf", "top" or "all".
    Imports torch, and a vendor library only where `policy` allows it. Raises UsageError for an unknown selection.
    """
    rows = selected_rows(trace, select)
    groups = _group(trace, rows, select)
    device_us = float(trace.kernels.dur_ns.sum(dtype=np.int64)) / 1e3 if len(trace.kernels) else 0.0
    host_us = sum(group.recorded.host_us_total for group in groups)
    shell = ReplayPlan(
        source=PurePath(trace.info.path).name, selection=select,
        device=next(iter(trace.info.device_names), None), device_us_total=device_us, host_us_total=host_us, ops=(),
    )  # fmt: skip
    kept = [
        (group, ReplayOp(id=signature_id(group.signature), name=group.signature.name, count=group.count,
                         recorded=group.recorded, batch=group.batch and group.batch.context,
                         assumptions=_shared_batch(group.batch)))
        for group in groups if keeps_name(filters, group.signature.name)
    ]  # fmt: skip
    weight = passes.weight_of(shell)
    kept.sort(key=lambda pair: -weight(pair[1]))
    chosen = keep_heaviest([op for _, op in kept], filters, device_us or host_us, weight)
    ids = {op.id for op in chosen}
    resolver = Resolver(trace, policy, device)
    ops = tuple(resolver.resolve(op, group.signature, group.row) for group, op in kept if op.id in ids)
    return passes.run(msgspec.structs.replace(shell, ops=ops))


def signature_id(signature: OpSignature) -> str:
    """Stable 12-hex-digit hash of a recorded signature."""
    parts = [signature.name, signature.dims, signature.types, signature.strides, signature.concrete]
    if signature.overload is not None or signature.list_types is not None or signature.storage is not None:
        parts += [signature.overload, signature.list_types, signature.storage]
    return blake2b(msgspec.json.encode(parts), digest_size=6).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Group:
    """All selected calls of one signature."""

    signature: OpSignature
    row: int
    """One of them, for what surrounds it."""
    count: int
    recorded: Recorded
    batch: DominantBatch | None = None


def _shared_batch(batch: DominantBatch | None) -> tuple[Assumption, ...]:
    """Says so when the calls of one op worked on several batches: all are replayed on the one with most time."""
    if batch is None or not batch.others:
        return ()
    what = f"that of {100 * batch.share:.0f} % of the recorded time; {batch.others} others are not replayed"
    return (Assumption(argument="batch", what=what),)


def _group(trace: Trace, rows: Rows, select: str) -> list[_Group]:
    """One group a signature, in order of first appearance."""
    if not len(rows):
        return []
    owner = _selected_owner(trace, rows, select)
    owned = owner >= 0
    device_ns = np.bincount(owner[owned], weights=trace.kernels.dur_ns[owned], minlength=len(trace.ops))
    kernels = _kernels_by_signature(trace, owner)
    batches = BatchIndex(trace)
    signature = trace.ops.signature[rows].astype(np.int64)
    order = np.argsort(signature, kind="stable")
    bounds = np.flatnonzero(np.diff(signature[order])) + 1
    groups = []
    for part in np.split(rows[order], bounds):
        index = int(trace.ops.signature[part[0]])
        host, on_device = trace.ops.dur_ns[part] / 1e3, device_ns[part] / 1e3
        busy = on_device[on_device > 0]
        recorded = Recorded(
            host_us_total=float(host.sum()), host_us_median=float(np.median(host)),
            device_us_total=float(on_device.sum()),
            device_us_median=float(np.median(busy)) if len(busy) else None,
            kernels=kernels.get(index, ()),
        )  # fmt: skip
        groups.append(_Group(
            signature=trace.signatures[index], row=int(part[0]), count=len(part), recorded=recorded,
            batch=batches.dominant(part, on_device),
        ))  # fmt: skip
    groups.sort(key=lambda group: group.row)
    return groups


def _selected_owner(trace: Trace, rows: Rows, select: str) -> Rows:
    """The selected row that each kernel's time counts for, or -1: its owner, or the owner's outermost op for "top"."""
    owner = trace.kernels.owner.astype(np.int64)
    chosen = np.zeros(len(trace.ops) + 1, dtype=bool)
    chosen[rows] = True
    if select in ("top", "leaf"):
        parents = parents_of(trace)
        outside = (owner >= 0) & ~chosen[owner]
        while select == "top" and outside.any():
            owner[outside] = parents[owner[outside]]
            outside = (owner >= 0) & ~chosen[owner]
    return np.where((owner >= 0) & chosen[owner], owner, -1)


def _kernels_by_signature(trace: Trace, owner: Rows) -> dict[int, tuple[RecordedKernel, ...]]:
    owned = np.flatnonzero(owner >= 0)
    signature = trace.ops.signature[owner[owned]].astype(np.int64)
    key = signature * max(1, len(trace.kernel_names)) + trace.kernels.name[owned]
    unique, inverse, counts = np.unique(key, return_inverse=True, return_counts=True)
    totals = np.bincount(inverse, weights=trace.kernels.dur_ns[owned], minlength=len(unique)) / 1e3
    made: dict[int, list[RecordedKernel]] = {}
    for which, count, total in zip(unique.tolist(), counts.tolist(), totals.tolist(), strict=True):
        index, name = divmod(which, max(1, len(trace.kernel_names)))
        made.setdefault(index, []).append(RecordedKernel(name=trace.kernel_names[name], count=count, total_us=total))
    return {index: tuple(sorted(found, key=lambda k: -k.total_us)) for index, found in made.items()}


class Resolver:
    """Resolves the ops of one trace: name, overload, arguments."""

    def __init__(self, trace: Trace, policy: Policy, device: str) -> None:
        self._policy = policy
        self._device = device
        self._check_kernels = device_has_kernels(device)
        self._float_dtype = _common_float(trace)
        self._relatives = RelativesIndex(trace)

    def resolve(self, op: ReplayOp, signature: OpSignature, row: int) -> ReplayOp:
        """The op with its arguments, or with the reason why it cannot be replayed."""
        try:
            return self._resolve(op, signature, partial(self._relatives.around, row))
        except Unbound as stopped:
            args = unnamed_arguments(recorded_args(signature), self._float_dtype)
            return msgspec.structs.replace(op, reason=stopped.reason, args=args)

    def _resolve(self, op: ReplayOp, signature: OpSignature, relatives: Callable) -> ReplayOp:
        self._refuse(signature)
        found = candidates(signature.name, self._policy)
        if found.reason is not None:
            raise Unbound(found.reason)
        recorded = recorded_args(signature)
        overload = signature.overload
        match = best_match(found.specs, recorded, overload)
        if match is not None and refused(match.spec) is not None:
            other = best_match([spec for spec in found.specs if refused(spec) is None], recorded, overload)
            match = other if other is not None and other.cost <= match.cost else match
        if match is None:
            raise Unbound(Reason("failed", _no_fit(signature.name, found.specs, recorded)))
        verdict = refused(match.spec)
        if verdict is not None:
            raise Unbound(verdict)
        by, via = found.resolved_by, found.via
        if self._check_kernels:
            kernel = has_kernel(match.spec, self._device)
            pairs = zip(match.spec.args, match.recorded, strict=False)
            dtypes = {arg.name: rec.tensor.dtype for arg, rec in pairs if rec.tensor is not None}
            equivalent = equivalent_for(signature.name, dtypes, has_kernel=kernel, device=self._device)
            if equivalent is not None:
                by, via = "equivalent", equivalent.via
            elif not kernel:
                raise Unbound(Reason("failed", f"{match.spec.full_name} has no kernel for {self._device}"))
        kernels = tuple(kernel.name for kernel in op.recorded.kernels)
        context = Context(device=self._device, float_dtype=self._float_dtype, kernels=kernels, relatives=relatives)
        args, assumptions = bind(match, context)
        return msgspec.structs.replace(
            op, resolved_by=by, via=via, overload=match.spec.overload, schema=match.spec.text, args=args,
            assumptions=op.assumptions + assumptions,
        )  # fmt: skip

    def _refuse(self, signature: OpSignature) -> None:
        """Reasons that need no schema."""
        reason = not_an_op(signature)
        parts = split_name(signature.name)
        if reason is not None and self._policy.collectives and parts and parts[0] in COLLECTIVE_NAMESPACES:
            reason = None
        if reason is None and parts is not None:
            reason = refuse_name(signature.name, self._policy)
        if reason is None and signature.dims is None:
            reason = Reason("metadata missing", "shapes")
        if reason is not None:
            raise Unbound(reason)


def _no_fit(name: str, specs: tuple[OpSpec, ...], recorded: tuple[RecordedArg, ...]) -> str:
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
                votes[dtype] += count
    return votes.most_common(1)[0][0] if votes else "float32"
