# pyright: strict
"""Ops of the family `cache`: cost on a device, initializer and counter of work of each."""

from __future__ import annotations

from opreplay.replay.ops.costs.moves import movement
from opreplay.replay.ops.costs.pointwise import elementwise
from opreplay.replay.ops.costs.vendor import shared
from opreplay.replay.ops.table import family

family(
    "cache",
    "cache copy",
    """
        _C_cache_ops::copy_blocks _C_cache_ops::copy_blocks_mla _C_cache_ops::swap_blocks
        _C_cache_ops::concat_and_cache_mla inputs=cache_slots
    """,
    cost=movement.cache_copy,
    inputs="row_numbers",
)
family(
    "cache",
    "cache write",
    """
        _C_cache_ops::reshape_and_cache _C_cache_ops::reshape_and_cache_flash aiter::reshape_and_cache
        aiter::reshape_and_cache_flash
    """,
    cost=movement.cache_write,
    inputs="cache_slots",
)
family(
    "cache",
    "dynamic quantize",
    """
        aiter::dynamic_per_tensor_quant
        aiter::dynamic_per_token_scaled_quant aiter::per_group_quant_hip aiter::per_token_quant_hip inputs=row_numbers
    """,
    cost=elementwise.dynamic_quantize,
)
family(
    "cache",
    "geglu",
    """
        aiter::gelu_and_mul aiter::gelu_tanh_and_mul
    """,
    cost=elementwise.geglu,
)
family(
    "cache",
    "quantize",
    """
        aiter::static_per_tensor_quant
    """,
    cost=elementwise.quantize,
)
family(
    "cache",
    "rope",
    """
        aiter::rope_cached_fwd_impl aiter::rope_fwd_impl
        aiter::rope_cached_positions_2c_fwd_impl aiter::rope_cached_positions_fwd_impl inputs=positions
        aiter::rope_cached_positions_offsets_2c_fwd_impl inputs=positions
        aiter::rope_cached_positions_offsets_fwd_impl inputs=positions
    """,
    cost=elementwise.rope,
)
family(
    "cache",
    "swiglu",
    """
        aiter::scaled_silu_and_mul aiter::silu_and_mul
    """,
    cost=elementwise.swiglu,
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
