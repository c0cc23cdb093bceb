# pyright: strict
"""A linked sequence on a device: its external tensors, and one pass over its calls.

It has no clocks and no retries.

The module uses torch only through the tensors that it is given, so an executor without tensors runs sequences without
torch.
"""

from __future__ import annotations

import copy
import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from time import perf_counter
from typing import Any, NamedTuple, cast

from opreplay.replay.execute.executors.sequence_tools import Filled, Tools
from opreplay.replay.execute.executors.timers import Timer
from opreplay.replay.execute.sequence.lifetimes import MemoryPlan
from opreplay.replay.ir.model import ReplayOp
from opreplay.replay.plan.step.linking import CASTS, NO_VIEWS, VIEWS, Source, Value, results_of, tensors_of
from opreplay.traces.model import TensorMeta

PLAIN = ("dense", "domain")
"""Initializers that permit any finite values for arguments without a domain."""
Fill = Callable[[int], Filled]
"""Function that creates all arguments of an op, given its index."""


class Findings:
    """Findings of the first pass, used to link the sequence again."""

    def __init__(self) -> None:
        self.raised: dict[int, Exception] = {}
        """Op index → error that a call raised."""
        self.unknown: set[tuple[str, int]] = set()
        """(op id, output number) of the results that a later call uses and that differ from the plan."""

    def __bool__(self) -> bool:
        return bool(self.raised or self.unknown)


class Program:
    """A sequence with its tensors, ready to be run pass by pass."""

    def __init__(
        self, ops: Sequence[ReplayOp], plan: MemoryPlan, forms: Sequence[Form], fill: Fill, tools: Tools
    ) -> None:
        """Create the external tensors; `forms` are the calls of the ops."""
        self._ops, self._plan, self._fill, self._tools = ops, plan, fill, tools
        self._calls = forms
        self._metas = [[meta for _, _, meta in tensors_of(op)] for op in ops]
        self._results = [results_of(op) for op in ops]
        self._domains = [
            [
                at
                for at, (name, _, meta) in enumerate(tensors_of(op))
                if meta is not None and tools.has_domain(op.name, name)
            ]
            for op in ops
        ]
        """Op index → arguments whose values must be in a domain."""
        self._names = [[name for name, _, _ in tensors_of(op)] for op in ops]
        self._readers = self._first_readers()
        self._outside = self._made(fill)
        self._used_outputs = self._outputs_in_use()
        self._refill: dict[int, list[int]] = defaultdict(list)
        """Position of a call → its results that are not finite and are refilled."""
        self._unfit: dict[int, list[int]] = {}
        """Arguments that earlier calls leave outside their domain, by the position of the call. They are refilled
        before the call.
        """
        self.aside_s = 0.0
        """Wall time, in seconds, spent on creating and filling tensors during passes. A model does not spend
        this time.
        """
        self.refilled = 0
        self.raised: dict[int, Exception] = {}
        """Op index → error that a call raised in any pass except the first."""

    def first_pass(self, timer: Timer, at: Callable[[int], None]) -> Findings:
        """Run one pass with all checks: whether calls raise, results differ from the plan, and values are finite."""
        findings = Findings()
        self._pass(timer, at, findings)
        return findings

    def run_pass(self, timer: Timer, at: Callable[[int], None], beside: Callable[[int], None] | None = None) -> None:
        """Run one pass at full speed. `at` is called with the op's index before each call.

        `beside` is called with the call's position before each call. After the last call, it is called with the number
        of calls.
        """
        self._pass(timer, at, None, beside)

    def mend(self) -> int:
        """Refill external tensors with values that calls have spoiled. Return the number of these tensors.

        Spoiled values are non-finite, or outside the domain that an op reading them requires.
        """
        mended = 0
        for number in self._written():
            tensor = self._outside[number]
            origin, reader = self._plan.linked.outside[number], self._readers.get(number)
            if reader is not None and not self._tools.in_domain(tensor, *self._name(*reader)):
                self._tools.fit(tensor, *self._name(*reader))
            elif not self._tools.is_finite(tensor):
                self._tools.copy_into(tensor, tensors_in(self._fill(origin.op))[origin.argument])
            else:
                continue
            mended += 1
        self.refilled += mended
        return mended

    def _pass(
        self,
        timer: Timer,
        at: Callable[[int], None],
        findings: Findings | None,
        beside: Callable[[int], None] | None = None,
    ) -> None:
        linked = self._plan.linked
        alive: dict[Value, Any] = {}
        timer.begin()
        for place, (index, sources) in enumerate(zip(linked.calls, linked.sources, strict=True)):
            at(index)
            if beside is not None:
                beside(place)
            form = self._calls[index]
            tensors = self._arguments(index, sources, alive)
            self._fit(place, index, tensors)
            args, named = form.arguments(tensors)
            try:
                returned = timer.timed(form.function, args, named)
                if findings is not None and self._is_unfit(place, returned, tensors):
                    self._fit(place, index, tensors)
                    returned = form.function(*args, **named)
            except Exception as error:
                # The op costs itself; what it would have made is made anew for those that use it. Its traceback would
                # keep all tensors of the program, also when another one is made.
                error.__traceback__ = error.__context__ = error.__cause__ = None
                (self.raised if findings is None else findings.raised).setdefault(index, error)
                returned = None
            del args, named, tensors
            self._take(place, index, returned, alive, findings)
            del returned
            for value in self._plan.drops[place]:
                alive.pop(value, None)
        if beside is not None:
            beside(len(linked.calls))

    def _seen(self, tensor: Any, meta: TensorMeta | None) -> Any:
        return tensor if meta is None else self._tools.seen_as(tensor, meta)

    def _arguments(self, index: int, sources: tuple[Source, ...], alive: dict[Value, Any]) -> list[Any]:
        """Return the tensor arguments of a call, with lists flattened."""
        fresh: list[Any] | None = None
        tensors: list[Any] = []
        for argument, source in enumerate(sources):
            meta = self._metas[index][argument]
            if source.kind == "outside":
                tensors.append(self._seen(self._outside[source.number], meta if source.seen else None))
            elif source.kind == "absent":
                tensors.append(None)
            elif source.value is not None and source.value in alive:
                tensors.append(self._seen(alive[source.value], None if source.kind == "result" else meta))
            else:
                fresh = self._anew(index) if fresh is None else fresh
                tensors.append(fresh[argument])
        return tensors

    def _is_unfit(self, place: int, returned: Any, tensors: Sequence[Any]) -> bool:
        """Check whether an op that requires a domain returned non-finite values.

        If so, its arguments with that domain are refilled before each later call, as the op's initializer fills them.
        """
        linked = self._plan.linked
        index, sources = linked.calls[place], linked.sources[place]
        # What the op's own initializer made, or the user gave it, is not touched.
        arguments = [
            at
            for at in self._domains[index]
            if sources[at].value is not None or linked.outside[sources[at].number].op != index
        ]
        if not arguments:
            return False
        written = [tensors[at] for at, (_, mutated, _) in enumerate(tensors_of(self._ops[index])) if mutated]
        if all(map(self._tools.is_finite, [*self._tools.flat(returned), *written])):
            return False
        self._unfit[place] = arguments
        return True

    def _fit(self, place: int, index: int, tensors: Sequence[Any]) -> None:
        """Refill the arguments of this call that earlier calls left outside their domain."""
        if (unfit := self._unfit.get(place)) is None:
            return
        started = perf_counter()
        for argument in unfit:
            self._tools.fit(tensors[argument], *self._name(index, argument))
            self.refilled += 1
        self.aside_s += perf_counter() - started

    def _name(self, index: int, argument: int) -> tuple[str, str]:
        """Return (name of an op, name of one of its tensor arguments)."""
        return self._ops[index].name, self._names[index][argument]

    def refilled_ops(self) -> dict[int, tuple[bool, bool]]:
        """Map the index of each op that every pass refills to (arguments were refilled, results were refilled)."""
        calls = self._plan.linked.calls
        before, after = ({calls[place] for place in places} for places in (self._unfit, self._refill))
        return {index: (index in before, index in after) for index in before | after}

    def _first_readers(self) -> dict[int, tuple[int, int]]:
        """Map each external tensor to the (op, argument) that first reads it and requires a domain.

        The op may read the tensor directly or after in-place writes.
        """
        readers: dict[int, tuple[int, int]] = {}
        lies_in: dict[Value, int] = {}
        for place, (index, sources) in enumerate(zip(self._plan.linked.calls, self._plan.linked.sources, strict=True)):
            numbers = [lies_in.get(s.value, -1) if s.value is not None else s.number for s in sources]
            for argument in self._domains[index]:
                if numbers[argument] >= 0:
                    readers.setdefault(numbers[argument], (index, argument))
            op = self._ops[index]
            written = [at for at, (_, mutated, _) in enumerate(tensors_of(op)) if mutated]
            same = written[:1] if len(self._results[index]) == 1 else ()
            for argument in [0] if op.name in VIEWS and numbers else same:
                if numbers[argument] >= 0:
                    lies_in[Value(place, 0)] = numbers[argument]
        return readers

    def _anew(self, index: int) -> list[Any]:
        """Create all tensor arguments of an op for one call."""
        started = perf_counter()
        tensors = tensors_in(self._fill(index))
        self.aside_s += perf_counter() - started
        return tensors

    def _take(self, place: int, index: int, returned: Any, alive: dict[Value, Any], findings: Findings | None) -> None:
        """Keep the results that later calls use."""
        used_outputs, refill = self._used_outputs[place], self._refill.get(place)
        if not used_outputs and not refill and findings is None:
            return
        results = self._tools.flat(returned)
        for output in used_outputs:
            meta = self._results[index][output]
            if output < len(results) and meta is not None and self._tools.fits(results[output], meta):
                alive[Value(place, output)] = results[output]
            elif findings is not None and index not in findings.raised:
                findings.unknown.add((self._ops[index].id, output))
        if findings is not None:
            refill = [output for output, result in enumerate(results) if not self._tools.is_finite(result)]
            if refill:
                self._refill[place] = refill
        self._refill_results([results[output] for output in refill or () if output < len(results)])

    def _refill_results(self, tensors: Sequence[Any]) -> None:
        started = perf_counter()
        for tensor in tensors:
            self._tools.refill(tensor)
        self.refilled += len(tensors)
        self.aside_s += perf_counter() - started

    def _made(self, fill: Fill) -> list[Any]:
        """Create the external tensors. The initializer makes the first tensor of each argument. The others are copies
        of it.
        """
        wanted: dict[int, list[int]] = defaultdict(list)
        for number, origin in enumerate(self._plan.linked.outside):
            wanted[origin.op].append(number)
        by_number: list[Any] = [None] * len(self._plan.linked.outside)
        for index, numbers in wanted.items():
            filled = fill(index)
            # What another rule made, such as indices, or the user gave, stays.
            plain, tensors = filled.initializer in PLAIN, tensors_in(filled)
            first = min(self._plan.linked.outside[number].occurrence for number in numbers)
            memos: dict[int, dict[int, Any]] = defaultdict(dict)
            for number in numbers:
                origin = self._plan.linked.outside[number]
                tensor = tensors[origin.argument]
                # Arguments of one call that share memory share it in the copies too.
                is_first = origin.occurrence == first
                by_number[number] = tensor if is_first else copy.deepcopy(tensor, memos[origin.occurrence])
                reader = self._readers.get(number)
                if plain and (spread := self._spread(index, origin.argument)) is not None:
                    self._tools.refill(by_number[number], spread)
                if plain and reader is not None and origin.argument not in self._domains[index]:
                    self._tools.fit(by_number[number], *self._name(*reader))
        return by_number

    def _spread(self, index: int, argument: int) -> float | None:
        """Return the standard deviation for filling a weight matrix; None if the argument is not a weight.

        With this deviation, N(0, 1) values keep their scale through layers, both forward and backward. Rows and columns
        count equally, as in the initialization of Glorot and Bengio (2010).
        """
        op, name = self._ops[index].name, self._names[index][argument]
        meta = self._metas[index][argument]
        if meta is None or len(meta.shape) < 2 or 0 in meta.shape or "embedding" in op:
            return None
        if name not in NO_VIEWS and op not in CASTS:
            return None
        return (meta.shape[0] * math.prod(meta.shape[1:])) ** -0.25

    def _outputs_in_use(self) -> list[tuple[int, ...]]:
        """Return, for each call position, the outputs that later calls use."""
        used_outputs: dict[int, set[int]] = defaultdict(set)
        for sources in self._plan.linked.sources:
            for source in sources:
                if source.value is not None:
                    used_outputs[source.value.call].add(source.value.output)
        return [tuple(sorted(used_outputs.get(place, ()))) for place in range(len(self._plan.linked.calls))]

    def _written(self) -> list[int]:
        """Return the numbers of the external tensors that a call writes to."""
        written = [[mutated for _, mutated, _ in tensors_of(op)] for op in self._ops]
        numbers: dict[int, None] = {}
        for index, sources in zip(self._plan.linked.calls, self._plan.linked.sources, strict=True):
            for source, mutated in zip(sources, written[index], strict=True):
                if mutated and source.kind == "outside":
                    numbers[source.number] = None
        return list(numbers)


def tensors_in(filled: Filled) -> list[Any]:
    """Return the tensors that the initializer made, in argument order, with lists flattened."""
    values = [(arg, filled.args[arg.name]) for arg in filled.op.args if arg.tensors]
    return [tensor for arg, value in values for tensor in ([value] if arg.type == "Tensor" else value)]


class Form:
    """The call of an op, with placeholders instead of tensors."""

    def __init__(self, filled: Filled, tools: Tools) -> None:
        args = [filled.args[arg.name] for arg in filled.op.args if not arg.keyword_only]
        named = {arg.name: filled.args[arg.name] for arg in filled.op.args if arg.keyword_only}
        call = tools.as_called(partial(filled.function, *args, **named))
        places: defaultdict[int, list[int]] = defaultdict(list)
        for place, tensor in enumerate(tensors_in(filled)):
            if tensor is not None:
                places[id(tensor)].append(place)
        self.function = call.func
        self._positional = [_slot(value, places) for value in call.args]
        self._named = {name: _slot(value, places) for name, value in call.keywords.items()}

    def arguments(self, tensors: Sequence[Any]) -> tuple[list[Any], Mapping[str, Any]]:
        """Return positional and named arguments with these tensors."""
        named = {name: _put(slot, tensors) for name, slot in self._named.items()}
        return [_put(slot, tensors) for slot in self._positional], named


class _Place(NamedTuple):
    """Placeholder for a tensor in a call."""

    number: int


def _slot(value: Any, places: Mapping[int, list[int]]) -> Any:
    """Return an argument with placeholders for its tensors.

    If a tensor occurs several times, its placeholders are numbered in the order of the call.
    """
    if isinstance(value, list):
        slots = [_slot(item, places) for item in cast("list[Any]", value)]
        return slots if any(isinstance(slot, _Place) for slot in slots) else cast("list[Any]", value)
    numbers = places.get(id(value))
    return value if not numbers else _Place(numbers.pop(0))


def _put(slot: Any, tensors: Sequence[Any]) -> Any:
    if isinstance(slot, _Place):
        return tensors[slot.number]
    return [_put(item, tensors) for item in cast("list[Any]", slot)] if isinstance(slot, list) else slot
