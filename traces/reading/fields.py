# pyright: strict
"""The vocabulary of trace files: categories, keys and the structs into which msgspec decodes events; no logic.

Fields are in the order in which Kineto writes them, so that msgspec finds each one immediately.

Scalars are `Any`, because one value of a wrong type would reject a whole block. Names and argument metadata are
`msgspec.Raw`, because most of them repeat and only distinct ones are decoded (`signatures`).
"""

from __future__ import annotations

from decimal import Decimal, InvalidOperation
from typing import Any, Literal, Union

import msgspec
from msgspec import Raw, Struct, field

Column = Literal["numbers", "calls", "activity"]
"""Optional groups of columns.

"numbers": the numbers that torch and autograd gave each op. "calls": the names of runtime calls and the grids of
launches. "activity": the timing of calls, waits and flow events, with collectives and memory.
"""

NONE = Raw(b"")
"""Default value of an absent raw field."""

KERNEL_TAGS: dict[str, int] = {
    "kernel": 0,
    "Kernel": 0,
    "gpu_memcpy": 1,
    "Memcpy": 1,
    "gpu_memset": 2,
    "Memset": 2,
    "mtia_ccp_events": 0,
}
"""Device-side category → index into `model.KERNEL_CATEGORIES`; names are capitalised up to torch 1.10."""
MTIA_CATEGORY = "mtia_ccp_events"
MTIA_COPIES = (b'"dma_',)
MTIA_WAITS = (b'"event_', b'"synchronize', b'"wait', b'"semaphore')
"""Prefixes of the names of MTIA device rows that do no work, with the opening quote. The rows wait or are markers.

`MTIA_COPIES` has the prefixes of copies.
"""
DEVICE_TASK = 3
"""Index into `model.KERNEL_CATEGORIES` of NPU device rows, which have a "Task Type" but no category."""

NPU_WAITS = ("EVENT_", "NOTIFY_", "PLACE_HOLDER", "PROFILER_")
"""Prefixes of the "Task Type" (upper case) of NPU rows that wait or are markers and do no work."""

OP_TAGS = ("cpu_op", "Operator")
LAUNCH_TAGS = (
    "cuda_runtime",
    "cuda_driver",
    "hip_runtime",
    "hip_driver",
    "Runtime",
    "Driver",
    "xpu_runtime",
    "musa_runtime",
    "privateuse1_runtime",
    "privateuse1_driver",
    "mtia_runtime",
)
KERNEL_CALL, GRAPH_CALL, COPY_CALL = 1, 2, 3
"""Kinds of runtime calls that start device work; 0 is any other call."""


def call_kind(name: bytes) -> int:
    """Return the kind of device work that a runtime call starts, judging by its name; 0 for none."""
    if b"GraphLaunch" in name:
        return GRAPH_CALL
    if b"Launch" in name:
        return 0 if b"HostFunc" in name else KERNEL_CALL
    return COPY_CALL if b"Mem" in name else 0


ARROW_TAGS = ("ac2g", "async_cpu_to_gpu", "async", "async_gpu")
"""Flow categories that repeat the correlation ids of kernels; needed only if some kernel has no correlation id."""
FLOW_TAGS = ("async_npu",)
NOTE_TAGS = ("user_annotation",)
SKIP_TAGS = (
    "python_function",
    "cpu_instant_event",
    "gpu_user_annotation",
    "overhead",
    "Trace",
    "fwdbwd",
    "enqueue",
    "dequeue",
    "async_task_queue",
    "HostToDevice",
    "cuda_profiler_range",
    "cuda_sync",
    "cuda_event",
    "mtia_insight",
    "xpu_driver",
    "collective_comm",
    "hpu_op",
    "async_acl_npu",
)


QUEUE_TAGS = ("enqueue", "dequeue")
HOST_ARROW_TAGS = ("fwdbwd", "async_task_queue", "HostToDevice")
"""Categories of flow events between host threads, in the order of `ARROW_KINDS`."""
BACKENDS = (b'"nccl:', b'"gloo:', b'"hccl:', b'"mpi:', b'"ucc:', b'"xccl:', b'"rccl:', b'"lccl:')
"""Prefixes, with the opening quote, of the annotations that a torch.distributed back-end puts around its calls."""
COLLECTIVE_KEYS: dict[str, str] = {
    "collective": "Collective name",
    "elements": "In msg nelems",
    "out_elements": "Out msg nelems",
    "group_size": "Group size",
    "dtype": "dtype",
    "in_split": "In split size",
    "out_split": "Out split size",
    "group": "Process Group Name",
    "ranks": "Process Group Ranks",
    "source": "Src Rank",
    "target": "Dst Rank",
    "sequence": "Seq",
    "rank": "Rank",
    "asynchronous": "Is asynchronized op",
}
"""Field → its key in torch's record of a collective's parameters and in the arguments of device work."""


class OpArgs(Struct, gc=False, frozen=True):
    """Arguments of a host-side op."""

    ext: Any = field(name="External id", default=-1)
    concrete: Raw = field(name="Concrete Inputs", default=NONE)
    types: Raw = field(name="Input type", default=NONE)
    strides: Raw = field(name="Input Strides", default=NONE)
    dims: Raw = field(name="Input Dims", default=NONE)


class OldOpArgs(Struct, gc=False, frozen=True):
    """Arguments of a host-side op, with keys as torch up to 1.8 spells them."""

    ext: Any = field(name="External id", default=-1)
    dims: Raw = field(name="Input dims", default=NONE)
    types: Raw = field(name="Input type", default=NONE)
    strides: Raw = NONE
    concrete: Raw = NONE


class NumberedOpArgs(OpArgs, gc=False, frozen=True):
    """Arguments of an op, with two more numbers. torch's call number helps to join two files of one run. autograd's
    sequence number shows whether gradients were on.
    """

    rf: Any = field(name="Record function id", default=-1)
    seq: Any = field(name="Sequence number", default=-1)


class KernelArgs(Struct, gc=False, frozen=True):
    """Arguments of device work."""

    ext: Any = field(name="External id", default=None)
    ext_old: Any = field(name="external id", default=None)
    corr: Any = field(name="correlation", default=None)
    device: Any = None
    stream: Any = None


class SizedKernelArgs(KernelArgs, gc=False, frozen=True):
    """Arguments of device work, including the launch grid that CUDA kernels record."""

    grid: Any = None


class LaunchArgs(Struct, gc=False, frozen=True):
    """Arguments of a runtime or driver call."""

    corr: Any = field(name="correlation", default=None)


class CallArgs(LaunchArgs, gc=False, frozen=True):
    """Arguments of a runtime call with the launched kernel and its grid, which only ROCm records."""

    kernel: Raw = NONE
    grid: Any = None


class TimedCallArgs(CallArgs, gc=False, frozen=True):
    """Arguments of a runtime call, including its id in the NPU's task queue."""

    queue: Any = field(name="correlation_id", default=None)


def _with_collective(name: str, base: type[Struct], **more: str) -> type[Any]:
    keys = COLLECTIVE_KEYS | more
    added = [(attribute, Any, field(name=key, default=None)) for attribute, key in keys.items()]
    return msgspec.defstruct(name, added, bases=(base,), gc=False, frozen=True)


RecordArgs = _with_collective("RecordArgs", NumberedOpArgs)
"""Arguments of a host-side op; torch's record of a collective's parameters also has the collective's fields."""
TimedKernelArgs = _with_collective("TimedKernelArgs", KernelArgs, connection="connection_id")
"""Arguments of device work; an NPU task has the same connection id as the call that launched it."""


class HcclArgs(Struct, gc=False, frozen=True):
    """Arguments of a whole NPU collective, which consists of several tasks."""

    count: Any = None
    dtype: Any = field(name="data_type", default=None)


class WaitArgs(Struct, gc=False, frozen=True):
    """Arguments of a recorded wait."""

    corr: Any = field(name="correlation", default=None)
    stream: Any = None
    waits_for: Any = field(name="wait_on_stream", default=-1)
    record: Any = field(name="wait_on_cuda_event_record_corr_id", default=-1)


class MemoryArgs(Struct, gc=False, frozen=True):
    """Arguments of an allocation or a release."""

    bytes: Any = field(name="Bytes", default=None)
    address: Any = field(name="Addr", default=-1)
    allocated: Any = field(name="Total Allocated", default=-1)
    device_type: Any = field(name="Device Type", default=0)
    device: Any = field(name="Device Id", default=-1)


class NoteArgs(Struct, gc=False, frozen=True):
    """Arguments of an annotation; a communication back-end also records the tensors that it moves."""

    dims: Raw = field(name="Input Dims", default=NONE)
    types: Raw = field(name="Input type", default=NONE)


class TaskArgs(Struct, gc=False, frozen=True):
    """Arguments of an NPU device row."""

    task_type: Any = field(name="Task Type", default=None)
    connection: Any = field(name="connection_id", default=None)


class _Timed(Struct, gc=False, frozen=True):
    ph: Any = None
    name: Raw = NONE
    pid: Any = None
    tid: Any = None
    ts: Any = None
    dur: Any = 0


class Op(_Timed, gc=False, frozen=True):
    args: OpArgs = OpArgs()


class NumberedOp(Op, gc=False, frozen=True):
    args: NumberedOpArgs = NumberedOpArgs()


class OldOp(_Timed, gc=False, frozen=True):
    args: OldOpArgs = OldOpArgs()


class Kernel(_Timed, gc=False, frozen=True):
    args: KernelArgs = KernelArgs()


class SizedKernel(Kernel, gc=False, frozen=True):
    """Device work with its launch grid."""

    args: SizedKernelArgs = SizedKernelArgs()


class Note(_Timed, gc=False, frozen=True):
    """An annotation without its arguments."""


def _with_args(name: str, base: type[Struct], args: type[Any]) -> type[Struct]:
    return msgspec.defstruct(name, [("args", args, args())], bases=(base,), gc=False, frozen=True)


RecordedOp = _with_args("RecordedOp", Op, RecordArgs)
"""A host-side op with the recorded facts about its collective."""
TimedKernel = _with_args("TimedKernel", Kernel, TimedKernelArgs)
"""Device work with the recorded facts about its collective."""
WholeCollective = _with_args("WholeCollective", Kernel, TimedKernelArgs)
"""An NPU collective from its first to its last task; the tasks are recorded as well."""


class SizedNote(Note, gc=False, frozen=True):
    """An annotation with its tensors."""

    args: NoteArgs = NoteArgs()


class Frame(_Timed, gc=False, frozen=True):
    """A Python frame."""


class Wait(Struct, gc=False, frozen=True):
    """A recorded wait of a stream, a device or an event."""

    pid: Any = None
    tid: Any = None
    ts: Any = None
    args: WaitArgs = WaitArgs()


class Memory(Struct, gc=False, frozen=True):
    """An allocation or a release."""

    ph: Any = None
    name: Raw = NONE
    pid: Any = None
    tid: Any = None
    ts: Any = None
    args: MemoryArgs = MemoryArgs()


class Named(Struct, gc=False, frozen=True):
    """Metadata with the name of a process."""

    pid: Any = None
    args: Raw = NONE


class Launch(Struct, gc=False, frozen=True):
    """A runtime or driver call."""

    ph: Any = None
    name: Raw = NONE
    pid: Any = None
    tid: Any = None
    ts: Any = None
    args: LaunchArgs = LaunchArgs()


class Call(Launch, gc=False, frozen=True):
    """A runtime or driver call, and the kernel that it launches if this is recorded."""

    args: CallArgs = CallArgs()


class TimedCall(Call, gc=False, frozen=True):
    """A call with its duration."""

    dur: Any = 0
    args: TimedCallArgs = TimedCallArgs()


class CannCall(TimedCall, gc=False, frozen=True):
    """A call into CANN; it has the thread id of the op's thread but a different process id."""


class QueuePart(TimedCall, gc=False, frozen=True):
    """An item that a thread adds to, or takes from, an NPU's task queue."""


class Flow(Struct, gc=False, frozen=True):
    """Flow event: one end of an arrow between a launch and device work."""

    ph: Any = None
    id: Any = None
    pid: Any = None
    tid: Any = None
    ts: Any = None


class Arrow(Flow, gc=False, frozen=True):
    """Flow event whose category is in ARROW_TAGS."""


class HostArrow(Struct, gc=False, frozen=True):
    """Flow event: one end of an arrow between host threads."""

    ph: Any = None
    id: Any = None
    pid: Any = None
    tid: Any = None
    ts: Any = None


class Skipped(Struct, gc=False, frozen=True):
    """An event that is only counted."""


class AnyEvent(Struct, gc=False, frozen=True):
    """Any event, with a known, an unknown or no category."""

    cat: Any = None
    name: Raw = NONE
    ph: Any = None
    pid: Any = None
    tid: Any = None
    ts: Any = None
    dur: Any = 0
    id: Any = None
    args: Raw = NONE


KIND_BASES: dict[str, type[Struct]] = {
    **dict.fromkeys(OP_TAGS, Op),
    **dict.fromkeys(KERNEL_TAGS, Kernel),
    **dict.fromkeys(LAUNCH_TAGS, Launch),
    **dict.fromkeys(FLOW_TAGS, Flow),
    **dict.fromkeys(ARROW_TAGS, Arrow),
    **dict.fromkeys(NOTE_TAGS, Note),
    **dict.fromkeys(SKIP_TAGS, Skipped),
}
"""Category → struct class with those fields that are kept of an event of this category."""
WANTED_BASES: dict[Column, dict[str, type[Struct]]] = {
    "numbers": dict.fromkeys(OP_TAGS, NumberedOp),
    "calls": {**dict.fromkeys(LAUNCH_TAGS, Call), **dict.fromkeys(KERNEL_TAGS, SizedKernel)},
    "activity": {
        **dict.fromkeys(OP_TAGS, RecordedOp),
        **dict.fromkeys(NOTE_TAGS, SizedNote),
        **dict.fromkeys(KERNEL_TAGS, TimedKernel),
        **dict.fromkeys(LAUNCH_TAGS, TimedCall),
        **dict.fromkeys(QUEUE_TAGS, QueuePart),
        **dict.fromkeys(HOST_ARROW_TAGS, HostArrow),
        "python_function": Frame,
        "cuda_sync": Wait,
        "cpu_instant_event": Memory,
    },
}
"""Optional column → structs that replace those of `KIND_BASES` if the column is requested.

If several requested columns replace the same struct, the last one takes effect.
"""


def bases(columns: frozenset[Column]) -> dict[str, type[Struct]]:
    """Map each category to the struct class that has the requested optional columns."""
    wanted = (more for column, more in WANTED_BASES.items() if column in columns)
    return {cat: base for some in (KIND_BASES, *wanted) for cat, base in some.items()}


def make_tagged(categories: dict[str, type[Struct]]) -> dict[str, type[Struct]]:
    """Map each category to a struct class; msgspec selects the class by the event's "cat"."""
    return {
        cat: msgspec.defstruct(f"Event{i}", [], bases=(base,), tag=cat, tag_field="cat", gc=False, frozen=True)
        for i, (cat, base) in enumerate(categories.items())
    }


def exact_decimal(text: str) -> Decimal:
    """Convert text to an exact Decimal; infinity or 0 if its exponent exceeds the range of Decimal."""
    try:
        return Decimal(text)
    except InvalidOperation:
        return Decimal(float(text))


def make_decoders(tagged: dict[str, type[Struct]], *, exact: bool) -> tuple[Any, Any]:
    """Return (decoder for blocks of known categories, decoder for any events); `exact` decodes decimals as Decimal."""
    hook = exact_decimal if exact else None
    union = Union[tuple(tagged.values())]  # noqa: UP007  # the members are only known at run time
    return (
        msgspec.json.Decoder(list[union], float_hook=hook),
        msgspec.json.Decoder(list[AnyEvent], float_hook=hook),
    )
