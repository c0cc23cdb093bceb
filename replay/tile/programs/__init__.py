# pyright: strict
"""Programs that ship: examples, tests of the language and what its accuracy is measured with."""

from opreplay.replay.tile.programs.elementwise import add, cast, rope, swiglu
from opreplay.replay.tile.programs.products import conv2d, flash_attention, grouped_matmul, matmul
from opreplay.replay.tile.programs.rows import layer_norm, quantise_rows, rms_norm, softmax, topk, transpose

__all__ = [
    "add",
    "cast",
    "conv2d",
    "flash_attention",
    "grouped_matmul",
    "layer_norm",
    "matmul",
    "quantise_rows",
    "rms_norm",
    "rope",
    "softmax",
    "swiglu",
    "topk",
    "transpose",
]
