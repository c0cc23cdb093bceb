"""List the kernels owned by each op name in an NPU trace; needs a trace joined with a kernel table."""

from __future__ import annotations

from collections import defaultdict

import msgspec
import numpy as np

from opreplay.traces.model import KernelDetails, KernelKind, TensorSpec, Trace, tensor_text

TENSORS = 4
"""Maximum number of inputs, and of outputs, that are written out for one kernel."""


class OwnedKernel(msgspec.Struct, frozen=True, kw_only=True):
    """All launches by the calls of one op that have the same kernel type and core type."""

    type: str
    core: str
    count: int
    total_us: float
    wait_us: float
    """Time that the launches waited for the preceding task, in µs; 0 if not recorded."""
    tensors: str
    """Shapes, types and formats of the longest launch: "float32[8,4] ND → float32[8,4] ND"."""


class OpKernels(msgspec.Struct, frozen=True, kw_only=True):
    """All calls of one op name, with the kernels that they own; the kernels are sorted by total time, longest first."""

    op: str | None
    """Op name; None for kernels without an owner."""
    calls: int
    device_us: float
    kernels: tuple[OwnedKernel, ...]


def kernels_by_op(trace: Trace) -> tuple[OpKernels, ...]:
    """Return ops with their kernels, sorted by kernel time in descending order; () for a trace without a kernel table.

    Only tasks in the table count, not copies, events and waits.
    """
    if trace.details is None:
        return ()
    described = np.flatnonzero(trace.details.kind >= 0)
    owner = trace.kernels.owner[described]
    signature = np.where(owner >= 0, trace.ops.signature[np.maximum(owner, 0)], -1) if len(trace.ops) else owner
    rows: dict[str | None, list[int]] = defaultdict(list)
    calls: dict[str | None, set[int]] = defaultdict(set)
    for at, op, which in zip(described.tolist(), owner.tolist(), signature.tolist(), strict=True):
        name = trace.signatures[which].name if op >= 0 else None
        rows[name].append(at)
        calls[name].add(op)
    dur_ns, details = trace.kernels.dur_ns, trace.details
    ops = [
        _op(name, op_rows, 0 if name is None else len(calls[name]), details, dur_ns) for name, op_rows in rows.items()
    ]
    return tuple(sorted(ops, key=lambda op: -op.device_us))


def _op(name: str | None, rows: list[int], calls: int, details: KernelDetails, dur_ns: np.ndarray) -> OpKernels:
    grouped: dict[tuple[str, str], list[int]] = defaultdict(list)
    for at in rows:
        kind = details.kinds[int(details.kind[at])]
        grouped[kind.type, kind.core].append(at)
    kernels = []
    for (type_, core), kernel_rows in grouped.items():
        heaviest = max(kernel_rows, key=lambda at: int(dur_ns[at]))
        kernels.append(
            OwnedKernel(
                type=type_,
                core=core,
                count=len(kernel_rows),
                total_us=int(dur_ns[kernel_rows].sum()) / 1e3,
                wait_us=int(np.maximum(details.wait_ns[kernel_rows], 0).sum()) / 1e3,
                tensors=_tensors(details.kinds[int(details.kind[heaviest])]),
            )
        )
    kernels.sort(key=lambda kernel: -kernel.total_us)
    return OpKernels(op=name, calls=calls, device_us=sum(k.total_us for k in kernels), kernels=tuple(kernels))


def _tensors(kind: KernelKind) -> str:
    return f"{_side(kind.inputs)} → {_side(kind.outputs)}" if kind.inputs or kind.outputs else ""


def _side(specs: tuple[TensorSpec | None, ...]) -> str:
    """Format the first few tensors of a kernel's inputs or outputs; a fused kernel over all parameters has hundreds."""
    shown = ", ".join(map(tensor_text, specs[:TENSORS]))
    return (shown or "-") + (f" and {len(specs) - TENSORS} more" if len(specs) > TENSORS else "")
