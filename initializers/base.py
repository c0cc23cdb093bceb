# pyright: strict
"""Base classes of initializers, which fill the argument tensors of the ops that they list."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, cast

import msgspec

from opreplay.initializers.amounts import Work
from opreplay.traces.links.annotations import BatchContext
from opreplay.traces.model import TensorMeta

if TYPE_CHECKING:
    import torch


class InitializerError(Exception):
    """Raised if an initializer cannot make valid values. The op is not replayed, and the message says why."""


OptionValue = int | float | str | bool | None
"""Types that the value of an option may have."""


class Option(msgspec.Struct, frozen=True, kw_only=True):
    """A setting of an initializer, given as `--set init_arg=NAME.OPTION=VALUE`."""

    name: str
    type: type[int] | type[float] | type[str] | type[bool]
    default: OptionValue
    help: str
    choices: tuple[str, ...] = ()
    low: float | None = None
    """Smallest number allowed."""


class BatchLengths(msgspec.Struct, frozen=True, kw_only=True):
    """Sequence lengths of a batch: sequence i has query[i] new tokens and attends to kv[i] tokens in total."""

    query: tuple[int, ...]
    kv: tuple[int, ...]


class InitContext(msgspec.Struct, frozen=True, kw_only=True):
    """One call whose tensors are allocated and already filled with seeded default values for their dtypes."""

    op: str
    """Name of the op as recorded, "namespace::op"."""
    args: Mapping[str, Any]
    """Name → value of each argument: a tensor, a list of tensors (an element may be None), a number, a string, a tuple,
    or None.
    """
    metas: Mapping[str, tuple[TensorMeta | None, ...]] = msgspec.field(
        default_factory=dict[str, tuple[TensorMeta | None, ...]]
    )
    """Argument name → recorded metadata of its tensors; a single tensor has one entry."""
    generator: torch.Generator
    """The only source of randomness, on the device of the tensors. It is seeded from the run's seed and the op's id."""
    seed: int = 0
    outputs: tuple[TensorMeta | None, ...] | None = None
    """Metadata of the results; None if unknown."""
    batch: BatchContext | None = None
    """Batch of the iteration in which the op ran; None if the trace does not record it."""
    run_seed: int = 0
    """Seed of the run, the same for all ops. It is used to draw values on which several ops must agree."""
    options: Mapping[str, OptionValue] = msgspec.field(default_factory=dict[str, OptionValue])
    """Values of all options of the initializer, already checked."""
    role: str = ""
    """Variant of a built-in initializer to use for this op; "" if the initializer has no variants."""
    keyword_only: frozenset[str] = frozenset()
    """Names of the arguments that are passed by keyword."""

    def tensor(self, name: str) -> torch.Tensor | None:
        """Return the tensor argument `name`, or None if it is absent or not a single tensor."""
        value = self.args.get(name)
        return value if hasattr(value, "data_ptr") else None

    def need(self, name: str, dims: int = 0) -> torch.Tensor:
        """Return the tensor argument `name`. Raises InitializerError if it is missing or has fewer than `dims`
        dimensions.
        """
        value = self.tensor(name)
        if value is None:
            raise InitializerError(f"{self.op} has no tensor argument {name!r}")
        if value.dim() < dims:
            raise InitializerError(f"{self.op}: {name} has {value.dim()} dimensions, but needs at least {dims}")
        return value

    def flag(self, name: str, default: bool = False) -> bool:
        """Return the argument `name` as a bool. Raises InitializerError if it is not a number."""
        value = self.args.get(name, default)
        if value is not None and not isinstance(value, (bool, int, float)):
            raise InitializerError(f"{self.op}: {name} is neither true nor false")
        return bool(value)

    def first(self, names: Sequence[str], *, elements: bool = False, dims: int = 0) -> torch.Tensor | None:
        """Return the first tensor argument with one of these names, or None.

        Tensors with fewer than `dims` dimensions are skipped; with `elements`, empty tensors are skipped, too.
        """
        tensors = (value for name in names if (value := self.tensor(name)) is not None)
        return next((t for t in tensors if t.dim() >= dims and (t.numel() or not elements)), None)

    def tensors(self) -> list[tuple[str, torch.Tensor]]:
        """Return all tensors with the names of their arguments, with lists flattened."""
        named: list[tuple[str, torch.Tensor]] = []
        for name, value in self.args.items():
            items = cast("Sequence[Any]", value) if isinstance(value, (list, tuple)) else (value,)
            for item in items:
                if hasattr(item, "data_ptr"):
                    named.append((name, item))
        return named


class InitReport(msgspec.Struct, frozen=True, kw_only=True):
    """Report of what an initializer did."""

    summary: str = ""
    """One-line description for the user, e.g. "141 indices in [0, 30522)"."""
    assumed: Mapping[str, str] = msgspec.field(default_factory=dict[str, str])
    """Argument → what was assumed about its contents."""
    lengths: BatchLengths | None = None
    """Sequence lengths of the batch, for ops without an argument for them. An op can look them up in each call."""


def extent(tensor: torch.Tensor, dim: int = 0) -> int:
    """Return the size of a dimension. Raises InitializerError if the tensor has no such dimension."""
    if not -tensor.dim() <= dim < tensor.dim():
        raise InitializerError(f"a tensor of shape {list(tensor.shape)} has no dimension {dim}")
    return tensor.shape[dim]


class CustomInit:
    """Base class of all initializers: subclass it, list the ops in `op_patterns`, and fill their tensors in place.

    `options` are settings that the user may give; `context.options` holds a value for each of them.

    `name` identifies the initializer in results. `op_patterns` are exact op names. Those of built-ins come from rows of
    `replay.ops`. If several initializers list the same op, the highest `priority` decides; built-ins have 0. Among
    equal priorities, the initializer that was registered first is used.
    """

    name: ClassVar[str] = ""
    op_patterns: tuple[str, ...] = ()
    priority: ClassVar[int] = 0
    options: ClassVar[tuple[Option, ...]] = ()

    def applies_to(self, context: InitContext) -> bool:
        """Check whether this initializer applies to this call of a listed op."""
        return True

    def check_options(self, options: Mapping[str, OptionValue]) -> None:
        """Check the options together before anything runs.

        Raise InitializerError for a combination that cannot work.
        """

    def initialize(self, context: InitContext) -> InitReport | str | None:
        """Fill tensors of `context.args` in place; a returned str becomes the summary of the report.

        Raise InitializerError if no valid values can be made.
        """
        raise NotImplementedError

    def work(self, context: InitContext) -> Work | None:
        """Return how much work one call does, based on arguments that `initialize` has filled; None if unknown.

        This is for ops whose work opreplay does not count. `run --check work` shows the work. If no rule predicts the
        op's time, the prediction uses the work's bytes instead of the sizes of the arguments. Only integer arguments
        are guaranteed to hold the filled values. Raise InitializerError if the arguments do not form a valid call.
        """
        return None


def says_work(rule: CustomInit) -> bool:
    """Check whether an initializer overrides the method `work`."""
    return type(rule).work is not CustomInit.work
