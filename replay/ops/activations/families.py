# pyright: strict
"""Device costs, initializers and work counters of the `activations` ops."""

from __future__ import annotations

from opreplay.replay.ops.costs.pointwise import elementwise, random_fill
from opreplay.replay.ops.costs.rows import norms
from opreplay.replay.ops.costs.vendor import shared
from opreplay.replay.ops.table import family

family(
    "activations",
    "cast",
    "npu::_npu_dtype_cast npu::npu_dtype_cast npu::npu_dtype_cast_backward",
    cost=elementwise.cast,
)
family(
    "activations",
    "geglu",
    """
        _C::fatrelu_and_mul _C::gelu_and_mul _C::gelu_tanh_and_mul aiter::gelu_and_mul aiter::gelu_tanh_and_mul
        npu::npu_geglu npu::npu_gelu_mul
        sgl_kernel::gelu_and_mul like=_C::gelu_and_mul
        sgl_kernel::gelu_tanh_and_mul like=_C::gelu_tanh_and_mul
    """,
    cost=elementwise.geglu,
)
family(
    "activations",
    "swiglu",
    """
        _C::mul_and_silu _C::silu_and_mul _C::silu_and_mul_quant _C::silu_and_mul_with_clamp _C::swigluoai_and_mul
        aiter::silu_and_mul aiter::silu_and_mul_quant aiter::swiglu_and_mul npu::npu_swiglu
        vllm::rocm_aiter_act_mul_and_fp8_group_quant vllm::silu_and_mul
        sgl_kernel::silu_and_mul like=_C::silu_and_mul result=out
        npu::npu_clipped_swiglu inputs=row_numbers role=row_groups
        aiter::scaled_silu_and_mul like=_C::silu_and_mul_quant result=out
    """,
    cost=elementwise.swiglu,
)
family(
    "activations", "swiglu backward", "npu::npu_geglu_grad npu::npu_swiglu_backward", cost=elementwise.swiglu_backward
)
family(
    "activations",
    "vendor activation",
    "_C::gelu_fast _C::gelu_new _C::gelu_quick npu::fast_gelu npu::npu_fast_gelu npu::npu_silu",
    cost=elementwise.vendor_activation,
)
family("activations", "dropout", "npu::_npu_dropout npu::npu_dropout_with_add_softmax", cost=random_fill.dropout)
family("activations", "softmax", "npu::npu_scaled_masked_softmax", cost=norms.softmax)
family(
    "activations",
    "not predicted",
    "npu::npu_prefetch",
    uncosted="prefetches while other kernels run: its time is part of theirs",
)
family(
    "activations",
    "not predicted",
    "npu::npu_alloc_float_status npu::npu_clear_float_status npu::npu_get_float_status",
    uncosted="reads or clears a flag of the device, not a tensor",
)
family(
    "activations",
    "one kernel over the widest tensor",
    """
        npu::_npu_dtype_cast_backward kernel=Cast
        npu::_dropout_with_byte_mask npu::_dropout_with_byte_mask_backward kernel=DropOutDoMask
        npu::dropout_with_byte_mask npu::npu_dropout_do_mask kernel=DropOutDoMask
        npu::one_ kernel=Fill
        npu::npu_fast_gelu_backward npu::npu_gelu_backward kernel=GeluGrad
        npu::_amp_foreach_non_finite_check kernel=IsFinite
        npu::npu_mish kernel=Mish
        npu::npu_mish_backward kernel=MishGrad
        _C::relu_squared kernel=Relu
        npu::npu_attn_softmax_backward_ npu::npu_dropout_with_add_softmax_backward kernel=SoftmaxGrad
        npu::npu_scaled_masked_softmax_backward te_softmax::scaled_aligned_causal_masked_softmax_bwd kernel=SoftmaxGrad
        te_softmax::scaled_masked_softmax_bwd te_softmax::scaled_softmax_bwd kernel=SoftmaxGrad
        te_softmax::scaled_upper_triang_masked_softmax_bwd kernel=SoftmaxGrad
        npu::npu_attn_softmax_ npu::npu_masked_softmax_with_rel_pos_bias kernel=SoftmaxV2
        te_softmax::scaled_aligned_causal_masked_softmax_fwd te_softmax::scaled_masked_softmax_fwd kernel=SoftmaxV2
        te_softmax::scaled_softmax_fwd te_softmax::scaled_upper_triang_masked_softmax_fwd kernel=SoftmaxV2
        npu::npu_silu_backward kernel=SwishGrad
        aiter::add kernel=Add
        aiter::div kernel=RealDiv
        aiter::gelu_fast npu::npu_gelu kernel=Gelu
        aiter::mul kernel=Mul
        aiter::sigmoid kernel=Sigmoid
        aiter::sub kernel=Sub
        aiter::tanh kernel=Tanh
        sgl_kernel::gelu_quick like=_C::gelu_quick kernel=Gelu
    """,
    kernels=shared.widest,
)
family(
    "activations",
    "without a cost of their own",
    "aiter::add_ aiter::div_ aiter::mul_ aiter::sub_ npu::npu_dtype_cast_ npu::npu_format_cast_ npu::npu_silu_",
)
family(
    "activations",
    "dropout backward",
    "npu::npu_dropout_backward npu::_npu_dropout_backward",
    cost=random_fill.dropout_backward,
)
