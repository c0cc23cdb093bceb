# pyright: strict
"""SGLang's RMS norms, and those that its profiling patch records as `sglang_profiler::*`.

A wrapper of the patch records only the tensors of its function; the scalars are taken as that function's usual ones.
"""

from __future__ import annotations

from torch import Tensor

from opreplay.replay.ops.declared import stands_for
from opreplay.replay.ops.maths.norms import fused_add_rms_norm, rms_norm


@stands_for("sgl_kernel::gemma_rmsnorm")
def gemma_rmsnorm(output: Tensor, input: Tensor, weight: Tensor, eps: float) -> None:
    """output = rms_norm(input) · (1 + weight)."""
    output.copy_(rms_norm(input, weight, eps, gemma=True))


@stands_for("sgl_kernel::gemma_fused_add_rmsnorm")
def gemma_fused_add_rmsnorm(input: Tensor, residual: Tensor, weight: Tensor, eps: float) -> None:
    """As fused_add_rmsnorm with 1 + weight."""
    normed, total = fused_add_rms_norm(input, residual, weight, eps, gemma=True)
    residual.copy_(total)
    input.copy_(normed)


@stands_for("sglang_profiler::rmsnorm_rmsnorm2d_fwd")
def profiler_rmsnorm(input: Tensor, weight: Tensor) -> None:
    """rms_norm with epsilon 1e-6; the result is dropped."""
    rms_norm(input, weight, 1e-6)


@stands_for("sglang_profiler::rmsnorm_rmsnorm2d_fwd_with_add")
def profiler_add_rmsnorm(out: Tensor, input: Tensor, residual_in: Tensor, residual_out: Tensor, weight: Tensor) -> None:
    """residual_out = input + residual_in; out = its norm with epsilon 1e-6."""
    normed, total = fused_add_rms_norm(input, residual_in, weight, 1e-6)
    residual_out.copy_(total)
    out.copy_(normed)


@stands_for("sglang_profiler::utils__reshape_for_qk_norm")
def profiler_reshape(x: Tensor) -> None:
    """x [T, heads · head] made into rows [T · heads, head], copied if strided; a head of 128 is assumed."""
    x.reshape(-1, 128 if x.shape[-1] % 128 == 0 else x.shape[-1])


@stands_for("sglang_profiler::utils_apply_qk_norm")
def profiler_qk_norm(q: Tensor, k: Tensor) -> None:
    """RMS norm of the heads of q and k, heads of 128 assumed; the results are dropped."""
    for tensor in (q, k):
        rms_norm(tensor.reshape(-1, 128 if tensor.shape[-1] % 128 == 0 else tensor.shape[-1]), None, 1e-6)
