# pyright: strict
"""Device costs, initializers and work counters of the `cache` ops."""

from __future__ import annotations

from opreplay.replay.ops.costs.moves import movement
from opreplay.replay.ops.costs.vendor import shared
from opreplay.replay.ops.table import family

family(
    "cache",
    "cache copy",
    """
        _C_cache_ops::copy_blocks aiter::copy_blocks role=block_pairs
        _C_cache_ops::copy_blocks_mla role=latent_block_pairs
        _C_cache_ops::swap_blocks role=swapped_blocks
        aiter::swap_blocks like=_C_cache_ops::swap_blocks role=swapped_blocks
    """,
    cost=movement.cache_copy,
    inputs="row_numbers",
)
family(
    "cache",
    "latent cache write",
    """
        _C_cache_ops::concat_and_cache_mla
        aiter::concat_and_cache_mla like=_C_cache_ops::concat_and_cache_mla
    """,
    cost=shared.latent_write,
    inputs="cache_slots",
)
family(
    "cache",
    "cache write",
    """
        _C_cache_ops::reshape_and_cache_flash npu::_npu_reshape_and_cache npu::npu_scatter_pa_kv_cache
        _C_cache_ops::reshape_and_cache aiter::reshape_and_cache role=packed_cache
        sglang::store_cache role=slot_cache
        aiter::reshape_and_cache_flash like=_C_cache_ops::reshape_and_cache_flash
        sglang_profiler::memory_pool__set_kv_buffer_impl like=sglang::store_cache role=slot_cache
        sgl_kernel::store_kv_cache like=sglang::store_cache indices=out_loc role=slot_cache
        npu::npu_kv_rmsnorm_rope_cache inputs=row_numbers role=cache_places
    """,
    cost=movement.cache_write,
    inputs="cache_slots",
)
family(
    "cache",
    "taken rows",
    "_C_cache_ops::cp_gather_cache _C_cache_ops::gather_and_maybe_dequant_cache _C_cache_ops::gather_cache",
    cost=shared.taken_rows,
    inputs="paged_attention",
)
family("cache", "converted cache", "_C_cache_ops::convert_fp8", cost=shared.converted)
family(
    "cache",
    "cache write with published schemas",
    """
        npu::npu_kv_rmsnorm_rope_cache_v2 npu::npu_kv_rmsnorm_rope_cache_v2_functional npu::npu_qkv_rms_norm_rope_cache
        npu::npu_qkv_rms_norm_rope_cache_functional npu::npu_scatter_pa_cache
        _C_ascend::npu_reshape_and_cache_bnsd _C_ascend::store_kv_block
    """,
    cost=movement.cache_write,
)
family(
    "cache",
    "slices written with published schemas",
    "npu::npu_quant_scatter _C_ascend::npu_scatter_nd_update_v2",
    cost=movement.slices_written,
)
