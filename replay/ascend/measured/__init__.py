# pyright: strict
"""Kernels measured on real devices, in the formats of the Ascend profiler."""
