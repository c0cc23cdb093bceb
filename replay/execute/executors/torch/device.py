"""Run plan ops through torch on the CPU or an accelerator.

This module manages the lifetime of arguments. Their values and times are handled elsewhere.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from time import perf_counter
from typing import Any, NamedTuple

import msgspec
import torch
from torch._library import custom_ops

from opreplay.initializers import fill
from opreplay.initializers.amounts import Work
from opreplay.initializers.applying import fingerprints
from opreplay.initializers.base import BatchLengths, CustomInit, InitContext, InitializerError, InitReport
from opreplay.initializers.dense import DenseInit
from opreplay.initializers.draws.argument_names import decides_work
from opreplay.initializers.registry import Registry
from opreplay.initializers.rules.moe_routing import MoeRoutingInit
from opreplay.initializers.supplied.values import RECORDED, RecordedValues
from opreplay.replay.arguments import tensors
from opreplay.replay.arguments.float32 import as_float32
from opreplay.replay.arguments.tensors import init_context, seed_of
from opreplay.replay.execute.executors.base import Executor, Prepared, Profile
from opreplay.replay.execute.executors.clocks import Clock, EventClock, HostClock
from opreplay.replay.execute.executors.sequence_tools import Filled, SequenceParts
from opreplay.replay.execute.executors.torch.caches import Caches, argument_bytes, copies, touch
from opreplay.replay.execute.executors.torch.profile import profile_call, profiler_event_us
from opreplay.replay.execute.executors.torch.python_call import (
    python_call,
    require_gradients,
    with_gradients,
    without_gradient,
)
from opreplay.replay.execute.executors.torch.sequence_tools import TorchTools, free_bytes_of, timer_on
from opreplay.replay.execute.executors.torch.user_results import result_notes
from opreplay.replay.execute.executors.torch.values import values_of_call
from opreplay.replay.ir import shared_memory as aliasing
from opreplay.replay.ir import sizes as budget
from opreplay.replay.ir.model import Assumption, Reason, ReplayArg, ReplayOp
from opreplay.replay.ir.reasons import NotReplayable
from opreplay.replay.ir.verdicts import ValueCheck, not_compared
from opreplay.replay.ops.inputs import built_in
from opreplay.replay.ops.invented import EXPERT_LAYERS, NAMED_BY, set_sizes, sizes_of
from opreplay.replay.ops.maths.batch_layout import BatchLayout, set_layout
from opreplay.replay.ops.register import canonical_name
from opreplay.replay.ops.table import work_of
from opreplay.replay.plan.step.recency import Recency
from opreplay.replay.resolve.own_call import OwnCall
from opreplay.replay.resolve.policy import TORCH_NAMESPACES
from opreplay.replay.results.records import Filling
from opreplay.traces.dtypes import INTEGERS
from opreplay.traces.errors import EnvironmentRefused, UsageError

PROBE_CALLS = (1, 2, 4, 8, 16, 32, 64)
"""Numbers of consecutive calls after which the values that an op writes are checked to be finite."""
PROBE_S = 0.1
"""Wall time, in seconds, after which no further check with `PROBE_CALLS` is made.

Warm samples within the verified number of calls need no reset in between. After a reset, the last-level cache needs
about eight calls to hold the arguments again (16 MB in a cache of 32 MB, an AMD EPYC).
"""

VALUE_CALLS = 4
"""Number of consecutive calls to determine whether an op's time depends on the values that it has written."""
VALUES_RATIO = 1.5
"""Ratio of the times of two calls above which the time depends on the written values.

For example, an in-place sort is several times faster on sorted numbers.
"""

SETTLING_US = 1e6
"""Maximum time of the first call, in µs, for a second call to check whether the written values stay the same."""

WARMUP_CALLS = 3
"""Number of calls on the stream of a graph capture before the capture. Libraries initialize in them, as torch's
documentation requires.
"""

_OVERLAP = "single memory location"
"""Part of the message of torch's error for overlapping arguments (ATen/MemoryOverlap.cpp)."""

OwnCallOf = Callable[[ReplayOp], OwnCall | ValueCheck]
"""Function that returns how to call the recorded op's own implementation. If it cannot be called, a check result is
returned.
"""
FindOverload = Callable[[ReplayOp], Callable[..., Any]]
"""Function that returns the function to call for an op; raises NotReplayable."""


class TorchPrepared(Prepared):
    """One op with its arguments on a torch device."""

    def __init__(self, call: partial[Any], written: tuple[torch.Tensor, ...], spare_bytes: int) -> None:
        self.overload_call = call
        self.call = self.python_call = python_call(call)
        self.argument_bytes = argument_bytes(call)
        self.spare_bytes = spare_bytes
        self.mutates = bool(written)
        self.lengths: BatchLengths | None = None
        self._only_reshapes = torch.Tag.inplace_view in getattr(call.func, "tags", ())
        spans = [] if self._only_reshapes else [fill.span(t) for t in written]
        size = sum(t.numel() * t.element_size() for t in spans)
        self._saved = [(t, t.clone()) for t in spans] if size <= spare_bytes else []
        self._forms = [(t, t.untyped_storage(), _form(t)) for t in written]
        self.settles = False
        """Whether repeated calls leave the same values in the written arguments as the first call did."""

    def copies(self, count: int) -> Sequence[Callable[[], Any]]:
        """Return the call and up to `count` - 1 copies of it.

        An op that writes to its arguments gets no copies, because only saved arguments can be reset.
        """
        room = self.spare_bytes // max(self.argument_bytes, 1)
        return [self.call] if self.mutates else copies(self.python_call, max(1, min(count, 1 + room)))

    def reset(self) -> None:
        """Restore the initial values and shapes of everything that the op writes to."""
        for tensor, saved in self._saved:
            tensor.copy_(saved)
        for tensor, storage, form in self._forms:
            if _form(tensor) != form:
                tensor.set_(storage, *form)

    def call_first(self) -> None:
        """Make the first call, timed on the host."""
        started = perf_counter()
        self.call()
        self.first_call_us = (perf_counter() - started) * 1e6

    def find_settling(self, random_state: Callable[[], None]) -> None:
        """Call the op again after its first call, and set `settles` if the written values stay the same.

        `random_state` restores the random generator to its state before the first call. Therefore `settles` is also set
        for an op that fills its argument with random numbers. If memory is short, do nothing.
        """
        size = sum(t.numel() * t.element_size() for t, _ in self._saved)
        if not size or 2 * size > self.spare_bytes:
            return
        first = [t.clone() for t, _ in self._saved]
        random_state()
        self.call()
        self.settles = all(_same_bytes(t, left) for (t, _), left in zip(self._saved, first, strict=True))

    @property
    def reshaped(self) -> bool:
        """Whether a tensor that the op writes to has changed its shape, as after squeeze_, t_ or resize_."""
        return any(_form(tensor) != form for tensor, _, form in self._forms)

    @property
    def resettable(self) -> bool:
        return bool(self._saved) or self._only_reshapes or not self.mutates

    @property
    def moved_by_reset(self) -> bool:
        """Whether a reset copies data, which changes the caches."""
        return bool(self._saved)

    def finite(self) -> bool:
        """Check whether all floats that the op writes to are still finite."""
        floats = (t for t, _ in self._saved if t.is_floating_point() and t.itemsize > 1 and t.numel())
        return all(bool(torch.stack(t.aminmax()).isfinite().all()) for t in floats)


class Inputs(msgspec.Struct, frozen=True, kw_only=True):
    """Where the contents of arguments come from."""

    registry: Registry | None = None
    """The initializers; None for the built-in ones."""
    values: RecordedValues | None = None
    check_work: bool = False
    """Whether to report the work that the values cause."""


INPUTS = Inputs()


class ThreadChoice(NamedTuple):
    """How the number of threads was chosen."""

    idle_cpus: float
    """Number of idle processors when the thread count was chosen."""
    asked: bool
    """Whether the user specified the thread count."""


class TorchExecutor(Executor):
    """Runs ops on one torch device. Raises EnvironmentRefused if the device is missing.

    It never falls back to another device.
    """

    def __init__(
        self,
        device: str,
        find_overload: FindOverload,
        *,
        memory_bytes: int,
        threads: int | None = None,
        thread_choice: ThreadChoice | None = None,
        inputs: Inputs = INPUTS,
        profiler_cost: bool = False,
        own_call: OwnCallOf | None = None,
    ) -> None:
        self._device = open_device(device)
        _load_compiler_for_users()
        self.device = str(self._device)
        self._find = find_overload
        self._memory_bytes = memory_bytes
        self._registry = built_in() if inputs.registry is None else inputs.registry
        self._values = inputs.values
        self._check_work = inputs.check_work
        self._thread_choice = thread_choice
        self._own_call = own_call
        self._before = (torch.get_num_threads(), torch.is_grad_enabled())
        if threads is not None:
            torch.set_num_threads(threads)
        torch.set_grad_enabled(False)
        self.clock = self._clock()
        self._caches = Caches(self._device)
        self.cache_bytes, self.evicted_bytes = self._caches.cache_bytes, self._caches.evicted_bytes
        self.gauge = self._caches.gauge()
        self._profiler_event_us = profiler_event_us() if profiler_cost else None

    def facts(self) -> dict[str, object]:
        """Return torch's version, the thread count, and the device's name."""
        facts: dict[str, object] = {
            "device": self.device,
            "torch": str(torch.__version__),
            "threads": torch.get_num_threads(),
            "mkldnn": torch.backends.mkldnn.is_available(),
            "cpu_capability": torch.backends.cpu.get_cpu_capability(),
            "cache_bytes": self.cache_bytes,
        }
        if self._profiler_event_us is not None:
            facts["profiler_event_us"] = round(self._profiler_event_us, 3)
        if self._thread_choice is not None:
            facts["idle_cpus"], facts["threads_of_torch"] = round(self._thread_choice.idle_cpus, 1), self._before[0]
            facts["threads_asked"] = self._thread_choice.asked
        if self._device.type != "cpu":
            backend = _backend(self._device.type)
            facts["device_name"] = backend.get_device_name(self._device)
            facts["cuda"], facts["hip"] = torch.version.cuda, torch.version.hip
        return facts

    def prepare(self, op: ReplayOp, *, seed: int) -> TorchPrepared:
        """Resolve the op, check the budget, allocate and fill the arguments. Raises NotReplayable with the reason.

        The same seed and op give the same bytes in every argument, regardless of what ran before.
        """
        op, function, notes = self.resolve(op)
        try:
            return self._ready(op, function, seed, notes)
        except RuntimeError as error:
            separate_args, assumptions = aliasing.give_own_memory(op.args, aliasing.REFUSED)
            if not assumptions or _OVERLAP not in str(error):
                raise
            # A kernel that takes overlapping arguments was recorded; the one here asks for a copy first.
            return self._ready(self._within_budget(op, separate_args), function, seed, notes + assumptions)

    def resolve(self, op: ReplayOp) -> tuple[ReplayOp, Callable[..., Any], tuple[Assumption, ...]]:
        """Return (op as this device runs it, function to call, changes made to the op). Raises NotReplayable."""
        if op.reason is not None:
            raise NotReplayable(op.reason)
        if (reason := budget.over_budget(op, self._memory_bytes)) is not None:
            raise NotReplayable(reason)
        function = self._find(op)
        _load_compiler_for(function)
        op, assumption = as_float32(op, function, self._device)
        if assumption is not None and (reason := budget.over_budget(op, self._memory_bytes)) is not None:
            raise NotReplayable(reason)
        return op, function, () if assumption is None else (assumption,)

    def fill(self, op: ReplayOp, function: Callable[..., Any], seed: int, notes: tuple[Assumption, ...] = ()) -> Filled:
        """Allocate and fill the arguments of an op that `resolve` returned. Raises NotReplayable."""
        args = tensors.arguments(op, device=self._device)
        op_seed = seed_of(op, seed)
        try:
            rule = self._registry.find(self._context(op, args, seed))
        except InitializerError as error:
            raise NotReplayable(Reason("failed", f"initializer {error}")) from error
        if rule is not None:
            separate_args, sharing_assumptions = aliasing.give_own_memory(op.args, aliasing.INDEXED, integers_only=True)
            if sharing_assumptions:
                op, notes = self._within_budget(op, separate_args), notes + sharing_assumptions
                args = tensors.arguments(op, device=self._device)
        torch.manual_seed(op_seed)
        name, reports = self._initialize(self._context(op, args, seed), rule)
        _set_numbers(op, args)
        name, reports = self._supply(op, args, name, reports)
        assumed = tuple(
            Assumption(argument=argument, what=what) for report in reports for argument, what in report.assumed.items()
        )
        lengths = next((report.lengths for report in reports if report.lengths is not None), None)
        return Filled(
            op=op,
            function=_with_lengths(self._with_sizes(function, op), lengths),
            args=args,
            initializer=name,
            ruled=rule is not None,
            assumptions=notes + assumed,
            lengths=lengths,
            filling=_filling(op, rule, reports),
        )

    def _with_sizes(self, function: Callable[..., Any], op: ReplayOp) -> Callable[..., Any]:
        """Wrap a layer with arguments that do not include its weights. It can then look up assumed sizes when it is
        called.

        Raises NotReplayable if the sizes are unknown and unbounded, because the time would depend on the assumed size.
        """
        words = self._registry.options_of(self._registry[MoeRoutingInit.name]) if op.called in EXPERT_LAYERS else {}
        sizes = sizes_of(op, words)
        if sizes is None:
            return function
        if sizes.by == "nothing":
            raise NotReplayable(Reason("metadata missing", f"{sizes.text}; {NAMED_BY}"))
        around = copy_context()
        around.run(set_sizes, sizes)
        return partial(around.run, function)

    def _ready(
        self, op: ReplayOp, function: Callable[..., Any], seed: int, notes: tuple[Assumption, ...]
    ) -> TorchPrepared:
        """Allocate and fill the arguments. For an op that writes to them, also find how many consecutive calls are
        valid.
        """
        filled = self.fill(op, function, seed, notes)
        op, args = filled.op, filled.args
        positional, by_name = op.in_call(args)
        spare = self._memory_bytes - budget.need_of(op).total
        function = partial(with_gradients, filled.function) if op.gradients else filled.function
        prepared = TorchPrepared(partial(function, *positional, **by_name), _written(op, args), spare)
        prepared.initializer, prepared.filling = filled.initializer, filled.filling
        prepared.lengths = filled.lengths
        if self._check_work:
            context = self._context(op, args, seed)
            prepared.work = work_of(context, filled.lengths) or self._said_work(context)
        prepared.assumptions = filled.assumptions
        if op.gradients:
            require_gradients(args.values())
            prepared.assumptions += self._first_with_gradients(prepared, args)
        if prepared.mutates:
            if not prepared.resettable and aliasing.groups(op.args):
                prepared.call_first()  # `prepare` must learn here whether the kernel takes arguments that overlap
            self._probe(prepared, op)
        return prepared

    def _said_work(self, context: InitContext) -> Work | None:
        """Return the work that the user's initializer reports. Raises NotReplayable if the initializer fails."""
        try:
            return self._registry.work(context)
        except InitializerError as error:
            raise NotReplayable(Reason("failed", f"initializer {error}")) from error

    def _first_with_gradients(self, prepared: TorchPrepared, args: dict[str, Any]) -> tuple[Assumption, ...]:
        """Make the first call.

        If torch has no gradient for an argument (running means, loss weights), retry without that argument's gradient.
        """
        notes: tuple[Assumption, ...] = ()
        while True:
            try:
                prepared.call_first()
            except RuntimeError as error:
                name = without_gradient(error) or ""
                tensor = args.get(name)
                if not isinstance(tensor, torch.Tensor) or not tensor.requires_grad:
                    raise
                tensor.requires_grad_(False)
                notes += (Assumption(argument=name, what="requires_grad is off: torch has no gradient for it"),)
            else:
                return notes

    def _within_budget(self, op: ReplayOp, args: tuple[ReplayArg, ...]) -> ReplayOp:
        """Return the op with the given arguments, which need more memory than the op's own arguments.

        Raises NotReplayable if they exceed the budget.
        """
        op = msgspec.structs.replace(op, args=args)
        if (reason := budget.over_budget(op, self._memory_bytes)) is not None:
            raise NotReplayable(reason)
        return op

    def reset(self, prepared: TorchPrepared) -> None:
        if not prepared.settles:
            prepared.reset()

    def touch(self, prepared: TorchPrepared) -> None:
        if prepared.moved_by_reset:
            touch(prepared.overload_call)

    def for_sequences(self) -> SequenceParts:
        return SequenceParts(
            resolve=self._resolve_for_sequence,
            fill=self.fill,
            tools=TorchTools(self._device),
            synchronize=self.synchronize,
            timer=timer_on(self._device, self.synchronize, _hold),
            free_bytes=partial(free_bytes_of, self._device),
        )

    def _resolve_for_sequence(self, op: ReplayOp) -> tuple[ReplayOp, Callable[..., Any], tuple[Assumption, ...]]:
        """Resolve an op as `resolve` does, but without gradients.

        A sequence passes results from call to call, so gradients would keep all results alive.
        """
        op, function, notes = self.resolve(op)
        off = (
            (Assumption(argument="*", what="gradients are off in a sequence, but were on in the recording"),)
            if op.gradients
            else ()
        )
        return op, function, notes + off

    def check_values(self, prepared: TorchPrepared, op: ReplayOp) -> ValueCheck:
        own_call = ValueCheck(status="own") if self._own_call is None else self._own_call(op)
        if isinstance(own_call, ValueCheck):
            return own_call
        if not prepared.resettable or prepared.spare_bytes < prepared.argument_bytes:
            return not_compared("no memory for a second set of arguments (--set max_op_memory)")
        try:
            function = _with_lengths(self._find(own_call.op), prepared.lengths)
        except NotReplayable as stopped:
            return not_compared(f"its own implementation does not run here: {stopped.reason}")
        try:
            return values_of_call(prepared.python_call, op, own_call, function)
        finally:
            prepared.reset()

    def check_results(self, prepared: TorchPrepared, op: ReplayOp) -> tuple[Assumption, ...]:
        if op.resolved_by != "executor" or not prepared.resettable:
            return ()
        call = prepared.overload_call
        names = [arg.name for arg in op.args if not arg.keyword_only]
        notes = result_notes(op, prepared.call(), {**dict(zip(names, call.args, strict=False)), **call.keywords})
        prepared.reset()
        return notes

    def profile(self, prepared: TorchPrepared, op: ReplayOp) -> Profile:
        profile = profile_call(prepared.call, self._device, self.synchronize, op.called)
        prepared.reset()
        return profile

    def capture(self, calls: Sequence[Callable[[], Any]]) -> Callable[[], Any] | None:
        return _captured(calls, self._device)

    @property
    def threads(self) -> int | None:
        return torch.get_num_threads() if self._device.type == "cpu" else None

    def use_threads(self, count: int) -> None:
        torch.set_num_threads(count)

    def evict(self) -> None:
        self._caches.evict()

    def as_in_step(self, prepared: TorchPrepared, recency: Recency) -> Callable[[], None] | None:
        """Return a function that restores the step's caches.

        None on an accelerator, or if the call's tensors differ from the recorded tensors.
        """
        return self._caches.as_in_step(prepared.overload_call, recency, prepared.spare_bytes)

    def synchronize(self) -> None:
        if self._device.type != "cpu":
            _backend(self._device.type).synchronize(self._device)

    def close(self) -> None:
        """Free cached device memory, and restore torch's settings."""
        threads, grad = self._before
        torch.set_num_threads(threads)
        torch.set_grad_enabled(grad)
        if self._device.type != "cpu":
            _backend(self._device.type).empty_cache()

    def random_numbers(self, op: ReplayOp) -> tuple[str, ...]:
        if op.resolved_by == "reference" or op.called.partition("::")[0] in TORCH_NAMESPACES:
            return ()
        if self._registry.rules_for(op.called):
            return ()
        whole = (arg for arg in op.args if any(meta and meta.dtype in INTEGERS for meta in arg.tensors))
        return tuple(arg.name for arg in whole if not arg.mutated)

    def _context(self, op: ReplayOp, args: dict[str, Any], seed: int) -> InitContext:
        return init_context(op, args, seed, name=canonical_name(op.called), device=self._device)

    def _initialize(self, context: InitContext, rule: CustomInit | None) -> tuple[str, list[InitReport]]:
        """Fill all tensors with default values, then apply the op's own initializer.

        Returns (the initializer's name, reports of assumptions).
        """
        plain = DenseInit().initialize(context)
        reports = [plain]
        if rule is None:
            return DenseInit.name, reports if context.tensors() else []
        before = fingerprints(context, plain.assumed)
        try:
            report = self._registry.apply(rule, context)
        except InitializerError as error:
            raise NotReplayable(Reason("failed", f"initializer {rule.name}: {_first_line(error)}")) from error
        after = fingerprints(context, plain.assumed)
        assumed = {
            name: what if after[name] == before[name] else f"filled by {rule.name}"
            for name, what in plain.assumed.items()
            if name not in report.assumed
        }
        return rule.name, [InitReport(assumed=assumed), report]

    def _supply(
        self, op: ReplayOp, args: dict[str, Any], name: str, reports: list[InitReport]
    ) -> tuple[str, list[InitReport]]:
        """Replace generated values by the user's values for this op. Return the updated (name, reports)."""
        if self._values is None:
            return name, reports
        try:
            supplied = self._values.write(op.id, op.name, args)
        except InitializerError as error:
            raise NotReplayable(Reason("failed", str(error))) from error
        if not supplied:
            return name, reports
        remaining = [
            msgspec.structs.replace(
                report, assumed={arg: what for arg, what in report.assumed.items() if arg not in supplied}
            )
            for report in reports
        ]
        return f"{name} + {RECORDED}", [*remaining, InitReport(assumed=supplied)]

    def _probe(self, prepared: TorchPrepared, op: ReplayOp) -> None:
        """Find for how many consecutive calls the written values stay finite, and limit the calls per sample to that
        number.

        A torch op that always writes the same values (`relu_`, `copy_`, `mul_` by 1, out=) needs no limit and no reset.
        """
        if not prepared.resettable:
            prepared.assumptions += (
                Assumption(argument="self", what="not reset between calls, because there is no memory for a copy"),
            )
            prepared.max_calls = PROBE_CALLS[-1]
            return
        random_state = _random_state(self._device)
        prepared.call_first()
        prepared.finite()
        if prepared.reshaped:
            prepared.max_calls = 1  # the next call would be another one: on another shape
            prepared.reset()
            return
        prepared.time_goes_by_values = op.called.partition("::")[0] not in TORCH_NAMESPACES
        if not prepared.time_goes_by_values and (prepared.first_call_us or 0.0) <= SETTLING_US:
            prepared.find_settling(random_state)
            if prepared.settles:
                return
        prepared.reset()
        # From here on nothing is called for the first time, so that the time limit counts only the op itself.
        verified, done, started = 1, 0, perf_counter()
        for wanted in PROBE_CALLS:
            while done < wanted:
                prepared.call()
                done += 1
            if not prepared.finite():
                break
            verified = wanted
            if perf_counter() - started > PROBE_S:
                break
        prepared.max_calls = verified
        if (
            prepared.time_goes_by_values
            and verified >= VALUE_CALLS
            and (prepared.first_call_us or 0.0) <= PROBE_S * 1e6
        ):
            prepared.time_goes_by_values = self._time_goes_by_values(prepared)
        prepared.reset()

    def _time_goes_by_values(self, prepared: TorchPrepared) -> bool:
        """Check whether an op takes a different time on values that it has written than on its initial values."""
        first_us: list[float] = []
        for _ in range(VALUE_CALLS - 1):
            prepared.reset()
            self.touch(prepared)
            self.touch(prepared)
            first_us.append(self.clock.time_calls(prepared.call, 1))
        later_us = [self.clock.time_calls(prepared.call, 1) for _ in range(VALUE_CALLS - 1)]
        slower, faster = max(min(first_us), min(later_us)), min(min(first_us), min(later_us))
        return slower > VALUES_RATIO * faster

    def _clock(self) -> Clock:
        if self._device.type == "cpu":
            return HostClock()
        backend = _backend(self._device.type)
        return EventClock(
            partial(backend.Event, enable_timing=True), self.synchronize, _hold if self._device.type == "cuda" else None
        )


def open_device(text: str) -> torch.device:
    """Return the device named by `text`, and make it current.

    Raises UsageError for invalid text, and EnvironmentRefused if the device is missing.
    """
    if text.partition(":")[0] == "npu":
        if importlib.util.find_spec("torch_npu") is None:
            raise EnvironmentRefused(
                f"device {text} is not available: torch_npu is not installed",
                hint="Install torch_npu and CANN on a machine with an NPU, or predict times with --soc 910b3.",
            )
        importlib.import_module("torch_npu")
    try:
        device = torch.device(text)
    except RuntimeError:
        raise UsageError(f"{text!r} is not a device", hint="Use a name such as cpu, cuda, cuda:1 or npu.") from None
    if device.type == "cpu":
        return torch.device("cpu")
    if device.type == "meta":
        raise UsageError("the meta device computes nothing", hint="Use a name such as cpu, cuda, cuda:1 or npu.")
    backend = getattr(torch, device.type, None)
    count = backend.device_count() if backend is not None and backend.is_available() else 0
    index = device.index or 0
    if index >= count:
        raise EnvironmentRefused(
            f"device {text} is not available: torch {torch.__version__} sees {count} of type {device.type}",
            hint="Use --device cpu, or install a torch build and driver for that device; `opreplay doctor` shows both.",
        )
    chosen = torch.device(device.type, index)
    _backend(device.type).set_device(chosen)
    return chosen


def _backend(kind: str) -> Any:
    """Return torch.cuda, torch.npu, torch.xpu etc. Each has the functions that this module uses."""
    return getattr(torch, kind)


def _hold(duration_us: float) -> None:
    """Keep the CUDA device busy for about this long, assuming 2 GHz."""
    with suppress(AttributeError):
        torch.cuda._sleep(math.ceil(duration_us * 2000))


def _filling(op: ReplayOp, rule: CustomInit | None, reports: Sequence[InitReport]) -> Filling | None:
    """Return the description of the argument contents, if any. `reports[0]` is about the default values."""
    if rule is not None:
        said = reports[1].summary
        return Filling(summary=said) if said else None
    if not reports or op.resolved_by == "reference" or op.called.partition("::")[0] in TORCH_NAMESPACES:
        return None
    written = {arg.name for arg in op.args if arg.mutated}
    names = tuple(name for name in reports[0].assumed if decides_work(name) and name not in written)
    return Filling(at_random=names) if names else None


def _with_lengths(function: Callable[..., Any], lengths: BatchLengths | None) -> Callable[..., Any]:
    """Wrap an op that has no argument for the batch's lengths. The op can then look them up when called."""
    if lengths is None:
        return function
    layout = BatchLayout(query_lens=lengths.query, kv_lens=lengths.kv)
    around = copy_context()
    around.run(set_layout, layout)
    return partial(around.run, function)


def _written(op: ReplayOp, args: dict[str, Any]) -> tuple[torch.Tensor, ...]:
    """Return the tensors that the op writes to, according to its schema."""
    values = [args[arg.name] for arg in op.args if arg.mutated]
    return tuple(value for value in tensors.flattened(values) if isinstance(value, torch.Tensor))


def _random_state(device: torch.device) -> Callable[[], None]:
    """Return a function that restores the current state of the random generator of `device`."""
    generator = torch if device.type == "cpu" else getattr(torch, device.type, None)
    if generator is None or not hasattr(generator, "get_rng_state"):
        return lambda: None
    return partial(generator.set_rng_state, generator.get_rng_state())


def _same_bytes(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Check whether two contiguous tensors hold the same bytes; a NaN equals itself."""
    if a.is_quantized:
        return torch.equal(a, b)
    return torch.equal(a.view(torch.uint8), b.view(torch.uint8))


def _form(tensor: torch.Tensor) -> tuple[int, torch.Size, tuple[int, ...]]:
    """Return (offset, shape, strides) of a tensor in its storage."""
    return int(tensor.storage_offset()), tensor.shape, tensor.stride()


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _set_numbers(op: ReplayOp, args: dict[str, Any]) -> None:
    """Fill each tensor that torch made from a Python number with the number in the captured plan."""
    for arg in op.args:
        if arg.type == "Tensor" and arg.value is not None and args[arg.name] is not None:
            args[arg.name].fill_(tensors.wrapped_number(arg))


def _captured(calls: Sequence[Callable[[], Any]], device: torch.device) -> Callable[[], Any] | None:
    """Return a function that launches all these calls at once as a CUDA graph; None if the device has no graphs.

    Raises RuntimeError for calls that cannot be captured, e.g. because they wait for the device.
    """
    if device.type != "cuda":
        return None
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        for _ in range(WARMUP_CALLS):
            calls[0]()
    torch.cuda.current_stream(device).wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for call in calls:
            call()
    return graph.replay


def _load_compiler_for_users() -> None:
    """Import torch's compiler if plugins registered custom ops.

    Otherwise, the first call of a custom op would import it, which takes seconds.
    """
    if any(not op._init_fn.__module__.startswith("torch.") for op in custom_ops.OPDEFS.values()):
        importlib.import_module("torch._dynamo")


def _load_compiler_for(function: Callable[..., Any]) -> None:
    """Import torch's compiler if this overload is a custom op, e.g. of a library that was just imported."""
    if isinstance(function, torch._ops.OpOverload) and function._schema.name in custom_ops.OPDEFS:
        importlib.import_module("torch._dynamo")
