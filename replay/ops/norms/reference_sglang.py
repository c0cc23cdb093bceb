# pyright: strict
"""SGLang's RMS norms, and the norms that its profiling patch records as `sglang_profiler::*`.

The patch records only the tensors of a function. The scalars are assumed to have their usual values.
"""

from __future__ import annotations

from torch import Tensor

from opreplay.replay.ops.declared import stands_for
from opreplay.replay.ops.maths.norms import rms_norm


@stands_for("sglang_profiler::utils__reshape_for_qk_norm")
def profiler_reshape(x: Tensor) -> None:
    """Reshape x [T, heads · head] to rows [T · heads, head], with a copy if it is strided.

    A head size of 128 is assumed.
    """
    x.reshape(-1, 128 if x.shape[-1] % 128 == 0 else x.shape[-1])


@stands_for("sglang_profiler::utils_apply_qk_norm")
def profiler_qk_norm(q: Tensor, k: Tensor) -> None:
    """Compute the RMS norm of each head of q and k. The head size is assumed to be 128. The results are discarded."""
    for tensor in (q, k):
        rms_norm(tensor.reshape(-1, 128 if tensor.shape[-1] % 128 == 0 else tensor.shape[-1]), None, 1e-6)
