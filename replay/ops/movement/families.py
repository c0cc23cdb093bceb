# pyright: strict
"""Device costs, initializers and work counters of the `movement` ops."""

from __future__ import annotations

from opreplay.replay.ops.costs.moves import indexing, movement
from opreplay.replay.ops.costs.pointwise import elementwise
from opreplay.replay.ops.costs.products import convolution, matmul
from opreplay.replay.ops.costs.rows import regions
from opreplay.replay.ops.costs.vendor import products, shared
from opreplay.replay.ops.table import family

family(
    "movement",
    "gather backward",
    """
        npu::npu_gather_backward role=gathered
        npu::npu_gather_sparse_index_backward role=gathered_sparse
    """,
    cost=indexing.gather_backward,
    inputs="row_numbers",
)
family("movement", "one hot", "npu::npu_one_hot", cost=indexing.one_hot)
family(
    "movement",
    "rows of table",
    """
        npu::npu_gather_sparse_index inputs=index role=index,input,0
        npu::npu_gather
    """,
    cost=indexing.rows_of_table,
)
family(
    "movement",
    "scatter",
    """
        npu::npu_scatter inputs=row_numbers role=scatter_dim
    """,
    cost=indexing.scatter,
)
family(
    "movement",
    "rows put",
    "npu::_npu_index_add npu::_npu_index_add_ inputs=index role=index,self,0",
    cost=indexing.rows_put,
)
family("movement", "sort", "npu::npu_sort_v2 npu::npu_sort", cost=indexing.sort)
family(
    "movement",
    "slices written",
    """
        npu::npu_scatter_nd_update npu::npu_scatter_nd_update_ role=scatter_nd
        npu::scatter_update npu::scatter_update_ role=updated_slices
        npu::npu_scatter_list npu::npu_scatter_list_ role=scatter_axis
    """,
    cost=movement.slices_written,
    inputs="row_numbers",
)
family("movement", "pad", "npu::npu_pad", cost=movement.pad)
family(
    "movement",
    "backward",
    """
        npu::npu_conv2d_backward npu::npu_conv3d_backward npu::npu_conv_transpose2d_backward
        npu::npu_conv_transpose3d_backward npu::npu_convolution_backward npu::npu_convolution_transpose_backward
    """,
    cost=convolution.backward,
)
family(
    "movement",
    "forward",
    "npu::npu_conv2d npu::npu_conv3d npu::npu_conv_transpose2d npu::npu_convolution npu::npu_convolution_transpose",
    cost=convolution.forward,
)
family("movement", "layer backward", "npu::npu_linear_backward", cost=matmul.layer_backward)
family("movement", "named product", "npu::npu_bmmV2", cost=shared.named_product)
family(
    "movement",
    "batched backward",
    "npu::npu_bmm_v2_mat1_backward npu::npu_bmm_v2_mat2_backward",
    cost=products.batched_backward,
)
family(
    "movement",
    "one kernel over the widest tensor",
    """
        npu::npu_max kernel=ArgMaxWithValue
        npu::npu_min kernel=ArgMinWithValue
        npu::npu_stride_copy kernel=AsStrided
        npu::npu_broadcast kernel=BroadcastTo
        npu::npu_slice kernel=Slice
        npu::copy_memory_ npu::npu_reshape kernel=TensorMove
        npu::npu_confusion_transpose npu::npu_confusion_transpose_backward npu::npu_transpose kernel=Transpose
        npu::npu_view_copy kernel=ViewCopy
        npu::_npu_format_cast kernel=Cast
    """,
    kernels=shared.widest,
)
family("movement", "clone", "npu::npu_format_cast", cost=elementwise.clone)
family(
    "movement",
    "regions of images",
    """
        npu::npu_roi_align torchvision::roi_align torchvision::ps_roi_align torchvision::roi_pool
        torchvision::ps_roi_pool
    """,
    cost=regions.roi_align,
)
family(
    "movement",
    "regions of images backward",
    """
        npu::npu_roi_alignbk torchvision::_roi_align_backward torchvision::_ps_roi_align_backward
        torchvision::_roi_pool_backward torchvision::_ps_roi_pool_backward
    """,
    cost=regions.aligned_backward,
)
family(
    "movement",
    "boxes that do not overlap",
    "torchvision::nms npu::npu_nms_v4 npu::npu_nms_with_mask npu::npu_nms_rotated npu::npu_batch_nms",
    cost=regions.nms_with_mask,
)
family(
    "movement",
    "overlaps of boxes",
    """
        npu::npu_iou npu::npu_ptiou npu::npu_giou npu::npu_diou npu::npu_ciou npu::npu_rotated_iou
        npu::npu_rotated_overlaps
    """,
    cost=regions.overlaps,
)
