# pyright: strict
"""Ops of the family `state_space`: cost on a device, initializer and counter of work of each."""

from __future__ import annotations

from opreplay.replay.ops.costs.layers import state_space
from opreplay.replay.ops.table import family

family(
    "state_space",
    "causal convolution",
    """
        _C::causal_conv1d_fwd _C::causal_conv1d_update sgl_kernel::causal_conv1d_fwd sgl_kernel::causal_conv1d_update
        sglang::mamba_causal_conv1d_fwd sglang::mamba_causal_conv1d_update
    """,
    cost=state_space.causal_convolution,
    inputs="state_slots",
)
family("state_space", "selective scan", "_C::selective_scan_fwd", cost=state_space.selective_scan, inputs="state_slots")
