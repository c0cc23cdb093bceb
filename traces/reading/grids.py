# pyright: strict
"""Grids of kernel launches, packed into one integer for the tables of a trace."""

from __future__ import annotations

from typing import Any, cast

_WIDE, _NARROW = 31, 16
"""Bits for the first size of a grid and for each of the other two; CUDA and HIP allow no larger sizes."""


def grid_number(sizes: Any) -> int:
    """Pack the grid [x, y, z] of a launch into one number; -1 if it is missing or impossible."""
    if not isinstance(sizes, list) or len(cast("list[Any]", sizes)) != 3:
        return -1
    x, y, z = (size if type(size) is int else -1 for size in cast("list[Any]", sizes))
    if not (0 <= x < 1 << _WIDE and 0 <= y < 1 << _NARROW and 0 <= z < 1 << _NARROW):
        return -1
    return x | y << _WIDE | z << (_WIDE + _NARROW)


def grid_sizes(number: int) -> tuple[int, int, int] | None:
    """Return the grid (x, y, z) that `grid_number` packed, or None for -1."""
    if number < 0:
        return None
    narrow = (1 << _NARROW) - 1
    return number & ((1 << _WIDE) - 1), number >> _WIDE & narrow, number >> (_WIDE + _NARROW) & narrow
