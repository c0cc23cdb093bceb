# pyright: strict
"""Lowering of ops that have no AI-core kernel to AI CPUs: decompositions, sets, histograms, sparse layouts.

This module gives the number of operations of each op. The speed of the AI CPUs is a property of the device.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import log2, prod

from opreplay.replay.ir.kernel import KernelCall
from opreplay.replay.ops.op_view import DoesNotFit, OpView, elements, kernel, spec
from opreplay.replay.ops.table import costs

DECOMPOSITIONS: dict[str, float] = {
    "cholesky": 1 / 3, "linalg_cholesky": 1 / 3, "linalg_cholesky_ex": 1 / 3, "cholesky_solve": 2,
    "_cholesky_solve_helper": 2, "cholesky_inverse": 2, "inverse": 2, "linalg_inv": 2, "linalg_inv_ex": 2,
    "linalg_pinv": 12, "pinverse": 12, "linalg_tensorinv": 2, "linalg_det": 2 / 3, "_linalg_det": 2 / 3, "det": 2 / 3,
    "logdet": 2 / 3, "slogdet": 2 / 3, "linalg_slogdet": 2 / 3, "_linalg_slogdet": 2 / 3, "linalg_lu": 2 / 3,
    "linalg_lu_factor": 2 / 3, "linalg_lu_factor_ex": 2 / 3, "_lu_with_info": 2 / 3, "linalg_ldl_factor": 2 / 3,
    "linalg_ldl_factor_ex": 2 / 3, "linalg_ldl_solve": 2, "linalg_lu_solve": 2, "lu_solve": 2, "linalg_solve": 8 / 3,
    "linalg_solve_ex": 8 / 3, "_linalg_solve_ex": 8 / 3, "linalg_tensorsolve": 8 / 3, "_spsolve": 8 / 3,
    "lu_unpack": 1, "linalg_qr": 4 / 3, "qr": 4 / 3,
    "geqrf": 4 / 3,
    "linalg_householder_product": 4 / 3, "orgqr": 4 / 3, "ormqr": 2, "linalg_eigh": 9, "_linalg_eigh": 9,
    "linalg_eigvalsh": 4 / 3, "linalg_eig": 25, "linalg_eigvals": 10, "_linalg_eigvals": 10, "linalg_svd": 22,
    "_linalg_svd": 22, "svd": 22, "linalg_svdvals": 4, "linalg_cond": 4, "linalg_matrix_rank": 4, "nuclear_norm": 4,
    "linalg_matrix_norm": 1, "linalg_lstsq": 4, "lstsq": 4, "eig": 25, "solve": 8 / 3, "_solve_helper": 8 / 3,
    "_det_lu_based_helper": 2 / 3,
}  # fmt: skip
"""Number of operations of an aten op on an n x n matrix, divided by n³.

Source: Golub and Van Loan, Matrix Computations.
"""


@costs(*(f"aten::{name}" for name in DECOMPOSITIONS))
def decomposition(op: OpView) -> Iterable[KernelCall]:
    """Return the AI CPU program of a factorisation, or of an op that is computed from a factorisation."""
    largest = op.widest(rank=2)
    rows, cols = largest.shape[-2:]
    matrices = prod(largest.shape[:-2])
    name = op.op.name.removeprefix("aten::").split(".")[0].rstrip("_")
    flops = DECOMPOSITIONS[name] * rows * cols * min(rows, cols) * matrices
    return on_host(op, flops)


STEP_OPERATIONS = 3400.0
"""Duration of one sequential step, such as a row of a triangular system, expressed as a number of operations.

3400 operations take 0.85 us. Source: solving 256 to 2048 rows for one column takes 317 to 4917 us on a 910B2
(blas-ops_bench of botcanlearn/cann-bench-upstream).
"""


@costs("aten::linalg_solve_triangular aten::triangular_solve")
def triangular(op: OpView) -> Iterable[KernelCall]:
    """Return the AI CPU program of a triangular solve, in which each row needs products with all earlier rows."""
    sides = [t for t in op.tensors if len(t.shape) >= 2]
    if len(sides) < 2:
        raise DoesNotFit("a triangular solve needs a matrix and right-hand sides")
    rows = op.need("A", at=1 if op.op.name.startswith("aten::triangular") else 0, rank=2).shape[-1]
    columns = max(1, elements(op.need("B", "self", at=1 if "linalg" in op.op.name else 0, rank=2)) // max(1, rows))
    return on_host(op, 2.0 * rows * rows * columns + STEP_OPERATIONS * rows)


LABEL_OPERATIONS = 20.0
"""Operations per label and adjacent blank in one time step (assumed). They are two sums of three exponentials each."""


@costs("aten::_ctc_loss aten::ctc_loss aten::_cudnn_ctc_loss aten::miopen_ctc_loss aten::_ctc_loss_backward")
def ctc_loss(op: OpView) -> Iterable[KernelCall]:
    """Return the AI CPU program of the CTC loss of scores (T, N, C).

    It runs T sequential time steps. Each step goes over the labels of all samples and the blanks between them.
    """
    scores = op.need("log_probs", at=0)
    steps = max(1, scores.shape[0] if scores.shape else 1)
    samples = scores.shape[1] if len(scores.shape) > 2 else 1
    labels = op.meta("targets", at=1)
    flops = steps * (STEP_OPERATIONS + LABEL_OPERATIONS * max(samples, elements(labels) if labels is not None else 1))
    if "backward" in op.op.name:
        flops += elements(scores)
    return on_host(op, flops)


def on_host(op: OpView, flops: float) -> list[KernelCall]:
    """Return a kernel that runs the op on the AI CPUs with `flops` operations."""
    op.note("runs on the AI CPUs, whose speed is assumed")
    return [kernel("AiCpu", [spec(t.shape, t.dtype) for t in op.tensors], op.outputs(), operations=float(flops))]


@costs(
    """
        aten::unique aten::_unique2 aten::_unique aten::unique_dim aten::unique_consecutive aten::unique_dim_consecutive
        aten::isin aten::bucketize aten::searchsorted
    """
)
def sort_or_search(op: OpView) -> Iterable[KernelCall]:
    """Return the AI CPU program of a sort or search.

    It makes elements · log2(size of the searched data) comparisons.
    """
    sizes = sorted((prod(t.shape) for t in op.tensors), reverse=True) or [1]
    return on_host(op, sizes[0] * log2(max(2, sizes[-1] if len(sizes) > 1 else sizes[0])))


SPARSE = (
    "_to_sparse",
    "_to_sparse_bsc",
    "_to_sparse_bsr",
    "_to_sparse_csc",
    "_to_sparse_csr",
    "to_sparse",
    "to_sparse_csr",
    "to_sparse_csc",
    "to_sparse_bsr",
    "to_sparse_bsc",
    "_to_dense",
    "to_dense",
    "to_dense_backward",
    "coalesce",
    "_coalesce",
    "sparse_mask",
    "_sparse_mask_projection",
    "_sparse_sum",
    "_sparse_sum_backward",
    "_sparse_csr_sum",
    "_sparse_csr_prod",
    "_sparse_softmax",
    "_sparse_softmax_backward_data",
    "_sparse_log_softmax",
    "_sparse_log_softmax_backward_data",
    "_convert_indices_from_coo_to_csr",
    "_convert_indices_from_csr_to_coo",
    "copy_sparse_to_sparse",
    "_sparse_sparse_matmul",
    "_spdiags",
    "embedding_sparse_backward",
    "_embedding_bag_sparse_backward",
    "_nested_from_padded",
    "_nested_from_padded_tensor",
    "nested_to_padded_tensor",
    "to_padded_tensor",
    "_pad_packed_sequence",
    "_pack_padded_sequence",
    "_pack_padded_sequence_backward",
    "pad_sequence",
)
"""Ops that convert between dense and sparse, nested or packed layouts."""


@costs(
    """
        aten::bincount aten::histc aten::histogram aten::histogramdd aten::_histogramdd_bin_edges
        aten::_histogramdd_from_bin_cts aten::_histogramdd_from_bin_tensors aten::combinations aten::segment_reduce
        aten::_segment_reduce_backward aten::corrcoef aten::cov
    """,
    *(f"aten::{name}" for name in SPARSE),
)
def sparse_on_host(op: OpView) -> Iterable[KernelCall]:
    """Return an AI CPU program of 4 operations per element. The AI cores have no kernels for sparse layouts."""
    return on_host(op, 4.0 * sum(prod(t.shape) for t in op.tensors))
