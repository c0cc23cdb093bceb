# pyright: strict
"""Events as `activity` decodes them, with the metadata of collectives; and the decoder of a file that reads them so."""

from __future__ import annotations

from typing import Any

from msgspec import Raw, Struct, field

from opreplay.traces.activity.events import DeviceArgs, Task, TimingDecoder
from opreplay.traces.reading import fields

BACKENDS = (b'"nccl:', b'"gloo:', b'"hccl:', b'"mpi:', b'"ucc:', b'"xccl:', b'"rccl:', b'"lccl:')
"""How names of annotations begin, as written, that a back-end of torch.distributed puts around its calls."""


class CommsOpArgs(fields.NumberedOpArgs, gc=False, frozen=True):
    """Arguments of a host-side op, with those that `record_param_comms` has."""

    collective: Any = field(name="Collective name", default=None)
    dtype: Any = None
    in_elements: Any = field(name="In msg nelems", default=None)
    out_elements: Any = field(name="Out msg nelems", default=None)
    in_splits: Any = field(name="In split size", default=None)
    out_splits: Any = field(name="Out split size", default=None)
    group: Any = field(name="Process Group Name", default=None)
    group_size: Any = field(name="Group size", default=None)
    group_ranks: Any = field(name="Process Group Ranks", default=None)
    rank: Any = field(name="Rank", default=None)
    source: Any = field(name="Src Rank", default=None)
    target: Any = field(name="Dst Rank", default=None)
    asynchronous: Any = field(name="Is asynchronized op", default=None)


class CommsTaskArgs(DeviceArgs, gc=False, frozen=True):
    """Arguments of device work, with the same; `elements` is what goes in."""

    out_elements: Any = field(name="Out msg nelems", default=None)
    in_splits: Any = field(name="In split size", default=None)
    out_splits: Any = field(name="Out split size", default=None)
    group_ranks: Any = field(name="Process Group Ranks", default=None)
    rank: Any = field(name="Rank", default=None)
    source: Any = field(name="Src Rank", default=None)
    target: Any = field(name="Dst Rank", default=None)
    asynchronous: Any = field(name="Is asynchronized op", default=None)


class CommsOp(fields.Op, gc=False, frozen=True):
    args: CommsOpArgs = CommsOpArgs()


class CommsTask(Task, gc=False, frozen=True):
    args: CommsTaskArgs = CommsTaskArgs()


class NoteArgs(Struct, gc=False, frozen=True):
    """Arguments of an annotation: a back-end's are recorded with the tensors that they move."""

    dims: Raw = field(name="Input Dims", default=fields.NONE)
    types: Raw = field(name="Input type", default=fields.NONE)


class CommsNote(fields.Note, gc=False, frozen=True):
    args: NoteArgs = NoteArgs()


_BASES: dict[str, type[Struct]] = {
    **dict.fromkeys(fields.OP_TAGS, CommsOp),
    **dict.fromkeys(fields.NOTE_TAGS, CommsNote),
    **dict.fromkeys(fields.KERNEL_TAGS, CommsTask),
}


class CommsDecoder(TimingDecoder):
    """A `TimingDecoder` that keeps what is recorded of collectives."""

    def __init__(self) -> None:
        super().__init__()
        self.bases.update(_BASES)
        self.tagged.update(fields.make_tagged(_BASES))
        self._rebuild()

    def use_record_function_ids(self) -> None:
        """They are read in any case."""
