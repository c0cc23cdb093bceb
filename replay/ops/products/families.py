# pyright: strict
"""Device costs, initializers and work counters of the `products` ops."""

from __future__ import annotations

from opreplay.replay.ops.costs.layers import moe
from opreplay.replay.ops.costs.moves import views
from opreplay.replay.ops.costs.pointwise import elementwise
from opreplay.replay.ops.costs.products import matmul, weight_only
from opreplay.replay.ops.costs.vendor import products, shared
from opreplay.replay.ops.table import family

family(
    "products",
    "adapters",
    """
        _C_ascend::bgmv_expand _C_ascend::bgmv_shrink _C_ascend::sgmv_expand _C_ascend::sgmv_shrink
        _punica_C::dispatch_bgmv _punica_C::dispatch_bgmv_low_level npu::bgmv_expand npu::bgmv_shrink npu::sgmv_expand
        npu::sgmv_shrink vllm::bgmv_expand vllm::bgmv_expand_slice vllm::bgmv_shrink vllm::lora_expand vllm::lora_shrink
        vllm::sgmv_expand vllm::sgmv_expand_slice vllm::sgmv_shrink vllm::v1_expand vllm::v1_shrink
        vllm::xpu_bgmv_expand vllm::xpu_bgmv_expand_slice vllm::xpu_bgmv_shrink
    """,
    cost=moe.adapters,
    inputs="lora_adapters",
)
family(
    "products",
    "grouped product",
    """
        fbgemm::bf16bf16bf16_grouped_stacked fbgemm::f8f8bf16_rowwise_grouped_stacked
        _C_ascend::grouped_matmul_swiglu_quant _C_ascend::moe_grouped_matmul inputs=moe_routing role=groups
        npu::npu_grouped_matmul_swiglu_quant npu::npu_grouped_matmul_swiglu_quant_v2 inputs=moe_routing role=groups
    """,
    cost=moe.grouped_product,
)
family("products", "view", "_C::weak_ref_tensor", cost=views.view)
family("products", "quantize", "npu::npu_anti_quant", cost=elementwise.quantize)
family(
    "products",
    "swiglu",
    "_C_ascend::npu_dequant_swiglu_quant npu::npu_dequant_swiglu_quant npu::npu_swiglu_quant role=row_groups",
    cost=elementwise.swiglu,
    inputs="row_numbers",
)
family(
    "products",
    "layer",
    """
        aiter::gemm_a16w16 aiter::gemm_a16w16_ npu::npu_linear vllm::unquantized_gemm vllm::default_unquantized_gemm
        _rocm_C::wvSpltK aiter::tuned_gemm
        vllm::rocm_unquantized_gemm vllm::rocm_unquantized_gemm_impl like=vllm::unquantized_gemm
        _rocm_C::wvSplitK like=vllm::unquantized_gemm x=in_b weight=in_a bias=in_bias
        _rocm_C::LLMM1 like=vllm::unquantized_gemm x=in_b weight=in_a
    """,
    cost=matmul.layer,
)
family(
    "products",
    "quantized",
    """
        aiter::gemm_a8w8_blockscale_bpreshuffle sglang::flashinfer_gemm_fp8_nt_groupwise
        vllm::_rocm_aiter_preshuffled_per_token_w8a8_gemm vllm::bmm_fp8
        vllm::rocm_aiter_gemm_a8w8_blockscale_bpreshuffle vllm::rocm_aiter_hipb_mm_fp8
        vllm::rocm_aiter_triton_gemm_a8w8_blockscale vllm::rocm_aiter_w8a8_gemm vllm::w8a8_block_fp8_matmul_deepgemm
        aiter::gemm_a8w8_CK
        _C::cutlass_scaled_mm _C::cutlass_scaled_mm_azp aiter::batched_gemm_a8w8 inputs=quantized role=scaled_product
        aiter::gemm_a8w8_blockscale_ck inputs=quantized role=scaled_product
        aiter::gemm_a8w8_ck npu::npu_quant_matmul inputs=quantized role=scaled_product
        sgl_kernel::fp8_blockwise_scaled_mm sgl_kernel::fp8_scaled_mm inputs=quantized role=scaled_product
        sgl_kernel::int8_scaled_mm vllm::rocm_aiter_gemm_a8w8 inputs=quantized role=scaled_product
        vllm::rocm_aiter_gemm_a8w8_blockscale vllm::rocm_aiter_gemm_w8a8 inputs=quantized role=scaled_product
        vllm::rocm_aiter_gemm_w8a8_blockscale inputs=quantized role=scaled_product
        aiter::gemm_a8w8 aiter::gemm_a8w8_blockscale aiter::gemm_a8w8_bpreshuffle like=vllm::rocm_aiter_gemm_a8w8 \
            A=XQ B=WQ As=x_scale Bs=w_scale output_dtype=dtype inputs=quantized role=scaled_product
        aiter::gemm_a8w8_asm like=vllm::rocm_aiter_gemm_a8w8 A=XQ B=WQ As=x_scale Bs=w_scale output_dtype=Out.dtype \
            into=Out inputs=quantized role=scaled_product
        aiter::gemm_a8w8_bpreshuffle_ck aiter::gemm_a8w8_blockscale_bpreshuffle_ck \
        aiter::gemm_a8w8_blockscale_bpreshuffle_cktile aiter::gemm_a8w8_blockscale_cktile aiter::_gemm_a8w8_asm \
            like=vllm::rocm_aiter_gemm_a8w8 A=XQ B=WQ As=x_scale Bs=w_scale output_dtype=Out.dtype into=Out
        aiter::gemm_a8w8_bpreshuffle_cktile aiter::flatmm_a8w8_blockscale_asm aiter::gfx950_a8w8_blockscale_asm \
        aiter::mi350_a8w8_blockscale_asm aiter::_flatmm_a8w8_blockscale_asm aiter::_gfx950_a8w8_blockscale_asm \
            like=vllm::rocm_aiter_gemm_a8w8 A=XQ B=WQ As=x_scale Bs=w_scale output_dtype=out.dtype into=out
        aiter::gemm_a8w8_blockscale_bpreshuffle_asm aiter::_gemm_a8w8_blockscale_bpreshuffle_asm \
            like=vllm::rocm_aiter_gemm_a8w8 As=A_scale Bs=B_scale output_dtype=out.dtype into=out
        aiter::wvSplitKQ like=vllm::rocm_aiter_gemm_a8w8 A=in_b B=in_a As=scale_b Bs=scale_a \
            output_dtype=out_c.dtype into=out_c
        _rocm_C::wvSplitKQ like=vllm::rocm_aiter_gemm_a8w8 A=in_b B=in_a As=scale_b Bs=scale_a bias=in_bias \
            output_dtype=out_c.dtype into=out_c
        vllm::w8a8_triton_block_scaled_mm_func vllm::padded_cutlass vllm::dynamic_padded_cutlass \
            like=vllm::rocm_aiter_gemm_a8w8 A=qx B=weight As=x_scale Bs=weight_scale
        vllm::fp8_gemm_nt_op like=vllm::rocm_aiter_gemm_a8w8 A=q_input B=weight As=input_scale Bs=weight_scale \
            output_dtype=output.dtype into=output
        sglang::deep_gemm_fp8_fp8_bf16_nt like=vllm::rocm_aiter_gemm_a8w8 output_dtype=C.dtype into=C
        sglang::fp8_blockwise_scaled_mm like=vllm::rocm_aiter_gemm_a8w8 A=mat_a B=mat_b.t() As=scales_a \
            Bs=scales_b.t() output_dtype=out.dtype into=out
        vllm::rocm_per_tensor_float_w8a8_scaled_mm_impl like=vllm::rocm_aiter_gemm_a8w8 B=B.t() \
            output_dtype=out_dtype
        vllm::rocm_per_tensor_w8a8_scaled_mm_impl like=vllm::rocm_aiter_gemm_a8w8 A=qinput B=weight.t() As=scale_a \
            Bs=scale_b output_dtype=out_dtype
        sglang::_bmm_fp8_op sglang::flashinfer_bmm_fp8_batched like=vllm::bmm_fp8 dtype=out.dtype into=out
        sgl_kernel::bmm_fp8 like=vllm::bmm_fp8 dtype=D.dtype into=D
        sglang::flashinfer_bmm_fp8 like=vllm::rocm_aiter_gemm_a8w8 A=q_input B=weight.t() As=x_scale Bs=weight_scale \
            output_dtype=out_dtype
        _C::cutlass_scaled_mm_dq like=_C::cutlass_scaled_mm
    """,
    cost=matmul.quantized,
)
family("products", "four by eight", "_C::marlin_qqq_gemm", cost=weight_only.four_by_eight, inputs="quantized")
family(
    "products",
    "weight only",
    """
        _C::machete_mm sglang::apply_fp4_marlin_linear sglang::apply_fp8_marlin_linear
        npu::npu_weight_quant_batchmatmul_v2
        _C::allspark_w8a16_gemm _C::awq_gemm _C::fp8_marlin_gemm _C::gptq_gemm _C::gptq_marlin_gemm inputs=quantized
        _C::marlin_gemm npu::npu_weight_quant_batchmatmul sgl_kernel::gptq_gemm inputs=quantized
        sgl_kernel::gptq_marlin_gemm inputs=quantized
        sglang::unified_apply_gptq_marlin_gemm inputs=row_numbers role=marlin_groups
        sglang::unified_apply_gptq_marlin_gemm_with_wtype inputs=row_numbers role=marlin_groups
    """,
    cost=weight_only.weight_only,
)
family(
    "products",
    "repacked",
    """
        _C::machete_prepack_B npu::npu_convert_weight_to_int4pack
        _C::awq_marlin_repack _C::gptq_marlin_repack _C::gptq_shuffle sgl_kernel::awq_marlin_repack inputs=quantized
        sgl_kernel::gptq_marlin_repack sgl_kernel::gptq_shuffle inputs=quantized
    """,
    cost=shared.repacked,
)
family(
    "products",
    "named product",
    """
        _moe_C::router_gemm_bf16_fp32 aiter::batched_gemm_bf16 aiter::deepgemm_ck aiter::gemm_a16w16_atomic_
        aiter::hipb_mm fbgemm::bf16bf16bf16_grouped_dynamic fbgemm::f8f8bf16_rowwise_batched
        fbgemm::f8f8bf16_rowwise_grouped_dynamic sglang::bf16_gemm_dispatch sglang::cutedsl_tgv_bf16_gemm
        vllm::gpt_oss_router_gemm
        vllm::fp32_router_gemm_dispatch like=_moe_C::router_gemm_bf16_fp32 input=x
        aiter::LLMM1 aiter::wvSpltK aiter::wv_splitk_small_fp16_bf16 like=vllm::unquantized_gemm x=in_b weight=in_a \
            dtype=out_c.dtype into=out_c
        aiter::gemm_a16w16_asm like=vllm::unquantized_gemm x=A weight=B dtype=out.dtype into=out
        aiter::rocb_mm like=vllm::unquantized_gemm x=arg0 weight=arg1.t()
        _C::fp32_router_gemm _C::bf16_skinny_gemm _moe_C::dsv3_router_gemm like=vllm::unquantized_gemm x=mat_a \
            weight=mat_b dtype=output.dtype into=output
        _C::dsv3_fused_a_gemm like=vllm::unquantized_gemm x=mat_a weight=mat_b.t() dtype=output.dtype into=output
        _moe_C::gpt_oss_router_gemm like=vllm::unquantized_gemm x=input weight=weights dtype=output.dtype \
            into=output
        sglang::cutedsl_tgv_bf16_gemm_out like=vllm::unquantized_gemm dtype=out.dtype into=out
        vllm::min_latency_fused_qkv_a_proj like=vllm::unquantized_gemm x=input_
        sglang::cutedsl_dsv3_fused_a_gemm sglang::jit_dsv3_fused_a_gemm like=vllm::unquantized_gemm x=mat_a \
            weight=mat_b.t()
        _rocm_C::wvSplitKrc like=vllm::unquantized_gemm x=in_b weight=in_a bias=in_bias
        sgl_kernel::dsv3_fused_a_gemm like=vllm::unquantized_gemm x=mat_a weight=mat_b.t() dtype=output.dtype \
            into=output
        sgl_kernel::dsv3_router_gemm like=vllm::unquantized_gemm x=mat_a weight=mat_b dtype=output.dtype into=output
        sglang::dsv3_router_gemm like=vllm::unquantized_gemm x=hidden_states weight=router_weights \
            dtype=output.dtype into=output
        sglang::flashinfer_dsv3_router_gemm like=vllm::unquantized_gemm x=hidden_states dtype=logits.dtype \
            into=logits
    """,
    cost=shared.named_product,
)
family(
    "products",
    "widened",
    """
        npu::npu_dequant_bias
        _C::awq_dequantize sgl_kernel::awq_dequantize inputs=quantized
    """,
    cost=shared.anti_quantize,
)
family("products", "feed forward", "npu::npu_ffn", cost=products.feed_forward)
family(
    "products",
    "lists of products",
    """
        fbgemm::bf16bf16bf16_grouped fbgemm::bf16bf16bf16_grouped_cat fbgemm::f8f8bf16_rowwise_grouped
        fbgemm::f8f8bf16_rowwise_grouped_cat
    """,
    cost=products.lists_of_products,
)
family("products", "permuted product", "npu::npu_transpose_batchmatmul", cost=products.permuted_product)
family(
    "products",
    "quantised on the way",
    """
        npu::npu_quant_matmul_dequant vllm::apply_w8a8_block_fp8_linear
        vllm::dynamic_flashinfer_deepgemm_blockscale_gemm vllm::flashinfer_fp8_blockscale_gemm
    """,
    cost=products.dynamic_quant_matmul,
)
family("products", "summed over batch", "npu::npu_quant_matmul_reduce_sum", cost=products.summed_over_batch)
family(
    "products",
    "sums by sequence",
    "npu::npu_grouped_matmul_add npu::npu_grouped_matmul_add_",
    cost=products.sums_by_sequence,
    inputs="moe_routing",
    role="groups",
)
family(
    "products",
    "one kernel over the widest tensor",
    "_C::permute_cols kernel=GatherV2",
    kernels=shared.widest,
    inputs="quantized",
)
family(
    "products",
    "quantised matrix product with published schemas",
    """
        npu::npu_quant_matmul_gelu npu::npu_transpose_quant_batchmatmul npu::npu_dual_level_quant_matmul
        npu::npu_add_quant_matmul
    """,
    cost=matmul.quantized,
)
family(
    "products",
    "matrix product with published schemas",
    "npu::npu_fused_matmul npu::batch_matmul_transpose npu::softfp8_w8a16_matmul",
    cost=matmul.plain,
)
