# pyright: strict
"""What an initializer is: it fills the argument tensors of the ops it names; owns no rule and no order of rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, cast

from opreplay.initializers.amounts import Work
from opreplay.traces.links.annotations import BatchContext
from opreplay.traces.model import TensorMeta

if TYPE_CHECKING:
    import torch


class InitializerError(Exception):
    """An initializer cannot make valid values; the op is then not replayed, and the message says why."""


OptionValue = int | float | str | bool | None
"""What an option may hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One setting of an initializer, given as `--set init_arg=NAME.OPTION=VALUE`."""

    name: str
    type: type[int] | type[float] | type[str] | type[bool]
    default: OptionValue
    help: str
    choices: tuple[str, ...] = ()
    low: float | None = None
    """Smallest number allowed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLengths:
    """Sequences of a batch: sequence i has query[i] new tokens and sees kv[i] tokens in all."""

    query: tuple[int, ...]
    kv: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class InitContext:
    """One call whose tensors are allocated and already hold plain seeded values of their types."""

    op: str
    """Name as recorded, "namespace::op"."""
    args: Mapping[str, Any]
    """Arguments by name: a tensor, a list of tensors and None, a number, a string, a tuple, or None."""
    metas: Mapping[str, tuple[TensorMeta | None, ...]] = field(default_factory=dict[str, tuple[TensorMeta | None, ...]])
    """Recorded metadata of the tensor arguments by name; one entry for a single tensor."""
    generator: torch.Generator
    """The only source of randomness; seeded from the run's seed and the op's id, on the tensors' device."""
    seed: int = 0
    outputs: tuple[TensorMeta | None, ...] | None = None
    """Metadata of the results, where known."""
    batch: BatchContext | None = None
    """The batch of the iteration that the op ran in, where the trace says so."""
    run_seed: int = 0
    """The run's own seed, the same for all ops: what several ops must agree on is drawn from it."""
    options: Mapping[str, OptionValue] = field(default_factory=dict[str, OptionValue])
    """The initializer's options, all of them, checked."""
    role: str = ""
    """What a built-in initializer does for this op, where it has several ways."""
    keyword_only: frozenset[str] = frozenset()
    """Names of the arguments that are passed by keyword."""

    def tensor(self, name: str) -> torch.Tensor | None:
        """The tensor argument `name`, or None when it is absent or no single tensor."""
        value = self.args.get(name)
        return value if hasattr(value, "data_ptr") else None

    def need(self, name: str, dims: int = 0) -> torch.Tensor:
        """The tensor argument `name`. Raises InitializerError when there is none of at least `dims` dimensions."""
        value = self.tensor(name)
        if value is None:
            raise InitializerError(f"{self.op} has no tensor argument {name!r}")
        if value.dim() < dims:
            raise InitializerError(f"{self.op}: {name} has {value.dim()} dimensions, at least {dims} are needed")
        return value

    def flag(self, name: str, default: bool = False) -> bool:
        """Whether the argument `name` is set. Raises InitializerError for what is no number."""
        value = self.args.get(name, default)
        if value is not None and not isinstance(value, (bool, int, float)):
            raise InitializerError(f"{self.op}: {name} is neither true nor false")
        return bool(value)

    def first(self, names: Sequence[str], *, elements: bool = False, dims: int = 0) -> torch.Tensor | None:
        """The first tensor argument under one of these names; on demand not empty, or of so many dimensions."""
        tensors = (value for name in names if (value := self.tensor(name)) is not None)
        return next((t for t in tensors if t.dim() >= dims and (t.numel() or not elements)), None)

    def tensors(self) -> list[tuple[str, torch.Tensor]]:
        """All tensors with the names of their arguments, lists flattened."""
        named: list[tuple[str, torch.Tensor]] = []
        for name, value in self.args.items():
            items = cast("Sequence[Any]", value) if isinstance(value, (list, tuple)) else (value,)
            for item in items:
                if hasattr(item, "data_ptr"):
                    named.append((name, item))
        return named


@dataclass(frozen=True, slots=True, kw_only=True)
class InitReport:
    """What an initializer did."""

    summary: str = ""
    """One line for people, e.g. "141 indices in [0, 30522)"."""
    assumed: Mapping[str, str] = field(default_factory=dict[str, str])
    """Argument → what was assumed about its contents."""
    lengths: BatchLengths | None = None
    """The batch's lengths, for ops that cannot get them through an argument; handed to them around each call."""


def extent(tensor: torch.Tensor, dim: int = 0) -> int:
    """The size along a dimension. Raises InitializerError where the tensor has none of that number."""
    if not -tensor.dim() <= dim < tensor.dim():
        raise InitializerError(f"a tensor of shape {list(tensor.shape)} has no dimension {dim}")
    return tensor.shape[dim]


class CustomInit:
    """Base of all initializers: subclass, name the ops, fill their tensors in place.

    `options` are settings that the user may give; `context.options` then holds a value for each of them.

    `name` identifies the initializer in results; `op_patterns` are exact op names, which rows of `replay.ops` give to
    built-ins; among initializers that name the same op the highest `priority` wins (built-ins have 0), then the one
    registered first.
    """

    name: ClassVar[str] = ""
    op_patterns: tuple[str, ...] = ()
    priority: ClassVar[int] = 0
    options: ClassVar[tuple[Option, ...]] = ()

    def applies_to(self, context: InitContext) -> bool:
        """Whether this call, of an op that is named, is one for this initializer."""
        return True

    def check_options(self, options: Mapping[str, OptionValue]) -> None:
        """Look at the options together, before anything runs. Raise InitializerError for what cannot work."""

    def initialize(self, context: InitContext) -> InitReport | str | None:
        """Fill tensors of `context.args` in place; a line of text stands for a report that has nothing but a summary.

        Raise InitializerError when no valid values can be made.
        """
        raise NotImplementedError

    def work(self, context: InitContext) -> Work | None:
        """How much one call really does, told of arguments that `initialize` has filled; None: nothing to say.

        Read for ops that no family of opreplay's counts: `run --check work` shows it, and bytes stand in the place of
        the arguments' sizes where no rule predicts the op. Only whole numbers in arguments need hold what was filled.
        Raise InitializerError when the arguments fit no call.
        """
        return None


def says_work(rule: CustomInit) -> bool:
    """Whether an initializer has a `work` of its own."""
    return type(rule).work is not CustomInit.work
