# pyright: strict
"""Ops of the family `norms`: cost on a device, initializer and counter of work of each."""

from __future__ import annotations

from opreplay.replay.ops.costs.moves import movement
from opreplay.replay.ops.costs.pointwise import elementwise, losses, random_fill
from opreplay.replay.ops.costs.products import matmul
from opreplay.replay.ops.costs.rows import norms
from opreplay.replay.ops.costs.vendor import shared
from opreplay.replay.ops.table import family

family(
    "norms",
    "cache write",
    """
        npu::_npu_reshape_and_cache npu::npu_scatter_pa_kv_cache
        npu::npu_kv_rmsnorm_rope_cache npu::npu_scatter_nd_update inputs=row_numbers
    """,
    cost=movement.cache_write,
    inputs="cache_slots",
)
family(
    "norms",
    "cast",
    """
        npu::_npu_dtype_cast npu::npu_dtype_cast
    """,
    cost=elementwise.cast,
)
family(
    "norms",
    "clone",
    """
        npu::npu_format_cast
    """,
    cost=elementwise.clone,
)
family(
    "norms",
    "dynamic quantize",
    """
        npu::npu_dynamic_quant npu::npu_dynamic_quant_asymmetric
    """,
    cost=elementwise.dynamic_quantize,
    inputs="row_numbers",
)
family(
    "norms",
    "quantize",
    """
        npu::npu_quantize
    """,
    cost=elementwise.quantize,
)
family(
    "norms",
    "rope",
    """
        npu::npu_apply_rotary_pos_emb npu::npu_interleave_rope npu::npu_rotary_mul
        npu::npu_mrope inputs=positions
    """,
    cost=elementwise.rope,
)
family(
    "norms",
    "swiglu",
    """
        npu::npu_swiglu
    """,
    cost=elementwise.swiglu,
)
family(
    "norms",
    "swiglu backward",
    """
        npu::npu_swiglu_backward
    """,
    cost=elementwise.swiglu_backward,
)
family(
    "norms",
    "vendor activation",
    """
        npu::npu_fast_gelu
    """,
    cost=elementwise.vendor_activation,
)
family(
    "norms",
    "fused cross entropy",
    """
        npu::npu_cross_entropy_loss
    """,
    cost=losses.fused_cross_entropy,
    inputs="index",
)
family(
    "norms",
    "fused cross entropy backward",
    """
        npu::npu_cross_entropy_loss_backward
    """,
    cost=losses.fused_cross_entropy_backward,
    inputs="index",
)
family(
    "norms",
    "dropout",
    """
        npu::_npu_dropout
    """,
    cost=random_fill.dropout,
)
family(
    "norms",
    "dropout backward",
    """
        npu::npu_dropout_backward
    """,
    cost=random_fill.dropout_backward,
)
family(
    "norms",
    "layer",
    """
        npu::npu_linear
    """,
    cost=matmul.layer,
)
family(
    "norms",
    "quantized",
    """
        npu::npu_quant_matmul
    """,
    cost=matmul.quantized,
    inputs="quantized",
)
family(
    "norms",
    "add rms norm",
    """
        _C::fused_add_rms_norm _C::fused_add_rms_norm_static_fp8_quant _C_ascend::npu_add_rms_norm_bias
        aiter::add_rmsnorm aiter::rmsnorm2d_fwd_with_add aiter::rmsnorm2d_fwd_with_add_ck
        aiter::rmsnorm2d_fwd_with_add_dynamicquant aiter::rmsnorm2d_fwd_with_add_dynamicquant_ck npu::npu_add_rms_norm
        npu::npu_add_rms_norm_cast npu::npu_add_rms_norm_dynamic_quant npu::npu_add_rms_norm_quant
        npu::npu_add_rms_norm_v2 npu::npu_add_rms_norm_v2_functional
    """,
    cost=norms.add_rms_norm,
)
family(
    "norms",
    "group norm",
    """
        aiter::_groupnorm_run npu::npu_group_norm_silu npu::npu_group_norm_swish
    """,
    cost=norms.group_norm,
)
family(
    "norms",
    "layer norm",
    """
        aiter::layernorm2d_fwd npu::npu_add_layer_norm npu::npu_deep_norm npu::npu_layer_norm_eval
    """,
    cost=norms.layer_norm,
)
family(
    "norms",
    "layer norm backward",
    """
        npu::npu_layernorm_grad
    """,
    cost=norms.layer_norm_backward,
)
family(
    "norms",
    "rms norm",
    """
        npu::npu_gemma_rms_norm npu::npu_rms_norm
    """,
    cost=norms.rms_norm,
)
family(
    "norms",
    "rms norm backward",
    """
        npu::npu_rms_norm_backward
    """,
    cost=norms.rms_norm_backward,
)
family(
    "norms",
    "vendor rms norm",
    """
        _C::rms_norm _C::rms_norm_dynamic_per_token_quant _C::rms_norm_per_block_quant _C::rms_norm_static_fp8_quant
        _C_ascend::npu_gemma_rms_norm _C_ascend::npu_rms_norm_dynamic_quant aiter::rms_norm aiter::rms_norm_cu
        aiter::rmsnorm aiter::rmsnorm2d_fwd aiter::rmsnorm2d_fwd_ck aiter::rmsnorm2d_fwd_with_dynamicquant
        aiter::rmsnorm2d_fwd_with_dynamicquant_ck aiter::rmsnorm_quant npu::npu_rms_norm_quant
    """,
    cost=norms.vendor_rms_norm,
)
family(
    "norms",
    "backward of sum",
    """
        npu::npu_add_layer_norm_backward npu::npu_deep_norm_backward
    """,
    cost=shared.backward_of_sum,
)
family(
    "norms",
    "added layer norm",
    """
        aiter::layernorm2d_fwd_with_add
    """,
    cost=shared.added_layer_norm,
)
family(
    "norms",
    "norm and rope",
    """
        _C::fused_qk_norm_rope
    """,
    cost=shared.norm_and_rope,
    inputs="positions",
)
family(
    "norms",
    "one kernel over the widest tensor",
    """
        npu::_npu_format_cast npu::npu_trans_quant_param kernel=Cast
        npu::npu_gelu kernel=Gelu
        npu::npu_group_norm_swish_grad kernel=GroupNormGrad
        _C::poly_norm kernel=RmsNorm
        npu::npu_softmax_cross_entropy_with_logits_backward kernel=SoftmaxGrad
        npu::npu_softmax_cross_entropy_with_logits kernel=SoftmaxV2
        npu::npu_transpose kernel=Transpose
    """,
    kernels=shared.widest,
)
family(
    "norms",
    "without a cost of their own",
    """
        npu::npu_scatter_nd_update_
    """,
    inputs="row_numbers",
)
