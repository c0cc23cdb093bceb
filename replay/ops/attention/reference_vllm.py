"""vLLM's paged decode attention: `_C::paged_attention_v1/v2` (csrc/attention), `_rocm_C::paged_attention`, and merging.

Block-sparse attention is rejected (ValueError); the scratch tensors of the partitioned ops are not written.
"""

from __future__ import annotations

import torch
from torch import Tensor

from opreplay.replay.ops.calls import Call
from opreplay.replay.ops.declared import stands_for
from opreplay.replay.ops.maths.attention import Rules, attend, ends, gather_blocks
from opreplay.replay.ops.maths.quantize import fp8_view


def paged_keys_values(
    key_cache: Tensor, value_cache: Tensor, table: Tensor, length: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Return k, v [length, Hkv, D] of one sequence, in `dtype`, read from vLLM's packed caches.

    The key cache is [blocks, Hkv, D/x, page, x], the value cache [blocks, Hkv, D, page].
    """
    page = value_cache.shape[-1]
    keys = gather_blocks(key_cache, table, length, page).to(dtype)
    values = gather_blocks(value_cache, table, length, page).to(dtype)
    k = keys.permute(0, 3, 1, 2, 4).flatten(3).flatten(0, 1)
    v = values.permute(0, 3, 1, 2).flatten(0, 1)
    return k[:length], v[:length]


def _decode(
    out: Tensor,
    query: Tensor,
    caches: tuple[Tensor, Tensor],
    block_tables: Tensor,
    lengths: list[int],
    rows: list[int],
    rules: Rules,
    scales: tuple[Tensor | float, Tensor | float],
) -> None:
    """Compute attention of one query row per sequence over the sequence's cache.

    query and out are [T, H, D]. `rows` holds the index of each sequence's row in them.
    """
    k_scale, v_scale = (float(scale) if isinstance(scale, Tensor) and scale.numel() == 1 else scale for scale in scales)
    for index, row in enumerate(rows):
        k, v = paged_keys_values(*caches, block_tables[index], lengths[index], query.dtype)
        if caches[0].dtype.itemsize == 1:
            k, v = k * k_scale, v * v_scale
        out[row] = attend(query[row : row + 1], k.to(query.dtype), v.to(query.dtype), rules)[0][0].to(out.dtype)


@stands_for("_C::paged_attention_v1", "_C::paged_attention_v2")
def paged_attention(c: Call) -> None:
    """Compute attention of query [S, Hq, D] and write it to out. Row s attends to the first seq_lens[s] tokens in the
    blocks of block_tables[s].
    """
    if c.blocksparse_vert_stride > 1:
        raise ValueError("block-sparse paged attention is not implemented")
    caches = fp8_view(c.key_cache, c.kv_cache_dtype), fp8_view(c.value_cache, c.kv_cache_dtype)
    rules = Rules(scale=c.scale, alibi=c.alibi_slopes)
    rows = list(range(c.query.shape[0]))
    _decode(c.out, c.query, caches, c.block_tables, c.seq_lens.tolist(), rows, rules, (c.k_scale, c.v_scale))


@stands_for("_rocm_C::paged_attention")
def rocm_paged_attention(c: Call) -> None:
    """Do the same as `paged_attention`.

    If query_start_loc [S + 1] is given, only sequences with a single new token are computed.
    """
    out, block_tables = c.out, c.block_tables
    query_start_loc = getattr(c, "query_start_loc", None)
    fp8_out_scale = getattr(c, "fp8_out_scale", None)
    caches = fp8_view(c.key_cache, c.kv_cache_dtype), fp8_view(c.value_cache, c.kv_cache_dtype)
    lengths = c.seq_lens.tolist()
    rows = list(range(len(lengths)))
    if query_start_loc is not None:
        starts = ends(query_start_loc, c.query.shape[0], "query_start_loc")
        single = [i for i in range(len(starts) - 1) if starts[i + 1] - starts[i] == 1]
        rows, lengths = [starts[i] for i in single], [lengths[i] for i in single]
        block_tables = block_tables[torch.tensor(single, dtype=torch.int64, device=block_tables.device)]
    rules = Rules(scale=c.scale, alibi=c.alibi_slopes)
    if fp8_out_scale is None:
        _decode(out, c.query, caches, block_tables, lengths, rows, rules, (c.k_scale, c.v_scale))
        return
    wide = torch.zeros(out.shape, dtype=torch.float32, device=out.device)
    _decode(wide, c.query, caches, block_tables, lengths, rows, rules, (c.k_scale, c.v_scale))
    out.copy_((wide / fp8_out_scale).to(out.dtype))


@stands_for("_C::merge_attn_states")
def merge_attn_states(c: Call) -> None:
    """Merge two partial attentions [T, H, D], prefix and suffix, by their log-sum-exps [H, T].

    Tokens from index `prefill_tokens_with_context` on have no prefix. Their result is the suffix part.
    """
    prefix_output, prefix_lse = c.prefix_output, c.prefix_lse
    prefill_tokens_with_context = getattr(c, "prefill_tokens_with_context", None)
    if prefill_tokens_with_context is not None:
        alone = torch.arange(prefix_lse.shape[1], device=prefix_lse.device) >= prefill_tokens_with_context
        prefix_output = prefix_output.masked_fill(alone[:, None, None], 0)
        prefix_lse = prefix_lse.masked_fill(alone, -torch.inf)
    total = torch.logaddexp(prefix_lse.float(), c.suffix_lse.float())
    finite = total.masked_fill(total == -torch.inf, 0.0)
    share = torch.exp(prefix_lse - finite).t().unsqueeze(-1)
    rest = torch.exp(c.suffix_lse - finite).t().unsqueeze(-1)
    c.output.copy_(prefix_output * share + c.suffix_output * rest)
    if c.output_lse is not None:
        c.output_lse.copy_(total)
