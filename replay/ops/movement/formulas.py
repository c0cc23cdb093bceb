# pyright: strict
"""Moves of data, written down again from its public documentation in plain torch.

Independent of the references: each formula is the textbook's, without the blocks and layouts of a kernel.
"""

from __future__ import annotations

from torch import Tensor

from opreplay.replay.ops.maths.formula import Values, formula


@formula("npu::npu_transpose", "(f32[2,8,16], [1,0,2])")
def npu_transpose(values: Values) -> Tensor:
    return values["self"].permute(values["perm"]).contiguous()
