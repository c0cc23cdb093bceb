# pyright: strict
"""What torch_npu's trace_view.json does its own way: launches recorded as ops inside the op that asked for them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from opreplay.traces.links.parents import innermost_of, innermost_parent, of_rows
from opreplay.traces.model import OpSignature, OpTable

_NOT_AN_OP = ("autograd::", "torch::")


def owners_above_launches(
    owner: npt.NDArray[np.int64], ops: OpTable, signatures: Sequence[OpSignature]
) -> npt.NDArray[np.int64]:
    """Owner rows moved from CANN launches ("aclnnMm", "Conv2D") up to the op of torch around each, where there is one.

    torch_npu records the call into CANN as one more op inside `aten::mm`; it has no shapes and could not be replayed.
    """
    if not (owner >= 0).any():
        return owner
    is_op = np.array(["::" in s.name and not s.name.startswith(_NOT_AN_OP) for s in signatures], bool)[ops.signature]
    above = of_rows(owner, innermost_of(innermost_parent(ops), is_op))
    return np.where(above >= 0, above, owner)
