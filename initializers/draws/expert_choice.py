"""Draw each token's experts without replacement from a distribution, and sort the tokens as MoE kernels expect.

Sampling and layouts run on the CPU. Every device thus gets the same routing.
"""

from __future__ import annotations

import msgspec
import numpy as np
import torch

from opreplay.initializers.base import InitializerError
from opreplay.initializers.draws.distributions import read_histogram

DISTRIBUTIONS = ("uniform", "zipf", "histogram")
DISTINCT_ROWS = 8_191
"""Number of tokens for which experts are drawn before rows repeat. It is a prime, so blocks of common sizes differ."""
MAX_TOP_K = 512
"""Maximum number of experts per token.

Each slot is compared with all earlier ones, so the time grows with the square of this number.
"""
REDRAWS = 8
"""Number of times that an expert is drawn again for a token that already has it.

If the expert still repeats, the token gets another expert. It is the missing expert with the highest log probability
plus random noise.
"""


def probabilities(experts: int, distribution: str, exponent: float, histogram: str) -> torch.Tensor:
    """Return float64 [experts] probabilities that add up to 1.

    With "zipf" the first expert is the most popular. With "histogram" the probabilities come from the JSON file
    `histogram`, which has one count per expert. Raises InitializerError for another number of counts.
    """
    if distribution == "zipf":
        weight = torch.arange(1, experts + 1, dtype=torch.float64) ** -exponent
    elif distribution == "histogram":
        weight = torch.tensor(read_histogram(histogram), dtype=torch.float64)
        if len(weight) != experts:
            raise InitializerError(f"the histogram has {len(weight)} experts, but the op has {experts}")
    else:
        weight = torch.ones(experts, dtype=torch.float64)
    return weight / weight.sum()


def choose_experts(tokens: int, topk: int, chance: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return int64 [tokens, topk] experts, drawn one by one without replacement.

    `chance` holds float64 [experts] probabilities. If `tokens` or `topk` is 0, the result is empty. Raises
    InitializerError if fewer than topk experts have a probability above 0, or if topk exceeds `MAX_TOP_K`.
    """
    if topk > MAX_TOP_K:
        raise InitializerError(f"{topk} experts per token exceed the limit of {MAX_TOP_K}")
    if not tokens or not topk:
        return torch.empty((tokens, topk), dtype=torch.int64)
    possible = int((chance > 0).sum())
    if topk > possible:
        raise InitializerError(f"cannot choose the top {topk} of {possible} possible experts")
    edges = chance.cumsum(0)
    edges[-1] = 1.0
    ids = torch.empty((topk, min(tokens, DISTINCT_ROWS)), dtype=torch.int64)
    for slot in range(topk):
        ids[slot] = _draw(edges, ids.shape[1], generator)
        again = _repeats_earlier(ids, slot)
        for _ in range(REDRAWS):
            if not len(again):
                break
            ids[slot, again] = _draw(edges, len(again), generator)
            again = _twice(ids, slot, again)
        if len(again):
            ids[slot, again] = _exact(ids[:slot, again], chance, generator)
    return _rows(ids.t(), tokens)


def _rows(distinct: torch.Tensor, count: int) -> torch.Tensor:
    """Return `count` rows by repeating the distinct ones."""
    rows = torch.empty((count, distinct.shape[1]), dtype=distinct.dtype)
    for begin in range(0, count, max(1, len(distinct))):
        part = rows[begin : begin + len(distinct)]
        part.copy_(distinct[: len(part)])
    return rows


def _twice(ids: torch.Tensor, slot: int, rows: torch.Tensor) -> torch.Tensor:
    """Return those of `rows` in which the expert in slot `slot` already occurs in an earlier slot."""
    return rows[(ids[:slot, rows] == ids[slot, rows]).any(0)]


def _repeats_earlier(ids: torch.Tensor, slot: int) -> torch.Tensor:
    """Return the tokens whose expert in `slot` already occurs in an earlier slot, using one comparison per slot."""
    repeated = torch.zeros(ids.shape[1], dtype=torch.bool)
    for earlier in range(slot):
        repeated |= ids[earlier] == ids[slot]
    return repeated.nonzero().flatten()


def _draw(edges: torch.Tensor, count: int, generator: torch.Generator) -> torch.Tensor:
    draws = torch.rand(count, generator=generator, dtype=torch.float64)
    return torch.searchsorted(edges, draws, right=True).clamp(max=len(edges) - 1)


def _exact(taken: torch.Tensor, chance: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Draw an expert for each column of `taken` [slots, rows] that the column does not contain yet."""
    noise = torch.rand((taken.shape[1], len(chance)), generator=generator, dtype=torch.float64)
    scores = chance.log() - (-noise.log()).log()
    return scores.scatter_(1, taken.t(), -torch.inf).argmax(1)


def routing_weights(tokens: int, topk: int, generator: torch.Generator) -> torch.Tensor:
    """Return float32 [tokens, topk] weights, decreasing along each row and adding up to 1 per row."""
    shape = (min(tokens, DISTINCT_ROWS), topk)
    drawn = torch.rand(shape, generator=generator).add_(0.05).sort(dim=-1, descending=True).values
    return _rows(drawn / drawn.sum(-1, keepdim=True), tokens)


class Sorted(msgspec.Struct, frozen=True, kw_only=True):
    """Routed (token, slot) pairs, as token · topk + slot, sorted by expert. Each expert is padded to whole blocks."""

    positions: torch.Tensor
    """int64 [length]: the sorted pairs; the padding contains `filler`."""
    owners: torch.Tensor
    """int64 [blocks]: the expert of each block, or −1 if the block has none."""
    valid: int
    """Number of entries of `positions` in use, including padding."""
    dropped: int
    """Number of routed (token, slot) pairs that did not fit."""


def sort_by_expert(ids: torch.Tensor, experts: int, block: int, length: int, blocks: int, filler: int) -> Sorted:
    """Sort (token, slot) pairs of ids [tokens, topk] by expert, for a kernel with one expert per block."""
    flat = ids.reshape(-1)
    counts = torch.bincount(flat, minlength=experts)
    # numpy sorts 8- and 16-bit keys by radix, many times as fast as 64-bit ones.
    kind = np.uint8 if experts <= 1 << 8 else np.int16 if experts < 1 << 15 else np.int32
    order = torch.from_numpy(np.argsort(flat.numpy().astype(kind), kind="stable"))
    padded = (counts + block - 1) // block * block
    room = min(length, blocks * block)
    positions = torch.full((length,), filler, dtype=torch.int64)
    begin, placed = 0, 0
    for tokens, size in zip(order.split(counts.tolist()), padded.tolist(), strict=True):
        part = positions[begin : min(begin + len(tokens), room)]
        part.copy_(tokens[: len(part)])
        begin, placed = begin + size, placed + len(part)
    owners = torch.full((blocks,), -1, dtype=torch.int64)
    used = torch.repeat_interleave(torch.arange(experts), padded // block)[:blocks]
    owners[: len(used)] = used
    valid = min(int(padded.sum()), room)
    return Sorted(positions=positions, owners=owners, valid=valid, dropped=len(flat) - placed)
