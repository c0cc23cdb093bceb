# pyright: strict
"""Replays the calls of a captured plan in order on given storages. Nothing is measured, and no data is generated.

`check` compares the results.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

import torch

from opreplay.replay.arguments.tensors import DTYPES, allocate, scalar_value, wrapped_number
from opreplay.replay.capture.calls.arguments import tensors_in
from opreplay.replay.ir.captured import CapturedOutput
from opreplay.replay.ir.model import ReplayArg, ReplayOp, ReplayPlan
from opreplay.replay.plan.step.linking import Linked, Source, Value, link, results_of
from opreplay.replay.resolve.names import find_overload
from opreplay.replay.resolve.policy import Policy
from opreplay.traces.errors import UsageError
from opreplay.traces.model import TensorMeta

_CPU = torch.device("cpu")
OnResult = Callable[[int, Any], None]
"""Function that is called after each call of the plan, with the call's position and result."""


class CannotReplay(UsageError):
    """Raised if a call of the plan cannot be made here."""


class Replay:
    """The replay of a captured plan."""

    def __init__(self, plan: ReplayPlan, storages: Mapping[int, torch.UntypedStorage]) -> None:
        """`storages` maps storage numbers in the plan to existing storages, to which the calls write."""
        assert plan.sequence is not None
        assert plan.capture is not None
        self._sequence = plan.sequence
        by_id = {op.id: op for op in plan.ops}
        self._ops = [by_id[id_] for id_ in self._sequence.ids]
        self._storages = dict(storages)
        self._linked = link(self._ops, self._sequence.calls, memories=self._sequence.memories, exact=True)
        self._alive: dict[Value, torch.Tensor] = {}
        self._functions: dict[int, Callable[..., Any]] = {}
        self._last = _last_uses(self._linked)
        self._wanted = {output.memory for output in plan.capture.outputs}
        self._of_memory: dict[int, torch.UntypedStorage] = {}
        """Memory number → storage, for the outputs of the step."""

    def run(self, on_result: OnResult | None = None) -> None:
        """Make all calls once. Raises CannotReplay, which names the op."""
        with torch.no_grad():
            for place, index in enumerate(self._linked.calls):
                returned = self._call(place, index)
                if on_result is not None:
                    on_result(place, returned)

    def output(self, output: CapturedOutput) -> torch.Tensor:
        """Return one output of the step; call `run` first."""
        storage, offset = self._sequence.places[output.memory]
        memory = self._of_memory.get(output.memory) or self._storages.get(storage)
        if memory is None:
            raise CannotReplay(
                f"no call of the plan writes the output {output.name}", hint="Is it a tensor without memory?"
            )
        return _view(memory, output.tensor, offset)

    def _call(self, place: int, index: int) -> Any:
        op = self._ops[index]
        try:
            function = self._functions.get(index)
            if function is None:
                function = self._functions[index] = find_overload(op, Policy())
            args, named = self._arguments(place, op)
            with torch.set_grad_enabled(op.gradients):  # no argument requires any: kernels ask for the mode
                returned = function(*args, **named)
        except Exception as error:
            where = f"{op.name} (call {place}, op {op.id})"
            raise CannotReplay(
                f"{where} cannot be replayed: {error}", hint="The calls before it could be replayed."
            ) from error
        self._keep(place, index, returned)
        return returned

    def _arguments(self, place: int, op: ReplayOp) -> tuple[list[Any], dict[str, Any]]:
        memories = iter(self._sequence.memories[place][0])
        sources = iter(self._linked.sources[place])
        positional: list[Any] = []
        named: dict[str, Any] = {}
        for arg in op.args:
            value = self._value(arg, sources, memories)
            if arg.keyword_only:
                named[arg.name] = value
            else:
                positional.append(value)
        return positional, named

    def _value(self, arg: ReplayArg, sources: Any, memories: Any) -> Any:
        tensors: list[Any] = []
        for meta in arg.tensors:
            source = next(sources)
            memory = next(memories) if meta is not None else -1
            tensors.append(None if meta is None else self._tensor(source, meta, memory))
        if arg.type == "Tensor" and arg.tensors:
            return tensors[0] if arg.value is None else wrapped_number(arg)
        if arg.type == "Tensor[]":
            return tensors if arg.tensors or arg.value is not None else None
        return scalar_value(arg, device=_CPU)

    def _tensor(self, source: Source, meta: TensorMeta, memory: int) -> Any:
        if source.kind == "result" and source.value in self._alive:
            return self._alive[source.value]
        if memory < 0:
            return None
        storage, offset = self._sequence.places[memory]
        return _view(self._storages[storage], meta, offset)

    def _keep(self, place: int, index: int, returned: Any) -> None:
        """Store those results and new storages of a call that a later call uses."""
        results = list(tensors_in(returned))
        known = iter(self._sequence.memories[place][1])
        flat = iter(results)
        for output, meta in enumerate(results_of(self._ops[index])):
            if meta is None:
                continue
            tensor, memory = next(flat, None), next(known)
            if tensor is None:  # undefined where it has no use, though its fake kernel gives it sizes
                break
            storage, offset = self._sequence.places[memory]
            is_elsewhere = tensor.storage_offset() * tensor.itemsize != offset  # part of a product that was joined
            if storage not in self._storages and (is_elsewhere or self._ops[index].resolved_by == "reference"):
                tensor = _laid_out(tensor, meta)
            self._storages[storage] = tensor.untyped_storage()
            if memory in self._wanted:
                self._of_memory[memory] = tensor.untyped_storage()
            if (place, output) in self._last.uses:
                self._alive[Value(place, output)] = tensor
        for value in self._last.ends.get(place, ()):
            self._alive.pop(value, None)


class _LastUses:
    def __init__(self) -> None:
        self.uses: dict[tuple[int, int], int] = {}
        self.ends: dict[int, list[Value]] = defaultdict(list)


def _last_uses(linked: Linked) -> _LastUses:
    last_uses = _LastUses()
    for place, sources in enumerate(linked.sources):
        for source in sources:
            if source.value is not None:
                last_uses.uses[source.value.call, source.value.output] = place
    for (call, output), place in last_uses.uses.items():
        last_uses.ends[place].append(Value(call, output))
    return last_uses


def _laid_out(tensor: torch.Tensor, meta: TensorMeta) -> torch.Tensor:
    """Return a reference implementation's result with the strides that the plan records for the real kernel."""
    if meta.strides is None or tensor.shape != meta.shape or tensor.stride() == meta.strides:
        return tensor
    return torch.empty_strided(meta.shape, meta.strides, dtype=tensor.dtype).copy_(tensor)


def _view(memory: torch.UntypedStorage, meta: TensorMeta, offset_bytes: int) -> torch.Tensor:
    """Return a tensor in the storage `memory`, with the metadata `meta` and at this byte offset."""
    itemsize = torch.empty(0, dtype=DTYPES[meta.dtype]).itemsize
    there = TensorMeta(
        shape=meta.shape, dtype=meta.dtype, strides=meta.strides, storage_offset=offset_bytes // itemsize
    )
    return allocate(there, device=_CPU, memory=memory)
