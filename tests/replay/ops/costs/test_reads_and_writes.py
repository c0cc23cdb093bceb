"""No op is quicker than memory can bring what it must read and take what it makes: over all rules and for results."""

from __future__ import annotations

from math import prod

import pytest

from opreplay.replay.ascend import load_device, lower, simulate_op
from opreplay.replay.ops.table import cost_of
from opreplay.replay.resolve.written.sweep import over_sizes, plan_of_calls
from opreplay.traces.dtypes import ITEMSIZE_BYTES
from opreplay.traces.model import TensorMeta
from tests.replay.ops.costs.test_every_op import SCHEMAS, made

pytestmark = pytest.mark.slow

DEVICE = load_device("910b2")

UNREAD = {
    "shape or dtype of it alone is used": (
        "_dim_arange|_new_zeros_with_same_feature_meta|new_zeros|new_ones|new_full|new_empty|fill_|_no_grad_fill_"
        "|linspace|logspace|rand_like|randn_like|randint_like|bernoulli|bernoulli_|uniform|uniform_|normal_|normal"
        "|normal_functional|log_normal|log_normal_|cauchy|cauchy_|exponential|exponential_|geometric|geometric_|random"
        "|random_|_no_grad_normal_|_no_grad_uniform_|_philox_uniform|_philox_uniform_|_philox_normal|_philox_normal_"
        "|zero|zero_|_no_grad_zero_|fill|full_like|ones_like|zeros_like|fill_diagonal_|_fill_mem_eff_dropout_mask_"
        "|_nested_sum_backward|_efficientzerotensor|_sobol_engine_draw|_sobol_engine_ff_|_sobol_engine_scramble_"
    ),
    "a part of it is read: by index, a slice, a diagonal": (
        "nll_loss|nll_loss_nd|nll_loss2d|nll_loss_forward|nll_loss2d_forward|nll_loss_backward|nll_loss2d_backward"
        "|index_select_backward|masked_scatter|masked_scatter_|index|value_selecting_reduction_backward|_nested_view_from_buffer_copy"
        "|_nested_view_from_jagged_copy|_upsample_nearest_exact1d|_upsample_nearest_exact2d|_upsample_nearest_exact3d"
        "|upsample_nearest1d|upsample_nearest2d|upsample_nearest3d|select_copy|slice_copy|narrow_copy|as_strided_copy"
        "|_reshape_alias_copy|diag|diagonal_copy|copy|copy_|multi_margin_loss|multi_margin_loss_backward"
        "|multilabel_margin_loss|multilabel_margin_loss_forward|multilabel_margin_loss_backward|to_mkldnn_backward"
    ),
    "its tensors are never all of one size: scales, statistics of channels, targets, states, vectors, 8-bit values": (
        "fused_moving_avg_obs_fake_quant|_fused_moving_avg_obs_fq_helper|quantize_per_channel|quantize_per_tensor"
        "|_fused_moving_avg_obs_fq_helper_functional|_flash_attention_forward_no_dropout_inplace"
        "|_make_per_channel_quantized_tensor|quantized_batch_norm|batch_norm|_batch_norm_impl_index"
        "|_batch_norm_impl_index_backward|_batch_norm_no_update|_batch_norm_with_update"
        "|_batch_norm_with_update_functional|batch_norm_backward|batch_norm_gather_stats"
        "|batch_norm_gather_stats_with_counts|native_batch_norm|_native_batch_norm_legit"
        "|_native_batch_norm_legit_functional|_native_batch_norm_legit_no_training|native_batch_norm_backward"
        "|cudnn_batch_norm|cudnn_batch_norm_backward|miopen_batch_norm|miopen_batch_norm_backward"
        "|native_group_norm_backward|_weight_norm_differentiable_backward|_weight_norm_interface_backward"
        "|_ctc_loss|_cudnn_ctc_loss|miopen_ctc_loss|ctc_loss|dequantize|_ctc_loss_backward|miopen_rnn|miopen_rnn_backward|_cudnn_rnn|_cudnn_rnn_backward|mkldnn_rnn_layer"
        "|mkldnn_rnn_layer_backward|_flash_attention_forward|_flash_attention_backward|_efficient_attention_forward"
        "|_efficient_attention_backward|_cudnn_attention_forward|addr|addr_|diff|diagflat|_amp_update_scale"
        "|linalg_pinv|fake_quantize_per_channel_affine_cachemask"
    ),
}
"""Why not all tensors among an op's arguments are read in full → ops."""
EXCEPTED = {f"aten::{name}" for names in UNREAD.values() for name in names.split("|")}


def size(tensor: TensorMeta) -> int:
    return prod(tensor.shape) * ITEMSIZE_BYTES[tensor.dtype]


def least_us(moved: int) -> float:
    return (moved - DEVICE.l2_bytes) / DEVICE.hbm_bytes_per_s * 1e6


def test_every_rule_reads_every_tensor_that_its_op_reads() -> None:
    quick: list[str] = []
    looked_at = 0
    for schema in SCHEMAS:
        if cost_of(schema.name) is None or schema.name in EXCEPTED:
            continue
        for shape in ((16384, 16384), (1 << 28,)):
            op = made(schema, shape, "float32")
            read = sum(size(t) for arg in op.args if not arg.mutated for t in arg.tensors if t is not None)
            if not read or not lower(op).kernels:
                continue
            looked_at += 1
            us = simulate_op(op, DEVICE, l2="cold").time_us
            if 0 < us < (1 - 1e-9) * least_us(read):
                quick.append(f"{schema.name}.{schema.overload_name} {shape}: {us:.0f} us, least {least_us(read):.0f}")
    assert not quick, "\n".join(quick)
    assert looked_at > 2000


CALLS = [
    "aten::add(f32[n,n],f32[n,n])", "aten::clone(f32[n,n])", "aten::equal(f32[n,n],f32[n,n])",
    "aten::allclose(f32[n,n],f32[n,n])", "aten::bernoulli(f32[n,n])", "aten::poisson(f32[n,n])",
    "aten::normal(f32[n,n],f32[n,n])", "aten::normal(f32[n,n],1.0)", "aten::binomial(f32[n,n],f32[n,n])",
    "aten::_standard_gamma(f32[n,n])", "aten::_sample_dirichlet(f32[n,n])", "aten::multinomial(f32[64,n*256],1)",
    "aten::slice_scatter(f32[n,n],f32[n,n])", "aten::select_scatter(f32[n,n],f32[n],0,0)",
    "aten::diagonal_scatter(f32[n,n],f32[n])", "aten::unfold_copy(f32[n*n],0,4,2)",
    "aten::_foreach_clone([f32[n,n],f32[n,n]])", "aten::t_copy(f32[n,n])", "aten::permute_copy(f32[n,n],[1,0])",
    "aten::trapezoid(f32[n,n],f32[n,n])", "aten::cat([f32[n,n],f32[n,n]])", "aten::where(bool[n,n],f32[n,n],f32[n,n])",
    "aten::softmax(f32[n,n],-1,None)", "aten::cumsum(f32[n,n],0)", "aten::sort(f32[n,n])", "aten::flip(f32[n,n],[0])",
    "aten::repeat(f32[n,n],[2,1])", "aten::tril(f32[n,n])", "aten::gather(f32[n,n],0,i64[n,n])",
]  # fmt: skip
"""Of which everything is read in full."""
MAKES = ["aten::diag(f32[n])", "aten::diag_embed(f32[n])", "aten::diagflat(f32[n])", "aten::outer(f32[n],f32[n])"]
"""Of which the result is far larger than what is read."""


@pytest.mark.parametrize("call", CALLS + MAKES)
def test_operands_are_read_and_results_written(call: str) -> None:
    (op,) = plan_of_calls(over_sizes([call], ["n=16384"]), allow_imports={}, device="cpu")[0].ops
    moved = sum(size(t) for arg in op.args for t in arg.tensors if t is not None)
    moved += sum(size(t) for t in op.outputs or () if t is not None)
    assert simulate_op(op, DEVICE, l2="cold").time_us >= least_us(moved)
