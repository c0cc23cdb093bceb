"""Ops that take tensors of one layout alone (sparse, nested, mkldnn), of which a profiler records sizes and types.

Owns that question; which kernels there are is torch's.
"""

from __future__ import annotations

from functools import lru_cache

from opreplay.replay.schema import OpSpec

_LAYOUTS = {
    "SparseCPU": "sparse", "SparseCsrCPU": "compressed sparse", "NestedTensorCPU": "nested", "MkldnnCPU": "mkldnn",
}  # fmt: skip
_PLAIN = ("CPU", "CUDA")
_CHECKED_INSIDE = {
    **dict.fromkeys(("aten::coalesce", "aten::is_coalesced", "aten::indices", "aten::values"), "sparse"),
    **dict.fromkeys(
        ("aten::crow_indices", "aten::col_indices", "aten::ccol_indices", "aten::row_indices"), "compressed sparse"
    ),
}
"""Ops that look at the layout themselves, so that the dispatcher has a kernel for any."""


def wanted_layout(spec: OpSpec) -> str | None:
    """The layout without which no kernel of this overload can be called, or None where strided tensors will do."""
    if not spec.args or spec.args[0].kind != "Tensor":
        return None
    if not spec.registered:
        return None
    return _CHECKED_INSIDE.get(spec.name) or _only_layout(spec.full_name)


@lru_cache(maxsize=65536)
def _only_layout(full_name: str) -> str | None:
    import torch

    has = torch._C._dispatch_has_computed_kernel_for_dispatch_key
    if any(has(full_name, key) for key in _PLAIN):
        return None
    return next((layout for key, layout in _LAYOUTS.items() if has(full_name, key)), None)
