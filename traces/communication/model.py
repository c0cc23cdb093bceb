# pyright: strict
"""What a profile records of each collective, as frozen values; knows nothing of how they are replayed."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt


class CommsRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What torch's `ParamCommsDebugInfo` writes of one collective (torch/csrc/distributed/c10d/ParamCommsUtils.hpp).

    None, () or "" where the trace does not say; sizes are in elements.
    """

    name: str = ""
    """"allreduce", "_allgather_base", "all_to_allv", "send", "wait", ..., as recorded."""
    dtype: str = ""
    """As recorded: "BFloat16", "Float", ..."""
    in_elements: int | None = None
    out_elements: int | None = None
    in_splits: tuple[int, ...] = ()
    """Of an all-to-all: elements (rows of them, as recorded) for each peer; empty where even or not told."""
    out_splits: tuple[int, ...] = ()
    group: str = ""
    """Name of the process group."""
    group_size: int | None = None
    group_ranks: tuple[int, ...] = ()
    """Ranks of the job that the group consists of."""
    rank: int | None = None
    """Of this process."""
    source: int | None = None
    """Rank that sends, of a point-to-point operation."""
    target: int | None = None
    asynchronous: bool | None = None


class CommsNote(msgspec.Struct, frozen=True, kw_only=True):
    """An annotation of a back-end (`nccl:all_reduce`, `gloo:broadcast`) with its tensors."""

    name: str
    start_ns: int
    dur_ns: int
    track: int
    dims: tuple[tuple[int, ...], ...]
    types: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Communication:
    """All of one profile."""

    record: npt.NDArray[np.int64]
    """Of each row of `Trace.ops`: index into `records`, or -1."""
    kernel_record: npt.NDArray[np.int64]
    """The same of each row of `Trace.kernels`."""
    records: tuple[CommsRecord, ...]
    notes: tuple[CommsNote, ...]
    """In file order."""
