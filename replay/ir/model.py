# pyright: strict
"""The replay IR: named, typed ops with everything that is needed to call them again.

Holds the data types; `plan.make` creates them, `verify` checks, `plan_file` stores and `executors` run them.
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
"""Changes of format: 1 first version; 2 `storage` of tensors that share memory, `type` of a recorded kernel; 3 the
recorded `sequence`; 4 `gradients` of an op; 5 `captured` plans, which hold no times: `capture`, `flops`, phases,
modules and places of a sequence, its `collectives`, and the value of a Python number that an op takes as a tensor."""
MAX_CALLS = 100_000
"""Calls that a sequence holds at most."""

Resolution = Literal[
    "jit", "torch.ops", "import", "python function", "equivalent", "reference", "executor", "process group"
]
"""How a name was resolved: JIT operator registry, `torch.ops` where Python put it (torch.library), after an allowed
import, as a function without a schema of a module that the user named, through a portable equivalent, through
opreplay's reference implementation of a vendor op, by a user's executor, as a collective of torch.distributed."""

PlainValue = None | bool | int | float | str
Value = PlainValue | tuple[PlainValue | tuple[PlainValue, ...], ...]
"""Two levels are all that schemas have (a list of lists); msgspec decodes no recursive alias."""


BY_PROGRAM = "values computed on the CPU by the tile program"
"""How the assumption of an op that a tile program runs begins."""


class Assumption(msgspec.Struct, frozen=True, kw_only=True):
    """A value that the trace does not give and opreplay filled in; shown in the report."""

    argument: str
    what: str
    """What was assumed, e.g. "contiguous strides" or "approximate='none' (schema default)"."""


class ReplayArg(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One argument of a call, by name.

    `type` is the schema type's base name: "Tensor", "Tensor[]", "int", "float", "bool", "Scalar", "complex", "str",
    "ScalarType", "Layout", "Device", "MemoryFormat", "Generator", or one of the scalar ones followed by "[]". `tensors`
    has one entry for "Tensor", n for "Tensor[]" (None for an absent element), and none for other types. A "Tensor" also
    has a value if it was a Python number: torch makes a 0-dim tensor of it. `value` is JSON-safe: dtypes, devices,
    layouts and memory formats as "torch.bfloat16", "cuda:0", "torch.strided", "torch.channels_last"; non-finite floats
    as "inf", "-inf", "nan"; complex as "1+2j"; None for an absent optional.
    """

    name: str
    type: str
    tensors: tuple[TensorMeta | None, ...] = ()
    value: Value = None
    keyword_only: bool = False
    mutated: bool = False
    """The schema's alias annotation says that the op writes to this argument."""


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
    """Median over calls that own device time; None when none does."""
    kernels: tuple[RecordedKernel, ...] = ()
    gradient_calls: int | None = None
    """Calls that autograd recorded; None where the trace was not asked, or does not say."""
    gradient_calls_assumed: int = 0
    """Calls of which nothing tells whether autograd recorded them; not among `gradient_calls`."""
    children: tuple[str, ...] | None = None
    """Names of the ops right below one of the calls, in order; None where nobody asked, or they are too many."""
    below: tuple[str, ...] | None = None
    """Names of all ops below it, each before those that it calls; None as for `children`."""

    @property
    def on_device(self) -> bool:
        """Check whether any of the calls has device work."""
        return self.device_us_total > 0 or bool(self.kernels)


NOT_RECORDED = Recorded(host_us_total=0.0, host_us_median=0.0)
"""Of calls that come from no trace."""


class LayerEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """Evidence about one call of an opaque layer; guessed sizes that contradict it are wrong."""

    weight_bits: int | None = None
    """Of one weight, as names of the recorded kernels say."""
    most_bytes: float | None = None
    """That the recorded device can have read in the recorded time; None where device or time is not known."""
    most_flops: float | None = None
    """Products in 16 bits that it can have done in that time."""
    device: str = ""
    """Name in the data sheet, "" where the recorded device is not known."""
    time_us: float = 0.0
    """Of the kernels that may read weights."""


class ReplayOp(msgspec.Struct, frozen=True, kw_only=True):
    """One unique op of a trace: how to call it again, or the reason why that is not possible."""

    id: str
    """Stable 12-hex-digit hash of the recorded signature: the same op in two traces has the same id."""
    name: str
    """As recorded, "namespace::op"."""
    count: int
    recorded: Recorded
    resolved_by: Resolution | None = None
    via: str | None = None
    """The op that is really called where it is another one than `name`, e.g. "aten::convolution"."""
    overload: str | None = None
    """Overload name of what is called; "" for the default overload; None when schemaless or not resolved."""
    schema: str | None = None
    """Text of the matched schema, for people to read; never parsed."""
    args: tuple[ReplayArg, ...] = ()
    outputs: tuple[TensorMeta | None, ...] | None = None
    """From a run on meta tensors; None when not known."""
    recorded_outputs: tuple[TensorMeta | None, ...] | None = None
    """As the trace holds them (of one of the calls), None for a result that is no tensor; None when not recorded."""
    assumptions: tuple[Assumption, ...] = ()
    reason: Reason | None = None
    """Set when the op cannot be replayed; then `resolved_by` may be None."""
    batch: BatchContext | None = None
    """Prefill and decode split of the iteration that the calls ran in; of the one with most time where several."""
    ranks: int | None = None
    """Processes that take part in a collective, where the trace tells; None for any other op."""
    collective: Collective | None = None
    """What a collective does, of a plan that was made to run or simulate them; None for any other op."""
    gradients: bool = False
    """Whether it is called with gradients on and floating arguments that require them (`resolve.gradient_mode`)."""
    origin: str | None = None
    """JSON text of the entry in another tool's file that this op came from; data only, written back unchanged."""
    on_host: bool = False
    """Whether the host runs it whatever device runs the rest, as it does the step counters of an optimizer."""
    flops: int | None = None
    """Of one call: of a recorded one by its sizes, else by torch.utils.flop_counter's formulas; None where they tell
    none, as of elementwise ops."""
    moved_bytes: int | None = None
    """Of one recorded call: arguments and result, each once; None where its sizes do not tell."""
    work_dtype: str = ""
    """In which a recorded call computes: whose peak it is compared with."""
    work_unknown: str = ""
    """Why `flops` or `moved_bytes` of a recorded call are None."""
    work_assumed: str = ""
    """What they rest on that the recording does not say."""
    layer: LayerEvidence | None = None
    """What the recording tells of weights that are in no argument; None for an op whose arguments hold all."""
    refuted: bool = False
    """Whether a call as planned would move or multiply more than the recorded device can in the recorded time."""
    unfit: bool = False
    """Whether no schema known here takes the arguments as written, so that their names are guesses: it is not resolved,
    and its time can only be predicted."""

    @property
    def called(self) -> str:
        """Return the op whose arguments these are, "namespace::op": an equivalent takes those of the recorded op."""
        return self.via if self.via is not None and self.resolved_by != "equivalent" else self.name

    @property
    def values(self) -> dict[str, Value]:
        """Return the arguments that are not tensors by name; None for tensors."""
        return {arg.name: arg.value for arg in self.args}

    def in_call(self, values: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """Split values by argument name into positional and keyword arguments."""
        positional = [values[arg.name] for arg in self.args if not arg.keyword_only]
        return positional, {arg.name: values[arg.name] for arg in self.args if arg.keyword_only}


class CollectiveCall(msgspec.Struct, frozen=True, kw_only=True):
    """One collective of a step, which overlaps its calls; positions are indices of calls, and their number means the
    end.
    """

    id: str
    """Of its op in the plan."""
    at: int
    """Place of the call before which it was asked for."""
    wait: int
    """Place of the call before which it was waited for."""
    how: Literal["recorded", "order", "unknown"]
    """How that is known: recorded; inferred, as the first call that began after the collective had ended; or not, then
    it is waited for at once."""
    us: float
    """Recorded, with the waiting for other ranks."""
    op_us: float = 0.0
    """What the step's recorded times, to which shares refer, hold of it."""


class RecordedSequence(msgspec.Struct, frozen=True, kw_only=True):
    """The calls of one recorded step in the order in which they ran, without nested calls; times in microseconds."""

    step: str
    """The annotation that marks the step, "" where it is the whole trace."""
    steps: int
    """Recorded steps that it was chosen from, as the one of median duration."""
    dur_us: float
    """Wall time of the step; 0 where the file holds no times."""
    ids: tuple[str, ...]
    """Ops of the plan that the step calls."""
    calls: tuple[int, ...]
    """Index into `ids` of each call."""
    host_us: tuple[float, ...]
    """Recorded time of each call."""
    device_us: tuple[float, ...] = ()
    """Recorded device time of each call; empty where the trace has no device."""
    memories: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = ()
    """Of each call: which memory each tensor argument and each result lay in, absent ones left out and -1 where that is
    not known; empty where the file does not tell."""
    collectives: tuple[CollectiveCall, ...] = ()
    """Those that a plan for ranks has beside the calls, as they were asked for."""
    phases: tuple[str, ...] = ()
    """Of each call of a captured step: "forward", "backward" or "optimizer"."""
    modules: tuple[int, ...] = ()
    """Of each call of a captured step: index into `module_names`, -1 where no module called it."""
    module_names: tuple[str, ...] = ()
    """Paths of modules, as `named_modules` has them; "" is the model itself."""
    places: tuple[tuple[int, int], ...] = ()
    """Of each memory of a captured step: number of its storage and offset in it, in bytes."""
    nested: int = 0
    """Selected calls that were recorded inside another one, which runs them."""
    cut: int = 0
    """Calls after those that are listed: there is a limit."""
    device_us_total: float = 0.0
    """All recorded device time of the step."""
    unowned_device_us: float = 0.0
    host_us_total: float = 0.0
    """Of all selected calls of the step, those of ops that the plan leaves out included."""


class ReplayPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The ops of one trace, those with most recorded time first, and the totals to which shares refer."""

    schema_version: int = SCHEMA_VERSION
    source: str
    """Name of the trace file, without its folder."""
    selection: str = "owner"
    """Which ops were taken: owner, leaf, top or all."""
    device: str | None = None
    """Name of the recorded device, where known."""
    device_us_total: float
    """All recorded device time, owned or not."""
    unowned_device_us: float = 0.0
    """The part of it in kernels that no recorded op launched, such as those of a captured graph."""
    host_us_total: float
    """Of a trace without device work: of all outermost events, labels too, or of the outermost calls of a phase. Else,
    and with selection "all", which counts a call again inside each call around it: of the selected ops."""
    ops: tuple[ReplayOp, ...]
    sequence: RecordedSequence | None = None
    """The calls of one step in order; None where nobody asked, or the file does not say."""
    captured: bool = False
    """Made by `opreplay capture`, not from a profile: no time in it was recorded, each is 0 and means nothing."""
    capture: Capture | None = None
    """What a captured plan knows beyond a trace's."""
    losses: dict[str, int] = {}
    """What reading the trace lost, by reason, such as "truncated file": the plan is of the rest."""

    def __repr__(self) -> str:
        """Return one line: all fields together are megabytes."""
        replayable = sum(op.reason is None for op in self.ops)
        return f"ReplayPlan of {self.source!r}: {len(self.ops):,} ops, {replayable:,} replayable"


MAX_RANKS = 1 << 24
"""More than any job has; a larger number is no number of ranks."""
