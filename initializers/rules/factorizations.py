# pyright: strict
"""Initializers for values that linear algebra ops pass on to others: pivots, error codes, triangular factors.

`domains` fills matrices that only need to be well conditioned.
"""

from __future__ import annotations

import torch

from opreplay.initializers import fill
from opreplay.initializers.base import CustomInit, InitContext, InitReport, extent

_PIVOTS = ("pivots", "LU_pivots")
_FACTORS = ("LU", "LU_data", "LD", "self")


class PivotsInit(CustomInit):
    """Fills LAPACK pivots: entry i is the row, counted from 1, with which row i is swapped.

    That is row i itself or a later row. The diagonals of factors are filled without zeros.
    """

    name = "pivots"

    def initialize(self, context: InitContext) -> InitReport:
        pivots = context.first(_PIVOTS)
        factors = context.first(_FACTORS, dims=2)
        if factors is not None and factors.numel() and factors.is_floating_point():
            diagonal = torch.diagonal(factors, dim1=-2, dim2=-1)
            fill.assign(diagonal, diagonal.float() + 2 * diagonal.shape[-1])
        if pivots is None or not pivots.numel():
            return InitReport(summary="no pivots")
        count = extent(pivots, -1)
        first = torch.arange(count, device=pivots.device)
        if context.op == "aten::linalg_ldl_solve":
            fill.assign(pivots, first + 1)  # a swap of LDL is written in pairs; without swaps every block is 1 by 1
            return InitReport(summary="no swaps", assumed={"pivots": "no swaps"})
        rows = max(count, factors.shape[-2] if factors is not None else count)
        drawn = torch.rand(pivots.shape, generator=context.generator, device=pivots.device)
        fill.assign(pivots, first + 1 + (drawn * (rows - first)).long())
        return InitReport(summary=f"pivots up to {rows}", assumed={"pivots": "uniform among the rows below"})


class NoErrorInit(CustomInit):
    """Makes error codes report success and asserted conditions hold. An error would end the run."""

    name = "no_error"

    def initialize(self, context: InitContext) -> InitReport:
        holds = 0 if context.op == "aten::_linalg_check_errors" else 1
        for name, tensor in context.tensors():
            if name in ("info", "self"):
                tensor.fill_(holds)
        return InitReport(summary="no error")


INITIALIZERS = (PivotsInit, NoErrorInit)
