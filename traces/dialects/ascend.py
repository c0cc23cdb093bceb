# pyright: strict
"""What torch_npu's trace_view.json does its own way: launches recorded as ops inside the op that asked for them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from opreplay.traces.links.parents import innermost_parent
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
    parents = innermost_parent(ops)
    above = owner.copy()
    climbing = np.flatnonzero(above >= 0)
    climbing = climbing[~is_op[above[climbing]]]
    while len(climbing):
        above[climbing] = parents[above[climbing]]
        climbing = climbing[above[climbing] >= 0]
        climbing = climbing[~is_op[above[climbing]]]
    return np.where(above >= 0, above, owner)
