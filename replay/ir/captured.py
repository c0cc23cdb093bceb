# pyright: strict
"""Facts about a captured step besides its calls: memory by phase, FLOPs, named tensors, and the result of the check."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from opreplay.traces.model import TensorMeta

Via = Literal["dispatch", "export", "compile"]
LikeDevice = Literal["cpu", "cuda", "npu"]
"""Device whose defaults torch applies while a step is captured."""


class CaptureOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a capture."""

    via: Via = "dispatch"
    decompose: bool = False
    """Whether a graph of torch.export is decomposed to core ops."""
    real: bool = False
    """Whether the step runs on real tensors."""
    seed: int = 0
    """Seed of the values of real tensors."""
    world_size: int | None = None
    rank: int = 0
    device: LikeDevice = "cpu"


StepPhase = Literal["forward", "backward", "optimizer"]
PHASES: tuple[StepPhase, ...] = ("forward", "backward", "optimizer")
Kind = Literal["parameter", "buffer", "gradient", "optimizer state", "input", "constant", "activation"]
"""What a storage holds. A "constant" is owned by neither a module nor the caller; an "activation" was created by a
call.
"""


class CapturedStorage(msgspec.Struct, frozen=True, kw_only=True):
    """One storage that existed before the step."""

    storage: int
    """Number of the storage, as in `RecordedSequence.places`."""
    kind: Kind
    names: tuple[str, ...] = ()
    """Names of the tensors in the storage; several if parameters share it."""
    size_bytes: int = 0


class PhasePeak(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes of all storages at the moment when a phase uses most memory. Memory that kernels use internally is not
    counted.
    """

    phase: StepPhase
    peak_bytes: int
    by_kind: dict[Kind, int]
    """Bytes by kind; the sum is `peak_bytes`."""


def peaks_of(changes: Iterable[tuple[int, Kind, int]], phases: Sequence[StepPhase]) -> tuple[PhasePeak, ...]:
    """Return the peak memory in each phase of a step.

    `changes` holds one (index of the call, kind, bytes allocated or freed) for each change of a storage. `phases` holds
    the phase of each call.
    """
    alive, at = 0, 0
    by_kind: dict[Kind, int] = {}
    best: dict[StepPhase, PhasePeak] = {}
    ordered = sorted(changes, key=lambda change: change[0])
    for call, phase in enumerate(phases):
        while at < len(ordered) and ordered[at][0] <= call:
            _, kind, delta = ordered[at]
            at += 1
            by_kind[kind] = by_kind.get(kind, 0) + delta
            alive += delta
        if phase not in best or alive > best[phase].peak_bytes:
            kinds: dict[Kind, int] = {kind: size for kind, size in by_kind.items() if size}
            best[phase] = PhasePeak(phase=phase, peak_bytes=alive, by_kind=kinds)
    return tuple(best[phase] for phase in PHASES if phase in best)


class CapturedOutput(msgspec.Struct, frozen=True, kw_only=True):
    """One tensor that the step returned."""

    name: str
    """Position in the returned value: "[0]", "['logits']"."""
    tensor: TensorMeta
    memory: int


class Capture(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about a captured step."""

    via: Via
    real: bool = False
    """Whether the step ran on real tensors rather than fake ones."""
    torch_version: str
    world_size: int = 1
    rank: int = 0
    graphs: int | None = None
    """Number of graphs that torch.compile passed to its backend; None for other methods."""
    graph_breaks: tuple[str, ...] = ()
    """Reasons for torch.compile's graph breaks, each with its place in the code."""
    flops: dict[StepPhase, int] = {}
    peaks: tuple[PhasePeak, ...] = ()
    storages: tuple[CapturedStorage, ...] = ()
    outputs: tuple[CapturedOutput, ...] = ()
    notes: tuple[str, ...] = ()
    """Assumptions, as readable text. `step_notes` adds those that follow from other fields."""
    stages: int = 1
    """Number of pipeline stages of the model; the plan has one of them."""
    kernels: dict[str, int] = {}
    """Fused kernel → number of its calls."""
    quantized: dict[str, int] = {}
    """Kind of quantized weights → number of matrix products with such weights."""
    fused: bool | None = None
    """Whether fused kernels of servers replace calls of the step. None for a step of the user's own code whose calls
    were not replaced; False only for a model that a library built.
    """
    unfused: tuple[str, ...] = ()
    """Parts that are not fused in a step with fused kernels: attention, experts, norms, cache writes."""

    @property
    def all_notes(self) -> tuple[str, ...]:
        """Return all assumptions, as readable text."""
        return step_notes((self,))

    @property
    def peak_bytes(self) -> int:
        """Return the maximum number of bytes in storages at any time of the step."""
        return max((peak.peak_bytes for peak in self.peaks), default=0)


UNFUSED = (
    "not fused: attention, experts, norms and cache writes are the PyTorch calls of transformers, which "
    "take longer than the fused kernels of a server (--fused ascend)"
)
_ONE_STAGE = (
    "the plan contains one micro-batch in one of {} stages; the other stages wait for it or run other micro-batches"
)
_ALL_STAGES = (
    "a micro-batch passes through all pipeline stages (all captured); tokens/s assume as many micro-batches as stages, "
    "and memory is given for the stage that needs most"
)


def step_notes(captured: Sequence[Capture]) -> tuple[str, ...]:
    """Return the assumptions of a step, as readable text. `captured` has one or all of its pipeline stages."""
    stages = captured[0].stages
    kernels, quantized = Counter[str](), Counter[str]()
    for capture in captured:
        kernels.update(capture.kernels)
        quantized.update(capture.quantized)
    notes = [UNFUSED] if all(capture.fused is False for capture in captured) else []
    if stages > 1:
        notes.append(_ONE_STAGE.format(stages) if len(captured) == 1 else _ALL_STAGES)
    # Older plan files have the note on unfused calls among the others; it no longer holds if they were fused since.
    notes += [note for capture in captured for note in capture.notes if note != UNFUSED or not capture.fused]
    if kernels:
        names = ", ".join(f"{count} {name}" for name, count in kernels.most_common())
        notes.append(f"calls are fused as on Ascend servers: {names}. Peak memory is estimated after fusion")
    notes += [
        f"{count} matrix products have {weights} weights; embeddings, head and routers keep their dtype"
        for weights, count in quantized.items()
    ]
    return tuple(dict.fromkeys(notes))


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    """Comparison of a tensor from the model with the same tensor from the plan."""

    name: str
    equal: bool
    """Whether the tensors are equal, bit for bit or within the tolerance of their dtype."""
    bits_equal: bool
    largest_error: float
    """Largest difference between corresponding elements. Infinite if only one of two corresponding elements
    is finite.
    """
    tolerance: float
    """Relative tolerance: each element may differ by this factor times (its value + the tensor's root mean square)."""
    detail: str = ""
    """Position of the first difference."""


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """The result of checking a plan against its model."""

    outputs: tuple[Compared, ...]
    parameters: tuple[Compared, ...]
    """Parameters and buffers that the step uses, compared after the step, whether changed or not."""
    equal: bool
    largest_error: float
    calls: int
    seed: int
    first_difference: str | None = None
    """The first call whose results are not bitwise equal to the model's."""
    reason: str | None = None
    """Reason why nothing could be compared."""
    other_calls: str | None = None
    """Where the model's calls on real tensors differ from those on fake tensors. The compared results show whether this
    matters.
    """
