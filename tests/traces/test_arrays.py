"""`distinct` returns what `np.unique` returns."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opreplay.traces.arrays import distinct


@given(st.lists(st.integers(-(2**63), 2**63 - 1)))
def test_each_value_once_in_order(values: list[int]) -> None:
    given_ = np.array(values, np.int64)
    assert distinct(given_).tolist() == sorted(set(values))


@pytest.mark.parametrize("dtype", ["uint8", "uint32", "int64", "bool", "float64"])
def test_the_dtype_stays(dtype: str) -> None:
    made = distinct(np.array([1, 0, 1], dtype))
    assert (made.dtype, made.tolist()) == (np.dtype(dtype), [0, 1])
