# pyright: strict
"""SGLang's RMS norms, and those that its profiling patch records as `sglang_profiler::*`.

A wrapper of the patch records only the tensors of its function; the scalars are taken as that function's usual ones.
"""

from __future__ import annotations

from torch import Tensor

from opreplay.replay.ops.declared import stands_for
from opreplay.replay.ops.maths.norms import rms_norm


@stands_for("sglang_profiler::utils__reshape_for_qk_norm")
def profiler_reshape(x: Tensor) -> None:
    """x [T, heads · head] made into rows [T · heads, head], copied if strided; a head of 128 is assumed."""
    x.reshape(-1, 128 if x.shape[-1] % 128 == 0 else x.shape[-1])


@stands_for("sglang_profiler::utils_apply_qk_norm")
def profiler_qk_norm(q: Tensor, k: Tensor) -> None:
    """RMS norm of the heads of q and k, heads of 128 assumed; the results are dropped."""
    for tensor in (q, k):
        rms_norm(tensor.reshape(-1, 128 if tensor.shape[-1] % 128 == 0 else tensor.shape[-1]), None, 1e-6)
