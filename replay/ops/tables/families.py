# pyright: strict
"""Device costs, initializers and work counters of the `tables` ops."""

from __future__ import annotations

from opreplay.replay.ops.costs.moves import indexing
from opreplay.replay.ops.costs.pointwise import elementwise
from opreplay.replay.ops.costs.products import matmul
from opreplay.replay.ops.costs.rows import norms
from opreplay.replay.ops.costs.vendor import fbgemm, products, shared
from opreplay.replay.ops.table import family

family(
    "tables",
    "rows of table",
    """
        fb::fast_gather fbgemm::index_select_dim0 role=indices,input,0
        fbgemm::gather_along_first_dim like=fbgemm::index_select_dim0 input=Data indices=Index role=Index,Data,0
    """,
    cost=indexing.rows_of_table,
    inputs="index",
)
family(
    "tables",
    "rows put",
    "fbgemm::scatter_add_along_first_dim",
    cost=indexing.rows_put,
    inputs="index",
    role="Index,Dst,0",
)
family(
    "tables",
    "dynamic quantize",
    "fbgemm::quantize_fp8_per_col fbgemm::quantize_fp8_per_row fbgemm::quantize_fp8_per_tensor",
    cost=elementwise.dynamic_quantize,
)
family(
    "tables",
    "quantized",
    """
        fbgemm::f8f8bf16 fbgemm::f8f8bf16_blockwise fbgemm::f8f8bf16_rowwise fbgemm::f8f8bf16_tensorwise
        fbgemm::f8f8bf16_v2
    """,
    cost=matmul.quantized,
)
family("tables", "rms norm", "fb::rms_norm", cost=norms.rms_norm)
family(
    "tables",
    "not predicted",
    """
        fbgemm::split_embedding_backward_codegen_rowwise_adagrad_cpu fbgemm::split_embedding_codegen_forward_cpu
        fbgemm::split_embedding_codegen_grad_indice_weights_cpu
    """,
    uncosted="runs on the CPU, where its tables are",
    inputs="embedding_tables",
)
family("tables", "checked", "fbgemm::bounds_check_indices", cost=fbgemm.check_indices, inputs="jagged")
family(
    "tables",
    "permuted",
    """
        fbgemm::block_bucketize_sparse_features fbgemm::permute_1D_sparse_data fbgemm::permute_2D_sparse_data
        fbgemm::permute_pooled_embs fbgemm::permute_pooled_embs_auto_grad fbgemm::permute_sparse_data
        fbgemm::permute_sparse_features fbgemm::recat_embedding_grad_output_mixed_D_batch
        fbgemm::permute_multi_embedding fbgemm::permute_multi_embedding_function inputs=regroup
        fbgemm::group_index_select_dim0 inputs=row_numbers role=grouped_rows
        fbgemm::permute_sequence_embeddings fbgemm::recat_embedding_grad_output fbgemm::merge_pooled_embeddings inputs=
        fbgemm::permute_duplicate_pooled_embs_auto_grad inputs=
    """,
    cost=fbgemm.reorder_segments,
    inputs="jagged",
)
family(
    "tables",
    "scanned",
    """
        fbgemm::segment_sum_csr
        fbgemm::asynchronous_complete_cumsum fbgemm::asynchronous_exclusive_cumsum role=cumsum
        fbgemm::asynchronous_inclusive_cumsum role=cumsum
        fb::asynchronous_complete_cumsum like=fbgemm::asynchronous_complete_cumsum role=cumsum
    """,
    cost=fbgemm.scan_row,
    inputs="jagged",
)
family(
    "tables",
    "jagged rows",
    "fbgemm::jagged_dense_bmm fbgemm::jagged_dense_bmm_forward",
    cost=products.jagged_rows,
    inputs="jagged",
)
family(
    "tables",
    "sums by sequence",
    "fbgemm::jagged_jagged_bmm fbgemm::jagged_jagged_bmm_forward",
    cost=products.sums_by_sequence,
    inputs="jagged",
)
family(
    "tables",
    "one kernel over the widest tensor",
    """
        fb::convex_sum fb::scale_gradient kernel=Mul
        fbgemm::jagged_dense_dense_elementwise_add_jagged_output kernel=Add inputs=jagged
        fbgemm::jagged_dense_dense_elementwise_add_jagged_output_forward kernel=Add inputs=jagged
        fbgemm::jagged_dense_elementwise_add fbgemm::jagged_dense_elementwise_add_jagged_output kernel=Add inputs=jagged
        fbgemm::dense_to_jagged fbgemm::dense_to_jagged_forward fbgemm::invert_permute kernel=GatherV2 inputs=jagged
        fbgemm::jagged_to_padded_dense_backward kernel=GatherV2 inputs=jagged
        fbgemm::batched_dense_vec_jagged_2d_mul fbgemm::batched_dense_vec_jagged_2d_mul_forward kernel=Mul inputs=jagged
        fbgemm::jagged_dense_elementwise_mul fbgemm::jagged_dense_elementwise_mul_backward kernel=Mul inputs=jagged
        fbgemm::jagged_dense_elementwise_mul_forward kernel=Mul inputs=jagged
        fbgemm::jagged_1d_to_dense fbgemm::jagged_2d_to_dense fbgemm::jagged_to_padded_dense kernel=PadV3 inputs=jagged
        fbgemm::jagged_to_padded_dense_forward fbgemm::pack_segments kernel=PadV3 inputs=jagged
        fb::lengths_range_w_truncation_size fb::offsets_range fbgemm::offsets_range kernel=Range inputs=jagged
        fb::sparse_label_to_bool fb::sparse_label_to_dense kernel=ScatterElements inputs=jagged
        fb::to_dense_representation kernel=ScatterElements inputs=jagged
        fbgemm::jagged_softmax_backward kernel=SoftmaxGrad inputs=jagged
        fbgemm::jagged_softmax fbgemm::jagged_softmax_forward kernel=SoftmaxV2 inputs=jagged
        fbgemm::pack_segments_backward kernel=GatherV2 inputs=row_numbers role=segment_lengths
        fbgemm::silu_mul kernel=SwiGlu inputs=row_numbers role=valid_tokens
    """,
    kernels=shared.widest,
)
family(
    "tables",
    "without a cost of their own",
    """
        fbgemm::split_embedding_codegen_forward_unweighted_cuda fbgemm::split_embedding_codegen_forward_weighted_cuda
        fbgemm::split_embedding_codegen_lookup_adagrad_function
        fbgemm::split_embedding_codegen_lookup_adagrad_function_cpu fbgemm::split_embedding_codegen_lookup_adam_function
        fbgemm::split_embedding_codegen_lookup_adam_function_cpu
        fbgemm::split_embedding_codegen_lookup_approx_rowwise_adagrad_function
        fbgemm::split_embedding_codegen_lookup_approx_rowwise_adagrad_function_cpu
        fbgemm::split_embedding_codegen_lookup_approx_sgd_function
        fbgemm::split_embedding_codegen_lookup_approx_sgd_function_cpu fbgemm::split_embedding_codegen_lookup_function
        fbgemm::split_embedding_codegen_lookup_function_cpu fbgemm::split_embedding_codegen_lookup_lamb_function
        fbgemm::split_embedding_codegen_lookup_lamb_function_cpu
        fbgemm::split_embedding_codegen_lookup_lars_sgd_function
        fbgemm::split_embedding_codegen_lookup_lars_sgd_function_cpu
        fbgemm::split_embedding_codegen_lookup_partial_rowwise_adam_function
        fbgemm::split_embedding_codegen_lookup_partial_rowwise_adam_function_cpu
        fbgemm::split_embedding_codegen_lookup_partial_rowwise_lamb_function
        fbgemm::split_embedding_codegen_lookup_partial_rowwise_lamb_function_cpu
        fbgemm::split_embedding_codegen_lookup_rowwise_adagrad_function
        fbgemm::split_embedding_codegen_lookup_rowwise_adagrad_with_counter_function
        fbgemm::split_embedding_codegen_lookup_rowwise_adagrad_with_counter_function_cpu
        fbgemm::split_embedding_codegen_lookup_rowwise_weighted_adagrad_function
        fbgemm::split_embedding_codegen_lookup_rowwise_weighted_adagrad_function_cpu
        fbgemm::split_embedding_codegen_lookup_sgd_function fbgemm::split_embedding_codegen_lookup_sgd_function_cpu
        fbgemm::asynchronous_batched_complete_cumsum inputs=jagged role=cumsum
        fbgemm::batched_dense_vec_jagged_2d_mul_backward fbgemm::bucketize_sparse_features inputs=jagged
        fbgemm::expand_into_jagged_permute fbgemm::jagged_slice inputs=jagged
        fbgemm::jagged_index_select inputs=jagged role=row_numbers
        fbgemm::lengths_range inputs=jagged
        fbgemm::dense_embedding_codegen_lookup_function like=fbgemm::split_embedding_codegen_forward_cpu \
            weights=dev_weights
        fbgemm::split_embedding_codegen_lookup_rowwise_adagrad_function_cpu \
            like=fbgemm::split_embedding_codegen_forward_cpu weights=host_weights
        fbgemm::Fused8BitRowwiseQuantizedToBfloat16 inputs=quantized role=byte_rows
        fbgemm::Fused8BitRowwiseQuantizedToFloat inputs=quantized role=byte_rows
        fbgemm::Fused8BitRowwiseQuantizedToFloatOrHalf inputs=quantized role=byte_rows
        fbgemm::Fused8BitRowwiseQuantizedToHalf inputs=quantized role=byte_rows
    """,
    inputs="embedding_tables",
)
