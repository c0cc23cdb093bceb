# pyright: strict
"""Names of the arguments that hold sequences, lengths, block tables and caches, and the layouts that ops keep.

Owns no values, so that whoever fills, counts or costs the same arguments means the same ones; needs no torch.
"""

from __future__ import annotations

import re

_DECIDES = re.compile(r"seq|len|table|indptr|offs|idx|index|indices|expert|slot|^cu_|^crow", re.IGNORECASE)


def decides_work(name: str) -> bool:
    """Whether whole numbers of an argument of this name tell how much there is to do, or where: lengths, tables."""
    return _DECIDES.search(name) is not None


QUERY = ("query", "q", "Q", "q_nope", "hidden_states")
TABLES = ("block_tables", "block_table", "page_table")
SEEN = (
    "seq_lens",
    "seqused_k",
    "seqlen_k",
    "cache_seqlens",
    "context_lens",
    "context_lengths",
    "kv_lens",
    "actual_seq_lengths_kv",
    "seqlens_k",
    "cache_lens",
)
CUMULATIVE_NEW = ("query_start_loc", "cu_seqlens_q", "cu_query_lens", "qo_indptr", "cu_seqlens_q_padded")
CUMULATIVE_SEEN = ("cu_seqlens_k", "cu_seqlens_kv", "cu_seq_lens", "cu_seqlens_k_padded")
LONGEST = ("max_seq_len", "max_seqlen_k", "max_context_len", "max_seqlen_kv")
CACHES = ("key_cache", "k_cache", "kv_cache", "src_cache", "K", "kv_c_and_k_pe_cache", "key", "k")
"""Names of cache arguments, the surest first."""
LISTS = (
    "block_tables",
    "block_table",
    "page_table",
    "kv_page_indices",
    "slot_mapping",
    "slot_indices",
    "indices",
    "out_loc",
)
"""Arguments that name pages or slots; without any of them keys are not paged."""
PACKED_CACHE = frozenset(
    {
        "_C::paged_attention_v1",
        "_C::paged_attention_v2",
        "_rocm_C::paged_attention",
        "_C_cache_ops::reshape_and_cache",
        "aiter::pa_fwd_asm",
        "aiter::paged_attention_v1",
        "aiter::paged_attention_rocm",
        "aiter::reshape_and_cache",
    }
)
"""Ops with vLLM's packed key cache [blocks, heads, head / x, page, x]; the others have [blocks, page, ...]."""
SLOT_CACHE = frozenset(
    {
        "sglang::store_cache",
        "sglang_profiler::memory_pool__set_kv_buffer_impl",
        "sgl_kernel::store_kv_cache",
    }
)
"""Ops whose cache is a plain list of slots [slots, ...]."""

HEADS_FIRST_CACHE = frozenset(
    {
        "npu::npu_fused_infer_attention_score",
        "npu::npu_fused_infer_attention_score_v2",
        "npu::npu_incre_flash_attention",
    }
)
"""Ops with caches [blocks, page, heads x size] or [blocks, heads, page, size]."""


def page_size(op: str, name: str, shape: tuple[int, ...], block_size: object, layout: object) -> int:
    """Tokens in a page of the cache `name` of `op`; `block_size` and `layout` are arguments of the call, if any."""
    if isinstance(block_size, int) and block_size > 0:
        page = block_size
    elif len(shape) == 5:
        page = shape[3]
    elif op in HEADS_FIRST_CACHE and len(shape) in (3, 4):
        page = shape[len(shape) - 2]
    elif op in SLOT_CACHE or len(shape) == 2:
        page = 1
    elif len(shape) == 3:
        # A latent cache is [blocks, page, width]; three dims elsewhere are [slots, heads, width].
        page = shape[1] if name in ("kv_cache", "src_cache", "kv_c_and_k_pe_cache") else 1
    elif layout == "HND":
        page = shape[2]
    else:
        page = shape[-1] if op in PACKED_CACHE else shape[1]
    return max(1, page)
