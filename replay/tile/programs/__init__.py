# pyright: strict
"""Shipped programs: examples, tests of the language, and programs for measuring the accuracy of the language."""

from opreplay.replay.tile.programs.decode import mla_decode, moe_combine, paged_decode
from opreplay.replay.tile.programs.elementwise import add, cast, gelu, rope, swiglu
from opreplay.replay.tile.programs.products import conv2d, flash_attention, grouped_matmul, matmul, matmul_int4
from opreplay.replay.tile.programs.rows import (
    cross_entropy,
    layer_norm,
    quantise_rows,
    rms_norm,
    rms_norm_backward,
    softmax,
    topk,
    transpose,
)
from opreplay.replay.tile.programs.sequences import causal_conv1d, histogram, prefix_sum

__all__ = [
    "add",
    "cast",
    "causal_conv1d",
    "conv2d",
    "cross_entropy",
    "flash_attention",
    "gelu",
    "grouped_matmul",
    "histogram",
    "layer_norm",
    "matmul",
    "matmul_int4",
    "mla_decode",
    "moe_combine",
    "paged_decode",
    "prefix_sum",
    "quantise_rows",
    "rms_norm",
    "rms_norm_backward",
    "rope",
    "softmax",
    "swiglu",
    "topk",
    "transpose",
]
