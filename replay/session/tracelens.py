# pyright: strict
"""TraceLens's `EventReplayer`, by its surface: for programs that change one line; what it does is opreplay's.

The surface is that of TraceLens's pull request 607: an event in, `replay()` and `get_repro_info()` out.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

from opreplay.replay.execute.options import RunOptions
from opreplay.replay.ir.reasons import NotReplayable
from opreplay.replay.plan.tracelens import entry_of
from opreplay.replay.results.measurement import Measurement
from opreplay.replay.session.benchmarking import benchmark, tensors_in
from opreplay.replay.session.op import PreparedCall
from opreplay.replay.session.single import op_of_event
from opreplay.traces.errors import UsageError


class EventReplayer:
    """One event of a Kineto trace, replayed.

    Tensors are made when the replayer is, or with `lazy` anew at each `replay`. `auto_init` fills them as the op needs
    them (docs/initializers.md); without it whole numbers are zeros, with which many kernels do next to nothing.
    `init_kwargs` are options of the op's initializer: `{"distribution": "zipf"}`, or `{"moe.distribution": "zipf"}`.
    Raises NotReplayable with the reason for an event that cannot be replayed, Malformed for one that is no op,
    UsageError for an option that no initializer of the op has.
    """

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
        self.op = op_of_event(event, device=device)
        if self.op.reason is not None:
            raise NotReplayable(self.op.reason)
        self._options = RunOptions(
            device=device, isolation="none", init_args=settings_of(self.op.ir.called, init_kwargs or {})
        )
        self._prepared: PreparedCall | None = None if lazy else self._prepare()

    @property
    def args(self) -> list[Any]:
        """Positional arguments; with `lazy` those of the last `replay`, none before the first."""
        return [] if self._prepared is None else list(self._prepared.args)

    @property
    def kwargs(self) -> dict[str, Any]:
        """Arguments by name, likewise."""
        return {} if self._prepared is None else self._prepared.kwargs

    @property
    def matched_schema(self) -> str | None:
        """Text of the schema that the event was matched with."""
        return self.op.ir.schema

    @property
    def event_replay_IR(self) -> dict[str, Any]:
        """Arguments as TraceLens's event_replay_ir.json has them; a copy each time."""
        return self.get_repro_info()["replay_ir"]

    def replay(self) -> Any:
        """Call the op once; its result."""
        if self.lazy or self._prepared is None:
            self._prepared = self._prepare()
        return self._prepared()

    def get_repro_info(self) -> dict[str, Any]:
        """`op_name` and `replay_ir`, an entry of event_replay_ir.json: the same each time, a copy."""
        entry = entry_of(self.op.ir)
        assert entry is not None  # an op with a reason was refused
        return copy.deepcopy(entry)

    def _prepare(self) -> PreparedCall:
        call = self.op.prepare(options=self._options)
        if not self.auto_init:
            for tensor in tensors_in([*call.args, *call.kwargs.values()]):
                if not tensor.is_floating_point() and not tensor.is_complex():
                    tensor.zero_()
        return call


def settings_of(name: str, options: Mapping[str, Any]) -> tuple[str, ...]:
    """Options of an op's initializers as init_arg has them. Raises UsageError for one that none of them has."""
    from opreplay.replay.ops.inputs import open_registry
    from opreplay.replay.ops.register import canonical_name

    rules = [rule for rule in open_registry() if {name, canonical_name(name)} & set(rule.op_patterns)]
    known = [(rule.name, option.name) for rule in rules for option in rule.options]
    settings: list[str] = []
    for key, value in options.items():
        keys = [key] if "." in key else [f"{rule}.{key}" for rule, option in known if option == key]
        if not keys:
            options_text = ", ".join(option for _, option in known) or "none"
            raise UsageError(f"no initializer of {name} has an option {key!r}", hint=f"Its options: {options_text}.")
        settings += [f"{each}={value}" for each in keys]
    return tuple(settings)


def benchmark_func(
    func: Callable[[], Any], device: str = "cuda", warmup: int = 50, avg_steps: int = 100
) -> Measurement:
    """Time a callable without arguments, such as `EventReplayer.replay`; microseconds a call are in `median_us`.

    `warmup` calls come first, and at least `avg_steps` samples are taken where the time limit allows it.
    """
    options = RunOptions(
        device=device, warmup_calls=warmup, min_samples=avg_steps, max_samples=max(avg_steps, 400), cache="warm"
    )
    return benchmark(func, device=device, options=options)
