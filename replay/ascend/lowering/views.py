"""Ops that move nothing: views, metadata, allocation, and host-side bookkeeping."""

from __future__ import annotations

from collections.abc import Iterable

from opreplay.replay.ascend.kernel import KernelCall
from opreplay.replay.ascend.lowering.registry import lowers
from opreplay.replay.ascend.lowering.view import OpView

_ATEN = (
    "view", "view_as", "_unsafe_view", "reshape_as", "_reshape_alias", "alias", "as_strided", "as_strided_",
    "expand", "expand_as", "permute", "transpose", "transpose_", "t", "t_", "numpy_T", "mT", "mH", "adjoint",
    "swapaxes", "swapdims", "movedim", "moveaxis", "squeeze", "squeeze_", "unsqueeze", "unsqueeze_", "select",
    "slice", "narrow", "split", "split_with_sizes", "chunk", "tensor_split", "unbind", "unfold", "diagonal",
    "detach", "detach_", "flatten", "unflatten", "view_as_real", "view_as_complex", "real", "imag",
    "resolve_conj", "resolve_neg", "lift_fresh", "lift_fresh_copy", "lift", "empty", "empty_like",
    "empty_strided", "new_empty", "new_empty_strided", "resize_", "resize_as_", "set_", "set_data",
    "broadcast_tensors", "broadcast_to", "result_type", "is_pinned", "is_nonzero", "record_stream", "size",
    "stride", "numel", "dim", "is_same_size", "data", "_has_compatible_shallow_copy_type",
    "unflatten_dense_tensors", "_nested_tensor_size", "values", "indices", "crow_indices", "col_indices",
    "retain_grad", "requires_grad_", "output_nr", "_version", "_is_zerotensor", "item", "pin_memory",
    "_pin_memory", "_assert_async", "_assert_tensor_metadata", "sym_size", "sym_numel", "sym_stride", "hsplit",
    "vsplit", "dsplit",
)  # fmt: skip

VIEWS: tuple[str, ...] = (
    *(f"aten::{name}" for name in _ATEN),
    "_C::weak_ref_tensor",
    "_C_cache_ops::weak_ref_tensor",
    "profiler::_record_function_enter_new",
    "profiler::_record_function_exit",
    "vllm::weak_ref_tensor",
)
"""Free of cost on the device."""


@lowers(*VIEWS)
def view(op: OpView) -> Iterable[KernelCall]:
    """Nothing runs on the device."""
    return ()
