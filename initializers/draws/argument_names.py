# pyright: strict
"""Names of the arguments that hold sequences, lengths, block tables and caches, and the cache layouts of ops.

All code that fills these arguments, or computes work and costs from them, uses this module. It does not import torch.
"""

from __future__ import annotations

import re

_DECIDES = re.compile(r"seq|len|table|indptr|offs|idx|index|indices|expert|slot|^cu_|^crow", re.IGNORECASE)


def decides_work(name: str) -> bool:
    """Return whether an integer argument of this name (lengths, tables) determines which or how much data is used."""
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
"""Names of arguments that hold the KV cache; the most reliable names come first."""
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
"""Names of arguments that list pages or slots. Calls without these arguments do not use a paged cache."""


def page_size(role: str, name: str, shape: tuple[int, ...], block_size: object, layout: object) -> int:
    """Return the tokens per page of the cache `name`.

    `block_size` and `layout` are arguments of the call, if it has them. `role`, the role of the op, tells the layout.
    "packed_cache" is vLLM's packed key cache [blocks, heads, head / x, page, x]. "slot_cache" is a plain list of slots
    [slots, ...]. "heads_first_cache" is [blocks, page, heads x size] or [blocks, heads, page, size]. Caches of other
    ops are [blocks, page, ...].
    """
    if isinstance(block_size, int) and block_size > 0:
        page = block_size
    elif len(shape) == 5:
        page = shape[3]
    elif role == "heads_first_cache" and len(shape) in (3, 4):
        page = shape[len(shape) - 2]
    elif role == "slot_cache" or len(shape) == 2:
        page = 1
    elif len(shape) == 3:
        # A latent cache is [blocks, page, width]; three dims elsewhere are [slots, heads, width].
        page = shape[1] if name in ("kv_cache", "src_cache", "kv_c_and_k_pe_cache") else 1
    elif layout == "HND":
        page = shape[2]
    else:
        page = shape[-1] if role == "packed_cache" else shape[1]
    return max(1, page)
