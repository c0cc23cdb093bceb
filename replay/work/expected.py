"""The contents that an op's arguments would get here: its initializer is run on stand-ins that take next to no memory.

Lengths, tables and routes are made in full; caches, weights and activations are one element each, spread over their
shape. Nothing is executed, so the simulated device sees the same batch as a replay of the same seed and options would.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from opreplay.initializers.base import InitContext, InitializerError
from opreplay.initializers.moe_routing import ROUTERS, MoeRoutingInit
from opreplay.initializers.paged_attention import PagedAttentionInit
from opreplay.initializers.registry import Registry
from opreplay.replay import tensors
from opreplay.replay.executors.base import NotReplayable
from opreplay.replay.executors.torch_device import seed_of
from opreplay.replay.ir import ReplayArg, ReplayOp
from opreplay.replay.reference.registry import canonical_name
from opreplay.replay.work.attention import sequences_of
from opreplay.replay.work.contents import Contents
from opreplay.replay.work.routes import loads_of
from opreplay.traces.model import TensorMeta

OPS = frozenset((*PagedAttentionInit.op_patterns, *MoeRoutingInit.op_patterns))
"""Ops whose time depends on lengths or routing."""
MAX_ELEMENTS = 1 << 24
"""Largest tensor of whole numbers, number of blocks or number among the arguments; a trace may say anything."""
MAX_SCORES = 1 << 26
"""Largest tensor of router scores."""


class ExpectedContents:
    """Contents by op, made once for each. Uses the run's registry and seed, so that they are those of the run."""

    def __init__(self, registry: Registry, seed: int = 0) -> None:
        self._registry, self._seed = registry, seed
        self._made: dict[str, Contents | None] = {}

    def __call__(self, op: ReplayOp) -> Contents | None:
        """None for an op whose time its shapes alone decide, and where its arguments cannot be made."""
        name = canonical_name(op.called)
        if name not in OPS:
            return None
        if op.id not in self._made:
            self._made[op.id] = self._make(op, name)
        return self._made[op.id]

    def _make(self, op: ReplayOp, name: str) -> Contents | None:
        if not all(_sane(arg, name) for arg in op.args):
            return None
        try:
            args = {arg.name: _stand_in(arg, name) for arg in op.args}
            seed = seed_of(op, self._seed)
            context = InitContext(
                op=name, args=args, metas={arg.name: arg.tensors for arg in op.args if arg.tensors},
                generator=torch.Generator().manual_seed(seed), seed=seed, outputs=op.outputs, batch=op.batch,
                run_seed=self._seed, keyword_only=frozenset(arg.name for arg in op.args if arg.keyword_only),
            )  # fmt: skip
            rule = self._registry.find(context)
            lengths = None if rule is None else self._registry.apply(rule, context).lengths
            return contents_of(context, lengths)
        except (InitializerError, NotReplayable, RuntimeError, ValueError, TypeError, IndexError, KeyError):
            # What keeps the op from being replayed is said there; the simulation goes on from the shapes.
            return None


def contents_of(context: InitContext, lengths: Any = None) -> Contents | None:
    """What the values of a call's arguments amount to."""
    loads = loads_of(context)
    if loads is not None:
        return Contents(expert_rows=tuple(int(rows) for rows in loads))
    found = sequences_of(context, lengths)
    if found is None:
        return None
    return Contents(
        sequences=int((found.query > 0).sum()), query_tokens=int(found.query.sum()),
        context_tokens=int(found.seen.sum()), pairs=int(found.pairs.sum()),
    )  # fmt: skip


def _sane(arg: ReplayArg, op: str) -> bool:
    if isinstance(arg.value, int) and abs(arg.value) > MAX_ELEMENTS:
        return False
    return all(meta is None or _small(meta, op) for meta in arg.tensors)


def _small(meta: TensorMeta, op: str) -> bool:
    count = math.prod(meta.shape)
    if _whole(meta):
        return count <= MAX_ELEMENTS
    return (count <= MAX_SCORES if op in ROUTERS else True) and all(size <= MAX_ELEMENTS for size in meta.shape)


def _whole(meta: TensorMeta) -> bool:
    return meta.dtype in ("int32", "int64", "int16", "uint32", "bool")


def _stand_in(arg: ReplayArg, op: str) -> Any:
    if not arg.tensors:
        return tensors.scalar_value(arg, device=torch.device("cpu"))
    made = [None if meta is None else _tensor(meta, op) for meta in arg.tensors]
    return made if arg.type.endswith("[]") else made[0]


def _tensor(meta: TensorMeta, op: str) -> torch.Tensor:
    """Zeros: whole where values matter, else one element that fills the shape."""
    dtype = tensors.DTYPES.get(meta.dtype, torch.float32)
    if _whole(meta) or (op in ROUTERS and len(meta.shape) >= 1):
        return torch.zeros(meta.shape, dtype=dtype)
    return torch.zeros((), dtype=dtype).expand(meta.shape)
