# pyright: strict
"""Facts about a captured step besides its calls: memory by phase, operations, named tensors, and the check."""

from __future__ import annotations

from typing import Literal

import msgspec

from opreplay.traces.model import TensorMeta

Via = Literal["dispatch", "export", "compile"]
LikeDevice = Literal["cpu", "cuda", "npu"]
"""Whose defaults torch takes while a step is captured."""


class CaptureOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a step is captured."""

    via: Via = "dispatch"
    decompose: bool = False
    """Whether a graph of torch.export is decomposed."""
    real: bool = False
    """Whether it runs on real tensors."""
    seed: int = 0
    """Of real tensors."""
    world_size: int | None = None
    rank: int = 0
    device: LikeDevice = "cpu"


StepPhase = Literal["forward", "backward", "optimizer"]
Kind = Literal["parameter", "buffer", "gradient", "optimizer state", "input", "constant", "activation"]
"""What a storage holds; "constant": neither module nor caller own it, "activation": a call made it."""


class CapturedStorage(msgspec.Struct, frozen=True, kw_only=True):
    """One storage that existed before the step."""

    storage: int
    """Its number, as in `RecordedSequence.places`."""
    kind: Kind
    names: tuple[str, ...] = ()
    """Several where parameters share it."""
    size_bytes: int = 0


class PhasePeak(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes of all storages at the peak of a phase; memory that kernels use internally is not counted."""

    phase: StepPhase
    peak_bytes: int
    by_kind: dict[Kind, int]
    """Sums to `peak_bytes`."""


class CapturedOutput(msgspec.Struct, frozen=True, kw_only=True):
    """One tensor that the step returned."""

    name: str
    """Where it is in what was returned: "[0]", "['logits']"."""
    tensor: TensorMeta
    memory: int


class Capture(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about a captured step."""

    via: Via
    real: bool = False
    """It ran on real tensors, not on fake ones."""
    torch_version: str
    world_size: int = 1
    rank: int = 0
    graphs: int | None = None
    """Graphs that torch.compile handed its backend; None for other ways."""
    graph_breaks: tuple[str, ...] = ()
    """Why torch.compile broke the graph, each with its place."""
    flops: dict[StepPhase, int] = {}
    peaks: tuple[PhasePeak, ...] = ()
    storages: tuple[CapturedStorage, ...] = ()
    outputs: tuple[CapturedOutput, ...] = ()
    notes: tuple[str, ...] = ()
    """What was assumed, for people to read."""
    fused: bool | None = None
    """Whether fused kernels of servers stand in place of the calls that a library's model makes; None for a step of the
    user's own code that was left as it is."""
    unfused: tuple[str, ...] = ()
    """Parts of a fused step that no fused kernel replaced: attention, experts, norms, cache writes."""

    @property
    def peak_bytes(self) -> int:
        """Return the largest number of bytes that storages take at any time of the step."""
        return max((peak.peak_bytes for peak in self.peaks), default=0)


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    """One tensor of the model compared with the plan's."""

    name: str
    equal: bool
    """Bit for bit, or within the tolerance of its type."""
    bits_equal: bool
    largest_error: float
    """Largest difference of two elements; infinite where only one is a number."""
    tolerance: float
    """A share of the element plus the same share of the tensor's root mean square."""
    detail: str = ""
    """Where the first difference is."""


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a check."""

    outputs: tuple[Compared, ...]
    parameters: tuple[Compared, ...]
    """Parameters and buffers that the step takes, as they are after it, changed or not."""
    equal: bool
    largest_error: float
    calls: int
    seed: int
    first_difference: str | None = None
    """The first call whose results are not the model's, bit for bit."""
    reason: str | None = None
    """Why nothing could be compared."""
    other_calls: str | None = None
    """Where the model makes other calls on real tensors than on fake ones; results decide whether that matters."""
