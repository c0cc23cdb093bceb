# pyright: strict
"""Checks whether a captured plan computes the same as the model.

The plan was captured on fake tensors. Here it is replayed on real values, and every result is compared. The step is run
three times with one seed. First the model runs without the recorder. Then it runs with the recorder, which copies each
external storage before its first use. Finally the plan runs on these copies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b
from typing import Any

import msgspec
import torch

from opreplay.replay.capture.calls.arguments import tensors_in
from opreplay.replay.capture.calls.module_tracker import ModuleTracker
from opreplay.replay.capture.calls.storages import Storages
from opreplay.replay.capture.failures import explained
from opreplay.replay.capture.record import Make, Recording, forget_cached_tensors, record
from opreplay.replay.capture.replay import CannotReplay, Replay
from opreplay.replay.capture.step import named_tensors
from opreplay.replay.execute.executors.torch.values import TOLERANCE, difference
from opreplay.replay.ir.captured import Check, Compared, LikeDevice
from opreplay.replay.ir.model import ReplayPlan
from opreplay.traces.errors import UsageError

UNINITIALIZED = ("empty", "new_empty", "resize")
"""Prefixes of the names of ops whose results contain uninitialized memory."""
SEED = 0


def check(make: Make, plan: ReplayPlan, *, seed: int = SEED, device: LikeDevice = "cpu") -> Check:
    """Replay `plan`, which was captured from the step that `make` returns, and compare all results with the model's.

    The model's step is created by `make` and run twice, each time after `torch.manual_seed(seed)`. Raises UsageError if
    the two runs differ, e.g. because of random numbers that do not depend on the seed.
    """
    if plan.sequence is None or plan.sequence.cut:
        raise UsageError("the plan does not contain all calls of the step", hint="Check a smaller model.")
    returned, state = _alone(make, seed)
    snapshots = _Snapshots()
    recording = record(make, real=True, seed=seed, look=snapshots.looking, device=device)
    theirs = named_tensors(returned)
    _refuse_other_values(theirs, named_tensors(recording.returned))
    names = [f"{op.name}.{op.overload}" for op in recording.recorder.ops]
    mine = _names(plan)
    real = [names[index] for index in recording.recorder.calls]
    other = None
    if mine != real:
        at = next((i for i, (a, b) in enumerate(zip(mine, real, strict=False)) if a != b), min(len(mine), len(real)))
        other = f"call {at} is {_at(mine, at)} on fake tensors, but {_at(real, at)} on real ones"
        if why := _other_storages(plan, recording, snapshots):
            return Check(
                outputs=(), parameters=(), equal=False, largest_error=0.0, calls=0, seed=seed, reason=f"{other}; {why}"
            )
        snapshots.digests, snapshots.generators = [], {}
    found = _replayed(plan, state, theirs, recording, snapshots, seed)
    differs = None if found.equal or found.reason else found.first_difference or other
    if not found.equal and not found.reason and differs is None:
        found = msgspec.structs.replace(
            found, reason="outputs differ although all calls of the plan give the same results, so the plan lacks calls"
        )
    return msgspec.structs.replace(found, first_difference=differs or found.first_difference, other_calls=other)


def _replayed(
    plan: ReplayPlan,
    state: Sequence[tuple[str, torch.Tensor]],
    theirs: Sequence[tuple[str, torch.Tensor]],
    recording: Recording,
    snapshots: _Snapshots,
    seed: int,
) -> Check:
    assert plan.capture is not None
    assert plan.sequence is not None
    order = recording.recorder.outside
    outside = _outside_in_order(plan)
    numbers = dict(zip(outside, order, strict=False))
    storages = {number: snapshots.storages[real] for number, real in numbers.items()}
    for output, (_, tensor) in zip(plan.capture.outputs, named_tensors(recording.returned), strict=True):
        real = recording.storages.of(tensor)
        if real not in snapshots.storages and recording.storages.is_outside(real):  # given back as it was given
            storages[plan.sequence.places[output.memory][0]] = tensor.untyped_storage()
    first: list[int] = []
    undefined = {place for place, name in enumerate(_names(plan)) if name.partition("::")[2].startswith(UNINITIALIZED)}

    def look(place: int, result: Any) -> None:
        expected = snapshots.digests[place] if snapshots.digests else None
        if not first and expected is not None and place not in undefined and digest(result) != expected:
            first.append(place)
        if place + 1 in snapshots.generators:
            torch.set_rng_state(snapshots.generators[place + 1])

    replay = Replay(plan, storages)
    torch.manual_seed(seed)  # pyright: ignore[reportUnknownMemberType]
    try:
        replay.run(look)
    except CannotReplay as stopped:
        return Check(
            outputs=(), parameters=(), equal=False, largest_error=0.0, calls=0, seed=seed, reason=stopped.problem
        )
    outputs = [
        compared(name, tensor, replay.output(output))
        for (name, tensor), output in zip(theirs, plan.capture.outputs, strict=True)
    ]
    by_name = {name: storage.storage for storage in plan.capture.storages for name in storage.names}
    parameters = [
        compared(name, tensor, _same_place(tensor, storages[by_name[name]]))
        for name, tensor in state
        if by_name.get(name) in storages
    ]
    both = [*outputs, *parameters]
    return Check(
        outputs=tuple(outputs),
        parameters=tuple(parameters),
        equal=bool(both) and all(tensor.equal for tensor in both),
        largest_error=max((tensor.largest_error for tensor in both), default=0.0),
        calls=len(plan.sequence.calls),
        seed=seed,
        first_difference=None if not first or all(tensor.bits_equal for tensor in both) else _named(plan, first[0]),
    )


def compared(name: str, expected: torch.Tensor, got: torch.Tensor) -> Compared:
    """Compare two tensors. They count as equal if each element is within the tolerance of their dtype."""
    expected, got = expected.detach(), got.detach()
    detail = difference(expected, got)
    same_form = expected.shape == got.shape and expected.dtype == got.dtype
    return Compared(
        name=name,
        equal=not detail,
        bits_equal=same_form and digest(expected) == digest(got),
        largest_error=_largest(expected, got) if same_form else float("inf"),
        tolerance=TOLERANCE.get(expected.dtype, 0.0),
        detail=detail,
    )


def _has_storage(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided and not tensor.is_nested


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return all bytes of a contiguous tensor. It uses `as_strided`, because a tensor with a single element may have a
    stride that `view` rejects.
    """
    return tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)


def digest(value: Any) -> bytes:
    """Return a hash of the bits of all tensors in a result."""
    hasher = blake2b(digest_size=16)
    for tensor in filter(_has_storage, tensors_in(value)):
        plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
        # Of a copy: a storage that NumPy has seen cannot be resized, as FSDP does.
        hasher.update(bytes_of(plain).clone().numpy().tobytes())
    return hasher.digest()


class _Snapshots:
    """Copies of external storages before their first use, and a hash of each call's results."""

    def __init__(self) -> None:
        self.storages: dict[int, torch.UntypedStorage] = {}
        self.digests: list[bytes | None] = []
        self.generators: dict[int, torch.Tensor] = {}
        """Number of a call → random generator's state before that call. Contains only calls before which Python code
        changed the state.
        """
        self._generator: torch.Tensor | None = None
        self._names: list[str] = []

    def _copy_outside(self, storages: Storages, tensors: Iterable[torch.Tensor]) -> None:
        for tensor in filter(_has_storage, tensors):
            number = storages.number(tensor)
            if number not in self.storages and storages.is_outside(number):
                self.storages[number] = tensor.untyped_storage().clone()

    def looking(self, storages: Storages) -> Callable[[int, list[torch.Tensor], Any], None]:
        def look(call: int, inputs: list[torch.Tensor], result: Any) -> None:
            if result is None and len(self.digests) == call:
                self.digests.append(None)
                state = torch.get_rng_state()
                if self._generator is not None and not torch.equal(state, self._generator):
                    self.generators[call] = state
                self._copy_outside(storages, inputs)
            elif result is not None:
                self.digests[call] = digest(result)
                self._generator = torch.get_rng_state()

        return look


def _alone(make: Make, seed: int) -> tuple[Any, list[tuple[str, torch.Tensor]]]:
    """Run the step without the recorder. Return (its result, parameters and buffers with their names in plans)."""
    tracker = ModuleTracker(Storages())
    forget_cached_tensors()
    with explained(None, real=True):
        torch.manual_seed(seed)  # pyright: ignore[reportUnknownMemberType]
        step = make()
        if step.root is not None:
            tracker.register(step.root)
        torch.manual_seed(seed)  # pyright: ignore[reportUnknownMemberType]
        with tracker.following():
            returned = step.run()
    return returned, tracker.state()


def _refuse_other_values(first: Sequence[tuple[str, torch.Tensor]], second: Sequence[tuple[str, torch.Tensor]]) -> None:
    names = [name for name, _ in first]
    if names != [name for name, _ in second]:
        raise UsageError(
            "two runs of the step returned different tensors",
            hint="make() must return the same model and inputs each time.",
        )
    for (name, a), (_, b) in zip(first, second, strict=True):
        if detail := difference(a.detach(), b.detach()):
            raise UsageError(
                f"two runs of the step with the same seed differ: {name}: {detail}",
                hint=(
                    "make() must return the same model and inputs each time: draw random numbers with torch, because "
                    "only its generator is seeded."
                ),
            )


def _names(plan: ReplayPlan) -> list[str]:
    assert plan.sequence is not None
    by_id = {op.id: f"{op.name}.{op.overload}" for op in plan.ops}
    return [by_id[plan.sequence.ids[index]] for index in plan.sequence.calls]


def _other_storages(plan: ReplayPlan, recording: Recording, snapshots: _Snapshots) -> str:
    """Return a text if the plan cannot run on the model's storages, because sizes of external storages differ; "" if it
    can.
    """
    assert plan.capture is not None
    sizes = {storage.storage: storage.size_bytes for storage in plan.capture.storages}
    mine = [sizes[number] for number in _outside_in_order(plan)]
    theirs = [snapshots.storages[number].nbytes() for number in recording.recorder.outside]
    return "" if mine == theirs else "the two runs use different parameters or inputs"


def _at(names: Sequence[str], at: int) -> str:
    return names[at] if at < len(names) else "missing"


def _outside_in_order(plan: ReplayPlan) -> list[int]:
    """Return the numbers of the plan's external storages, in the order in which its calls first use them."""
    assert plan.sequence is not None
    assert plan.capture is not None
    known = {storage.storage for storage in plan.capture.storages}
    places = plan.sequence.places
    taken = (places[memory][0] for inputs, _ in plan.sequence.memories for memory in inputs if memory >= 0)
    return [number for number in dict.fromkeys(taken) if number in known]


def _same_place(tensor: torch.Tensor, memory: torch.UntypedStorage) -> torch.Tensor:
    """Return a view of `memory` with the tensor's offset, shape, strides and dtype."""
    view = torch.empty(0, dtype=tensor.dtype)
    return view.set_(memory, tensor.storage_offset(), tensor.shape, tensor.stride())  # type: ignore[call-overload]


def _largest(expected: torch.Tensor, got: torch.Tensor) -> float:
    """Return the largest difference between corresponding elements. Two NaNs, or two equal infinities, do not
    differ.
    """
    if not expected.numel():
        return 0.0
    wide = torch.complex128 if expected.is_complex() else torch.float64
    a, b = expected.to(wide), got.to(wide)
    same = (a == b) | (a.isnan() & b.isnan())
    apart = torch.where(same, torch.zeros((), dtype=torch.float64), (a - b).abs())
    return float(torch.nan_to_num(apart, nan=float("inf"), posinf=float("inf")).max())


def _named(plan: ReplayPlan, place: int) -> str:
    """Describe a call for the user: its position, op, module and phase."""
    sequence = plan.sequence
    assert sequence is not None
    op = next(op for op in plan.ops if op.id == sequence.ids[sequence.calls[place]])
    number = sequence.modules[place] if sequence.modules else -1
    module = f" in {sequence.module_names[number] or 'the model'}" if number >= 0 else ""
    phase = f", {sequence.phases[place]}" if sequence.phases else ""
    return f"call {place}: {op.name}{f'.{op.overload}' if op.overload else ''}{module}{phase}"
