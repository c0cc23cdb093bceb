# pyright: strict
"""Expected contents of an op's arguments, from its initializer run on placeholder tensors that use almost no memory.

Lengths, tables and routes are created in full. Caches, weights and activations have one element each, expanded to their
shape. No op is executed. The simulated device thus receives the same batch as a replay with the same seed and options.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
import torch

from opreplay.initializers.base import BatchLengths, InitContext, InitializerError, says_work
from opreplay.initializers.draws.sequences import IMPOSSIBLE, UNRECORDED
from opreplay.initializers.registry import Registry
from opreplay.initializers.rules.moe_routing import MoeRoutingInit
from opreplay.initializers.rules.paged_attention import PagedAttentionInit
from opreplay.initializers.supplied.values import RecordedValues
from opreplay.replay.arguments import tensors
from opreplay.replay.arguments.tensors import init_context
from opreplay.replay.ir.model import ReplayArg, ReplayOp
from opreplay.replay.ir.reasons import NotReplayable
from opreplay.replay.ops.inputs import open_registry
from opreplay.replay.ops.invented import EXPERT_LAYERS
from opreplay.replay.ops.register import canonical_name
from opreplay.replay.ops.table import role_of, rows
from opreplay.replay.ops.work.attention import sequences_of
from opreplay.replay.ops.work.contents import Contents
from opreplay.replay.ops.work.routes import loads_of
from opreplay.traces.errors import strict
from opreplay.traces.model import TensorMeta

OPS = frozenset(row.name for row in rows() if row.inputs in (PagedAttentionInit.name, MoeRoutingInit.name))
"""Ops whose time depends on lengths or routing."""
MAX_ELEMENTS = 1 << 24
"""Maximum size of an integer tensor, number of blocks or integer argument, because a trace may contain any number."""
SMALL = 1 << 16
"""Maximum number of elements of tensors that are always created in full."""
MAX_SCORES = 1 << 26
"""Maximum number of elements of a router score tensor."""


class ExpectedContents:
    """Expected contents of each op's arguments, as in a run with this registry, seed and values; computed once."""

    def __init__(self, registry: Registry, seed: int = 0, values: RecordedValues | None = None) -> None:
        self.registry, self._seed, self._values = registry, seed, values
        self._contents: dict[str, Contents | None] = {}
        self.problems: dict[str, str] = {}
        """Map of op id to the reason why the op's arguments could not be created.

        The op's cost then follows from the shapes.
        """
        self.impossible: dict[str, str] = {}
        """Op id → values in the batch's annotation that the op's arguments cannot hold."""
        self.unrecorded: dict[str, str] = {}
        """Map of op id to quantities that neither the op's arguments nor the batch's annotation contain.

        The text also says what was assumed instead.
        """

    def __call__(self, op: ReplayOp) -> Contents | None:
        """Return the contents of an op's arguments.

        Returns None if the op's time depends only on its shapes, or if its arguments cannot be created.
        """
        name = canonical_name(op.called)
        if name not in OPS and not any(says_work(rule) for rule in self.registry.rules_for(name)):
            return None
        if op.id not in self._contents:
            contents = self._make(op, name)
            if name in EXPERT_LAYERS:
                words = self.registry.options_of(self.registry[MoeRoutingInit.name])
                contents = msgspec.structs.replace(contents or Contents(), layer=words)
            self._contents[op.id] = contents
        return self._contents[op.id]

    def _make(self, op: ReplayOp, name: str) -> Contents | None:
        """Return the contents of an op. Raises InternalError for a bug in opreplay."""
        try:
            with strict(f"argument values of {op.name} ({op.id})", InitializerError):
                filled = fill_stand_ins(op, self.registry, self._seed, values=self._values)
                if filled is None:
                    return None
                contents = contents_of(filled.context, filled.lengths)
                if (work := self.registry.work(filled.context)) is not None:
                    contents = msgspec.structs.replace(contents or Contents(), work=work)
            if contents is None:
                return None
            if filled.impossible:
                self.impossible[op.id] = f"{op.name}: {filled.impossible}"
            if filled.unrecorded:
                self.unrecorded[op.id] = f"{op.name}: {filled.unrecorded}"
            notes = (filled.impossible,) if filled.impossible else ()
            return msgspec.structs.replace(contents, notes=notes, unrecorded=filled.unrecorded)
        except (InitializerError, NotReplayable, MemoryError, RuntimeError) as error:
            # A trace may name any arguments; one op of it that makes no sense, or asks for all memory, stops no other.
            self.problems[op.id] = f"{op.name}: {(str(error).splitlines() or [type(error).__name__])[0]}"
            return None


def expected_contents(
    init_modules: Sequence[str] = (), init_args: Sequence[str] = (), *, seed: int = 0, values: str | None = None
) -> ExpectedContents:
    """Return the contents that op arguments have in a run with these initializers, settings, seed and file of values.

    Raises UsageError for modules and settings that cannot be used, and FormatError for an invalid file.
    """
    supplied = None if values is None else RecordedValues(values)
    return ExpectedContents(open_registry(init_modules, init_args), seed, supplied)


class Filled(NamedTuple):
    """A call with initialized placeholder tensors."""

    context: InitContext
    initializer: str | None
    """Name of the initializer, or None if no initializer is registered for the op."""
    lengths: BatchLengths | None
    impossible: str = ""
    """Values in the batch's annotation that the arguments cannot hold."""
    unrecorded: str = ""
    """Quantities that are not recorded, and what was assumed instead."""


def fill_stand_ins(
    op: ReplayOp, registry: Registry, seed: int, *, limit: int = MAX_ELEMENTS, values: RecordedValues | None = None
) -> Filled | None:
    """Fill placeholder arguments of an op with its initializer.

    Recorded values then replace the initialized values, except in placeholders of one element. Returns None if an
    argument has more than `limit` integers. Raises InitializerError and NotReplayable for arguments that do not fit any
    call.
    """
    if not all(_sane(arg, canonical_name(op.called), limit) for arg in op.args):
        return None
    context = stand_ins(op, seed)
    rule = registry.find(context)
    report = None if rule is None else registry.apply(rule, context)
    if values is not None:
        values.write(op.id, op.name, context.args, only=_in_full)
    if rule is None or report is None:
        return Filled(context, None, None)
    assumptions = "; ".join(report.assumed.values()).split("; ")
    impossible = next((part for part in assumptions if IMPOSSIBLE in part), "")
    unrecorded = next((part for part in assumptions if part.startswith(UNRECORDED)), "")
    return Filled(context, rule.name, report.lengths, impossible, unrecorded)


def stand_ins(op: ReplayOp, seed: int, *, whole: bool = True) -> InitContext:
    """Return the call with placeholder tensors.

    Without `whole`, each tensor is a single element expanded to its shape.
    """
    name = canonical_name(op.called)
    return init_context(op, {arg.name: _stand_in(arg, name, whole) for arg in op.args}, seed, name=name)


def contents_of(context: InitContext, lengths: Any = None) -> Contents | None:
    """Return a summary of the values of a call's arguments."""
    context = msgspec.structs.replace(context, role=role_of(context.op))
    loads = loads_of(context)
    if loads is not None:
        return Contents(expert_rows=tuple(int(rows) for rows in loads))
    sequences = sequences_of(context, lengths)
    if sequences is None:
        return None
    return Contents(
        sequences=int((sequences.query > 0).sum()),
        query_tokens=int(sequences.query.sum()),
        context_tokens=int(sequences.seen.sum()),
        pairs=int(sequences.pairs.sum()),
    )


def _sane(arg: ReplayArg, op: str, limit: int) -> bool:
    if isinstance(arg.value, int) and abs(arg.value) > MAX_ELEMENTS:
        return False
    return all(meta is None or _small(meta, op, limit) for meta in arg.tensors)


def _small(meta: TensorMeta, op: str, limit: int) -> bool:
    count = math.prod(meta.shape)
    if _whole(meta):
        return count <= limit
    if role_of(op) == "router":
        return count <= MAX_SCORES
    return op not in OPS or all(size <= MAX_ELEMENTS for size in meta.shape)


def _in_full(tensor: torch.Tensor) -> bool:
    return tensor.untyped_storage().nbytes() >= tensor.numel() * tensor.element_size()


def _whole(meta: TensorMeta) -> bool:
    return meta.dtype in ("int32", "int64", "int16", "uint32", "bool")


def _stand_in(arg: ReplayArg, op: str, whole: bool) -> Any:
    if not arg.tensors:
        return tensors.scalar_value(arg, device=torch.device("cpu"))
    zeros = [None if meta is None else _tensor(meta, op, whole) for meta in arg.tensors]
    return zeros if arg.type.endswith("[]") else zeros[0]


def _tensor(meta: TensorMeta, op: str, whole: bool) -> torch.Tensor:
    """Return zeros: a full tensor if its values matter, otherwise a single element expanded to the shape."""
    dtype = tensors.DTYPES.get(meta.dtype, torch.float32)
    matters = _whole(meta) or math.prod(meta.shape) <= SMALL or (role_of(op) == "router" and len(meta.shape) >= 1)
    if whole and matters:
        return torch.zeros(meta.shape, dtype=dtype)
    return torch.zeros((), dtype=dtype).expand(meta.shape)
