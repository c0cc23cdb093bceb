"""Fills the arguments of a call as a replay does."""

from __future__ import annotations

import torch

from opreplay.initializers.base import InitContext
from opreplay.replay.ops.inputs import built_in

REGISTRY = built_in()


def initialized(op: str, **args: object) -> InitContext:
    context = InitContext(op=op, args=args, generator=torch.Generator().manual_seed(0))
    rule = REGISTRY.find(context)
    assert rule is not None, f"no initializer for {op}"
    rule.initialize(context)
    return context
