"""What runs a matched overload on a device: its own kernel, a portable equivalent, or nothing.

Owns that choice; which kernels there are is torch's (`resolve.has_kernel`), the equivalents are `portable`'s.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from opreplay.replay.ir import Reason, Resolution, Value
from opreplay.replay.portable import equivalent_for, legacy_form
from opreplay.replay.resolve import Candidates, device_has_kernels, has_kernel
from opreplay.replay.schema import OpSpec


class Way(msgspec.Struct, frozen=True, kw_only=True):
    """How a call is made, as `ReplayOp` has it; or the reason why it cannot be."""

    resolved_by: Resolution
    via: str | None = None
    reason: Reason | None = None


def way_on(
    device: str, name: str, spec: OpSpec, found: Candidates, dtypes: Mapping[str, str], values: Mapping[str, Value]
) -> Way:
    """How `spec`, one of the overloads `found` for the op `name`, runs on `device`; `dtypes` by name of the tensors.

    A device of which this torch build has no kernels at all says nothing about single ops: then as it was found.
    """
    form = legacy_form(name, spec.overload)
    if form is not None:
        return Way(resolved_by="equivalent", via=form.via)
    as_found = Way(resolved_by=found.resolved_by, via=found.via)
    if not device_has_kernels(device):
        return as_found
    kernel = has_kernel(spec, device)
    equivalent = equivalent_for(name, dtypes, values, has_kernel=kernel, device=device)
    if equivalent is not None:
        return Way(resolved_by="equivalent", via=equivalent.via)
    if not kernel:
        return msgspec.structs.replace(
            as_found, reason=Reason("failed", f"{spec.full_name} has no kernel for {device}")
        )
    return as_found
