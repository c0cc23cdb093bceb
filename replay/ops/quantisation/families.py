# pyright: strict
"""Device costs, initializers and work counters of the `quantisation` ops."""

from __future__ import annotations

from opreplay.replay.ops.costs.layers import moe
from opreplay.replay.ops.costs.pointwise import elementwise
from opreplay.replay.ops.costs.rows import norms
from opreplay.replay.ops.costs.vendor import shared
from opreplay.replay.ops.table import family

family(
    "quantisation",
    "fused experts",
    """
        sglang::rocm_aiter_asm_moe_tkw1 vllm::rocm_aiter_asm_moe vllm::rocm_aiter_asm_moe_tkw1 vllm::rocm_aiter_ck_moe
        vllm::rocm_aiter_ck_moe_2stages
    """,
    cost=moe.fused_experts,
    inputs="moe_routing",
    role="chosen",
)
family(
    "quantisation",
    "gating",
    """
        sgl_kernel::kimi_k2_moe_fused_gate sglang::fused_topk_deepseek sglang::moe_topk_sigmoid_out
        sglang::moe_topk_softmax_out vllm::rocm_aiter_fused_topk
    """,
    cost=moe.gating,
    inputs="moe_routing",
    role="router",
)
family(
    "quantisation",
    "dynamic quantize",
    """
        _C::dynamic_per_token_scaled_fp8_quant _C::dynamic_scaled_fp8_quant _C::dynamic_scaled_int8_quant
        _C::per_token_group_fp8_quant aiter::dynamic_per_tensor_quant aiter::smoothquant_fwd
        sgl_kernel::sgl_per_token_group_quant_8bit_v2 sgl_kernel::sgl_per_token_quant_fp8 sglang::per_token_group_quant
        sglang::per_token_group_quant_8bit sglang::per_token_group_quant_8bit_v2 vllm::rocm_aiter_group_fp8_quant
        vllm::rocm_aiter_per_tensor_quant vllm::rocm_aiter_per_token_quant aiter::dynamic_per_group_scaled_quant_fp4
        sglang::per_token_quant_fp8 like=sgl_kernel::sgl_per_token_quant_fp8
        sglang::per_tensor_quant_fp8 like=sgl_kernel::sgl_per_tensor_quant_fp8
        vllm::triton_per_token_group_quant_fp8 like=vllm::rocm_aiter_group_fp8_quant
        npu::npu_dynamic_quant inputs=row_numbers role=row_group_ends
        aiter::dynamic_per_group_scaled_quant inputs=row_numbers role=all_input_rows
        aiter::per_group_quant_hip inputs=row_numbers role=all_rows
        aiter::smooth_per_token_scaled_quant inputs=row_numbers role=smoothed_rows
        aiter::moe_smoothquant_fwd inputs=row_numbers role=expert_ids
        aiter::dynamic_per_token_scaled_quant like=_C::dynamic_per_token_scaled_fp8_quant result=out scale=scales \
            inputs=row_numbers role=all_input_rows
        aiter::per_token_quant_hip like=vllm::rocm_aiter_per_token_quant inputs=row_numbers role=all_rows
        _C::per_token_group_quant_int8 like=_C::per_token_group_fp8_quant fp8_max=int8_max scale_ue8m0=False
        sgl_kernel::sgl_per_token_group_quant_8bit sgl_kernel::sgl_per_token_group_quant_fp8 \
            sgl_kernel::sgl_per_token_group_quant_int8 like=_C::per_token_group_fp8_quant
    """,
    cost=elementwise.dynamic_quantize,
)
family(
    "quantisation",
    "quantize",
    """
        _C::static_scaled_fp8_quant _C::static_scaled_int8_quant npu::npu_quantize sgl_kernel::sgl_per_tensor_quant_fp8
        vllm::quantize _C::scaled_fp8_quant npu::npu_ascend_quant_v2 npu::npu_quantize_per_channel
        aiter::static_per_tensor_quant like=_C::static_scaled_fp8_quant result=out
    """,
    cost=elementwise.quantize,
)
family(
    "quantisation",
    "swiglu",
    """
        _C::silu_and_mul_per_block_quant sglang::_run_activation_filtered_inplace sglang::_run_activation_inplace
        sglang::_run_activation_with_rounding_inplace
    """,
    cost=elementwise.swiglu,
)
family("quantisation", "layer norm", "sglang::layernorm", cost=norms.layer_norm)
family(
    "quantisation",
    "hadamard",
    """
        _C::hadacore_transform sgl_kernel::fast_hadamard_transform sglang::hadamard_transform
        torchao::hadamard_transform
    """,
    cost=shared.hadamard,
)
family(
    "quantisation",
    "one kernel over the widest tensor",
    """
        vllm::muls_add kernel=Add
        sglang::_run_unary_activation_inplace kernel=Gelu
        sglang::per_tensor_absmax_fp8 kernel=ReduceMax
    """,
    kernels=shared.widest,
)
family(
    "quantisation",
    "without a cost of their own",
    """
        fbgemm::FloatToFP8RowwiseQuantized fbgemm::FloatToHFP8Quantized
        fbgemm::FP8RowwiseQuantizedToFloat inputs=quantized role=fp8_rows
        fbgemm::HFP8QuantizedToFloat inputs=quantized role=fp8_codes
    """,
)
family(
    "quantisation",
    "dynamic quantize with published schemas",
    """
        npu::npu_dynamic_block_quant npu::npu_dynamic_block_mx_quant npu::npu_dynamic_mx_quant
        npu::npu_dynamic_dual_level_mx_quant npu::npu_grouped_dynamic_mx_quant npu::npu_rotate_quant
    """,
    cost=elementwise.dynamic_quantize,
)
family(
    "quantisation",
    "dynamic quantize along both axes",
    "npu::npu_dynamic_mx_quant_with_dual_axis",
    cost=elementwise.both_axes_quantize,
)
family(
    "quantisation",
    "dynamic quantize of grouped blocks",
    "npu::npu_grouped_dynamic_block_quant",
    cost=elementwise.grouped_block_quantize,
)
family(
    "quantisation",
    "quantize with published schemas",
    "npu::npu_group_quant npu::npu_gelu_quant npu::npu_anti_mx_quant npu::npu_quant_max",
    cost=elementwise.quantize,
)
