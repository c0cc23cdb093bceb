"""Paged caches: which argument is the cache, its pages in random order, and the slots that tokens get.

Owns no rule and no lengths.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b

import torch

from opreplay.initializers.base import InitContext
from opreplay.initializers.sequences import Batch

CACHES = ("key_cache", "k_cache", "kv_cache", "src_cache", "K", "kv_c_and_k_pe_cache", "key", "k")
"""Names of cache arguments, the surest first."""
LISTS = (
    "block_tables", "block_table", "page_table", "kv_page_indices", "slot_mapping", "slot_indices", "indices",
)  # fmt: skip
"""Arguments that name pages or slots; without any of them keys are not paged."""
PACKED_CACHE = frozenset({
    "_C::paged_attention_v1", "_C::paged_attention_v2", "_rocm_C::paged_attention", "_C_cache_ops::reshape_and_cache",
    "aiter::pa_fwd_asm", "aiter::paged_attention_v1", "aiter::paged_attention_rocm", "aiter::reshape_and_cache",
})  # fmt: skip
"""Ops with vLLM's packed key cache [blocks, heads, head / x, page, x]; the others have [blocks, page, ...]."""
SLOT_CACHE = frozenset({"sglang::store_cache", "sglang_profiler::memory_pool__set_kv_buffer_impl"})
"""Ops whose cache is a plain list of slots [slots, ...]."""


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
    found = ((name, context.tensor(name)) for name in CACHES)
    name, cache = next(((n, t) for n, t in found if t is not None and t.dim() > 1 and t.shape[0]), ("", None))
    if cache is None or all(context.tensor(name) is None for name in LISTS):
        return None
    said = context.args.get("block_size")
    if isinstance(said, int) and said > 0:
        page = said
    elif cache.dim() == 5:
        page = cache.shape[3]
    elif context.op in SLOT_CACHE or cache.dim() == 2:
        page = 1
    elif cache.dim() == 3:
        # A latent cache is [blocks, page, width]; three dims elsewhere are [slots, heads, width].
        page = cache.shape[1] if name in ("kv_cache", "src_cache", "kv_c_and_k_pe_cache") else 1
    elif context.args.get("kv_cache_layout") == "HND":
        page = cache.shape[2]
    else:
        page = cache.shape[-1] if context.op in PACKED_CACHE else cache.shape[1]
    return Pool(blocks=cache.shape[0], page=max(1, page))


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
    pages = page_list(pool, int(counts.sum()), generator)
    ends = batch.query.cumsum(0)
    inside = torch.arange(int(batch.query.sum())) - torch.repeat_interleave(ends - batch.query, batch.query)
    position = inside + torch.repeat_interleave(batch.kv - batch.query, batch.query)
    first = torch.repeat_interleave(counts.cumsum(0) - counts, batch.query)
    return pages[first + position // pool.page] * pool.page + position % pool.page
