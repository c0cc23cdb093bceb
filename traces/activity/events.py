# pyright: strict
"""Events as `fields` decodes them, with what timing needs besides; and the decoder of one file that reads them so."""

from __future__ import annotations

from typing import Any

from msgspec import Raw, Struct, field

from opreplay.traces.reading import fields
from opreplay.traces.reading.decoding import EventDecoder, decoded_args

QUEUE_TAGS = ("enqueue", "dequeue")
HOST_ARROW_TAGS = ("fwdbwd", "async_task_queue", "HostToDevice")
"""In the order of `ARROW_KINDS`."""
_COLLECTIVES = (b'"hcom_', b'"hccl_', b'"Hccl', b'"Hcom')


BACKENDS = (b'"nccl:', b'"gloo:', b'"hccl:', b'"mpi:', b'"ucc:', b'"xccl:', b'"rccl:', b'"lccl:')
"""How names of annotations begin, as written, that a back-end of torch.distributed puts around its calls."""


class DeviceArgs(fields.KernelArgs, gc=False, frozen=True):
    """Arguments of device work, with those of a collective."""

    collective: Any = field(name="Collective name", default=None)
    elements: Any = field(name="In msg nelems", default=None)
    out_elements: Any = field(name="Out msg nelems", default=None)
    group_size: Any = field(name="Group size", default=None)
    dtype: Any = None
    in_split: Any = field(name="In split size", default=None)
    out_split: Any = field(name="Out split size", default=None)
    group: Any = field(name="Process Group Name", default=None)
    ranks: Any = field(name="Process Group Ranks", default=None)
    source: Any = field(name="Src Rank", default=None)
    target: Any = field(name="Dst Rank", default=None)
    sequence: Any = field(name="Seq", default=None)
    rank: Any = field(name="Rank", default=None)
    asynchronous: Any = field(name="Is asynchronized op", default=None)
    connection: Any = field(name="connection_id", default=None)
    """Of an NPU's task: that of the call which launched it."""


class RecordArgs(fields.NumberedOpArgs, gc=False, frozen=True):
    """Arguments of a host-side op; those of a collective stand at torch's record of its parameters."""

    collective: Any = field(name="Collective name", default=None)
    elements: Any = field(name="In msg nelems", default=None)
    out_elements: Any = field(name="Out msg nelems", default=None)
    group_size: Any = field(name="Group size", default=None)
    dtype: Any = None
    in_split: Any = field(name="In split size", default=None)
    out_split: Any = field(name="Out split size", default=None)
    group: Any = field(name="Process Group Name", default=None)
    ranks: Any = field(name="Process Group Ranks", default=None)
    source: Any = field(name="Src Rank", default=None)
    target: Any = field(name="Dst Rank", default=None)
    sequence: Any = field(name="Seq", default=None)
    rank: Any = field(name="Rank", default=None)
    asynchronous: Any = field(name="Is asynchronized op", default=None)


class CallArgs(fields.LaunchArgs, gc=False, frozen=True):
    """Arguments of a call into the runtime or driver, or of an NPU's task queue."""

    queue: Any = field(name="correlation_id", default=None)


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


class RecordedOp(fields.Op, gc=False, frozen=True):
    """A host-side op."""

    args: RecordArgs = RecordArgs()


class Task(fields.Kernel, gc=False, frozen=True):
    """Device work."""

    args: DeviceArgs = DeviceArgs()


class Call(fields.Launch, gc=False, frozen=True):
    """A call into the runtime or driver, whole."""

    name: Raw = fields.NONE
    dur: Any = 0
    args: CallArgs = CallArgs()


class CannCall(Call, gc=False, frozen=True):
    """A call into CANN: its thread is that of the op, its process is not."""


class QueuePart(Call, gc=False, frozen=True):
    """What a thread hands to, or takes from, an NPU's task queue."""


class WholeCollective(Task, gc=False, frozen=True):
    """A collective of an NPU from its first to its last task, which are recorded too."""


class Frame(Struct, gc=False, frozen=True):
    """A Python frame."""

    ph: Any = None
    name: Raw = fields.NONE
    pid: Any = None
    tid: Any = None
    ts: Any = None
    dur: Any = 0


class Wait(Struct, gc=False, frozen=True):
    """A wait of a stream, a device or an event that the runtime recorded."""

    ts: Any = None
    args: WaitArgs = WaitArgs()


class NoteArgs(Struct, gc=False, frozen=True):
    """Arguments of an annotation: a back-end's are recorded with the tensors that they move."""

    dims: Raw = field(name="Input Dims", default=fields.NONE)
    types: Raw = field(name="Input type", default=fields.NONE)


class MarkedNote(fields.Note, gc=False, frozen=True):
    """An annotation."""

    args: NoteArgs = NoteArgs()


class HostArrow(Struct, gc=False, frozen=True):
    """One end of an arrow between host threads."""

    ph: Any = None
    id: Any = None
    pid: Any = None
    tid: Any = None
    ts: Any = None


class Memory(Struct, gc=False, frozen=True):
    """An allocation or a release."""

    ph: Any = None
    name: Raw = fields.NONE
    pid: Any = None
    tid: Any = None
    ts: Any = None
    args: MemoryArgs = MemoryArgs()


class Named(Struct, gc=False, frozen=True):
    """Metadata that names a process."""

    pid: Any = None
    args: Raw = fields.NONE


_BASES: dict[str, type[Struct]] = {
    **dict.fromkeys(fields.OP_TAGS, RecordedOp),
    **dict.fromkeys(fields.NOTE_TAGS, MarkedNote),
    **dict.fromkeys(fields.KERNEL_TAGS, Task),
    **dict.fromkeys(fields.LAUNCH_TAGS, Call),
    **dict.fromkeys(QUEUE_TAGS, QueuePart),
    **dict.fromkeys(HOST_ARROW_TAGS, HostArrow),
    "python_function": Frame,
    "cuda_sync": Wait,
    "cpu_instant_event": Memory,
}


class TimingDecoder(EventDecoder):
    """An `EventDecoder` that keeps what timing needs."""

    def __init__(self) -> None:
        super().__init__()
        self.bases.update(_BASES)
        self.tagged.update(fields.make_tagged(_BASES))
        extra = fields.make_tagged(
            {"npu task": Task, "npu call": CannCall, "npu collective": WholeCollective, "process name": Named}
        )
        self.task = extra["npu task"]
        self._call = extra["npu call"]
        self.collective = extra["npu collective"]
        self._named = extra["process name"]
        self._rebuild()

    def use_numbers(self) -> None:
        """They are read in any case."""

    def _typed(self, event: fields.AnyEvent) -> Struct:
        if event.cat is None and event.args is not fields.NONE:
            if event.ph == "M" and bytes(event.name) == b'"process_name"':
                return self._named(pid=event.pid, args=event.args)
            if event.ph == "X" and b'"connection_id"' in bytes(event.args) and b'"Task Type"' not in bytes(event.args):
                return self._of_cann(event)
        return super()._typed(event)

    def _of_cann(self, event: fields.AnyEvent) -> Struct:
        """A call into CANN, or a whole collective on the device: both have a connection id and no type of task."""
        args = decoded_args(event.args, fields.TaskArgs)
        times = {"ph": "X", "pid": event.pid, "tid": event.tid, "ts": event.ts, "dur": event.dur}
        name = bytes(event.name)
        if name.startswith(_COLLECTIVES):
            found = decoded_args(event.args, _HcclArgs)
            told = DeviceArgs(
                connection=args.connection,
                collective=name.decode("utf-8", "replace").strip('"'),
                elements=found.count,
                dtype=found.dtype,
                device=-1,
                stream=-1,
            )
            return self.collective(name=event.name, args=told, **times)
        return self._call(name=event.name, args=CallArgs(corr=args.connection), **times)

    def _npu_task(self, event: fields.AnyEvent) -> Struct:
        made = super()._npu_task(event)
        if not isinstance(made, Task):
            return made
        connection = decoded_args(event.args, fields.TaskArgs).connection
        return self.task(
            name=event.name,
            ph="X",
            pid=event.pid,
            tid=event.tid,
            ts=event.ts,
            dur=event.dur,
            args=DeviceArgs(connection=connection),
        )


class _HcclArgs(Struct, gc=False, frozen=True):
    count: Any = None
    dtype: Any = field(name="data_type", default=None)
