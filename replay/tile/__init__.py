# pyright: strict
"""Kernels written with tiles: one Python function gives values, limits and the time on a simulated Ascend device."""

from opreplay.replay.tile.vocabulary import *  # noqa: F403
from opreplay.replay.tile.vocabulary import __all__ as __all__
