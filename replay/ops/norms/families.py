# pyright: strict
"""Device costs, initializers and work counters of the `norms` ops."""

from __future__ import annotations

from opreplay.replay.ops.costs.pointwise import elementwise, losses
from opreplay.replay.ops.costs.rows import norms
from opreplay.replay.ops.costs.vendor import shared
from opreplay.replay.ops.table import family

family(
    "norms",
    "dynamic quantize",
    "npu::npu_dynamic_quant_asymmetric role=row_group_ends",
    cost=elementwise.dynamic_quantize,
    inputs="row_numbers",
)
family(
    "norms",
    "fused cross entropy",
    "npu::npu_cross_entropy_loss",
    cost=losses.fused_cross_entropy,
    inputs="index",
    role="target,input,1",
)
family(
    "norms",
    "fused cross entropy backward",
    "npu::npu_cross_entropy_loss_backward",
    cost=losses.fused_cross_entropy_backward,
    inputs="index",
    role="target,log_prob,1",
)
family(
    "norms",
    "add rms norm",
    """
        _C::fused_add_rms_norm_static_fp8_quant _C_ascend::npu_add_rms_norm_bias aiter::_fused_rmsnorm_add
        aiter::add_rmsnorm_quant aiter::rmsnorm2d_fwd_with_add_smoothquant npu::npu_add_rms_norm_cast
        npu::npu_add_rms_norm_dynamic_quant npu::npu_add_rms_norm_quant npu::npu_add_rms_norm_v2
        vllm::rocm_aiter_rmsnorm_fused_add_dynamic_quant vllm::rocm_aiter_rmsnorm_with_add_fp8_group_quant
        vllm::rocm_aiter_triton_add_rmsnorm_pad vllm_ir::fused_add_rms_norm
        vllm::rocm_aiter_rmsnorm2d_fwd_with_add like=aiter::_fused_rmsnorm_add res1=residual \
            epsilon=variance_epsilon
        aiter::add_rmsnorm aiter::rmsnorm2d_fwd_with_add aiter::rmsnorm2d_fwd_with_add_ck \
            like=aiter::_fused_rmsnorm_add x=input res1=residual_in into=out,residual_out
        _C::fused_add_rms_norm like=aiter::_fused_rmsnorm_add x=input res1=residual into=input,residual
        sgl_kernel::fused_add_rmsnorm like=aiter::_fused_rmsnorm_add x=input res1=residual epsilon=eps \
            into=input,residual
        sgl_kernel::gemma_fused_add_rmsnorm like=aiter::_fused_rmsnorm_add x=input res1=residual epsilon=eps \
            gemma_norm=True into=input,residual
        aiter::fused_add_rms_norm_cu like=aiter::_fused_rmsnorm_add x=input res1=residual_in into=input,residual_in
        sglang_profiler::rmsnorm_rmsnorm2d_fwd_with_add like=aiter::_fused_rmsnorm_add x=input res1=residual_in \
            epsilon=1e-06 into=out,residual_out
        aiter::rmsnorm2d_fwd_with_add_dynamicquant aiter::rmsnorm2d_fwd_with_add_dynamicquant_ck \
            like=vllm::rocm_aiter_rmsnorm_fused_add_dynamic_quant x=input residual=residual_in quant_dtype=out.dtype \
            into=out,residual_out,yscale
        npu::npu_add_rms_norm npu::npu_add_rms_norm_v2_functional like=_C_ascend::npu_add_rms_norm_bias
    """,
    cost=norms.add_rms_norm,
)
family(
    "norms",
    "group norm",
    "aiter::_groupnorm_run npu::npu_group_norm_silu npu::npu_group_norm_swish",
    cost=norms.group_norm,
)
family(
    "norms",
    "layer norm",
    "aiter::layer_norm aiter::layernorm2d_fwd npu::npu_add_layer_norm npu::npu_deep_norm npu::npu_layer_norm_eval",
    cost=norms.layer_norm,
)
family("norms", "layer norm backward", "npu::npu_layernorm_grad", cost=norms.layer_norm_backward)
family("norms", "rms norm", "npu::npu_gemma_rms_norm npu::npu_rms_norm", cost=norms.rms_norm)
family("norms", "rms norm backward", "npu::npu_rms_norm_backward", cost=norms.rms_norm_backward)
family(
    "norms",
    "vendor rms norm",
    """
        _C::rms_norm_dynamic_per_token_quant _C::rms_norm_per_block_quant _C::rms_norm_static_fp8_quant
        _C_ascend::npu_rms_norm_dynamic_quant aiter::rms_norm aiter::rmsnorm2d_fwd aiter::rmsnorm2d_fwd_ck
        aiter::rmsnorm2d_fwd_with_smoothquant aiter::rmsnorm_quant npu::npu_rms_norm_quant
        vllm::rocm_aiter_rmsnorm_fp8_group_quant vllm::rocm_aiter_rmsnorm_fused_dynamic_quant vllm_ir::rms_norm
        sglang::rmsnorm
        aiter::rms_norm_cu aiter::rmsnorm like=aiter::rms_norm into=out
        _C::rms_norm like=aiter::rms_norm into=result
        sgl_kernel::rmsnorm like=aiter::rms_norm epsilon=eps into=output
        sgl_kernel::gemma_rmsnorm like=aiter::rms_norm epsilon=eps gemma_norm=True into=output
        aiter::_fused_rmsnorm like=aiter::rms_norm input=x
        vllm::rocm_aiter_rms_norm like=aiter::rms_norm input=x epsilon=variance_epsilon
        sglang_profiler::rmsnorm_rmsnorm2d_fwd like=aiter::rms_norm epsilon=1e-06
        aiter::rmsnorm2d_fwd_with_dynamicquant aiter::rmsnorm2d_fwd_with_dynamicquant_ck \
            like=vllm::rocm_aiter_rmsnorm_fused_dynamic_quant x=input quant_dtype=out.dtype into=out,yscale
        _C_ascend::npu_gemma_rms_norm like=npu::npu_gemma_rms_norm self=x
    """,
    cost=norms.vendor_rms_norm,
)
family(
    "norms",
    "backward of sum",
    "npu::npu_add_layer_norm_backward npu::npu_deep_norm_backward",
    cost=shared.backward_of_sum,
)
family(
    "norms",
    "added layer norm",
    """
        aiter::layernorm2d_fwd_with_add aiter::layernorm2d_fwd_with_add_smoothquant aiter::layernorm2d_with_add_asm
        aiter::layernorm2d_with_add_smoothquant_asm
    """,
    cost=shared.added_layer_norm,
)
family("norms", "norm and rope", "_C::fused_qk_norm_rope", cost=shared.norm_and_rope, inputs="positions")
family(
    "norms",
    "one kernel over the widest tensor",
    """
        npu::npu_trans_quant_param kernel=Cast
        npu::npu_group_norm_swish_grad kernel=GroupNormGrad
        _C::poly_norm kernel=RmsNorm
        npu::npu_softmax_cross_entropy_with_logits_backward kernel=SoftmaxGrad
        npu::npu_softmax_cross_entropy_with_logits kernel=SoftmaxV2
    """,
    kernels=shared.widest,
)
family("norms", "norm of each", "aiter::_fused_qk_rmsnorm_kernel", cost=shared.norm_of_each)
family("norms", "layer norm quantised", "aiter::layernorm2d_fwd_with_smoothquant", cost=shared.layer_norm_quantised)
family(
    "norms",
    "not predicted",
    "sglang_profiler::utils__reshape_for_qk_norm sglang_profiler::utils_apply_qk_norm",
    uncosted="a wrapper in Python: the ops inside it are recorded separately",
)
family(
    "norms",
    "add rms norm with published schemas",
    "npu::npu_add_rms_norm_dynamic_mx_quant",
    cost=norms.add_rms_norm_mx,
)
family(
    "norms",
    "rms norm with published schemas",
    "npu::npu_rms_norm_dynamic_mx_quant npu::npu_rms_norm_quant_v2",
    cost=norms.vendor_rms_norm,
)
family(
    "norms",
    "rms norm backward with published schemas",
    "npu::_npu_rms_norm_backward_quant",
    cost=norms.rms_norm_backward,
)
