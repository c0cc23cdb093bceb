# pyright: strict
"""Makes an op that is larger than its memory budget small enough to run, and says what was changed; knows no torch.

Three ways, tried in this order: a pool of which the call touches little (a KV cache, an embedding table) gets fewer
rows (`pools`), which leaves the work as it is; so does a smaller tensor under a view (`views`); an op
whose slices are computed independently runs on some of them (`slices`), and its time is scaled up. The plan
keeps the recorded op: predictions are made from that one.
"""

from __future__ import annotations

import math

import msgspec

from opreplay.replay.arguments.shrink.flops import product_flops
from opreplay.replay.arguments.shrink.pools import with_smaller_pools
from opreplay.replay.arguments.shrink.slices import sliced
from opreplay.replay.arguments.shrink.views import with_smaller_view
from opreplay.replay.ir.model import Assumption, ReplayOp
from opreplay.replay.ir.sizes import need_of, readable


class Fitted(msgspec.Struct, frozen=True, kw_only=True):
    """An op as it can be run."""

    op: ReplayOp
    part: float = 1.0
    """Share of the recorded op's work that is left."""
    assumptions: tuple[Assumption, ...] = ()


def fitted(op: ReplayOp, limit_bytes: int, max_flops: float = math.inf) -> Fitted:
    """`op` so that it needs no more than `limit_bytes`, where that can be done; unchanged where it fits or cannot.

    A product of more than `max_flops` floating-point operations runs on some of its slices as well.
    """
    need, flops = need_of(op).total, product_flops(op)
    if need <= limit_bytes and flops <= max_flops:
        return Fitted(op=op)
    if need <= limit_bytes:
        return _in_part(op, limit_bytes, max_flops, f"all of it is {flops:.2g} floating-point operations")
    smaller, notes = with_smaller_pools(op, limit_bytes)
    if notes:
        return Fitted(op=smaller, assumptions=notes)
    smaller, notes = with_smaller_view(op, limit_bytes)
    if notes:
        return Fitted(op=smaller, assumptions=notes)
    return _in_part(op, limit_bytes, max_flops, f"all of it needs {readable(need)}, limit {readable(limit_bytes)}")


def _in_part(op: ReplayOp, limit_bytes: int, max_flops: float, why: str) -> Fitted:
    """`op` on some of its slices, or as it is where it has none."""
    best_cut = sliced(op, lambda smaller: need_of(smaller).total <= limit_bytes and product_flops(smaller) <= max_flops)
    if best_cut is None:
        return Fitted(op=op)
    part, share, what = best_cut
    said = f"{what}: {why}; times are scaled up"
    return Fitted(op=part, part=share, assumptions=(Assumption(argument="size", what=said),))
