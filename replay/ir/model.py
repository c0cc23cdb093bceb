# pyright: strict
"""The replay IR: ops with names, types and everything that is needed to call them again.

This module defines the data types; `plan.make` creates them, `verify` checks them, `plan_file` stores them and
`executors` run them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from opreplay.replay.collectives.model import Collective
from opreplay.replay.ir.captured import Capture
from opreplay.replay.ir.reasons import Reason
from opreplay.traces.links.annotations import BatchContext
from opreplay.traces.model import TensorMeta

SCHEMA_VERSION = 5
"""Version of the plan format.

1: first version. 2: adds `storage` of tensors that share memory, and `type` of a recorded kernel. 3: adds the recorded
`sequence`. 4: adds `gradients` of an op. 5: adds `captured` plans, which have no times. These have new fields:
`capture`, `flops`, the phases, modules and places of a sequence, its `collectives`, and the value of a Python number
that an op takes as a tensor.
"""
MAX_CALLS = 100_000
"""Maximum number of calls in a sequence."""

Resolution = Literal[
    "jit", "torch.ops", "import", "python function", "equivalent", "reference", "executor", "process group"
]
"""How the name of an op was resolved.

"jit": in the JIT operator registry. "torch.ops": in that registry, registered from Python (torch.library). "import":
after an allowed import. "python function": a function without a schema in a module that the user named. "equivalent": a
portable equivalent. "reference": opreplay's reference implementation of a vendor op. "executor": a user's executor.
"process group": a collective of torch.distributed.
"""

PlainValue = None | bool | int | float | str
Value = PlainValue | tuple[PlainValue | tuple[PlainValue, ...], ...]
"""Value of an argument. Lists have at most two levels, because schemas contain at most lists of lists. The type is not
recursive, because msgspec cannot decode recursive types.
"""


BY_PROGRAM = "values computed on the CPU by the tile program"
"""Start of the text of an assumption for an op that a tile program computes."""


class Assumption(msgspec.Struct, frozen=True, kw_only=True):
    """A value that the trace lacks and that opreplay filled in; shown in the report."""

    argument: str
    what: str
    """The assumption, e.g. "contiguous strides" or "approximate='none' (schema default)"."""


class ReplayArg(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One argument of a call, by name.

    `type` is the schema type's base name: "Tensor", "Tensor[]", "int", "float", "bool", "Scalar", "complex", "str",
    "ScalarType", "Layout", "Device", "MemoryFormat", "Generator", or one of the scalar types followed by "[]".

    `tensors` has one entry for "Tensor", n entries for "Tensor[]" (None for an absent element), and none for other
    types.

    `value` is JSON-safe: dtypes, devices, layouts and memory formats are "torch.bfloat16", "cuda:0", "torch.strided",
    "torch.channels_last"; non-finite floats "inf", "-inf", "nan"; complex numbers "1+2j". It is None for an absent
    optional argument. A "Tensor" has a value, too, if it was a Python number, of which torch makes a 0-dim tensor.
    """

    name: str
    type: str
    tensors: tuple[TensorMeta | None, ...] = ()
    value: Value = None
    keyword_only: bool = False
    mutated: bool = False
    """Whether the schema's alias annotation says that the op writes to this argument."""


class RecordedKernel(msgspec.Struct, frozen=True, kw_only=True):
    """Device work of the recorded calls of one op, summed by kernel name."""

    name: str
    count: int
    total_us: float
    type: str | None = None
    """CANN operator type, from the kernel table of an Ascend profile."""


class Recorded(msgspec.Struct, frozen=True, kw_only=True):
    """Recorded measurements of one op, summed over its `count` calls."""

    host_us_total: float
    host_us_median: float
    device_us_total: float = 0.0
    device_us_median: float | None = None
    """Median over calls with device time; None if no call has any."""
    kernels: tuple[RecordedKernel, ...] = ()
    gradient_calls: int | None = None
    """Number of calls that autograd recorded. None if autograd was not looked for in the trace, or if the trace does
    not show it.
    """
    gradient_calls_assumed: int = 0
    """Number of calls for which it is unknown whether autograd recorded them. They are not counted in
    `gradient_calls`.
    """
    children: tuple[str, ...] | None = None
    """Names of the ops directly below one of the calls, in order. None if they were not requested, or if there are too
    many.
    """
    below: tuple[str, ...] | None = None
    """Names of all ops below the call, each one before the ops that it calls. None in the same cases as `children`."""

    @property
    def on_device(self) -> bool:
        """Check whether any of the calls has device work."""
        return self.device_us_total > 0 or bool(self.kernels)


NOT_RECORDED = Recorded(host_us_total=0.0, host_us_median=0.0)
"""Measurements of calls that were not recorded."""


class LayerEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """Evidence about a call of a layer whose weights are not arguments. Sizes that are guessed for the weights must not
    contradict it.
    """

    weight_bits: int | None = None
    """Bits per weight, according to the names of the recorded kernels."""
    most_bytes: float | None = None
    """Maximum number of bytes that the recorded device can have read in `time_us`; None if device or time is
    unknown.
    """
    most_flops: float | None = None
    """Maximum number of FLOPs in 16-bit matrix products that the device can have computed in `time_us`; None if
    unknown.
    """
    device: str = ""
    """Name of the device in the data sheet; "" if the recorded device is unknown."""
    time_us: float = 0.0
    """Time of the kernels that may read weights."""


class ReplayOp(msgspec.Struct, frozen=True, kw_only=True):
    """One unique op of a trace: how to call it again, or the reason why that is not possible."""

    id: str
    """Stable hash of the recorded signature, 12 hex digits. The same op in two traces has the same id."""
    name: str
    """Recorded name: "namespace::op"."""
    count: int
    recorded: Recorded
    resolved_by: Resolution | None = None
    via: str | None = None
    """The op that is actually called if it differs from `name`, e.g. "aten::convolution"."""
    overload: str | None = None
    """Overload name of the called op; "" for the default overload. None if the op has no schema, or is not resolved."""
    schema: str | None = None
    """Text of the matched schema, only for display; never parsed."""
    args: tuple[ReplayArg, ...] = ()
    outputs: tuple[TensorMeta | None, ...] | None = None
    """Metadata of the results, from a call on meta tensors; None if unknown."""
    recorded_outputs: tuple[TensorMeta | None, ...] | None = None
    """Results recorded for one of the calls; an entry is None for a result that is not a tensor. None if results are
    not recorded.
    """
    assumptions: tuple[Assumption, ...] = ()
    reason: Reason | None = None
    """Reason why the op cannot be replayed; if set, `resolved_by` may be None."""
    batch: BatchContext | None = None
    """Batch (prefill and decode sequences) of the server iteration that made the calls. If several batches occur, it is
    the one with the most time.
    """
    ranks: int | None = None
    """Number of processes in a collective, if the trace records it; None for any other op."""
    collective: Collective | None = None
    """Description of a collective, in a plan made to run or simulate collectives; None for any other op."""
    gradients: bool = False
    """Whether the op is called with gradients enabled and has floating-point arguments that require gradients. See
    `resolve.gradient_mode`.
    """
    origin: str | None = None
    """JSON text of the entry in another tool's file from which this op was read. It is only data, and is written back
    unchanged.
    """
    on_host: bool = False
    """Whether the op runs on the host even if the step runs on a device. Ops on an optimizer's step counters do."""
    flops: int | None = None
    """FLOPs of one call. For a recorded call they are computed from its sizes. All others come from the formulas of
    torch.utils.flop_counter. None if there is no formula, e.g. for elementwise ops.
    """
    moved_bytes: int | None = None
    """Bytes that one recorded call moves. Each argument and each result counts once. None if the recorded sizes do not
    suffice.
    """
    work_dtype: str = ""
    """Dtype in which a recorded call computes. The call is compared with the device's peak for this dtype."""
    work_unknown: str = ""
    """Why `flops` or `moved_bytes` of a recorded call are None."""
    work_assumed: str = ""
    """Assumptions that `flops` and `moved_bytes` need because the recording lacks a fact."""
    layer: LayerEvidence | None = None
    """Recorded evidence about weights that are not arguments; None for an op whose weights are all arguments."""
    refuted: bool = False
    """Whether the planned call would move or compute more than the recorded device can in the recorded time."""
    unfit: bool = False
    """Whether no known schema accepts the arguments as written.

    If so, argument names are guesses, the op is not resolved, and its time can only be predicted.
    """

    @property
    def called(self) -> str:
        """Name, "namespace::op", of the op whose arguments are in `args`. If an equivalent op replays the recorded one,
        this is still the recorded op.
        """
        return self.via if self.via is not None and self.resolved_by != "equivalent" else self.name

    @property
    def values(self) -> dict[str, Value]:
        """Return the value of each argument by name; for an argument with tensors, the value is None."""
        return {arg.name: arg.value for arg in self.args}

    def in_call(self, values: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """Split `values` (argument name → value) into positional and keyword arguments."""
        positional = [values[arg.name] for arg in self.args if not arg.keyword_only]
        return positional, {arg.name: values[arg.name] for arg in self.args if arg.keyword_only}


class CollectiveCall(msgspec.Struct, frozen=True, kw_only=True):
    """One collective of a step, which runs at the same time as other calls.

    Positions are indices into the step's calls. An index equal to the number of calls stands for the end of the step.
    """

    id: str
    """Id of the collective's op in the plan."""
    at: int
    """Position of the call before which the collective was requested."""
    wait: int
    """Position of the call before which the collective was waited for."""
    how: Literal["recorded", "order", "unknown"]
    """How `wait` was determined. "recorded": the trace contains the wait. "order": it is the first call that began
    after the collective ended. "unknown": the wait is assumed to follow the request at once.
    """
    us: float
    """Recorded duration in microseconds, including the wait for other ranks."""
    op_us: float = 0.0
    """Part of `us` that the step's recorded times include; shares are computed from it."""


class RecordedSequence(msgspec.Struct, frozen=True, kw_only=True):
    """The calls of one recorded step in the order in which they ran, without nested calls; times in microseconds."""

    step: str
    """The annotation that marks the step; "" if the step is the whole trace."""
    steps: int
    """Number of recorded steps; the one of median duration was chosen."""
    dur_us: float
    """Wall time of the step; 0 if the file has no times."""
    ids: tuple[str, ...]
    """Ids of those ops of the plan that the step calls."""
    calls: tuple[int, ...]
    """Index into `ids` of each call."""
    host_us: tuple[float, ...]
    """Recorded host time of each call."""
    device_us: tuple[float, ...] = ()
    """Recorded device time of each call; empty if the trace has no device."""
    memories: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = ()
    """For each call: (memory numbers of its tensor arguments, memory numbers of its results). Absent tensors are left
    out. An unknown number is -1. Empty if the file does not record memory.
    """
    collectives: tuple[CollectiveCall, ...] = ()
    """Collectives that overlap the calls, in the order in which they were requested. Set in a plan made for several
    ranks.
    """
    phases: tuple[str, ...] = ()
    """Phase of each call of a captured step: "forward", "backward" or "optimizer"."""
    modules: tuple[int, ...] = ()
    """For each call of a captured step, the index into `module_names`, or -1 if no module made the call."""
    module_names: tuple[str, ...] = ()
    """Paths of modules, as in `named_modules`; "" is the model itself."""
    places: tuple[tuple[int, int], ...] = ()
    """For each memory of a captured step: (storage number, byte offset)."""
    nested: int = 0
    """Number of selected calls that are left out because they were recorded inside another call. Replaying that call
    runs them.
    """
    cut: int = 0
    """Number of calls left out because the step has more than `MAX_CALLS` calls."""
    device_us_total: float = 0.0
    """All recorded device time of the step."""
    unowned_device_us: float = 0.0
    host_us_total: float = 0.0
    """Host time of all selected calls of the step, including those of ops that the plan leaves out."""


class ReplayPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The ops of one trace, those with the most recorded time first, and the totals from which shares are computed."""

    schema_version: int = SCHEMA_VERSION
    source: str
    """Name of the trace file, without its folder."""
    selection: str = "owner"
    """Selected ops: owner, leaf, top or all."""
    device: str | None = None
    """Name of the recorded device, if known."""
    device_us_total: float
    """All recorded device time, including kernels without an op."""
    unowned_device_us: float = 0.0
    """Device time of kernels that no recorded op launched, such as kernels of a captured graph."""
    host_us_total: float
    """Total host time.

    For a trace with device work, or with selection "all", it is the time of the selected ops. With "all", a call counts
    again inside each enclosing call. For a trace without device work and any other selection, it is the time of all
    outermost events including labels; if a phase is given, the time of the outermost calls in that phase.
    """
    ops: tuple[ReplayOp, ...]
    sequence: RecordedSequence | None = None
    """The calls of one step in order. None if they were not requested, or if the file does not contain the order."""
    captured: bool = False
    """Whether the plan was made by `opreplay capture` and not from a profile. If so, its times are 0 and have no
    meaning.
    """
    capture: Capture | None = None
    """Facts about a captured step; None for other plans."""
    losses: dict[str, int] = {}
    """Reason, such as "truncated file" → number of losses when the trace was read. The plan covers only what
    was read.
    """
    unmatched: tuple[str, ...] = ()
    """Options with a pattern that no selected op matches, such as "--exclude aten::mm"."""

    def __repr__(self) -> str:
        """Return one line, because all fields together may have megabytes."""
        replayable = sum(op.reason is None for op in self.ops)
        return f"ReplayPlan of {self.source!r}: {len(self.ops):,} ops, {replayable:,} replayable"


MAX_RANKS = 1 << 24
"""Maximum number of ranks; no job has more."""
