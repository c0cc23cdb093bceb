# pyright: strict
"""Ops of the family `cache`: cost on a device, initializer and counter of work of each."""

from __future__ import annotations

from opreplay.replay.ops.costs.moves import movement
from opreplay.replay.ops.costs.vendor import shared
from opreplay.replay.ops.table import family

family(
    "cache",
    "cache copy",
    """
        _C_cache_ops::copy_blocks _C_cache_ops::copy_blocks_mla _C_cache_ops::swap_blocks aiter::copy_blocks
        aiter::swap_blocks
        _C_cache_ops::concat_and_cache_mla aiter::concat_and_cache_mla inputs=cache_slots
    """,
    cost=movement.cache_copy,
    inputs="row_numbers",
)
family(
    "cache",
    "cache write",
    """
        _C_cache_ops::reshape_and_cache _C_cache_ops::reshape_and_cache_flash aiter::reshape_and_cache
        aiter::reshape_and_cache_flash npu::_npu_reshape_and_cache npu::npu_scatter_pa_kv_cache sglang::store_cache
        sglang_profiler::memory_pool__set_kv_buffer_impl
        npu::npu_kv_rmsnorm_rope_cache inputs=row_numbers
    """,
    cost=movement.cache_write,
    inputs="cache_slots",
)
family(
    "cache",
    "taken rows",
    """
        _C_cache_ops::cp_gather_cache _C_cache_ops::gather_and_maybe_dequant_cache _C_cache_ops::gather_cache
    """,
    cost=shared.taken_rows,
    inputs="paged_attention",
)
family(
    "cache",
    "one kernel over the widest tensor",
    """
        _C_cache_ops::convert_fp8 kernel=Cast
    """,
    kernels=shared.widest,
)
