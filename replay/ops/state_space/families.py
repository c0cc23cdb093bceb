# pyright: strict
"""Device costs, initializers and work counters of the `state_space` ops."""

from __future__ import annotations

from opreplay.replay.ops.costs.layers import state_space
from opreplay.replay.ops.table import family

family(
    "state_space",
    "causal convolution",
    """
        _C::causal_conv1d_fwd _C::causal_conv1d_update sgl_kernel::causal_conv1d_fwd sgl_kernel::causal_conv1d_update
        sglang::mamba_causal_conv1d_fwd sglang::mamba_causal_conv1d_update
        npu::causal_conv1d_update inputs=
    """,
    cost=state_space.causal_convolution,
    inputs="state_slots",
)
family("state_space", "selective scan", "_C::selective_scan_fwd", cost=state_space.selective_scan, inputs="state_slots")
family(
    "state_space",
    "gated delta rule",
    """
        npu::npu_chunk_gated_delta_rule npu::npu_recurrent_gated_delta_rule npu::mega_chunk_gdn
        npu::npu_recurrent_gated_delta_rule_functional _C_ascend::npu_recurrent_gated_delta_rule
        _C_ascend::npu_recurrent_gated_delta_rule_310 _C_ascend::chunk_fwd_o _C_ascend::chunk_gated_delta_rule_fwd_h
    """,
    cost=state_space.delta_rule,
)
family(
    "state_space",
    "hyper-connections",
    """
        npu::npu_mhc_pre npu::npu_mhc_post npu::npu_mhc_sinkhorn npu::npu_mhc_pre_backward npu::npu_mhc_post_backward
        npu::npu_mhc_sinkhorn_backward _C_ascend::npu_hc_pre _C_ascend::npu_hc_post _C_ascend::npu_hc_pre_inv_rms
        _C_ascend::npu_hc_pre_sinkhorn _C_ascend::npu_hc_pre_v2
    """,
    cost=state_space.mixed_streams,
)
family("state_space", "delta gates", "_C_ascend::npu_fused_gdn_gating", cost=state_space.delta_gates)
