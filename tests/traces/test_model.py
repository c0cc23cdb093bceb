"""Values that every reader makes."""

from __future__ import annotations

import pytest
import torch

from opreplay.traces.model import contiguous_strides


@pytest.mark.parametrize("shape", [(), (3,), (2, 3, 4), (1, 1), (2, 0, 3), (0,), (4, 1, 5)])
def test_contiguous_strides_are_those_of_torch(shape: tuple[int, ...]) -> None:
    assert contiguous_strides(shape) == torch.empty(shape).stride()
