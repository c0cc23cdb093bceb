# pyright: strict
"""Paged caches: which argument is the cache, its pages in random order, and the slots that tokens get.

Owns no rule and no lengths.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
import numpy.typing as npt
import torch

from opreplay.initializers.base import InitContext
from opreplay.initializers.draws.argument_names import CACHES, LISTS, page_size
from opreplay.initializers.draws.sequences import Batch


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """A paged cache."""

    blocks: int
    page: int

    @property
    def key(self) -> str:
        """What ops on the same cache have in common."""
        return f"{self.blocks * self.page}"


def find_pool(context: InitContext) -> Pool | None:
    """The cache among the arguments; None when keys are packed behind each other."""
    tensors = ((name, context.tensor(name)) for name in CACHES)
    name, cache = next(((n, t) for n, t in tensors if t is not None and t.dim() > 1 and t.shape[0]), ("", None))
    if cache is None or all(context.tensor(name) is None for name in LISTS):
        return None
    page = page_size(
        context.role, name, tuple(cache.shape), context.args.get("block_size"), context.args.get("kv_cache_layout")
    )
    return Pool(blocks=cache.shape[0], page=page)


def shared_generator(context: InitContext, purpose: str) -> torch.Generator:
    """Randomness that all ops of a run share which have a purpose in common; on the CPU."""
    digest = blake2b(f"{context.run_seed}:{purpose}".encode(), digest_size=7).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "little"))


def page_list(pool: Pool, count: int, generator: torch.Generator) -> torch.Tensor:
    """int64 [count]: pages in random order, none twice before all were used."""
    order = torch.randperm(pool.blocks, generator=generator)
    return order[:count] if count <= pool.blocks else order[torch.arange(count) % pool.blocks]


def slots_of(batch: Batch, pool: Pool, generator: torch.Generator) -> torch.Tensor:
    """int64 [new tokens]: the slot of each new token, the last ones of its sequence, in the batch's order."""
    counts = (batch.kv + pool.page - 1) // pool.page
    pages = page_list(pool, int(counts.sum()), generator).numpy()
    query, kv, first = batch.query.numpy(), batch.kv.numpy(), (counts.cumsum(0) - counts).numpy()
    # Place of a token if the pages of all sequences followed each other; numpy repeats and divides faster than torch.
    place = consecutive(first * pool.page + kv - query, query)
    moved = (pages - np.arange(len(pages))) * pool.page
    return torch.from_numpy(moved[place // pool.page] + place)  # pyright: ignore[reportUnknownMemberType]


def consecutive(starts: npt.NDArray[np.int64], counts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """int64 [sum of counts]: counts[i] numbers from starts[i] on, for each i."""
    before = counts.cumsum() - counts
    return np.arange(int(counts.sum())) + np.repeat(starts - before, counts)
