"""What an NPU's kernel table says of device work, as frozen values; owns neither the file's format nor the join."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt


class TensorSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One tensor as a CANN kernel sees it."""

    shape: tuple[int, ...]
    dtype: str
    """torch dtype name."""
    format: str = "ND"
    """"ND", "NCHW", "FRACTAL_NZ", "NC1HWC0", "FRACTAL_Z", ..."""


class KernelKind(msgspec.Struct, frozen=True, kw_only=True):
    """What launches of one kernel have in common."""

    type: str
    """CANN operator type: "MatMulV3", "Add", "TransData", ..."""
    core: str
    """"AI_CORE", "AI_VECTOR_CORE", "MIX_AIC", "AI_CPU", ... as spelled in the table; "" where it does not say."""
    inputs: tuple[TensorSpec | None, ...] = ()
    outputs: tuple[TensorSpec | None, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelDetails:
    """Rows of a kernel table by the row of `Trace.kernels` that they describe."""

    kinds: tuple[KernelKind, ...]
    kind: npt.NDArray[np.int32]
    """Index into `kinds`, or -1 where the table has no row; one entry a row of `Trace.kernels`."""
    wait_ns: npt.NDArray[np.int64]
    """How long the task had waited for the one before it; -1 where unknown."""


class DetailsJoin(msgspec.Struct, frozen=True, kw_only=True):
    """How a kernel table was joined to a trace."""

    file: str
    """Name of the table, without its folder."""
    discovered: bool
    """Found beside the trace; else named by the user."""
    problem: str | None = None
    """Why a discovered table was not used; then all counts are 0."""
    rows: int = 0
    by_start: int = 0
    """Same name, same start."""
    by_order: int = 0
    """Same name, which table and trace have equally often."""
    communication_rows: int = 0
    """Rows of collectives among those not found: a trace has them as parts."""
    unmatched_rows: int = 0
    """All other rows that are no task of the trace."""
    unmatched_tasks: int = 0
    """NPU tasks of the trace without a row: copies, events and waits have none."""
    other_durations: int = 0
    """Matched rows whose duration differs from the trace's by more than 1 %; the table's is used."""
    dropped: dict[str, int] = {}
    """Reason → number of rows that could not be read."""


def tensor_text(spec: TensorSpec | None) -> str:
    """A tensor as text: "bfloat16[4096,1024] ND"; "-" for an absent one."""
    return "-" if spec is None else f"{spec.dtype}[{','.join(map(str, spec.shape))}] {spec.format}"
