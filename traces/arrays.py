# pyright: strict
"""Types of NumPy arrays, and functions on them that load less of NumPy than its own.

NumPy has such types, too, but loading its module for them takes 10 ms.
"""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np

Number = TypeVar("Number", bound=np.generic)
ArrayOf = np.ndarray[tuple[Any, ...], np.dtype[Number]]
Array = np.ndarray[tuple[Any, ...], np.dtype[Any]]
Bools = np.ndarray[tuple[Any, ...], np.dtype[np.bool_]]
Floats = np.ndarray[tuple[Any, ...], np.dtype[np.float64]]
Integers = np.ndarray[tuple[Any, ...], np.dtype[np.integer]]
"""Integers of any width."""
Ints = np.ndarray[tuple[Any, ...], np.dtype[np.int64]]


def distinct(values: ArrayOf[Number]) -> ArrayOf[Number]:
    """Return each value of a one-dimensional array once, in ascending order.

    `np.unique` returns the same, but first loads masked arrays, which takes 10 ms. The array must not contain NaN.
    """
    ordered = np.sort(values)
    first = np.ones(len(ordered), bool)
    np.not_equal(ordered[1:], ordered[:-1], out=first[1:])
    return ordered[first]
