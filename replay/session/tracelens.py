# pyright: strict
"""TraceLens's `EventReplayer` interface, implemented by opreplay, for programs that change only the import.

The interface is that of TraceLens's pull request 607: an event in, `replay()` and `get_repro_info()` out.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import pairwise
from logging import getLogger
from typing import Annotated, Any, ClassVar, cast

import msgspec

from opreplay.initializers.extensions import without_registrations
from opreplay.replay.execute.options import RunOptions
from opreplay.replay.ir.reasons import NotReplayable
from opreplay.replay.plan.tracelens import entry_of
from opreplay.replay.resolve.policy import named_modules
from opreplay.replay.results.measurement import Measurement
from opreplay.replay.session.benchmarking import benchmark, tensors_in
from opreplay.replay.session.op import Op, PreparedCall
from opreplay.replay.session.single import op_of_event
from opreplay.traces.errors import UsageError
from opreplay.traces.links.annotations import BatchContext, batch_context

_LOG = getLogger(__name__)


class CustomInit:
    """Base class of initializers written for TraceLens."""

    op_patterns: Sequence[str] = ()
    """Exact op names, "namespace::op"."""

    def initialize(self, replayer: Any, **kwargs: Any) -> str | None:
        """Fill the tensors of `replayer.args` and `replayer.kwargs` in place; return a line that says how, or None."""
        raise NotImplementedError


_BATCH_KEYS = {
    "n_prefill": "prefill_sequences",
    "prefill_tokens": "prefill_tokens",
    "n_decode": "decode_sequences",
    "decode_tokens": "decode_tokens",
}


def extract_batch_context(annotation: str | Mapping[str, Any]) -> dict[str, int] | None:
    """Parse the batch of an iteration from its annotation, given as a name or an event.

    The result has the keys `n_prefill`, `prefill_tokens`, `n_decode` and `decode_tokens`. It is None if the name does
    not describe a batch.
    """
    name = annotation if isinstance(annotation, str) else str(annotation.get("name", ""))
    batch = batch_context(name)
    return batch and {key: getattr(batch, field) or 0 for key, field in _BATCH_KEYS.items()}


def _batch_of(event: Mapping[str, Any]) -> BatchContext | None:
    """Return the batch in the event's key batch_context, or None. Raises UsageError if the value is not a batch."""
    context: Any = event.get("batch_context")
    if context is None:
        return None
    try:
        given = msgspec.convert(context, dict[str, Any])
        counts = msgspec.convert({field: given[key] for key, field in _BATCH_KEYS.items() if key in given}, _Counts)
    except msgspec.ValidationError:
        counts = dict[str, int]()
    if not counts:
        raise UsageError(f"batch_context is invalid: {context!r:.80}", hint=f"Its keys are {', '.join(_BATCH_KEYS)}.")
    return BatchContext(**{"prefill_sequences": 0, "decode_sequences": 0, **counts})


_Counts = dict[str, Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]]


@dataclass
class TensorCfg:
    """Description of a tensor in `EventReplayer.event_replay_IR`."""

    shape: list[int]
    dtype: str
    strides: list[int]
    init: str = "normal"


class EventReplayer:
    """Replays one event of a Kineto trace.

    Tensors are created with the replayer or, with `lazy`, anew at each `replay`. With `auto_init` they are filled as
    the op needs them (docs/initializers.md); without it, integers are zeros, with which many kernels do almost no work.
    `init_kwargs` are options of the op's initializer: `{"distribution": "zipf"}`, or `{"moe.distribution": "zipf"}`; an
    initializer of `register_custom_init` gets them unchanged. `event["batch_context"]` gives the event's batch.

    Raises NotReplayable with the reason for an event that cannot be replayed, Malformed for an event that is not an op,
    UsageError for an option that no initializer of the op has.
    """

    _custom_init_registry: ClassVar[list[Any]] = []
    """Registered initializers, as instances or classes, in the order of registration.

    The first one that lists the op fills its tensors. A program may assign another list.
    """

    _namespaces: ClassVar[dict[str, str]] = {}
    """Namespace → module that may be imported, in the form of `Policy.allow_imports`."""

    @classmethod
    def register_custom_init(cls, init: Any) -> Any:
        """Register an initializer for all later replayers, and return it.

        `init` is a class or an instance. Raises UsageError for an initializer without `op_patterns` or `initialize`.
        """
        found = init() if isinstance(init, type) else init
        if not _patterns(found) or not callable(getattr(found, "initialize", None)):
            raise UsageError(
                f"{type(found).__name__} is not an initializer",
                hint='Give it op_patterns = ["namespace::op"] and a method initialize(replayer, **kwargs).',
            )
        cls._custom_init_registry.append(found)
        return init

    @classmethod
    def list_custom_inits(cls) -> list[tuple[str, list[str]]]:
        """Return (class name, op names) of each registered initializer, in order."""
        inits = (init if isinstance(init, type) else type(init) for init in cls._custom_init_registry)
        return [(kind.__name__, _patterns(init)) for kind, init in zip(inits, cls._custom_init_registry, strict=True)]

    @classmethod
    def register_namespace(cls, namespace: str, modules: str | Sequence[str] | None = None) -> None:
        """Allow modules to be imported for the ops of a namespace; by default, the module with the namespace's name.

        Raises UsageError for a text that is not a module name.
        """
        cls._namespaces.update(named_modules({namespace: modules or namespace}))

    def __init__(
        self,
        event: Mapping[str, Any],
        device: str = "cuda",
        lazy: bool = False,
        verbose: bool = False,
        auto_init: bool = True,
        init_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        self.event = event
        self.device = device
        self.lazy = lazy
        self.verbose = verbose
        self.auto_init = auto_init
        self.op = _op_of(event, device, self._namespaces)
        if self.op.reason is not None:
            raise NotReplayable(self.op.reason)
        self._custom = self._find_custom_init() if auto_init else None
        self._init_kwargs = dict(init_kwargs or {})
        settings = () if self._custom is not None else settings_of(self.op.ir.called, self._init_kwargs)
        self._options = RunOptions(device=device, isolation="none", init_args=settings)
        self.event_replay_IR = _with_tensor_cfgs(self.get_repro_info()["replay_ir"])
        """Arguments in the form of TraceLens's replayer: each tensor is a `TensorCfg`."""
        self._prepared: PreparedCall | None = None if lazy else self._prepare()
        if not lazy:
            self._fill()

    @property
    def args(self) -> list[Any]:
        """Return the positional arguments; with `lazy`, those of the last `replay`.

        Raises AttributeError if `lazy` is set and `replay` was not called yet.
        """
        return list(self._ready.args)

    @property
    def kwargs(self) -> dict[str, Any]:
        """Return the keyword arguments. If `lazy` is set, they are those of the last `replay`."""
        return self._ready.kwargs

    @property
    def _ready(self) -> PreparedCall:
        if self._prepared is None:
            raise AttributeError("a lazy replayer has no arguments before its first replay")
        return self._prepared

    @property
    def matched_schema(self) -> str | None:
        """Return the schema that the event matched, as text."""
        return self.op.ir.schema

    def replay(self) -> Any:
        """Call the op once and return its result."""
        if self.lazy or self._prepared is None:
            self._prepared = self._prepare()
            self._fill()
        return self._prepared()

    def get_repro_info(self) -> dict[str, Any]:
        """Return `op_name` and `replay_ir` as in event_replay_ir.json, in a new, equal dict each time."""
        entry = entry_of(self.op.ir)
        assert entry is not None  # an op with a reason was refused
        return copy.deepcopy(entry)

    def _find_custom_init(self) -> Any:
        """Return the first registered initializer that lists the op, or None."""
        names = {self.op.name, self.op.ir.called}
        for init in type(self)._custom_init_registry:
            if names.intersection(_patterns(init)):
                return init() if isinstance(init, type) else init
        return None

    def _fill(self) -> None:
        """Fill the tensors with the op's registered initializer, if there is one."""
        summary = None if self._custom is None else self._custom.initialize(self, **self._init_kwargs)
        if self.verbose and summary:
            _LOG.info("%s: %s", self.op.name, summary)

    def _prepare(self) -> PreparedCall:
        with nullcontext() if self.auto_init else without_registrations():
            call = self.op.prepare(options=self._options)
        if not self.auto_init:
            for tensor in tensors_in([*call.args, *call.kwargs.values()]):
                if not tensor.is_floating_point() and not tensor.is_complex():
                    tensor.zero_()
        return call


def register_custom_init(init: Any) -> Any:
    """Call `EventReplayer.register_custom_init`."""
    return EventReplayer.register_custom_init(init)


def list_custom_inits() -> list[tuple[str, list[str]]]:
    """Call `EventReplayer.list_custom_inits`."""
    return EventReplayer.list_custom_inits()


def register_namespace(namespace: str, modules: str | Sequence[str] | None = None) -> None:
    """Call `EventReplayer.register_namespace`."""
    EventReplayer.register_namespace(namespace, modules)


def _patterns(init: Any) -> list[str]:
    """Return the op names in an initializer's `op_patterns`. A string stands for a single name."""
    patterns = getattr(init, "op_patterns", ())
    return [patterns] if isinstance(patterns, str) else list(patterns)


def _with_tensor_cfgs(replay_ir: dict[str, Any]) -> dict[str, Any]:
    """Replace each dict that describes a tensor, also in lists, by a `TensorCfg`. This changes the IR in place."""
    for argument in (*replay_ir["list_pos_args"], *replay_ir["list_kwargs"]):
        argument["value"] = _as_tensor_cfg(argument["value"])
    return replay_ir


def _as_tensor_cfg(value: Any) -> Any:
    if isinstance(value, list):
        return [_as_tensor_cfg(item) for item in cast("list[Any]", value)]
    return TensorCfg(**cast("dict[str, Any]", value)) if isinstance(value, dict) else value


def _op_of(event: Mapping[str, Any], device: str, allow_imports: Mapping[str, str]) -> Op:
    """Return the op of an event, with the batch that the event names.

    Raises the same errors as `op_of_event`, and UsageError for an invalid batch.
    """
    op = op_of_event(event, device=device, allow_imports=allow_imports)
    batch = _batch_of(event)
    return op if batch is None else op.in_batch(batch)


def settings_of(name: str, options: Mapping[str, Any]) -> tuple[str, ...]:
    """Convert options of an op's initializers to NAME.OPTION=VALUE. Raises UsageError for an unknown option."""
    from opreplay.replay.ops.inputs import open_registry
    from opreplay.replay.ops.register import canonical_name

    names = {name, canonical_name(name)}
    known = [
        (rule.name, option.name) for rule in open_registry() if names & {*rule.op_patterns} for option in rule.options
    ]
    settings: list[str] = []
    for key, value in options.items():
        keys = [key] if "." in key else [f"{rule}.{key}" for rule, option in known if option == key]
        if not keys:
            options_text = ", ".join(option for _, option in known) or "none"
            raise UsageError(f"no initializer of {name} has an option {key!r}", hint=f"Its options: {options_text}.")
        settings += [f"{each}={value}" for each in keys]
    return tuple(settings)


class Timing(Measurement, frozen=True, kw_only=True):
    """A measurement whose fields can also be read by key, as in TraceLens: `timing["mean_us"]`."""

    @property
    def mean_us(self) -> float:
        """Return the mean of the samples, estimated from their deciles."""
        bounds = self.deciles_us or (self.median_us, self.median_us)
        return sum((low + high) / 2 for low, high in pairwise(bounds)) / (len(bounds) - 1)

    def __getitem__(self, name: str) -> Any:
        if name != "mean_us" and name not in self.__struct_fields__:
            raise KeyError(name)
        return getattr(self, name)


def benchmark_func(func: Callable[[], Any], device: str = "cuda", warmup: int = 50, avg_steps: int = 100) -> Timing:
    """Time a callable without arguments, such as `EventReplayer.replay`.

    The callable is first called `warmup` times. Then at least `avg_steps` samples are taken if the time limit allows
    it. `median_us` of the result is in microseconds per call.
    """
    options = RunOptions(
        device=device, warmup_calls=warmup, min_samples=avg_steps, max_samples=max(avg_steps, 400), cache="warm"
    )
    measured = benchmark(func, device=device, options=options)
    return Timing(**{name: getattr(measured, name) for name in measured.__struct_fields__})
