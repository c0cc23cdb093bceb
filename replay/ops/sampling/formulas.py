# pyright: strict
"""Sampling ops, written down again from their public documentation in plain torch.

Independent of the references: each formula is the textbook's, without the blocks and layouts of a kernel.
"""

from __future__ import annotations

import torch
from torch import Tensor

from opreplay.replay.ops.maths.formula import Values, formula


@formula("_C::apply_repetition_penalties_", "(f32[8,16], bool[8,16], bool[8,16], f32[8])")
def repetition_penalties(values: Values) -> Tensor:
    x, penalty = values["logits"], values["repetition_penalties"].unsqueeze(1)
    punished = torch.where(x > 0, x / penalty, x * penalty)
    return torch.where(values["prompt_mask"] | values["output_mask"], punished, x)
