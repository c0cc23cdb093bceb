# pyright: strict
"""Paged caches: find the cache argument, draw its pages in random order, and assign slots to tokens."""

from __future__ import annotations

from hashlib import blake2b

import msgspec
import numpy as np
import torch

from opreplay.initializers.base import InitContext
from opreplay.initializers.draws.argument_names import CACHES, LISTS, page_size
from opreplay.initializers.draws.sequences import Batch
from opreplay.traces.arrays import Ints


class Pool(msgspec.Struct, frozen=True, kw_only=True):
    """A paged cache."""

    blocks: int
    page: int

    @property
    def key(self) -> str:
        """Return the cache's number of slots as a key. It is the same for all ops on the same cache."""
        return f"{self.blocks * self.page}"


def find_pool(context: InitContext) -> Pool | None:
    """Return the paged cache among the arguments; None without a cache, or if keys are packed without pages."""
    tensors = ((name, context.tensor(name)) for name in CACHES)
    name, cache = next(((n, t) for n, t in tensors if t is not None and t.dim() > 1 and t.shape[0]), ("", None))
    if cache is None or all(context.tensor(name) is None for name in LISTS):
        return None
    page = page_size(
        context.role, name, tuple(cache.shape), context.args.get("block_size"), context.args.get("kv_cache_layout")
    )
    return Pool(blocks=cache.shape[0], page=page)


def shared_generator(context: InitContext, purpose: str) -> torch.Generator:
    """Return a CPU generator that draws the same values for all ops of a run that pass the same purpose."""
    digest = blake2b(f"{context.run_seed}:{purpose}".encode(), digest_size=7).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "little"))


def page_list(pool: Pool, count: int, generator: torch.Generator) -> torch.Tensor:
    """Return int64 [count] page numbers in random order. No page repeats before all pages have been used."""
    order = torch.randperm(pool.blocks, generator=generator)
    return order[:count] if count <= pool.blocks else order[torch.arange(count) % pool.blocks]


def slots_of(batch: Batch, pool: Pool, generator: torch.Generator) -> torch.Tensor:
    """Return int64 [new tokens]: the slot of each new token, in batch order. Each sequence ends with its new tokens."""
    counts = (batch.kv + pool.page - 1) // pool.page
    pages = page_list(pool, int(counts.sum()), generator).numpy()
    query, kv, first = batch.query.numpy(), batch.kv.numpy(), (counts.cumsum(0) - counts).numpy()
    # Place of a token if the pages of all sequences followed each other; numpy repeats and divides faster than torch.
    place = consecutive(first * pool.page + kv - query, query)
    moved = (pages - np.arange(len(pages))) * pool.page
    return torch.from_numpy(moved[place // pool.page] + place)  # pyright: ignore[reportUnknownMemberType]


def consecutive(starts: Ints, counts: Ints) -> Ints:
    """Return int64 [sum of counts]: for each i, counts[i] consecutive numbers from starts[i]."""
    before = counts.cumsum() - counts
    return np.arange(int(counts.sum())) + np.repeat(starts - before, counts)
