# pyright: strict
"""Device costs, initializers and work counters of the `aten` ops."""

from __future__ import annotations

from opreplay.replay.ops.table import family

family(
    "aten",
    "without a cost of their own",
    """
        aten::__lshift__ aten::__rshift__ aten::_foreach_addcdiv aten::_foreach_addcdiv_ aten::_foreach_div
        aten::_foreach_div_ aten::_foreach_log aten::_foreach_log_ aten::_foreach_mul_ aten::_foreach_pow
        aten::_foreach_pow_ aten::_foreach_reciprocal aten::_foreach_reciprocal_ aten::_foreach_rsqrt
        aten::_foreach_rsqrt_ aten::_foreach_sqrt aten::_foreach_sqrt_ aten::_sample_dirichlet aten::_standard_gamma
        aten::acos aten::acos_ aten::acosh aten::acosh_ aten::addcdiv aten::addcdiv_ aten::arccos aten::arccos_
        aten::arccosh aten::arccosh_ aten::arcsin aten::arcsin_ aten::arctanh aten::arctanh_ aten::asin aten::asin_
        aten::atan2 aten::atan2_ aten::atanh aten::atanh_ aten::bernoulli aten::bernoulli_ aten::binary_cross_entropy
        aten::binary_cross_entropy_backward aten::binary_cross_entropy_with_logits
        aten::binary_cross_entropy_with_logits_backward aten::binomial aten::bitwise_left_shift
        aten::bitwise_right_shift aten::cudnn_grid_sampler aten::digamma aten::digamma_ aten::div aten::div_
        aten::divide aten::divide_ aten::erfinv aten::erfinv_ aten::float_power aten::float_power_ aten::floor_divide
        aten::floor_divide_ aten::fmod aten::fmod_ aten::grid_sampler aten::grid_sampler_2d
        aten::grid_sampler_2d_backward aten::grid_sampler_3d aten::grid_sampler_3d_backward aten::igamma aten::igamma_
        aten::igammac aten::igammac_ aten::kl_div aten::kl_div_backward aten::lgamma aten::lgamma_ aten::log aten::log10
        aten::log10_ aten::log1p aten::log1p_ aten::log2 aten::log2_ aten::log_ aten::logit aten::logit_
        aten::logit_backward aten::mul_ aten::multinomial aten::multiply_ aten::mvlgamma aten::mvlgamma_
        aten::nanquantile aten::normal aten::normal_ aten::poisson aten::polygamma aten::polygamma_ aten::pow aten::pow_
        aten::quantile aten::reciprocal aten::reciprocal_ aten::remainder aten::remainder_ aten::rsqrt aten::rsqrt_
        aten::sigmoid_backward aten::special_bessel_y0 aten::special_bessel_y1 aten::special_digamma aten::special_entr
        aten::special_erfinv aten::special_gammainc aten::special_gammaincc aten::special_gammaln aten::special_log1p
        aten::special_logit aten::special_modified_bessel_k0 aten::special_modified_bessel_k1 aten::special_multigammaln
        aten::special_ndtri aten::special_polygamma aten::special_psi aten::special_scaled_modified_bessel_k0
        aten::special_scaled_modified_bessel_k1 aten::special_xlog1py aten::special_xlogy aten::special_zeta aten::sqrt
        aten::sqrt_ aten::tanh_backward aten::true_divide aten::true_divide_ aten::xlogy aten::xlogy_
        aten::_scaled_dot_product_cudnn_attention_backward inputs=attention_backward
        aten::_scaled_dot_product_efficient_attention_backward inputs=attention_backward
        aten::_scaled_dot_product_flash_attention_backward inputs=attention_backward
        aten::_scaled_dot_product_flash_attention_for_cpu_backward inputs=attention_backward
        aten::_scaled_dot_product_fused_attention_overrideable_backward inputs=attention_backward
        aten::_efficient_attention_backward aten::_flash_attention_backward inputs=attention_backward role=lengths
        aten::_fused_sdp_choice aten::_masked_softmax aten::_scaled_dot_product_attention_math inputs=attention_mask
        aten::_scaled_dot_product_cudnn_attention aten::_scaled_dot_product_efficient_attention inputs=attention_mask
        aten::_scaled_dot_product_flash_attention_for_cpu inputs=attention_mask
        aten::_scaled_dot_product_fused_attention_overrideable aten::scaled_dot_product_attention inputs=attention_mask
        aten::_pack_padded_sequence_backward aten::_pad_packed_sequence aten::gru aten::lstm inputs=batch_sizes
        aten::quantized_gru aten::quantized_lstm aten::rnn_relu aten::rnn_tanh inputs=batch_sizes
        aten::_convert_indices_from_coo_to_csr aten::_convert_indices_from_csr_to_coo inputs=compressed
        aten::_validate_sparse_bsr_tensor_args aten::_validate_sparse_compressed_tensor_args inputs=compressed
        aten::_validate_sparse_csr_tensor_args aten::sparse_bsc_tensor aten::sparse_bsr_tensor inputs=compressed
        aten::sparse_compressed_tensor aten::sparse_csc_tensor aten::sparse_csr_tensor inputs=compressed
        aten::_ctc_loss aten::_ctc_loss_backward aten::_cudnn_ctc_loss aten::ctc_loss aten::miopen_ctc_loss inputs=ctc
        aten::_efficient_attention_forward inputs=cumulative_lengths,attention_mask
        aten::_flash_attention_forward inputs=cumulative_lengths
        aten::_masked_scale aten::native_dropout_backward inputs=dropout_mask
        aten::_embedding_bag aten::_embedding_bag_backward aten::_embedding_bag_dense_backward inputs=embedding_bag
        aten::_embedding_bag_forward_only aten::_embedding_bag_per_sample_weights_backward inputs=embedding_bag
        aten::embedding_bag inputs=embedding_bag
        aten::_unique aten::_unique2 aten::argsort aten::kthvalue aten::median aten::mode aten::msort inputs=few_ties
        aten::sort aten::topk aten::unique_dim inputs=few_ties
        aten::bincount aten::cross_entropy_loss aten::embedding aten::embedding_backward inputs=index
        aten::embedding_dense_backward aten::embedding_renorm_ aten::embedding_sparse_backward aten::gather inputs=index
        aten::gather_backward aten::index_add aten::index_add_ aten::index_copy aten::index_copy_ inputs=index
        aten::index_fill aten::index_fill_ aten::index_reduce aten::index_reduce_ aten::index_select inputs=index
        aten::index_select_backward aten::multi_margin_loss aten::multi_margin_loss_backward inputs=index
        aten::multilabel_margin_loss_backward aten::multilabel_margin_loss_forward aten::nll_loss inputs=index
        aten::nll_loss2d aten::nll_loss2d_backward aten::nll_loss2d_forward aten::nll_loss_backward inputs=index
        aten::nll_loss_forward aten::nll_loss_nd aten::one_hot aten::put aten::put_ aten::scatter inputs=index
        aten::scatter_ aten::scatter_add aten::scatter_add_ aten::scatter_reduce aten::scatter_reduce_ inputs=index
        aten::take aten::take_along_dim aten::tensor_split aten::value_selecting_reduction_backward inputs=index
        aten::_index_put_impl_ aten::index aten::index_put aten::index_put_ inputs=index_list
        aten::_jagged_to_padded_dense_forward aten::_padded_dense_to_jagged_forward inputs=jagged
        aten::argwhere aten::count_nonzero aten::masked_fill aten::masked_fill_ aten::masked_select inputs=mask
        aten::nonzero aten::nonzero_static aten::where inputs=mask
        aten::masked_scatter aten::masked_scatter_ inputs=masked_scatter
        aten::_grouped_mm aten::_scaled_grouped_mm inputs=moe_routing role=groups
        aten::_assert_async aten::_functional_assert_async aten::_linalg_check_errors inputs=no_error
        aten::_pack_padded_sequence inputs=packed_lengths
        aten::_nested_tensor_from_mask aten::_nested_tensor_from_mask_left_aligned inputs=padding_mask
        aten::linalg_ldl_solve aten::linalg_lu_solve aten::lu_solve aten::lu_unpack inputs=pivots
        aten::adaptive_max_pool2d_backward aten::adaptive_max_pool3d_backward inputs=pool_indices
        aten::max_pool2d_with_indices_backward aten::max_pool3d_with_indices_backward inputs=pool_indices
        aten::_dyn_quant_matmul_4bit aten::_weight_int4pack_mm aten::_weight_int4pack_mm_for_cpu inputs=quantized
        aten::repeat_interleave inputs=repeats
        aten::_log_softmax_backward_data aten::_masked_softmax_backward inputs=saved_softmax
        aten::_softmax_backward_data inputs=saved_softmax
        aten::_segment_reduce_backward aten::segment_reduce inputs=segments
        aten::masked_select_backward inputs=selected
        aten::bucketize aten::searchsorted inputs=sorted
        aten::max_unpool2d aten::max_unpool3d inputs=unpool_indices
        aten::_linalg_det aten::_linalg_eigh aten::_linalg_slogdet aten::_linalg_solve_ex inputs=well_conditioned
        aten::cholesky aten::cholesky_inverse aten::cholesky_solve aten::inverse inputs=well_conditioned
        aten::linalg_cholesky aten::linalg_cholesky_ex aten::linalg_eig aten::linalg_eigh inputs=well_conditioned
        aten::linalg_inv aten::linalg_inv_ex aten::linalg_lu aten::linalg_lu_factor_ex inputs=well_conditioned
        aten::linalg_solve aten::linalg_solve_ex aten::linalg_solve_triangular inputs=well_conditioned
        aten::triangular_solve inputs=well_conditioned
        aten::_int_mm aten::_weight_int8pack_mm inputs=quantized role=scaled_product
        aten::_fake_quantize_learnable_per_channel_affine inputs=quantized role=affine
        aten::_fake_quantize_learnable_per_tensor_affine inputs=quantized role=affine
        aten::_fake_quantize_per_tensor_affine_cachemask_tensor_qparams inputs=quantized role=affine
        aten::fake_quantize_per_channel_affine inputs=quantized role=affine
        aten::fake_quantize_per_channel_affine_cachemask inputs=quantized role=affine
        aten::fake_quantize_per_tensor_affine aten::quantize_per_channel inputs=quantized role=affine
        aten::quantize_per_tensor inputs=quantized role=affine
    """,
    inputs="domain",
)
