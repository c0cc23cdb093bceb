# pyright: strict
"""Ops that move no data: views, metadata, allocation, and host-side bookkeeping."""

from __future__ import annotations

from collections.abc import Iterable

from opreplay.replay.ir.kernel import KernelCall
from opreplay.replay.ops.op_view import OpView
from opreplay.replay.ops.table import costs, costs_like

_VIEWS = """
    view view_as _unsafe_view reshape_as _reshape_alias alias as_strided as_strided_ expand expand_as permute transpose
    transpose_ t t_ numpy_T mT mH adjoint swapaxes swapdims movedim moveaxis squeeze squeeze_ unsqueeze unsqueeze_
    select slice narrow split split_with_sizes chunk tensor_split unbind unfold diagonal detach detach_ flatten
    unflatten view_as_real view_as_complex real imag resolve_conj resolve_neg lift_fresh lift_fresh_copy lift empty
    empty_like empty_strided new_empty new_empty_strided resize_ resize_as_ set_ set_data broadcast_tensors broadcast_to
    result_type is_pinned record_stream size stride numel dim is_same_size data _has_compatible_shallow_copy_type
    unflatten_dense_tensors _nested_tensor_size values indices crow_indices col_indices retain_grad requires_grad_
    output_nr _version _is_zerotensor pin_memory _pin_memory _assert_async _assert_tensor_metadata sym_size sym_numel
    sym_stride hsplit vsplit dsplit unsafe_chunk unsafe_split unsafe_split_with_sizes matrix_H conj _conj _neg_view
    atleast_1d atleast_2d atleast_3d meshgrid get_device is_complex is_floating_point is_signed is_inference is_conj
    is_neg is_contiguous is_leaf is_distributed is_set_to is_coalesced is_strides_like_format
    is_non_overlapping_and_dense retains_grad element_size storage_offset sym_storage_offset sym_is_contiguous
    sparse_dim dense_dim _nnz _values _indices ccol_indices row_indices _dimI _dimV _coalesced _coalesced_ resize
    resize_as resize_as_sparse_ sparse_resize_ sparse_resize_and_clear_ set empty_permuted empty_quantized
    _empty_affine_quantized _empty_per_channel_affine_quantized q_scale q_zero_point q_per_channel_scales
    q_per_channel_zero_points q_per_channel_axis qscheme _make_dual _unpack_dual _fw_primal _has_same_storage_numel
    _debug_has_internal_overlap _reshape_from_tensor _shape_as_tensor _mkldnn_reshape _mkldnn_transpose _backward
    backward _resize_output_ _cudnn_rnn_flatten_weight _use_cudnn_ctc_loss _use_miopen_ctc_loss cudnn_is_acceptable
    _nested_tensor_strides _nested_tensor_storage_offsets _nested_get_values _nested_get_offsets _nested_get_lengths
    _nested_get_min_seqlen _nested_get_max_seqlen _nested_get_ragged_idx _nested_get_jagged_dummy
    _nested_view_from_jagged _nested_view_from_buffer _nested_compute_contiguous_strides_offsets
    _validate_sparse_coo_tensor_args linalg_diagonal _validate_sparse_csr_tensor_args _validate_sparse_csc_tensor_args
    _validate_sparse_bsr_tensor_args _validate_sparse_bsc_tensor_args _validate_sparse_compressed_tensor_args
    _linalg_check_errors _validate_compressed_sparse_indices sparse_coo_tensor sparse_csr_tensor sparse_csc_tensor
    sparse_bsr_tensor sparse_bsc_tensor sparse_compressed_tensor _sparse_coo_tensor_unsafe _sparse_coo_tensor_with_dims
    _sparse_coo_tensor_with_dims_and_tensors _sparse_csr_tensor_unsafe _sparse_csc_tensor_unsafe
    _sparse_bsr_tensor_unsafe _sparse_bsc_tensor_unsafe _sparse_compressed_tensor_unsafe _sparse_broadcast_to
    _propagate_xla_data _lazy_clone _functional_assert_async _add_batch_dim _remove_batch_dim slice_inverse
    _assert_scalar _functional_assert_scalar _functional_sym_constrain_range _functional_sym_constrain_range_for_size
    sym_constrain_range sym_constrain_range_for_size _make_dep_token _resize_output resize_as_sparse sparse_resize
    sparse_resize_and_clear can_cast promote_types is_vulkan_available _nnpack_available _use_cudnn_rnn_flatten_weight
    get_gradients _print
"""
"""aten ops that take no device time."""


@costs(
    *(f"aten::{name}" for name in _VIEWS.split()),
    "_C_cache_ops::weak_ref_tensor vllm::weak_ref_tensor",
    "profiler::_record_function_enter_new profiler::_record_function_exit",
)
@costs_like(r"prim::")
def view(op: OpView) -> Iterable[KernelCall]:
    """Return no kernels, because views and metadata take no device time."""
    return ()
