# pyright: strict
"""Decides what runs a matched overload on a device: its own kernel, a portable equivalent, or nothing.

torch says which kernels exist (`host.dispatcher`); the equivalents are in `ops.aten`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import msgspec

from opreplay.replay.host.dispatcher import has_computed_kernel
from opreplay.replay.ir.model import Reason, Value
from opreplay.replay.ops.aten import equivalent_for, legacy_form
from opreplay.replay.resolve.names import Candidates, device_has_kernels, has_kernel
from opreplay.replay.resolve.schema import OpSpec


def way_on(
    device: str, name: str, spec: OpSpec, overloads: Candidates, dtypes: Mapping[str, str], values: Mapping[str, Value]
) -> Candidates:
    """Return the `overloads` of the op `name`, with a note on how its overload `spec` runs on `device`, or why it
    cannot run there.

    `dtypes` are the dtypes of the tensors by name. `values` are the sizes of the tensors and the values of other
    arguments. If this torch build has no kernels for the device at all, nothing is known about single ops. The
    overloads are then returned unchanged.
    """
    form = legacy_form(name, spec.overload)
    if form is not None:
        return msgspec.structs.replace(overloads, resolved_by="equivalent", via=form.via)
    if not device_has_kernels(device):
        return overloads
    kernel = has_kernel(spec, device)
    equivalent = equivalent_for(name, dtypes, values, has_kernel=kernel, device=device)
    if equivalent is not None:
        return msgspec.structs.replace(overloads, resolved_by="equivalent", via=equivalent.via)
    if not kernel:
        return msgspec.structs.replace(
            overloads, reason=Reason("failed", f"{spec.full_name} has no kernel for {device}")
        )
    return overloads


_LAYOUTS = {
    "SparseCPU": "sparse",
    "SparseCsrCPU": "compressed sparse",
    "NestedTensorCPU": "nested",
    "MkldnnCPU": "mkldnn",
}
_PLAIN = ("CPU", "CUDA")
_CHECKED_INSIDE = {
    **dict.fromkeys(("aten::coalesce", "aten::is_coalesced", "aten::indices", "aten::values"), "sparse"),
    **dict.fromkeys(
        ("aten::crow_indices", "aten::col_indices", "aten::ccol_indices", "aten::row_indices"), "compressed sparse"
    ),
}
"""Layouts required by ops that check the layout themselves, by op. The dispatcher does not show these layouts, because
it has a kernel of these ops for any layout.
"""


def wanted_layout(spec: OpSpec) -> str | None:
    """Return the layout that every kernel of this overload requires, or None if strided tensors are accepted."""
    if not spec.args or spec.args[0].kind != "Tensor" or not spec.registered:
        return None
    return _CHECKED_INSIDE.get(spec.name) or _only_layout(spec.full_name)


@lru_cache(maxsize=65536)
def _only_layout(full_name: str) -> str | None:
    if any(has_computed_kernel(full_name, key) for key in _PLAIN):
        return None
    return next((layout for key, layout in _LAYOUTS.items() if has_computed_kernel(full_name, key)), None)
